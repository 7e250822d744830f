"""The evidence: every record with an anchor that figures link to, commands, environment (E2)."""

from collections.abc import Mapping

from linkbound.report.page.markup import (
    Cell,
    Citations,
    anchor,
    esc,
    how,
    items,
    section,
    table,
    text,
)
from linkbound.report.types import Evidence, Report
from linkbound.report.words import short_id


def commands(report: Report) -> str:
    """How to place it, ready to copy."""
    shown = "\n".join(report.commands)
    content = f"<pre><code>{esc(shown)}</code></pre>" if shown else ""
    return section("commands", "Placement", content)


def evidence(report: Report, cite: Citations) -> str:
    """A row for each record; its id is what figures on this page link to."""
    if not report.evidence:
        return ""
    names = ("record", "kind", "subject", "outcome", "what it says", "method", "from")
    head = "".join(text(one).markup("th", ' scope="col"') for one in names)
    body = "\n".join(_row(one, cite) for one in report.evidence)
    reading = (
        "An id is the hash of the record's content. linkbound show prints its raw samples, command "
        "and environment from the study."
    )
    return section(
        "evidence",
        "Evidence",
        f"<p>Study: <code>{esc(report.study_path)}</code></p>",
        f'<div class="scroll"><table class="evidence"><caption>{len(report.evidence):,} records'
        f"</caption><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>\n",
        how(reading),
    )


def _row(one: Evidence, cite: Citations) -> str:
    cells = (
        text(one.kind),
        text(", ".join(f"{name} {value}" for name, value in one.subject.items())),
        text(one.outcome),
        text(one.summary),
        text(one.method),
        Cell(cite(one.parents) if one.parents else "-"),
    )
    named = Cell(f"<code>{esc(short_id(one.id))}</code>", "", one.id).markup("th", ' scope="row"')
    return f'<tr id="{anchor(one.id)}">{named}{"".join(cell.markup("td") for cell in cells)}</tr>'


def environment(report: Report) -> str:
    """Versions, fingerprint and conditions under which the figures hold."""
    return section(
        "environment",
        "Environment",
        _facts("Versions", report.versions),
        _facts(
            f"Machine {report.fingerprint.id}: must agree to compare", report.fingerprint.identity
        ),
        _facts("Conditions: may differ, differences are listed", report.fingerprint.condition),
        f"<p>Sources of the machine</p>{items(esc(one) for one in report.machine.sources)}",
    )


def _facts(caption: str, facts: Mapping[str, str]) -> str:
    if not facts:
        return ""
    rows = [[text(name), text(value)] for name, value in facts.items()]
    return table(esc(caption), [text("key"), text("value")], rows, look="facts")
