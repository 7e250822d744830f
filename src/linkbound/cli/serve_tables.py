"""What `linkbound serve` prints: the comparison, the commands it would run, imported runs."""

import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from linkbound.cli.studies import printable

if TYPE_CHECKING:
    from linkbound.evidence.types import Finding
    from linkbound.serve.compare_runs import Difference, Row
    from linkbound.serve.contenders import ServeRun
    from linkbound.serve.foreign import ForeignRun
    from linkbound.serve.latency import Spread
    from linkbound.serve.traffic_rows import TrafficRow

_HEADER = (
    *("cell", "contender", "n", "tok/s", "ttft p50", "p99", "tpot p50", "p99"),
    *("good", "failed", "drift"),
)
_FOREIGN_HEADER = ("tool", "run", "figure", "n", "p50", "p90", "p99")
_TRAFFIC_HEADER = (
    *("cell", "contender", "n", "NVLink GB", "host GB"),
    *("over", "expected GB", "off", "agrees"),
)
_FOREIGN = {
    "ttft from schedule": "ttft_from_schedule_s",
    "ttft from send": "ttft_from_send_s",
    "tpot": "tpot_s",
    "e2e from send": "e2e_from_send_s",
}
ABSENT = "none"


def comparison_lines(
    rows: "tuple[Row, ...]",
    differences: "tuple[Difference, ...]",
    findings: "tuple[Finding, ...]",
) -> list[str]:
    """A row for each contender in each cell, then what tells them apart."""
    from linkbound.report.table import render_table

    lines = [
        "Times in ms from the schedule, medians of n repeats; drift: last e2e p50 over the first."
    ]
    lines += render_table(_HEADER, [_cells(row) for row in rows], left=2)
    for one in differences:
        if one.told_apart:
            lines.append(
                f"{one.cell}: {one.figure} of {one.contender} is {one.ratio:.2f} "
                f"({one.low:.2f} to {one.high:.2f}) of {one.baseline}"
            )
    if differences and not any(one.told_apart for one in differences):
        lines.append("No difference is larger than the spread between repeats.")
    lines += [f"{one.severity}: {one.seen} {one.why} {one.remedy}" for one in findings]
    return lines


def _cells(row: "Row") -> tuple[str, ...]:
    from linkbound.units import format_significant

    def shown(figure: str, scale: float = 1.0) -> str:
        found = row.figures.get(figure)
        return ABSENT if found is None else format_significant(found.median * scale)

    speed = row.figures.get("output_tokens_per_s")
    if speed is None:
        reasons = ", ".join(dict.fromkeys(row.problems))
        return (row.cell, row.contender, "0", *[ABSENT] * 6, reasons, ABSENT)
    ends = row.figures.get("e2e_p50_s")
    drift = None if ends is None else ends.drift
    times = [shown(name, 1e3) for name in ("ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s")]
    return (
        *(row.cell, row.contender, str(speed.n), shown("output_tokens_per_s"), *times),
        *(shown("goodput"), f"{row.failed} of {row.requests}"),
        ABSENT if drift is None else f"{drift:+.1%}",
    )


def traffic_lines(rows: "tuple[TrafficRow, ...]") -> list[str]:
    """What byte counters saw of each contender in each cell; nothing where nothing was counted."""
    from linkbound.report.table import render_table

    if not rows:
        return []
    lines = ["Bytes that all GPUs of a contender sent, by their counters, idle traffic taken off."]
    lines += render_table(_TRAFFIC_HEADER, [_traffic_cells(row) for row in rows], left=2)
    reasons = dict.fromkeys((row.contender, one) for row in rows for one in row.reasons)
    lines += [f"{contender}: {printable(reason)}" for contender, reason in reasons]
    return lines


def _traffic_cells(row: "TrafficRow") -> tuple[str, ...]:
    def gb(size_bytes: float | None) -> str:
        return ABSENT if size_bytes is None else f"{size_bytes / 1e9:,.3f}"

    expected = ABSENT
    if row.low_bytes is not None and row.high_bytes is not None:
        low, high = gb(row.low_bytes), gb(row.high_bytes)
        expected = low if low == high else f"{low} to {high}"
    agrees = {None: ABSENT, True: "yes", False: "NO"}[row.agrees]
    return (
        *(row.cell, row.contender, str(row.n), gb(row.nvlink_bytes), gb(row.host_bytes)),
        *(row.over or ABSENT, expected),
        ABSENT if row.deviation is None else f"{row.deviation:+.1%}",
        agrees,
    )


def foreign_lines(runs: "tuple[ForeignRun, ...]") -> list[str]:
    """Percentiles of runs that other tools measured, by our definitions."""
    from linkbound.report.table import render_table

    rows = [
        (run.tool, printable(run.name), figure, str(found.n), *_percentiles(found))
        for run in runs
        for figure, name in _FOREIGN.items()
        for found in (run.spread_of(name),)
    ]
    lines = ["Times in ms, by this program's definitions (docs/load.md)."]
    lines += render_table(_FOREIGN_HEADER, rows, left=3)
    lines += [f"{run.tool}: {run.failed} of {len(run.requests)} requests failed" for run in runs]
    return lines


def _percentiles(found: "Spread") -> list[str]:
    from linkbound.units import format_significant

    values = [found.at(share) for share in (0.5, 0.9, 0.99)]
    return [ABSENT if value is None else format_significant(value * 1e3) for value in values]


def launch_lines(run: "ServeRun") -> list[str]:
    """Every command with what it sets and unsets, to be copied into a shell."""
    from linkbound.serve.engines import ENGINES
    from linkbound.serve.servers import Servers

    launch = ENGINES[run.engine].launch
    if launch is None:
        return [f"# nothing is started: load goes to {', '.join(run.urls)}"]
    lines = []
    with tempfile.TemporaryDirectory(prefix="linkbound-serve-") as folder:
        for contender in run.contenders:
            lines.append(f"# {contender.name}")
            for plan in Servers(run, contender, Path(folder)).plans():
                made = launch(plan)
                lines.append(f"unset {' '.join(made.drop)}")
                settings = [f"{name}={shlex.quote(one)}" for name, one in made.environment.items()]
                lines.append(" ".join([*settings, shlex.join(made.argv)]))
                for name, text in made.files.items():
                    lines.append(f"# with {name}:")
                    lines += [f"#   {line}" for line in text.splitlines()]
    return lines
