"""Options that a form of a verb does not read: given, they are refused, never ignored."""

import click
from click.core import ParameterSource

from linkbound.errors import UsageError


def refuse_given(names: tuple[str, ...], beside: str, why: str) -> None:
    """Raises UsageError where the user gave one of these parameters of the verb that runs."""
    context = click.get_current_context()
    options = {option.name: option.opts[0] for option in context.command.params}
    for name in names:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(
                f"{options[name]} has no effect with {beside}.", why=why, hint="Leave it out."
            )
