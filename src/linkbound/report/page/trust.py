"""Why believe it: predictions against measurements, findings, and what stays unknown (E2, E3)."""

from linkbound.predict.calibration import Constant
from linkbound.predict.score_types import Score, ScoreRow, Summary
from linkbound.report.page.markup import (
    Cell,
    Citations,
    esc,
    how,
    items,
    number,
    section,
    table,
    text,
)
from linkbound.report.score_text import DEFINITION
from linkbound.report.types import Report
from linkbound.report.words import errors_words, unique
from linkbound.units import format_significant

CAUTIONS = (
    "Repeats in one process on one day say nothing about another day, driver or boot.",
    "A fixed batch is not a queue of requests: waiting for a slot is not in these times.",
    "Constants were calibrated on the runs marked seen; how far they carry to another model is "
    "what the unseen rows show.",
    "An interval covers what its basis names. What nobody thought of is outside every interval.",
    "Bandwidth that a tool prints alone is an upper end: neighbours on a shared path lower it.",
)


def score(report: Report, cite: Citations) -> str:
    """Each prediction beside its measurement, the effects, the signs, and the medians first."""
    found = report.score
    if found is None:
        return ""
    cited = cite(report.score_record_ids)
    return section(
        "score",
        "Predictions against measurements",
        _summaries(found, cited),
        how(
            f"{DEFINITION} Rows that "
            "calibration has seen are not counted. Coverage is the share of rows whose predicted "
            "interval meets the measured range."
        ),
        _rows(found, cited),
        _effects(found, cited),
        _signs(found, cited),
    )


def _summaries(found: Score, cited: str) -> str:
    header = [
        text("figure"),
        *(
            number(one)
            for one in (
                "rows",
                "error: median %",
                "worst %",
                "to median: median %",
                "worst %",
                "covered %",
            )
        ),
    ]
    return table(f"Medians and worsts {cited}", header, [_summary(one) for one in found.summaries])


def _summary(one: Summary) -> list[Cell]:
    return [
        text(one.metric),
        number(one.rows),
        *(
            number("none" if share is None else f"{100 * share:.1f}")
            for share in (
                one.median,
                one.worst,
                one.to_median,
                one.to_median_worst,
                one.coverage,
            )
        ),
    ]


def _rows(found: Score, cited: str) -> str:
    header = [text("run"), text("metric"), *(number(one) for one in ("batch", "prompt"))]
    header += [number(one) for one in ("measured ms", "repeats", "predicted ms", "error %")]
    header += [number("to median %"), text("seen")]
    shown = table(f"Every row {cited}", header, [_row(one) for one in found.rows])
    return f"<details open><summary>All {len(found.rows)} rows</summary>{shown}</details>"


def _row(one: ScoreRow) -> list[Cell]:
    measured, first, last = (
        format_significant(1e3 * value)
        for value in (one.measured, one.measured_low, one.measured_high)
    )
    value, low, high = (
        format_significant(1e3 * part) for part in (one.predicted, one.low, one.high)
    )
    return [
        text(one.tag),
        text(one.metric.value.removesuffix("_s")),
        number(f"{one.batch:,}"),
        number(f"{one.input:,}"),
        number(measured),
        number(f"{first}-{last}"),
        number(f"~{value} ({low}-{high})"),
        number(f"{100 * one.error:.1f}", "" if one.error else "dim"),
        number(f"{100 * one.median_error:.1f}" if one.measured else "none"),
        text("seen" if one.seen else "no"),
    ]


def _effects(found: Score, cited: str) -> str:
    if not found.effects:
        return ""
    header = [text("effect"), text("model"), text("metric")]
    header += [number(one) for one in ("batch", "prompt", "measured ms", "range")]
    header += [number("predicted ms"), number("error %"), text("scored")]
    rows = [
        [
            text(one.name),
            text(one.model),
            text(one.metric.value.removesuffix("_s")),
            number(f"{one.batch:,}"),
            number(f"{one.input:,}"),
            number(format_significant(1e3 * one.measured)),
            number(
                f"{format_significant(1e3 * one.measured_low)} to "
                f"{format_significant(1e3 * one.measured_high)}"
            ),
            number(f"~{format_significant(1e3 * one.predicted)}"),
            number(f"{100 * one.error:.1f}"),
            text("yes" if one.scored else "no, inside the spread"),
        ]
        for one in found.effects
    ]
    shown = table(f"What another path changes {cited}", header, rows)
    return f"<details><summary>{len(rows)} effects of the path</summary>{shown}</details>"


def _signs(found: Score, cited: str) -> str:
    if not found.signs:
        return ""
    header = [text("model"), text("plan"), number("batch"), number("prompt"), text("metric")]
    header += [text("measured"), text("predicted"), text("sign")]
    rows = [
        [
            text(one.model),
            text(f"{one.split}, {one.arm.value}"),
            number(f"{one.batch:,}"),
            number(f"{one.input:,}"),
            text(one.metric.value.removesuffix("_s")),
            text(_helps(one.helps)),
            text(_helps(one.predicted_helps)),
            text("right" if one.helps == one.predicted_helps else "WRONG"),
        ]
        for one in found.signs
    ]
    right = sum(one.helps == one.predicted_helps for one in found.signs)
    shown = table(f"Does the second GPU help? {cited}", header, rows)
    return (
        f"<p>Whether the second GPU helps is predicted right in <b>{right} of {len(rows)}</b> "
        "points whose repeats do not overlap.</p>"
        f"<details><summary>All signs</summary>{shown}</details>"
    )


def _helps(helps: bool) -> str:
    return "helps" if helps else "does not help"


def constants(report: Report, cite: Citations) -> str:
    """The constants that turn work into time, with what they rest on."""
    found = [
        (name, getattr(report.calibration, name)) for name in report.calibration.__struct_fields__
    ]
    rows = [
        [
            text(name),
            number(f"{one.value:.3g}"),
            number(f"{one.estimate.low:.3g} to {one.estimate.high:.3g}"),
            text(one.provenance.value),
            text(one.basis),
        ]
        for name, one in found
        if isinstance(one, Constant)
    ]
    header = [text("constant"), number("value"), number("interval"), text("from"), text("basis")]
    caption = f"Constants, in the unit of their name {cite(report.calibration.record_ids)}"
    return section(
        "constants",
        "What predictions rest on",
        f"<p>{esc(report.engine)}. {esc(errors_words(report.calibration))}</p>",
        f"<details><summary>{len(rows)} constants</summary>",
        f"{table(caption, header, rows)}</details>",
    )


def findings(report: Report, cite: Citations) -> str:
    """What was seen, why it matters, what to do."""
    blocks = [
        f'<article class="finding"><h3><span class="word small plainword">{one.severity.value}'
        f'</span> {esc(one.code)} <span class="dim">{one.level.value}</span></h3>'
        f"<dl><dt>Seen</dt><dd>{esc(one.seen)} {cite(one.record_ids)}</dd>"
        f"<dt>Matters</dt><dd>{esc(one.why)}</dd>"
        f"<dt>Do</dt><dd>{esc(one.remedy)}</dd></dl></article>\n"
        for one in report.findings
    ]
    return section("findings", "Findings", *blocks)


def not_known(report: Report) -> str:
    """What was not measured, because."""
    entries = unique((*report.not_known, *report.machine.notes, *report.shape.gaps))
    return section("not-known", "Not known, because", items(esc(one) for one in entries))


def cautions() -> str:
    """What the statistics cannot see."""
    return section("cautions", "Cautions", items(esc(one) for one in CAUTIONS))
