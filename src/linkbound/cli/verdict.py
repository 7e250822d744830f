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
    from linkbound.cli.reading import read_rate_verdicts, read_report
    from linkbound.report.simulations import render_rate_verdicts
    from linkbound.report.text import render_verdict_text
    from linkbound.report.verdict_document import render_verdict_json
    from linkbound.verdict.types import Answer

    path = locate_study(study_path)
    rates = read_rate_verdicts(path)
    # A study of `simulate` alone has verdicts of rates, and no report.
    report = read_report(path, needed=not rates)
    if as_json:
        click.echo(render_verdict_json(report, rates))
    else:
        parts = [] if report is None else [render_verdict_text(report)]
        click.echo("\n".join([*parts, *([render_rate_verdicts(rates)] if rates else [])]))
    answers = set() if report is None else {one.verdict.answer for one in report.loads}
    answers |= {each.answer for one in rates for each in one.comparisons}
    if not gate or answers == {Answer.KEEP}:
        return 0
    return GATE_REJECT if Answer.REJECT in answers else GATE_UNDECIDED
