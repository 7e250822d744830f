"""What a rank sends in one step, call by call, as the runtime issues it (P1, S2).

On a CPU the same calls are also a timeline: there every call returns when it is done.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator

from linkbound.links.types import Operation
from linkbound.profile.types import Call, Interval, KernelClass, StepSpan, Timeline

_Key = tuple[str, Operation, str, tuple[int, ...], int]


class Ledger:
    """Counts calls while it is open; with `clock`, times them and the work between."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._counting = False
        self._clock = False
        self._counts: Counter[_Key] = Counter()
        self._intervals: list[Interval] = []
        self._starts: list[float] = []
        self._compute_from: float | None = None

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count the calls of what is issued here, anew."""
        self._counts.clear()
        self._counting = True
        try:
            yield
        finally:
            self._counting = False

    @contextlib.contextmanager
    def timing(self) -> Iterator[None]:
        """Time calls by the host's clock, anew: only where each returns when it is done."""
        self._intervals.clear()
        self._starts.clear()
        self._clock = True
        try:
            yield
        finally:
            self._clock = False

    @property
    def calls(self) -> tuple[Call, ...]:
        """What was counted last."""
        return tuple(
            Call(
                kind=kind,
                operation=operation,
                implementation=implementation,
                ranks=ranks,
                size_bytes=size_bytes,
                count=count,
            )
            for (kind, operation, implementation, ranks, size_bytes), count in self._counts.items()
        )

    @contextlib.contextmanager
    def call(
        self,
        kind: str,
        operation: Operation,
        implementation: str,
        ranks: tuple[int, ...],
        size_bytes: int,
    ) -> Iterator[None]:
        """Around one call."""
        if self._counting:
            self._counts[kind, operation, implementation, ranks, size_bytes] += 1
        if not self._clock:
            yield
            return
        start_s = time.perf_counter()
        self._close_compute(start_s)
        yield
        end_s = time.perf_counter()
        self._intervals.append(
            Interval(
                kernel=KernelClass.NCCL,
                start_s=start_s,
                end_s=end_s,
                name=f"{implementation} {operation.value}",
                operation=operation.value,
                ranks=tuple(sorted(ranks)),
                size_bytes=size_bytes,
            )
        )
        self._compute_from = end_s

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Around one step."""
        if self._clock:
            self._compute_from = time.perf_counter()
            self._starts.append(self._compute_from)
        yield
        if self._clock:
            self._close_compute(time.perf_counter())
            self._compute_from = None

    def timeline(self) -> Timeline:
        """The steps that were timed last."""
        ends = [*self._starts[1:], self._intervals[-1].end_s if self._intervals else 0.0]
        return Timeline(
            rank=self.rank,
            steps=tuple(
                StepSpan(index=index, name=f"step {index}", start_s=start_s, end_s=end_s)
                for index, (start_s, end_s) in enumerate(zip(self._starts, ends, strict=True))
            ),
            intervals=tuple(self._intervals),
            source="host clock",
        )

    def _close_compute(self, end_s: float) -> None:
        if self._compute_from is not None:
            self._intervals.append(
                Interval(kernel=KernelClass.COMPUTE, start_s=self._compute_from, end_s=end_s)
            )
