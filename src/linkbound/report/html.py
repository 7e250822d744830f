"""One self-contained page: verdict first, every figure linked to its record (E2, E3).

No script, no request, no font from outside: it opens in ten years, offline, and prints.
"""

import json
import re
from importlib import resources

from linkbound.report.document import build_document
from linkbound.report.page import (
    links,
    machine,
    plans,
    profile,
    records,
    regimes,
    splits,
    trust,
    verdicts,
)
from linkbound.report.page.markup import ANCHOR_DIGITS, Citations, esc
from linkbound.report.types import Report

_RECORD_ID = re.compile(r'"([0-9a-f]{64})"')
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_ON_THE_PAGE = ("evidence", "maps", "pairs", "curves", "score", "fits", "splits", "profile")
_CONTENTS = (
    ("verdict", "Verdict"),
    ("machine", "Machine"),
    ("plans", "Plans"),
    ("steps", "Steps"),
    ("profile", "Measured steps"),
    ("map", "Map"),
    ("memory", "Memory"),
    ("crossings", "Crossings"),
    ("matrices", "Pairs"),
    ("curves", "Transfers"),
    ("score", "Score"),
    ("break-even", "Break-even"),
    ("findings", "Findings"),
    ("not-known", "Not known"),
    ("evidence", "Evidence"),
)
# Hatches that bars and swatches share; colours come from the style sheet.
_ANGLES = {"waiting": 45, "host": 135, "overhead": 90, "routing": 0, "imbalance": 70}
_HATCHES = (
    '<svg class="defs" width="0" height="0" aria-hidden="true" focusable="false"><defs>'
    + "".join(
        f'<pattern id="hatch-{name}" class="hatch {name}" width="6" height="6" '
        f'patternUnits="userSpaceOnUse" patternTransform="rotate({angle})">'
        '<rect class="ground" width="6" height="6"/>'
        '<line class="stroke" x1="0" x2="0" y1="0" y2="6"/></pattern>'
        for name, angle in _ANGLES.items()
    )
    + "</defs></svg>"
)


def render_html(report: Report) -> str:
    """The whole page as one string; equal reports give equal bytes."""
    cite = Citations(one.id for one in records.listed(report))
    body = "".join(_sections(report, cite))
    title = f"{report.shape.name} on {report.machine_name}: linkbound"
    style = (resources.files("linkbound.report") / "page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{esc(title)}</title>\n<style>\n{style}</style></head>\n"
        f"<body>{_HATCHES}\n{verdicts.head(report, cite)}<main>\n"
        f"{verdicts.verdicts(report, cite)}{_contents(body)}{body}</main>\n"
        f'<script type="application/json" id="data">{_data(report)}</script>\n</body></html>\n'
    )


def _sections(report: Report, cite: Citations) -> list[str]:
    """The sections below the verdicts, in the order in which a reader asks."""
    return [
        machine.machine(report, cite),
        plans.plans(report, cite),
        verdicts.comparisons(report, cite),
        plans.step_split(report, cite),
        profile.profile(report, cite),
        regimes.maps(report, cite),
        splits.memory(report, cite),
        splits.crossings(report, cite),
        machine.matrices(report, cite),
        links.curves(report, cite),
        trust.score(report, cite),
        verdicts.break_even(report, cite),
        trust.findings(report, cite),
        trust.not_known(report),
        verdicts.would_change(report),
        records.commands(report),
        trust.constants(report, cite),
        records.evidence(report, cite),
        records.environment(report),
        trust.cautions(),
    ]


def _contents(body: str) -> str:
    """Links to the sections that this report has."""
    entries = "".join(
        f'<a href="#{name}">{words}</a>'
        for name, words in _CONTENTS
        if f'<section id="{name}">' in body
    )
    return f'<nav aria-label="Sections">{entries}</nav>\n'


def _data(report: Report) -> str:
    """The JSON output to six digits, without what the page's own tables and plots hold in full.

    Record ids are cut to the digits that name a row of the evidence. `<` is escaped, so that no
    data can end the element.
    """
    document = build_document(report)
    for name in _ON_THE_PAGE:
        del document[name]
    for load in document["loads"]:
        del load["forecasts"], load["verdict"]["reasons"], load["verdict"]["plans"]
    exact = json.dumps(document, allow_nan=False)
    short = json.loads(exact, parse_float=lambda digits: float(f"{float(digits):.6g}"))
    text = json.dumps(short, separators=(",", ":")).replace("<", "\\u003c")
    return _RECORD_ID.sub(lambda found: f'"{found[1][:ANCHOR_DIGITS]}"', text)
