"""What the doctor reads out of its inputs, and its diagnosis (M3).

Facts carry the place they were read at; rules turn facts into findings and read no text.
"""

from collections.abc import Mapping
from enum import StrEnum

from linkbound.evidence.types import Finding
from linkbound.links.log_types import NcclLog
from linkbound.links.types import NcclTestsRun, PairLatency, PairRate, PeerAccess
from linkbound.topology.types import Machine
from linkbound.values import Value


class Symptom(StrEnum):
    """What the user noticed; it allows suspicions, it proves nothing."""

    HANG = "hang"
    CORRUPT = "corrupt"
    SLOW = "slow"


class Place(Value, frozen=True, kw_only=True):
    """Where a fact stands: `dmesg.txt:12`."""

    source: str
    line: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


class Text(Value, frozen=True, kw_only=True):
    """An input as text."""

    source: str
    text: str


class KernelArguments(Value, frozen=True, kw_only=True):
    """A kernel command line, in use or only configured (a boot loader's file)."""

    place: Place
    words: tuple[str, ...]
    in_use: bool


class DmaFault(Value, frozen=True, kw_only=True):
    """An access that the IOMMU refused."""

    place: Place
    device: str
    """Bus id with domain."""
    driver: str | None
    unit: str
    """`AMD-Vi` or `DMAR`."""


class LimitedLink(Value, frozen=True, kw_only=True):
    """The kernel's line that a device gets less than it could: transfer rates in GT/s."""

    place: Place
    device: str
    driver: str | None
    at: str
    """Bus id of the port whose link limits."""
    gt_per_s: float
    width: int
    capable_gt_per_s: float
    capable_width: int


class PciLine(Value, frozen=True, kw_only=True):
    """A function that the kernel listed at boot."""

    place: Place
    bus_id: str
    device_id: str
    class_code: int
    """Base class and subclass: 0x0300 is a display controller."""


class AcsPort(Value, frozen=True, kw_only=True):
    """One `ACSCtl` line of lspci."""

    place: Place
    bus_id: str | None
    """None in an excerpt without headings."""
    redirects: bool
    above_gpu: bool | None
    """None where the listing does not show what is below this port."""


class Message(Value, frozen=True, kw_only=True):
    """A line whose wording is known; `kind` names the row of the table in parse_messages."""

    place: Place
    kind: str
    text: str


class Registry(Value, frozen=True, kw_only=True):
    """A key of the NVIDIA driver's registry, set in module options."""

    place: Place
    key: str
    value: str


class PeerCheck(Value, frozen=True, kw_only=True):
    """Peer memory compared at its destination."""

    place: Place
    pair: str
    """`0 -> 1`, or the program's words where it names no pair."""
    correct: bool
    text: str


class LinkRow(Value, frozen=True, kw_only=True):
    """A GPU's PCIe link in `nvidia-smi --query-gpu`: generations and lanes."""

    place: Place
    gpu: str
    model: str | None
    generation: int | None
    max_generation: int | None
    width: int | None
    max_width: int | None
    busy: bool | None
    """Whether utilisation or performance state say that it was read under load."""


class Switch(StrEnum):
    """Whether a matrix was taken with peer access: what its title says."""

    ENABLED = "enabled"
    DISABLED = "disabled"
    UNKNOWN = "unknown"


class RateMatrix(Value, frozen=True, kw_only=True):
    """Bandwidths between all GPUs, by one method."""

    source: str
    name: str
    switch: Switch
    both_ways: bool | None
    """None where no title says."""
    rates: tuple[PairRate, ...]

    @property
    def cells(self) -> dict[tuple[str, str], float]:
        """Bytes a second by (src, dst)."""
        return {(rate.src, rate.dst): rate.bytes_per_s for rate in self.rates}

    @property
    def gpus(self) -> tuple[str, ...]:
        """Labels, in the order of the matrix."""
        return tuple(dict.fromkeys(label for rate in self.rates for label in (rate.src, rate.dst)))


class Environment(Value, frozen=True, kw_only=True):
    """What a process of this host meets: live only."""

    variables: Mapping[str, str]
    shm_bytes: int | None
    """Size of /dev/shm; None where there is none or it cannot be read."""
    command_line: str | None = None
    """The kernel's arguments; None where /proc does not show them."""


class NvbandwidthDevices(Value, frozen=True, kw_only=True):
    """How many GPUs a run of nvbandwidth had, and what it waived between them."""

    source: str
    count: int
    waived: tuple[str, ...]


class Facts(Value, frozen=True, kw_only=True):
    """Everything that the inputs say, one entry a place."""

    symptom: Symptom | None = None
    texts: tuple[Text, ...] = ()
    machines: tuple[Machine, ...] = ()
    logs: tuple[NcclLog, ...] = ()
    runs: tuple[NcclTestsRun, ...] = ()
    matrices: tuple[RateMatrix, ...] = ()
    rates: tuple[tuple[str, PairRate], ...] = ()
    """Rates outside matrices (host links, all to one), with their source."""
    latencies: tuple[tuple[str, PairLatency], ...] = ()
    access: tuple[tuple[str, PeerAccess], ...] = ()
    nvbandwidth: tuple[NvbandwidthDevices, ...] = ()
    kernel_arguments: tuple[KernelArguments, ...] = ()
    dma_faults: tuple[DmaFault, ...] = ()
    limited_links: tuple[LimitedLink, ...] = ()
    pci_lines: tuple[PciLine, ...] = ()
    acs: tuple[AcsPort, ...] = ()
    messages: tuple[Message, ...] = ()
    registry: tuple[Registry, ...] = ()
    peer_checks: tuple[PeerCheck, ...] = ()
    link_rows: tuple[LinkRow, ...] = ()
    bar1: tuple[tuple[str, int], ...] = ()
    """BAR 1 sizes in bytes of excerpts that name no device, with their source."""
    gaps: tuple[Message, ...] = ()
    """Where an input ends before it is complete."""
    contradictions: tuple[Message, ...] = ()
    """Where a table contradicts itself."""
    environment: Environment | None = None


class ReadInput(Value, frozen=True, kw_only=True):
    """An input that was understood, and as what."""

    name: str
    kinds: tuple[str, ...]


class UnreadInput(Value, frozen=True, kw_only=True):
    """An input that was not understood, and why."""

    name: str
    reason: str


class Diagnosis(Value, frozen=True, kw_only=True):
    """What was found, in what, and what could not be read."""

    symptom: Symptom | None
    findings: tuple[Finding, ...]
    read: tuple[ReadInput, ...]
    unread: tuple[UnreadInput, ...]
    remarks: tuple[str, ...] = ()
    """Where an input contradicts the symptom, and what could not be looked at."""
