"""A study as terminal text: whose figures, verdicts, plans, memory, crossings, findings (E2, D1).

100 columns and no colour, so that a pipe, a file and a terminal get the same bytes.
"""

import textwrap
from collections.abc import Iterable, Sequence

from linkbound.report.table import Row, render_table
from linkbound.report.text_tables import (
    SCORE_READING,
    crossing_rows,
    memory_rows,
    plan_rows,
    score_rows,
)
from linkbound.report.types import LoadShown, Report
from linkbound.report.words import (
    errors_words,
    headline,
    hidden_words,
    load_words,
    meaning,
    outcome_counts,
    reason_ids,
    short_id,
    unique,
    visible,
)
from linkbound.verdict.types import Reason

WIDTH = 100
IDS = 3
"""Record ids shown after a sentence; all of them are in the other outputs."""
ADVICE = ("staging-share", "try-")
MOST_REASONS, MOST_ADVICE, MOST_OPEN = 12, 6, 4
"""Reasons, advice and open questions of a verdict that are shown; the other outputs have all."""
LONGEST_NAME = 40
"""Names from outside are cut to this in tables; figures never are."""


def render_text(report: Report) -> str:
    """The whole report, at most 100 columns wide."""
    lines = [*_head(report), "", *_verdicts(report)]
    for load in report.loads:
        lines += _block(f"Plans, {load_words(load)}", plan_rows(report, load), 2)
        lines += [line for one in hidden_words(load) for line in _wrapped(one)]
    lines += _block("Memory of each GPU, GiB", memory_rows(report), 3)
    lines += _block("Crossings: payload of one rank in one step", crossing_rows(report), 4)
    lines += _block("Predictions against measurements, rows not seen", score_rows(report), 1)
    if report.score is not None:
        lines += _wrapped(SCORE_READING)
    lines += _findings(report)
    lines += _list("Not known, because", unique((*report.not_known, *report.machine.notes)))
    lines += _list("Placement", report.commands)
    lines += [
        "",
        *_wrapped(f"Evidence  {len(report.evidence):,} records: {outcome_counts(report)}"),
        *_wrapped(f"Study     {visible(report.study_path)}"),
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def render_verdict_text(report: Report) -> str:
    """Whose figures these are, and the verdict blocks alone."""
    head = filter(None, [report.machine_note, errors_words(report.calibration)])
    lines = [line for one in head for line in _wrapped(visible(one))]
    lines += ["", *_verdicts(report)]
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


def _head(report: Report) -> list[str]:
    models = [gpu.model or "GPU of unknown model" for gpu in report.machine.gpus]
    counted = ", ".join(f"{models.count(one)}x {one}" for one in dict.fromkeys(models))
    excluded = (f"{label} is left out: {why}" for label, why in report.excluded.items())
    lines = [
        report.machine_note,
        f"Model     {report.shape.name}, {report.shape.parameters:,} parameters",
        f"Machine   {report.machine_name}: {counted}",
        *excluded,
        f"Engine    {report.engine}",
        *filter(None, [errors_words(report.calibration)]),
    ]
    return [line for one in lines for line in _wrapped(visible(one))]


def _verdicts(report: Report) -> list[str]:
    whose = visible(f"{report.shape.name} on {report.machine_name}")
    return [line for load in report.loads for line in (*_verdict(load, whose), "")]


def _verdict(load: LoadShown, whose: str) -> list[str]:
    verdict = load.verdict
    lines = [
        *_wrapped(f"{whose}: {load_words(load)}"),
        *_wrapped(f"{verdict.answer.value.upper()}: {meaning(verdict)}. {headline(load)}"),
    ]
    plain = [one for one in verdict.reasons if not _is_advice(one)]
    advice = [one for one in verdict.reasons if _is_advice(one)]
    for reason in (*plain[:MOST_REASONS], *advice[:MOST_ADVICE]):
        lines += _reason(reason, load)
    lines += _more((*plain[MOST_REASONS:], *advice[MOST_ADVICE:]), "reason", "reasons")
    lines += _list("What would change it", verdict.would_change[:MOST_OPEN])
    lines += _more(verdict.would_change[MOST_OPEN:], "of them", "of them")
    for one in verdict.measurements[:MOST_OPEN]:
        cost = f" It takes {visible(one.cost)}." if one.cost else ""
        lines += [*_wrapped(f"Measure: {visible(one.what)}. {visible(one.why)}{cost}")]
        lines += _command(visible(one.command))
    return [*lines, *_more(verdict.measurements[MOST_OPEN:], "measurement", "measurements")]


def _is_advice(reason: Reason) -> bool:
    """What the link takes, and what to try instead: told whatever number of plans is compared."""
    return reason.code.startswith(ADVICE)


def _more(rest: Sequence[object], one: str, many: str) -> list[str]:
    """That there is more: on a machine of many GPUs there is more than anyone reads here."""
    if len(rest) == 1:
        return [f"- and one more {one}: the page and --json have it."]
    return [f"- and {len(rest)} more {many}: the page and --json have them."] if rest else []


def _command(command: str) -> list[str]:
    """A command for a shell, continued over lines that a backslash ends."""
    lines = textwrap.wrap(command, WIDTH - 6, break_long_words=False, break_on_hyphens=False)
    return [
        ("    " if number else "  $ ") + line + (" \\" if number < len(lines) - 1 else "")
        for number, line in enumerate(lines)
    ]


def _reason(reason: Reason, load: LoadShown) -> list[str]:
    return _wrapped(f"- {visible(reason.text)} {_ids(reason_ids(reason, load))}", "  ")


def _ids(ids: Iterable[str]) -> str:
    found = [short_id(one) for one in unique(ids)]
    if not found:
        return "[no record]"
    more = f" and {len(found) - IDS} more" if len(found) > IDS else ""
    return f"[{' '.join(found[:IDS])}{more}]"


def _findings(report: Report) -> list[str]:
    lines = []
    for one in report.findings:
        lines += _wrapped(
            f"- {one.severity.value}, {one.level.value}: {visible(one.code)}: {visible(one.seen)} "
            f"{visible(one.why)} {_ids(one.record_ids)}",
            "  ",
        )
        lines += _wrapped(f"  Do: {visible(one.remedy)}", "  ")
    return ["", "Findings", *lines] if lines else []


def _list(title: str, entries: Iterable[str]) -> list[str]:
    lines = [line for one in entries for line in _wrapped(f"- {visible(one)}", "  ")]
    return ["", title, *lines] if lines else []


def _wrapped(words: str, indent: str = "") -> list[str]:
    return textwrap.wrap(words, WIDTH, subsequent_indent=indent, break_on_hyphens=False) or [""]


def _block(title: str, rows: Sequence[Row], left: int) -> list[str]:
    """A table under its title; too many columns are wrapped into blocks, the first one repeated."""
    if len(rows) < 2:
        return []
    shown = [tuple(_cut(visible(cell)) for cell in row) for row in rows]
    lines = ["", *_wrapped(title)]
    gap = 1 if _width(shown, 2) > WIDTH >= _width(shown, 1) else 2
    for number, columns in enumerate(_fitting(shown, gap)):
        if number:
            lines.append("")
        part = [tuple(row[column] for column in columns) for row in shown]
        lefts = sum(column < left for column in columns)
        lines += render_table(part[0], part[1:], left=lefts, gap=gap)
    return lines


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 3] + "..."


def _widths(rows: Sequence[Row]) -> list[int]:
    return [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]


def _width(rows: Sequence[Row], gap: int) -> int:
    widths = _widths(rows)
    return sum(widths) + gap * (len(widths) - 1)


def _fitting(rows: Sequence[Row], gap: int) -> list[list[int]]:
    """Columns of each block: as many as fit beside the first."""
    widths = _widths(rows)
    blocks = [[0]]
    used = widths[0]
    for column, width in enumerate(widths[1:], start=1):
        if used + gap + width > WIDTH and len(blocks[-1]) > 1:
            blocks.append([0])
            used = widths[0]
        blocks[-1].append(column)
        used += gap + width
    return blocks
