"""`nvidia-smi nvlink` with `--status`, `-c` (capabilities) or `-R` (far ends): links per GPU (M1).

An inactive link stays in the list: whether it should be up is a finding's business.
"""

import re
from collections.abc import Iterable, Mapping

from msgspec import structs

from linkbound.errors import InputError
from linkbound.topology.pci import (
    far_end_bus_id,
    identifying_uuid,
    refuse_too_long,
)
from linkbound.topology.types import Gpu, Machine, NvLink

_GPU = re.compile(r"^\s*GPU (\d{1,3}): (.{1,100}?)(?: \(UUID: (GPU-[0-9a-fA-F-]{1,60})\))?\s*$")
_LINK = re.compile(r"^\s*Link (\d{1,2})(?:: |, )(.*?)\s*$")
_RATE = re.compile(r"^(\d{1,5}(?:\.\d{1,6})?) GB/s$")
_CAPABILITY = re.compile(r"^([A-Za-z0-9 ]{1,60}): (true|false)$")
_REMOTE = re.compile(
    r"^(?:Remote Device )?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\b"
)
_NONE_AT_ALL = re.compile(
    r"NVLink.{0,40}(?:not supported|unsupported)|all links are inactive", re.I
)
_INACTIVE = "<inactive>"

Links = dict[int, dict[str, str]]


def parse_nvlink_status(text: str, source: str) -> Machine:
    """GPUs with their NVLinks, rates in bytes/s of one direction. Raises InputError without any."""
    refuse_too_long(text, source)
    gpus: list[Gpu] = []
    notes: list[str] = []
    links: Links = {}
    for line in text.splitlines():
        heading = _GPU.match(line)
        link = _LINK.match(line)
        if heading:
            _finish(gpus, links)
            gpus.append(_gpu(heading))
            links = {}
        elif link and gpus:
            links.setdefault(int(link.group(1)), {}).update(_said(link.group(2)))
        elif gpus and _NONE_AT_ALL.search(line):
            notes.append(f"{source}: {gpus[-1].label} has no active NVLink: {line.strip()[:120]}")
    if not gpus:
        raise InputError(
            f"{source}: no GPU of `nvidia-smi nvlink` in it.",
            why="Each GPU's links stand below a line `GPU 0: <name> (UUID: ...)`.",
            hint="Write the file with `nvidia-smi nvlink --status`.",
        )
    _finish(gpus, links)
    return Machine(sources=(source,), gpus=_distinct(gpus), notes=tuple(notes))


def _gpu(heading: re.Match[str]) -> Gpu:
    index, name, printed = heading.groups()
    uuid = identifying_uuid(printed or "")
    label = f"GPU{index}"
    return Gpu(key=uuid or label, label=label, uuid=uuid, vendor="NVIDIA", model=name)


def _said(text: str) -> dict[str, str]:
    """What one line says of a link, under the name of the column it belongs to."""
    capability = _CAPABILITY.match(text)
    if capability:
        return {capability.group(1): capability.group(2)}
    remote = _REMOTE.match(text)
    if remote:
        return {"remote": remote.group(1)}
    return {"state": text}


def _finish(gpus: list[Gpu], links: Links) -> None:
    """Puts the collected links into the last GPU."""
    if not gpus or not links:
        return
    gpus[-1] = structs.replace(
        gpus[-1],
        nvlinks=tuple(_link(index, links[index]) for index in sorted(links)),
        facts=_capabilities(links),
    )


def _link(index: int, said: Mapping[str, str]) -> NvLink:
    state = said.get("state", "")
    rate = _RATE.match(state)
    remote = far_end_bus_id(said["remote"]) if "remote" in said else None
    return NvLink(
        index=index,
        active=True if rate else False if state == _INACTIVE else None,
        bytes_per_s=float(rate.group(1)) * 1e9 if rate else None,
        remote=remote,
    )


def _capabilities(links: Links) -> dict[str, str]:
    """Each capability: the one answer of all links, or the links that say false."""
    answers: dict[str, dict[int, str]] = {}
    for index, said in sorted(links.items()):
        for name, value in said.items():
            if value in ("true", "false"):
                answers.setdefault(name, {})[index] = value
    return {name: _summary(by_link) for name, by_link in answers.items()}


def _summary(by_link: Mapping[int, str]) -> str:
    values = set(by_link.values())
    if len(values) == 1:
        return values.pop()
    refused = ", ".join(str(index) for index, value in by_link.items() if value == "false")
    return f"true, but false on links {refused}"


def _distinct(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """One GPU a label: `--status` and `-c` in one file tell of the same GPUs twice."""
    merged: dict[str, Gpu] = {}
    for gpu in gpus:
        known = merged.get(gpu.key)
        merged[gpu.key] = _joined(known, gpu) if known else gpu
    return tuple(merged.values())


def _joined(first: Gpu, second: Gpu) -> Gpu:
    links = {link.index: link for link in first.nvlinks}
    for link in second.nvlinks:
        known = links.get(link.index, link)
        links[link.index] = NvLink(
            index=link.index,
            active=link.active if known.active is None else known.active,
            bytes_per_s=link.bytes_per_s if known.bytes_per_s is None else known.bytes_per_s,
            remote=known.remote or link.remote,
        )
    return structs.replace(
        first,
        nvlinks=tuple(links[index] for index in sorted(links)),
        facts={**first.facts, **second.facts},
    )
