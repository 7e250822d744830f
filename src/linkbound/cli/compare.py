"""`linkbound compare`: two studies of like machines, and where they differ (DESIGN decision 10)."""

from pathlib import Path

import click
import msgspec

from linkbound.cli.options import HELP
from linkbound.cli.studies import (
    SHOWN_DIGITS,
    columns,
    echo_json,
    existing,
    printable,
    subject_words,
)
from linkbound.evidence.compare import Difference, StudyComparison, compare_studies, said
from linkbound.evidence.study import Study


@click.command("compare", context_settings=HELP)
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(a: Path, b: Path, as_json: bool) -> None:
    """Compare study B against study A; refused where their GPUs or links differ."""
    existing(a), existing(b)
    with Study.open(a) as study_a, Study.open(b) as study_b:
        comparison = compare_studies(study_a, study_b)
    if as_json:
        head = {"schema": "linkbound.compare", "version": 1, "a": str(a), "b": str(b)}
        echo_json(head | msgspec.to_builtins(comparison))
    else:
        click.echo("\n".join([f"A  {a}", f"B  {b}", "", *_lines(comparison)]))


def _lines(comparison: StudyComparison) -> list[str]:
    lines = ["Machine conditions that differ:" if comparison.conditions else _same(comparison)]
    lines += _table(comparison.conditions)
    changed = [record for record in comparison.records if record.differences]
    for record in changed:
        ids = f"{record.a[:SHOWN_DIGITS]} against {record.b[:SHOWN_DIGITS]}"
        subject = subject_words(record.subject)
        lines += ["", f"{printable(record.kind)}  {subject}  ({ids})", *_table(record.differences)]
    equal = len(comparison.records) - len(changed)
    lines += ["", f"{len(changed)} records differ, {equal} say the same."]
    lines += [
        f"Not compared: {one.record_id[:SHOWN_DIGITS]} of {one.study.upper()}, "
        f"{printable(one.kind)}  {subject_words(one.subject)}: {one.reason}."
        for one in comparison.not_compared
    ]
    return lines


def _same(comparison: StudyComparison) -> str:
    if not comparison.machines:
        return "Neither study names a machine."
    return "Same machine, no condition differs."


def _table(differences: tuple[Difference, ...]) -> list[str]:
    if not differences:
        return []
    rows = [("  name", "A", "B", "B/A")]
    rows += [
        (
            f"  {printable(one.name)}",
            printable(said(one.a)),
            printable(said(one.b)),
            "-" if one.ratio is None else f"{one.ratio:.4g}",
        )
        for one in differences
    ]
    return columns(rows)
