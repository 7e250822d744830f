"""Bytes that passed the ports of GPUs while something ran, and while nothing did (P3, P1).

Values and arithmetic only; links/live/meter.py fills them from the hardware's counters.
"""

from collections.abc import Collection, Mapping

import msgspec

from linkbound.values import Value

READ_REQUEST_SHARE = 0.0885
"""PCIe bytes that a GPU sends to ask for each byte it receives from memory of the host.

H200, driver 580: 128.3e6 sent for 1,449.6e6 received (recorded/h200-pair/links.jsonl,
`driver_push`).
"""
PCIE_OVERHEAD = (1.08, 1.28)
"""PCIe's counters over the payload: by copies of packets of 256 bytes, by kernels of 128.

Copies, the same rows: 1.080 received, 1.096 sent. NCCL's kernels write 128 bytes with 24 of header
(1.1875), answers carry 20 (1.156), and each 128 bytes read are asked for in 24, of which
`READ_REQUEST_SHARE` takes off about half: 1.1875 + 0.1875 - 0.0885 x 1.156 = 1.273. Seen on H200:
of 13.087 GB each way 18.00 sent, 15.14 received, thus 33.319 GB for 26.173 (NCCL 2.28.9 over shared
memory, prefill of 8,192 tokens by vLLM 0.24.0, Simple).
"""


class LinkBytes(Value, frozen=True, kw_only=True):
    """Bytes of one NVLink of a GPU."""

    link: int
    sent_bytes: int
    received_bytes: int


class GpuBytes(Value, frozen=True, kw_only=True):
    """Bytes that passed a GPU's ports; None where its counter cannot be read."""

    gpu: str
    """`GPU0`: NVML's index."""
    uuid: str | None = None
    nvlink_sent_bytes: int | None = None
    nvlink_received_bytes: int | None = None
    pcie_sent_bytes: int | None = None
    pcie_received_bytes: int | None = None
    """PCIe counts headers and read requests too: see `PCIE_OVERHEAD`, `READ_REQUEST_SHARE`."""
    links: tuple[LinkBytes, ...] = ()
    """Each NVLink by itself; they add up to the sums above."""


class Traffic(Value, frozen=True, kw_only=True):
    """What passed in one window, with what passes while nothing runs."""

    source: str
    """Whose counters: `NVML`."""
    duration_s: float
    moved: tuple[GpuBytes, ...]
    idle_duration_s: float | None = None
    """None: no baseline was taken, nothing is taken off."""
    idle: tuple[GpuBytes, ...] = ()
    readings: int = 0
    """Times at which PCIe's counters were read inside the window, its ends included."""
    blind_gaps: int = 0
    """Gaps between readings in which a full link would wrap PCIe's counters unseen.

    Above 0, what PCIe shows is the least that passed.
    """
    silent: Mapping[str, str] = {}
    """Which counter of which GPU gave no answer, and the driver's reason."""


class GpuFlow(Value, frozen=True, kw_only=True):
    """What passed a GPU beyond idle traffic, in bytes; None where it is not known."""

    gpu: str
    nvlink_sent_bytes: float | None
    nvlink_received_bytes: float | None
    host_sent_bytes: float | None
    """Over PCIe, without the requests for what it received."""
    host_received_bytes: float | None


def growth(before: GpuBytes, after: GpuBytes) -> GpuBytes:
    """What passed between two readings of one GPU.

    A counter that went back was reset meanwhile: what passed is unknown, not negative.
    """
    old = {one.link: one for one in before.links}
    links = tuple(
        LinkBytes(link=one.link, sent_bytes=sent, received_bytes=received)
        for one in after.links
        if one.link in old
        and (sent := _passed(old[one.link].sent_bytes, one.sent_bytes)) is not None
        and (received := _passed(old[one.link].received_bytes, one.received_bytes)) is not None
    )
    return GpuBytes(
        gpu=after.gpu,
        uuid=after.uuid,
        nvlink_sent_bytes=_passed(before.nvlink_sent_bytes, after.nvlink_sent_bytes),
        nvlink_received_bytes=_passed(before.nvlink_received_bytes, after.nvlink_received_bytes),
        pcie_sent_bytes=_passed(before.pcie_sent_bytes, after.pcie_sent_bytes),
        pcie_received_bytes=_passed(before.pcie_received_bytes, after.pcie_received_bytes),
        links=links,
    )


def _passed(old: int | None, new: int | None) -> int | None:
    return None if old is None or new is None or new < old else new - old


def flows(traffic: Traffic) -> tuple[GpuFlow, ...]:
    """Each GPU's bytes of the window beyond the idle rate, never below zero."""
    idle = {one.gpu: one for one in traffic.idle}
    return tuple(_flow(traffic, one, idle.get(one.gpu)) for one in traffic.moved)


def _flow(traffic: Traffic, moved: GpuBytes, idle: GpuBytes | None) -> GpuFlow:
    share = traffic.duration_s / traffic.idle_duration_s if traffic.idle_duration_s else 0.0

    def beyond(name: str) -> float | None:
        passed: int | None = getattr(moved, name)
        rest: int | None = None if idle is None else getattr(idle, name)
        return None if passed is None else max(0.0, passed - (rest or 0) * share)

    sent, received = beyond("pcie_sent_bytes"), beyond("pcie_received_bytes")
    return GpuFlow(
        gpu=moved.gpu,
        nvlink_sent_bytes=beyond("nvlink_sent_bytes"),
        nvlink_received_bytes=beyond("nvlink_received_bytes"),
        host_sent_bytes=None
        if sent is None
        else max(0.0, sent - READ_REQUEST_SHARE * (received or 0.0)),
        host_received_bytes=received,
    )


def total(traffic: Traffic, name: str) -> float | None:
    """A field of `GpuFlow` over all GPUs of the window; None where one of them is not known."""
    values = [getattr(one, name) for one in flows(traffic)]
    return None if not values or None in values else float(sum(values))


def of_gpus(traffic: Traffic, gpus: Collection[str]) -> Traffic:
    """The same window, of the GPUs named alone."""
    return msgspec.structs.replace(
        traffic,
        moved=tuple(one for one in traffic.moved if one.gpu in gpus),
        idle=tuple(one for one in traffic.idle if one.gpu in gpus),
    )
