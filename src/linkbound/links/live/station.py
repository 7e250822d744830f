"""What a child measures with, and how a cell becomes a row (L1-L3, L6)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from linkbound.evidence.types import Reason
from linkbound.links.live.bench import Bench, Task
from linkbound.links.live.buffers import Buffers
from linkbound.links.live.cell import Cell, CellKind
from linkbound.links.live.faults import NO_VALID_SAMPLE
from linkbound.links.live.rows import HOST, Direction, Flag, LinkRow
from linkbound.links.live.sampling import Rule, sample
from linkbound.links.live.state import State
from linkbound.links.live.tasks import METHODS, Ends, Method, copy_task
from linkbound.links.live.verify import Checker
from linkbound.links.types import Arm, Operation

_WARM_BYTES = 1024**2
_WARM_CALLS = 4
"""Behind the gate before small copies: the engine wakes up in these, not in the sample."""


@dataclass(frozen=True)
class Station:
    """The parts of one child."""

    bench: Bench
    buffers: Buffers
    checker: Checker
    state: State
    arm: Arm
    rule: Rule

    def ends(self, cell: Cell, *, reverse: bool = False, lane: int = 0) -> Ends:
        """The copy of a cell, or the one the other way."""
        assert cell.method is not None
        src, dst = (cell.dst, cell.src) if reverse else (cell.src, cell.dst)
        method = cell.method
        if reverse and method in (Method.H2D, Method.D2H):
            method = Method.D2H if method is Method.H2D else Method.H2D
        return self.copy(method, src, dst, cell.size_bytes, lane=lane, node=cell.node)

    def copy(
        self,
        method: Method,
        src: str,
        dst: str,
        size_bytes: int,
        *,
        lane: int = 0,
        node: int | None = None,
    ) -> Ends:
        """A copy between labels; either may be the host."""
        return copy_task(
            self.bench,
            self.buffers,
            method,
            None if src == HOST else self.bench.ordinal(src),
            None if dst == HOST else self.bench.ordinal(dst),
            size_bytes,
            lane=lane,
            node=node,
        )

    def row(self, cell: Cell, **fields: Any) -> LinkRow:
        """A row with the dimensions of the cell; `fields` replace them."""
        return structs.replace(empty_row(cell, self.arm), **fields)

    def sampled(self, cell: Cell, take: Callable[[], float | None]) -> dict[str, Any]:
        """Samples of a cell with the flags that they earned, as fields of a row."""
        before = self._slowing(cell)
        timeouts = self.bench.gate_timeouts
        found = sample(take, self.rule)
        flags = []
        if before or self._slowing(cell):
            flags.append(Flag.THROTTLED)
        if not found.steady:
            flags.append(Flag.UNSTEADY)
        if self.bench.gate_timeouts > timeouts:
            flags.append(Flag.GATE_TIMEOUT)
        fields: dict[str, Any] = {"samples_s": found.samples_s, "flags": tuple(flags)}
        if not found.samples_s:
            text = "No sample was valid: gates ended by their own limit, or times were no numbers."
            fields["reason"] = Reason(code=NO_VALID_SAMPLE, text=text)
        return fields

    def timed(self, cell: Cell, task: Task, calls: int = 1) -> dict[str, Any]:
        """Seconds of one call of a task, as fields of a row."""
        warm_up = _WARM_CALLS if task.size_bytes <= _WARM_BYTES else 0

        def take() -> float | None:
            times = self.bench.time([task], [calls], warm_up=warm_up)
            return None if times is None else times.members_s[0] / calls

        fields = self.sampled(cell, take)
        if self._fits_cache(cell):
            fields["flags"] = (*fields["flags"], Flag.CACHED)
        timer = "gate+events" if task.gated else "events"
        return {**fields, "calls": calls, "timer": timer}

    def counters(self, cell: Cell) -> dict[str, int]:
        """The byte counters of the cell's GPUs, by label."""
        return {
            f"{label} {name}": count
            for label in self._gpus(cell)
            for name, count in self.state.counters(self.bench.facts[label].uuid).items()
        }

    def pcie_bytes_per_s(self, cell: Cell) -> dict[str, int]:
        return {
            f"{label} {name}_bytes_per_s": rate
            for label in self._gpus(cell)
            for name, rate in self.state.pcie_bytes_per_s(self.bench.facts[label].uuid).items()
        }

    def readings(self, cell: Cell) -> dict[str, str]:
        """Clocks, temperature, power and PCIe link of the cell's GPUs, by label."""
        return {
            f"{label} {name}": value
            for label in self._gpus(cell)
            for name, value in self.state.readings(self.bench.facts[label].uuid).items()
        }

    def _fits_cache(self, cell: Cell) -> bool:
        """Whether both ends of a copy stay in the L2 of their GPU from call to call."""
        caches = [self.bench.facts[label].l2_bytes for label in self._gpus(cell)]
        return cell.size_bytes <= min(caches)

    def _slowing(self, cell: Cell) -> Mapping[str, tuple[str, ...]]:
        found = {gpu: self.state.slowing(self.bench.facts[gpu].uuid) for gpu in self._gpus(cell)}
        return {gpu: words for gpu, words in found.items() if words}

    def _gpus(self, cell: Cell) -> tuple[str, ...]:
        return tuple(label for label in (cell.src, cell.dst) if label != HOST)


def operation_of(src: str, dst: str) -> Operation:
    """What moving bytes between two places is called."""
    if src == HOST:
        return Operation.HOST_TO_DEVICE
    return Operation.DEVICE_TO_HOST if dst == HOST else Operation.COPY


def empty_row(cell: Cell, arm: Arm) -> LinkRow:
    """A row with the dimensions of a cell of this arm, and nothing measured."""
    about = METHODS[cell.method] if cell.method is not None else None
    return LinkRow(
        operation=operation_of(cell.src, cell.dst),
        implementation=about.implementation if about else "sm",
        method=str(cell.method) if cell.method is not None else cell.kind.value,
        group=(cell.src, cell.dst),
        arm=about.arm if about else arm,
        size_bytes=cell.size_bytes,
        numa_node=cell.node,
    )


def without_figure(cell: Cell, arm: Arm, code: str, text: str) -> LinkRow:
    """A row that says why there is no figure."""
    both = cell.kind is CellKind.BOTH_WAYS
    return structs.replace(
        empty_row(cell, arm),
        direction=Direction.BOTH_WAYS if both else Direction.ONE_WAY,
        concurrency=cell.name or "alone",
        pieces=cell.pieces,
        reason=Reason(code=code, text=text),
    )
