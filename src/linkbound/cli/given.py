"""Options that were written although they do nothing beside the others: refused, by name."""

from collections.abc import Collection

import click
from click.core import ParameterSource

from linkbound.errors import UsageError


def refuse_given(
    names: Collection[str], because: str, *, why: str, hint: str = "Leave it out."
) -> None:
    """Raises UsageError where one of these parameters of the command under way was written."""
    for option in _given():
        if option.name in names:
            _refuse(option, because, why, hint)


def refuse_all_but(names: Collection[str], because: str, *, why: str) -> None:
    """Raises UsageError where any other option of the command under way was written."""
    for option in _given():
        if option.name not in names:
            _refuse(option, because, why, "Leave it out.")


def _given() -> list[click.Option]:
    context = click.get_current_context()
    return [
        one
        for one in context.command.params
        if isinstance(one, click.Option)
        and one.name is not None
        and context.get_parameter_source(one.name) is ParameterSource.COMMANDLINE
    ]


def _refuse(option: click.Option, because: str, why: str, hint: str) -> None:
    raise UsageError(f"{option.opts[-1]} has no effect: {because}.", why=why, hint=hint)
