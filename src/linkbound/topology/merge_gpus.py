"""Which GPUs of several sources are one GPU, and what they say of it together (M4)."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from linkbound.topology.identifiers import normal_bus_id, same_cpus
from linkbound.topology.settle import Ledger
from linkbound.topology.types import Gpu, Machine, NvLink, PcieLink

_MEMORY_TOLERANCE = 0.01
"""Tools count a GPU's memory with and without what the driver reserves: below 1 % apart."""
_WORD = re.compile(r"[a-z0-9]+")

Group = list[tuple[int, Gpu]]
Sourced = Sequence[tuple[str, Gpu]]


def group_gpus(machines: Sequence[Machine]) -> list[Group]:
    """GPUs that are one, each with the index of its machine; at most one of each machine."""
    groups: list[Group] = []
    for at, machine in enumerate(machines):
        left = list(machine.gpus)
        met = False
        for same in (_same_uuid, _same_bus_id):
            left, some = _join(at, left, groups, same)
            met = met or some
        # Where no id of this source is known elsewhere its ids are another space (a guest and
        # its host): labels are all there is, and the ids then show as a contradiction.
        left, _ = _join(at, left, groups, _same_label if met else _same_label_whatever_id)
        groups += [[(at, gpu)] for gpu in left]
    return groups


def _join(
    at: int, gpus: list[Gpu], groups: list[Group], same: Callable[[Gpu, Gpu], bool]
) -> tuple[list[Gpu], bool]:
    """Puts each GPU into the first group that knows it; those that are left, and if any met."""
    left = []
    for gpu in gpus:
        for group in groups:
            if all(member != at for member, _ in group) and any(same(gpu, b) for _, b in group):
                group.append((at, gpu))
                break
        else:
            left.append(gpu)
    return left, len(left) < len(gpus)


def _same_uuid(a: Gpu, b: Gpu) -> bool:
    return a.uuid is not None and b.uuid is not None and a.uuid.lower() == b.uuid.lower()


def _same_bus_id(a: Gpu, b: Gpu) -> bool:
    return bus_id(a) is not None and bus_id(a) == bus_id(b)


def _same_label(a: Gpu, b: Gpu) -> bool:
    other_id = None not in (bus_id(a), bus_id(b)) or None not in (a.uuid, b.uuid)
    return a.label == b.label and not other_id


def _same_label_whatever_id(a: Gpu, b: Gpu) -> bool:
    return a.label == b.label


def bus_id(gpu: Gpu) -> str | None:
    """The GPU's bus id in the one form in which ids are compared."""
    return None if gpu.bus_id is None else normal_bus_id(gpu.bus_id) or gpu.bus_id


def merge_gpu(claims: Sourced, ledger: Ledger) -> Gpu:
    """What all sources say of one GPU; its parent is left to the caller."""
    label = claims[0][1].label
    known_as = next((bus_id(gpu) or gpu.uuid for _, gpu in claims if bus_id(gpu) or gpu.uuid), "")
    ledger.settle(f"number of {known_as or label}", ((source, gpu.label) for source, gpu in claims))
    uuid = ledger.settle(f"UUID of {label}", ((s, gpu.uuid) for s, gpu in claims), _same_text)
    bus = ledger.settle(f"bus id of {label}", ((s, bus_id(gpu)) for s, gpu in claims))
    return Gpu(
        key=uuid or bus or label,
        label=label,
        uuid=uuid,
        bus_id=bus,
        vendor=ledger.settle(
            f"vendor of {label}", ((s, gpu.vendor) for s, gpu in claims), _same_words
        ),
        model=ledger.settle(
            f"model of {label}", ((s, gpu.model) for s, gpu in claims), _same_words
        ),
        device_id=ledger.settle(
            f"device id of {label}", ((s, gpu.device_id) for s, gpu in claims), _same_device_id
        ),
        memory_bytes=ledger.settle(
            f"memory of {label}", ((s, gpu.memory_bytes) for s, gpu in claims), _same_memory
        ),
        bar1_bytes=ledger.settle(
            f"BAR1 of {label}", ((s, gpu.bar1_bytes) for s, gpu in claims), _same_memory
        ),
        compute_capability=ledger.settle(
            f"compute capability of {label}", ((s, gpu.compute_capability) for s, gpu in claims)
        ),
        numa_node=_numa_node(label, claims, ledger),
        cpu_affinity=ledger.settle(
            f"CPU affinity of {label}", ((s, gpu.cpu_affinity) for s, gpu in claims), same_cpus
        ),
        pcie=_pcie(label, claims, ledger),
        nvlinks=_nvlinks(label, claims, ledger),
        mig=ledger.settle(f"MIG of {label}", ((s, gpu.mig) for s, gpu in claims)),
        facts=_facts(claims),
    )


