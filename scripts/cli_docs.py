"""Writes docs/cli.md from the commands themselves, so that no flag is missing there.

Run: python scripts/cli_docs.py
"""

from collections.abc import Iterator
from pathlib import Path

import click

from linkbound.cli.main import VERBS, linkbound

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
HEAD = """# Commands

Made by `python scripts/cli_docs.py` from the commands themselves; a test fails where it is not
current. `linkbound VERB --help` prints the same.

Exit codes: 0 done (whatever the verdict), 1 ran and failed, 2 wrong command line or input,
3 nothing to measure, 4 wrong bytes or a hang found, 124 time limit, 130 interrupted;
`verdict --gate` adds 10 (reject) and 11 (undecided).

| verb | |
|---|---|
"""


def render() -> str:
    """The whole page."""
    context = click.Context(linkbound, info_name="linkbound")
    verbs = {name: linkbound.get_command(context, name) for name in VERBS}
    rows = [f"| [{name}](#linkbound-{name}) | {text} |" for name, (_, text) in VERBS.items()]
    parts = [
        part
        for name, command in verbs.items()
        if command is not None
        for part in _command(command, f"linkbound {name}")
    ]
    return HEAD + "\n".join([*rows, "", *parts]) + "\n"


def _command(command: click.Command, path: str) -> Iterator[str]:
    """A section for a command and, below it, for each of its own commands."""
    yield f"## {path}\n"
    yield f"```\n{' '.join([path, *_usage(command)])}\n```\n"
    yield _paragraphs(command.help or "") + "\n"
    options = [one for one in command.params if isinstance(one, click.Option)]
    if options:
        yield "| option | |\n|---|---|"
        yield from (f"| `{_names(one)}` | {_help(one)} |" for one in options)
        yield ""
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from _command(inner, f"{path} {name}")


def _usage(command: click.Command) -> Iterator[str]:
    if any(isinstance(one, click.Option) for one in command.params):
        yield "[OPTIONS]"
    if isinstance(command, click.Group):
        yield "COMMAND [ARGS]..."
    for one in command.params:
        if isinstance(one, click.Argument):
            word = one.metavar or (one.name or "").upper()
            shown = word if one.required or word.startswith("[") else f"[{word}]"
            yield shown + ("..." if one.nargs == -1 and not word.endswith("...") else "")


def _names(option: click.Option) -> str:
    names = ", ".join([*option.opts, *option.secondary_opts])
    if option.is_flag or option.count:
        return names
    if isinstance(option.type, click.Choice):
        return f"{names} [{'|'.join(str(one) for one in option.type.choices)}]".replace("|", "\\|")
    return f"{names} {option.metavar or option.type.name.split()[0].upper()}".replace("|", "\\|")


def _help(option: click.Option) -> str:
    default = f" Default: {option.default}." if option.show_default else ""
    return f"{option.help or ''}{default}".replace("|", "\\|")


def _paragraphs(text: str) -> str:
    """Help text with each paragraph on a line of its own."""
    cleaned = [" ".join(part.split()) for part in text.replace("\b", "").split("\n\n")]
    return "\n\n".join(part for part in cleaned if part)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
