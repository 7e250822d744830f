"""What byte counters say of the path of a load: direct, staged, or why they cannot tell (P3).

A counter is a fact; what it is a fact of depends on what else moved data in the same window.
"""

from itertools import permutations

from linkbound.links.traffic import GpuFlow, Traffic, flows, total
from linkbound.serve.path_types import PathAnswer, Witness, WitnessKind

# Below this, housekeeping of driver and engine is most of what passes.
LEAST_TELLING_BYTES = 16 * 1024 * 1024
# Share of the expected bytes that must have passed: decode is expected within 25 %.
LEAST_SHARE = 0.5
# Part of the traffic that may pass the link although the data does not: control, polling.
STRAY_SHARE = 0.05


def counter_witness(traffic: Traffic, expected_bytes: float | None = None) -> Witness:
    """What the counters show, idle traffic taken off.

    `expected_bytes`: the least that the crossings send from all GPUs together; None: not known.
    """
    answer, why = _answer(traffic, expected_bytes)
    return Witness(kind=WitnessKind.COUNTERS, source=traffic.source, answer=answer, why=why)


def _answer(traffic: Traffic, expected: float | None) -> tuple[PathAnswer, str]:
    nvlink = total(traffic, "nvlink_sent_bytes")
    host = total(traffic, "host_sent_bytes")
    if nvlink is None:
        return PathAnswer.UNKNOWN, _no_link_counter(traffic)
    shown = f"NVLink carried {_mb(nvlink)}, {_host(traffic, host)}"
    if expected is not None:
        return _against_expectation(shown, nvlink, host, expected)
    if max(nvlink, host or 0.0) < LEAST_TELLING_BYTES:
        return PathAnswer.UNKNOWN, f"{shown}: too little to tell from housekeeping."
    if host is None or nvlink >= host:
        return PathAnswer.DIRECT, f"{shown}."
    if nvlink > STRAY_SHARE * host:
        return PathAnswer.MIXED, f"{shown}: both carried data."
    if _through_host(flows(traffic)) < LEAST_TELLING_BYTES:
        return PathAnswer.UNKNOWN, f"{shown}: nothing that left a GPU came to another one."
    return PathAnswer.STAGED, f"{shown}: the link was idle while data went to the host."


def _no_link_counter(traffic: Traffic) -> str:
    reasons = "; ".join(
        why if name == traffic.source else f"{name}: {why}" for name, why in traffic.silent.items()
    )
    if not traffic.moved:
        return reasons or f"{traffic.source} shows no GPU."
    if all(one.pcie_sent_bytes is None for one in traffic.moved):
        return f"No byte counter could be read ({reasons or 'no reason given'})."
    return (
        f"No NVLink counter could be read ({reasons or 'some GPUs have none'}). PCIe counters "
        "alone cannot tell: direct or through the host, the sender sends and the receiver "
        "receives the same bytes."
    )


def _against_expectation(
    shown: str, nvlink: float, host: float | None, expected: float
) -> tuple[PathAnswer, str]:
    shown = f"{shown}, expected {_mb(expected)} or more"
    if expected < LEAST_TELLING_BYTES:
        return PathAnswer.UNKNOWN, f"{shown}: too little to tell from housekeeping."
    if nvlink >= LEAST_SHARE * expected:
        return PathAnswer.DIRECT, f"{shown}."
    if nvlink > STRAY_SHARE * expected:
        return PathAnswer.MIXED, f"{shown}: part of it passed the link."
    if host is None:
        return (
            PathAnswer.UNKNOWN,
            f"{shown}: the link did not carry it, and no counter says what did.",
        )
    if host >= LEAST_SHARE * expected:
        return PathAnswer.STAGED, f"{shown}: the link was idle while data went to the host."
    return PathAnswer.UNKNOWN, f"{shown}: neither the link nor PCIe carried it."


def _through_host(gpus: tuple[GpuFlow, ...]) -> float:
    """The most that one GPU sent to the host and another one received from there."""
    return max(
        (
            min(src.host_sent_bytes or 0.0, dst.host_received_bytes or 0.0)
            for src, dst in permutations(gpus, 2)
        ),
        default=0.0,
    )


def _host(traffic: Traffic, host: float | None) -> str:
    if host is None:
        return "PCIe unknown"
    least = "at least " if traffic.blind_gaps else ""
    return f"the host got {least}{_mb(host)}"


def _mb(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"