def _numa_node(label: str, claims: Sourced, ledger: Ledger) -> int | None:
    """A source that printed -1 said that the node is unknown: that disagrees with a number."""
    known = ledger.settle(f"NUMA node of {label}", ((s, gpu.numa_node) for s, gpu in claims))
    unknown = [s for s, gpu in claims if gpu.numa_node is None and "numa_node" in gpu.facts]
    if known is not None and unknown:
        stated = ((s, str(gpu.numa_node)) for s, gpu in claims if gpu.numa_node is not None)
        nothing = ((s, f"{dict(claims)[s].facts['numa_node']} (unknown)") for s in unknown)
        ledger.disagree(f"NUMA node of {label}", (*stated, *nothing))
    return known


def _pcie(label: str, claims: Sourced, ledger: Ledger) -> PcieLink | None:
    """Maxima must agree; what the link runs at now depends on when a tool looked."""
    links = [(s, gpu.pcie) for s, gpu in claims if gpu.pcie is not None]
    if not links:
        return None
    return PcieLink(
        gt_per_s=next((link.gt_per_s for _, link in links if link.gt_per_s is not None), None),
        width=next((link.width for _, link in links if link.width is not None), None),
        max_gt_per_s=ledger.settle(
            f"PCIe maximum GT/s of {label}", ((s, link.max_gt_per_s) for s, link in links)
        ),
        max_width=ledger.settle(
            f"PCIe maximum width of {label}", ((s, link.max_width) for s, link in links)
        ),
    )


def _nvlinks(label: str, claims: Sourced, ledger: Ledger) -> tuple[NvLink, ...]:
    """The first source's links; what another says of all links alike is filled in."""
    lists = [(s, gpu.nvlinks) for s, gpu in claims if gpu.nvlinks]
    if not lists:
        return ()
    ledger.settle(
        f"number of NVLinks of {label}",
        ((s, sum(link.active is not False for link in links)) for s, links in lists),
    )
    merged = list(lists[0][1])
    for _, others in lists[1:]:
        for at, link in enumerate(merged):
            # Link numbers of an XML file are counted, not printed: only what is the same for
            # all links of the other source can be carried over.
            merged[at] = NvLink(
                index=link.index,
                active=link.active if link.active is not None else _common(others, "active"),
                bytes_per_s=link.bytes_per_s or _common(others, "bytes_per_s"),
                remote=link.remote or _common(others, "remote"),
                errors=link.errors,
            )
    return tuple(merged)


def _common(links: Sequence[NvLink], field: str) -> Any:
    values = {getattr(link, field) for link in links}
    return values.pop() if len(values) == 1 else None


def _facts(claims: Sourced) -> dict[str, str]:
    """Each under its own words; a second value of the same name goes by its source."""
    facts: dict[str, str] = {}
    for source, gpu in claims:
        for name, value in gpu.facts.items():
            if facts.setdefault(name, value) != value:
                facts[f"{name} ({source})"] = value
    return facts


def _same_text(a: str, b: str) -> bool:
    return a.lower() == b.lower()


def _same_words(a: str, b: str) -> bool:
    """`GA102 [GeForce RTX 3090]` and `NVIDIA GeForce RTX 3090` name one product."""
    ours, theirs = (set(_WORD.findall(text.lower())) - {"nvidia", "amd"} for text in (a, b))
    return ours <= theirs or theirs <= ours


def _same_device_id(a: str, b: str) -> bool:
    return a.lower()[-4:] == b.lower()[-4:]


def _same_memory(a: int, b: int) -> bool:
    return abs(a - b) <= _MEMORY_TOLERANCE * max(a, b)
