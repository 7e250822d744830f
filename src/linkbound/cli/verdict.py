"""`linkbound verdict`: the verdicts of a study; `--gate` turns them into an exit code (D1)."""

from pathlib import Path

import click

from linkbound.cli.options import HELP
from linkbound.cli.studies import locate_study, study_option

GATE_REJECT, GATE_UNDECIDED = 10, 11


@click.command("verdict", context_settings=HELP)
@study_option
@click.option("--gate", is_flag=True, help="Exit 0 keep, 10 reject, 11 undecided (the weakest).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(study_path: Path | None, gate: bool, as_json: bool) -> int:
    """Print the verdicts that a study holds, with their reasons."""
    from linkbound.cli.reading import read_report
    from linkbound.report.text import render_verdict_text
    from linkbound.report.verdict_document import render_verdict_json
    from linkbound.verdict.types import Answer

    report = read_report(locate_study(study_path))
    click.echo(render_verdict_json(report) if as_json else render_verdict_text(report))
    answers = {one.verdict.answer for one in report.loads}
    if not gate or answers == {Answer.KEEP}:
        return 0
    return GATE_REJECT if Answer.REJECT in answers else GATE_UNDECIDED
