"""`linkbound check`: is a study what it was when it was written? Exit 0 healthy, 1 not (E2)."""

from pathlib import Path

import click
import msgspec

from linkbound.cli.options import HELP
from linkbound.cli.studies import echo_json, locate_study, printable
from linkbound.errors import StudyError
from linkbound.evidence.study import Study
from linkbound.evidence.types import Finding


@click.command("check", context_settings=HELP)
@click.argument("study_path", metavar="[STUDY]", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(study_path: Path | None, as_json: bool) -> None:
    """Verify a study: ids, chain, parents, samples and blobs."""
    path = locate_study(study_path, "linkbound check ")
    with Study.open(path) as study:
        findings = study.verify()
        records, blobs = (None, None) if findings else study.counts()
    if as_json:
        echo_json(
            {
                "schema": "linkbound.check",
                "version": 1,
                "study": str(path),
                "healthy": not findings,
                "records": records,
                "blobs": blobs,
                "findings": msgspec.to_builtins(findings),
            }
        )
    else:
        lines = [_line(finding) for finding in findings]
        click.echo("\n".join(lines) or f"{path}: healthy, {records:,} records, {blobs:,} blobs.")
    if findings:
        raise StudyError(
            f"{path} has {len(findings)} finding{'s' if len(findings) > 1 else ''}.",
            why="Figures that rest on these records are no evidence.",
            hint="Take the study from a backup, or run it again into a new file.",
        )


def _line(finding: Finding) -> str:
    return printable(f"{finding.code}: {finding.seen} {finding.why}")
