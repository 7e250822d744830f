"""A profile as the cells of a table and the sentences below it (P1, D2)."""

from collections.abc import Iterator, Sequence

from linkbound.evidence.types import Finding
from linkbound.profile import control
from linkbound.profile.decompose import ClockOffset, Parts, RankStep
from linkbound.profile.effects import Effect, sentence
from linkbound.profile.shards import ShardCheck
from linkbound.profile.summary import Row
from linkbound.profile.types import Device, Timeline
from linkbound.units import format_rate, format_significant, format_time

HEADER = (
    "split",
    "arm",
    "point",
    "step",
    "repeats",
    "compute",
    "wire",
    "waiting",
    "gap",
    "instrument",
    "unexplained",
    "tokens/s",
    "bus",
)
NONE = "-"
INSTRUMENT_SHOWN = 0.1
"""Of a step: parts of one that took longer by more while it was traced are worth a sentence."""
DRIFT_SHOWN = 0.05
"""A repeat that differs by more is worth a sentence: short tests differ by 5 to 10 %."""


def cells(row: Row) -> tuple[str, ...]:
    """One line: times of a step, its parts, and rates."""
    name = row.split.name if row.alone is None else f"{row.split.name} rank {row.alone} alone"
    return (
        name,
        NONE if row.arm is None else row.arm.value,
        row.point.name,
        format_time(row.step_s),
        f"{format_time(row.low_s)} - {format_time(row.high_s)}",
        *_parts(row.parts),
        NONE if row.instrument_s is None else _share(row.instrument_s, row.step_s),
        NONE if row.unexplained_s is None else _share(row.unexplained_s, row.step_s),
        format_significant(row.tokens_per_s),
        NONE if row.bus_bytes_per_s is None else format_rate(row.bus_bytes_per_s),
    )


def _parts(parts: Parts | None) -> tuple[str, str, str, str]:
    if parts is None:
        return NONE, NONE, NONE, NONE
    wire, waiting = parts.communication_s, parts.waiting_s
    if parts.unmatched_s > wire + waiting:
        # Seen on one rank alone: the sum is known, its division is not.
        return (
            format_time(parts.compute_s),
            f"{format_time(parts.unmatched_s)} with waiting",
            NONE,
            format_time(parts.gap_s),
        )
    return (
        format_time(parts.compute_s),
        format_time(wire),
        format_time(waiting),
        format_time(parts.gap_s),
    )


def _share(part_s: float, step_s: float) -> str:
    return f"{format_time(part_s)} ({part_s / step_s:+.1%})"


BYTES_HEADER = ("split", "arm", "point", "issued", "crossings", "sent", "NVLink", "through host")


def bytes_cells(row: Row) -> tuple[str, ...]:
    """One line: bytes of a step as issued, as listed, as sent by all GPUs, and as counted."""
    found = row.moved
    sent = (
        (None,) * 3 if found is None else (found.sent_bytes, found.nvlink_bytes, found.host_bytes)
    )
    return (
        row.split.name,
        NONE if row.arm is None else row.arm.value,
        row.point.name,
        f"{row.issued_bytes:,}",
        f"{row.crossing_bytes:,}",
        *(NONE if one is None else f"{one:,.0f}" for one in sent),
    )


CHECK_HEADER = ("split", "arm", "point", "shard", "calls", "predicted", "measured", "ratio")


def check_cells(one: ShardCheck) -> tuple[str, ...]:
    """One line: a shard's step, what its calls add alone, their sum, and the split's step."""
    times = (one.shard_s, one.calls_s, one.predicted_s, one.measured_s)
    return (one.split, one.arm, one.point.name, *map(format_time, times), f"{one.ratio:.3f}")


