"""NCCL and RCCL: which transport, which version, what ended the run (P3, M3)."""

import re
from collections.abc import Iterator

from linkbound.doctor.types import Facts, Message
from linkbound.doctor.vocabulary import by_source, listed, seen, suspected
from linkbound.evidence.types import Finding
from linkbound.links.log_types import NcclLog, Transport, TransportKind

_CODES = {
    TransportKind.P2P: "transport-direct",
    TransportKind.SHM: "transport-shm",
    TransportKind.NET: "transport-net",
}
_NEEDS = (
    (re.compile(r"\bRTX 50\d\d\b|\bRTX PRO \d+ Blackwell\b"), (2, 26), "Blackwell RTX"),
    (re.compile(r"\b(?:GB|B)[23]00\b"), (2, 25), "Blackwell"),
    (re.compile(r"\bH[12]00\b|\bH20\b|\bL40S?\b|\bRTX 40\d\d\b"), (2, 14), "Hopper or Ada"),
)
_WSL_NEEDS = (2, 10)
_NAMED_ELSEWHERE = ("not_ready", "nvls_error", "shm_full", "peer_refused")
"""Errors that have a finding of their own."""


def transports(facts: Facts) -> Iterator[Finding]:
    """Over what the channels of each log run."""
    for log in facts.logs:
        for kind, code in _CODES.items():
            found = [one for one in log.transports if one.kind is kind]
            if found:
                yield seen(code, f"{_pairs(found)} ({log.source}).")
        slow = [
            one
            for one in log.transports
            if one.kind is TransportKind.NET and one.gdr is False and one.detail.startswith("IB")
        ]
        if slow:
            yield seen("net-no-gdr", f"{_pairs(slow)} without /GDRDMA ({log.source}).")


def _pairs(found: list[Transport]) -> str:
    return listed(
        (f"{one.src_rank}->{one.dst_rank} via {one.kind}/{one.detail[:40]}" for one in found), 4
    )


def network_suspected(facts: Facts) -> Iterator[Finding]:
    """Ranks on different hosts, and no channel line that shows the network."""
    if any(log.transports for log in facts.logs):
        return
    for run in facts.runs:
        hosts = sorted({device.host for device in run.devices})
        if len(hosts) > 1:
            text = f"Ranks on {listed(hosts)} and no channel line ({run.source})."
            yield suspected("transport-net", text)


def messages(facts: Facts) -> Iterator[Finding]:
    """Errors and warnings with one meaning."""
    for kind, code in (("smem_limit", "nccl-too-old"), ("path_fallback", "nccl-path-fallback")):
        found = _of(facts, kind)
        if found:
            yield seen(code, _quoted(found))
    named = {one.place for kind in _NAMED_ELSEWHERE for one in _of(facts, kind)}
    crashes = [one for one in _of(facts, "crash") if one.place not in named]
    if crashes and not _of(facts, "smem_limit"):
        yield seen("collective-crash", _quoted(crashes))


def _of(facts: Facts, kind: str) -> list[Message]:
    return [message for message in facts.messages if message.kind == kind]


def _quoted(found: list[Message]) -> str:
    return f"{found[0].text} ({by_source(message.place for message in found)})."


def versions(facts: Facts) -> Iterator[Finding]:
    """A version below what the named GPU or platform needs."""
    for log in facts.logs:
        version = _version(log)
        if version is None or log.library != "nccl":
            continue
        for pattern, least, what in _NEEDS:
            names = [name for name in _names(facts, log.source) if pattern.search(name)]
            if names and version < least:
                text = f"NCCL {log.version} on {listed(names, 2)}; {what} needs "
                yield seen("nccl-too-old", f"{text}{least[0]}.{least[1]} ({log.source}).")
                break
        if version < _WSL_NEEDS and (_of(facts, "wsl") or _of(facts, "no_sysfs")):
            text = f"NCCL {log.version} without a PCI tree in /sys ({log.source})"
            yield suspected("nccl-too-old", f"{text}: WSL needs 2.10.")


def _version(log: NcclLog) -> tuple[int, int] | None:
    found = re.match(r"(\d{1,3})\.(\d{1,3})", log.version or "")
    return (int(found[1]), int(found[2])) if found else None


def _names(facts: Facts, source: str) -> list[str]:
    """GPU names that the log's own file gives, else those of all inputs."""
    runs = [run for run in facts.runs if run.source == source] or list(facts.runs)
    names = [device.name for run in runs for device in run.devices]
    if names:
        return names
    text = next((text.text for text in facts.texts if text.source == source), "")
    named = re.findall(r"^#\s+Rank +\d+ .{0,120}\] +(\S.{0,60})$", text[: 1 << 20], re.MULTILINE)
    machines = [gpu.model for machine in facts.machines for gpu in machine.gpus if gpu.model]
    return named or machines
