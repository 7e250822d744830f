"""Options that fix predictions in a file, and score what was fixed (E3)."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from linkbound.cli.options import Decorator, write_text
from linkbound.errors import UsageError

if TYPE_CHECKING:
    from linkbound.evidence.study import Study
    from linkbound.predict.frozen import Frozen

freeze_option: Decorator = click.option(
    "--freeze",
    "freeze_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Fix the predictions in a new FILE, with a hash to post before anything is measured.",
)
frozen_option: Decorator = click.option(
    "--frozen",
    "frozen_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Score what --freeze wrote instead of predicting now.",
)


def check_freezing(
    freeze_file: Path | None, measured: Path | None, frozen_file: Path | None
) -> None:
    """Raises UsageError where the options do not go together, or would overwrite a set."""
    if freeze_file is not None and measured is not None:
        raise UsageError(
            "--freeze and --score do not go together.",
            why="Predictions are frozen before there is anything to compare them with.",
            hint="Freeze first, measure, then write --score FILE --frozen FILE.",
        )
    if frozen_file is not None and measured is None:
        raise UsageError(
            "--frozen needs --score FILE.",
            why="A frozen set is compared with what was measured.",
            hint="Add --score with what was measured.",
        )
    if freeze_file is not None and freeze_file.exists():
        raise UsageError(
            f"{freeze_file} is there already.",
            why="Frozen predictions are never overwritten.",
            hint="Name another file.",
        )


def keep_frozen(study: "Study", frozen: "Frozen", file: Path, as_json: bool) -> None:
    """The frozen set as a file and as a record; says its hash."""
    from linkbound.report.frozen_text import frozen_lines
    from linkbound.study.freezing import append_frozen

    append_frozen(study, frozen)
    write_text(file, frozen.text)
    lines = [*frozen_lines(frozen), f"Wrote {file}"]
    click.echo(frozen.text if as_json else "\n".join(lines), nl=not as_json)
