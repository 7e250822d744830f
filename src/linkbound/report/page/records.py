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


# Nothing on the page cites these: a fit stands beside its curve, a stage is a note to the program.
_NOT_LISTED = frozenset({"links.fit", "study.stage"})


def listed(report: Report) -> tuple[Evidence, ...]:
    """The records that the page has a row for."""
    return tuple(one for one in report.evidence if one.kind not in _NOT_LISTED)


def evidence(report: Report, cite: Citations) -> str:
    """A row for each record that can be cited; its id is what figures on this page link to."""
    if not report.evidence:
        return ""
    names = ("record", "kind", "subject", "outcome", "what it says", "method", "from")
    head = "".join(text(one).markup("th", ' scope="col"') for one in names)
    rows = listed(report)
    usual = {("machine", report.machine_name), *_model_of(report)}
    body = "\n".join(_row(one, cite, usual) for one in rows)
    reading = (
        f"{len(report.evidence) - len(rows):,} records of fits and stages are in the study alone. "
        "An id is the hash of the record's content. linkbound show prints its raw samples, command "
        "and environment from the study."
    )
    return section(
        "evidence",
        "Evidence",
        f"<p>Study: <code>{esc(report.study_path)}</code></p>",
        f'<div class="scroll"><table class="evidence"><caption>{len(rows):,} records'
        f"</caption><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>\n",
        how(reading),
    )


def _model_of(report: Report) -> set[tuple[str, str]]:
    shapes = (one.subject for one in report.evidence if one.kind == "model.shape")
    return {("model", subject["model"]) for subject in shapes if "model" in subject}


def _row(one: Evidence, cite: Citations, usual: set[tuple[str, str]]) -> str:
    """`usual` is what the whole page is about: it is not said again in each row."""
    subject = [pair for pair in one.subject.items() if pair not in usual]
    cells = (
        text(one.kind),
        text(", ".join(f"{name} {value}" for name, value in subject) or "this machine"),
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
