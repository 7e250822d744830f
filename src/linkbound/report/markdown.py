"""A study as Markdown for an issue tracker: verdicts, plans, findings, where it is from (D1)."""

import re
from collections.abc import Iterable, Sequence

from linkbound.report.table import Row
from linkbound.report.text_tables import SCORE_READING, plan_rows, score_rows
from linkbound.report.types import LoadShown, Report
from linkbound.report.words import (
    headline,
    hidden_words,
    leading_reasons,
    load_words,
    outcome_counts,
    reason_ids,
    short_id,
    unique,
    visible,
)

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")


def render_markdown(report: Report) -> str:
    """A short report that an issue can hold."""
    parts = [
        f"## {_esc(report.shape.name)} on {_esc(report.machine_name)}",
        _esc(report.machine_note),
        *(part for load in report.loads for part in _load(report, load)),
        *_score(report),
        *_findings(report),
        *_section("Not known, because", (_esc(one) for one in report.not_known)),
        f"{len(report.evidence):,} records ({outcome_counts(report)}) in "
        f"`{_code(report.study_path)}`; machine `{report.fingerprint.id}`.",
    ]
    return "\n\n".join(parts) + "\n"


def _load(report: Report, load: LoadShown) -> list[str]:
    verdict = load.verdict
    reasons = [
        f"{_esc(one.text)} {_ids(reason_ids(one, load))}" for one in leading_reasons(verdict)
    ]
    return [
        f"### {load_words(load)}: {verdict.answer.value}",
        f"**{_esc(headline(load))}**",
        *_section("", reasons),
        *_table(plan_rows(report, load)),
        *_section("", (_esc(one) for one in hidden_words(load))),
        *_section("What would change it:", (_esc(one) for one in verdict.would_change)),
    ]


def _score(report: Report) -> list[str]:
    found = _table(score_rows(report))
    return ["### Predictions against measurements", *found, _esc(SCORE_READING)] if found else []


def _findings(report: Report) -> list[str]:
    entries = (
        f"{one.severity.value} `{_code(one.code)}`: {_esc(one.seen)} {_esc(one.why)} "
        f"{_esc(one.remedy)} {_ids(one.record_ids)}"
        for one in report.findings
    )
    return _section("### Findings", entries)


def _section(title: str, entries: Iterable[str]) -> list[str]:
    lines = "\n".join(f"- {one}" for one in entries)
    if not lines:
        return []
    return [title, lines] if title else [lines]


def _table(rows: Sequence[Row]) -> list[str]:
    if len(rows) < 2:
        return []
    header, *body = ("| " + " | ".join(_esc(cell) for cell in row) + " |" for row in rows)
    rule = "|" + "---|" * len(rows[0])
    return ["\n".join((header, rule, *body))]


def _ids(ids: Iterable[str]) -> str:
    return " ".join(f"`{_code(short_id(one))}`" for one in unique(ids))


def _esc(words: str) -> str:
    """Text that Markdown shows as it is: no markup, no HTML, no table cell of its own."""
    return _SPECIAL.sub(r"\\\1", visible(words).replace("\n", " "))


def _code(words: str) -> str:
    return visible(words).replace("`", "'").replace("\n", " ")