def notes(
    rows: Sequence[Row], effects: Sequence[Effect], findings: Sequence[Finding]
) -> Iterator[str]:
    """What stands out, one sentence each."""
    yield (
        "Times of one step, mean over ranks. Instrument is how much longer a step takes while the "
        "profiler runs, timed without a trace; unexplained is the plain step less the rest of the "
        "traced one."
    )
    if any(row.device is Device.CPU for row in rows):
        yield (
            "This ran on processors, over gloo, the same in every arm: it says nothing about GPUs "
            "or links, and splits are not compared."
        )
    errors = [row.clock_error_s for row in rows if row.clock_error_s is not None]
    if errors:
        yield f"Collectives align the ranks' clocks within {format_time(max(errors))}."
    yield from _type_notes(rows)
    for row in rows:
        yield from _row_notes(row)
    for effect in effects:
        yield sentence(effect)
    for finding in findings:
        yield f"{finding.code}: {finding.seen} {finding.why} {finding.remedy}"


def _type_notes(rows: Sequence[Row]) -> Iterator[str]:
    """In which type weights are multiplied, where the file stores them in fewer bits than 16."""
    splits: dict[tuple[str, tuple[str, ...]], dict[str, None]] = {}
    for row in rows:
        if row.float8_share or row.bf16_because:
            key = f"{row.float8_share:.1%}", row.bf16_because
            splits.setdefault(key, {})[row.split.name] = None
    for (share, because), names in splits.items():
        beside = f"; in bf16 instead: {'; '.join(because)}" if because else ""
        yield (
            f"{', '.join(names)}: {share} of the parameters are multiplied as 8-bit floats{beside}."
        )


def _row_notes(row: Row) -> Iterator[str]:
    words = row_words(row)
    if row.eager_because is not None:
        yield f"{words}, is launched call by call by the host: {row.eager_because}."
    if row.drift is not None and abs(row.drift) > DRIFT_SHOWN:
        yield f"{words}, drifted by {row.drift:+.1%} from the first repeat to the last."
    longer = 0.0 if row.parts is None else row.parts.step_s / row.step_s - 1
    if longer > INSTRUMENT_SHOWN:
        yield (
            f"{words}, took {longer:.0%} longer while it was traced: its parts are those of the "
            "longer step."
        )
    if row.alone is None and row.issued_bytes != row.crossing_bytes:
        yield (
            f"{words}, sent {row.issued_bytes:,} B a step, the crossings list "
            f"{row.crossing_bytes:,} B."
        )
    if row.control is not None:
        yield control.sentence(words, row.control)


TRACE_HEADER = (
    "step", "rank", "time", "compute", "wire", "waiting", "unmatched", "copies", "gap", "hidden",
)  # fmt: skip


def trace_cells(one: RankStep) -> tuple[str, ...]:
    """One step of one rank of a trace."""
    parts = one.parts
    return (
        str(one.step),
        str(one.rank),
        format_time(parts.step_s),
        format_time(parts.compute_s),
        format_time(parts.communication_s),
        format_time(parts.waiting_s),
        format_time(parts.unmatched_s),
        format_time(parts.host_copy_s),
        format_time(parts.gap_s),
        format_time(parts.hidden_s),
    )


def trace_notes(
    timelines: Sequence[Timeline], offsets: Sequence[ClockOffset] | None
) -> Iterator[str]:
    """What the traces leave open."""
    if len(timelines) == 1:
        yield "One rank alone: unmatched is wire and waiting together; give every rank's trace."
    elif offsets is None:
        yield "The clocks of the ranks cannot be aligned: no collective bounds them, or they drift."
    else:
        error_s = max(one.error_s for one in offsets)
        yield f"Collectives align the ranks' clocks within {format_time(error_s)}."
    steps = {len(one.steps) for one in timelines}
    if len(steps) > 1:
        counts = ", ".join(str(len(one.steps)) for one in timelines)
        yield f"The ranks show {counts} steps: those that all show are listed."


def row_words(row: Row) -> str:
    """`tp2 staged, decode 8 after 1,024`."""
    arm = "" if row.arm is None else f" {row.arm.value}"
    alone = "" if row.alone is None else f" shard of rank {row.alone} alone"
    return f"{row.split.name}{arm}{alone}, {row.point.name}"
