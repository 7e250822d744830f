"""`linkbound`: finds the verb, runs it, turns an error into a message and an exit code."""

import importlib
import os
import signal
import sys
from types import FrameType
from typing import Any

import click

from linkbound import __version__
from linkbound.cli.options import HELP
from linkbound.errors import Interrupted, LinkboundError

ENDINGS = (signal.SIGTERM, signal.SIGHUP)
"""What `kill`, `timeout`, a batch system and a closed terminal send."""

# One line a verb: module and help text, so that `--help` imports no verb.
VERBS = {
    "study": ("linkbound.cli.study", "Run every stage for a model and end with a verdict."),
    "doctor": ("linkbound.cli.doctor", "Name what is wrong here, or in files people posted."),
    "topo": ("linkbound.cli.topo", "Show what is wired here, or in files people posted."),
    "links": ("linkbound.cli.links", "Measure every link of this host, verified first."),
    "fit": ("linkbound.cli.fit", "What fits: weights, cache and context on each GPU by itself."),
    "splits": ("linkbound.cli.splits", "What each split makes the GPUs send to each other."),
    "profile": ("linkbound.cli.profile", "Where the time of a split goes, arm against arm."),
    "serve": ("linkbound.cli.serve", "Load a real engine in every split and arm, and compare."),
    "trace": ("linkbound.cli.trace", "Which path the data took, by independent witnesses."),
    "predict": ("linkbound.cli.predict", "Predict step times of splits, or score predictions."),
    "calibrate": ("linkbound.cli.calibrate", "Constants of an engine from a short run of it."),
    "simulate": ("linkbound.cli.simulate", "Simulate requests over time on splits and replicas."),
    "search": ("linkbound.cli.search", "The best split, GPUs, arm and batch limit of a machine."),
    "run": ("linkbound.cli.run", "Run a command on the GPUs, cores and memory of a plan."),
    "verdict": ("linkbound.cli.verdict", "Keep, reject or undecided, from a study."),
    "report": ("linkbound.cli.report", "Render a study as text, JSON or one HTML page."),
    "export": ("linkbound.cli.export", "A study's figures as CSV, Prometheus text, and more."),
    "show": ("linkbound.cli.show", "Show the records of a study."),
    "compare": ("linkbound.cli.compare", "Compare two studies."),
    "check": ("linkbound.cli.check", "Verify a study: ids, chain, parents."),
}


class LazyGroup(click.Group):
    """A group whose verbs are imported when they are called."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command = importlib.import_module(VERBS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(verb, text) for verb, (_, text) in VERBS.items()])


@click.group(cls=LazyGroup, context_settings=HELP)
@click.version_option(__version__, prog_name="linkbound")
def linkbound() -> None:
    """Does splitting a model over these GPUs pay, and does the link between them matter?

    Start with: linkbound study llama-3.1-8b
    """


def run(arguments: list[str] | None = None, **options: Any) -> int:
    """Run one command line; returns the exit code (docs/interface: 0 done, 2 usage, ...)."""
    try:
        outcome = linkbound.main(arguments, prog_name="linkbound", standalone_mode=False, **options)
        return outcome if isinstance(outcome, int) else 0
    except click.exceptions.Abort as error:
        return _stopped(error.__cause__)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except KeyboardInterrupt as error:
        return _stopped(error)
    except LinkboundError as error:
        return _report(error)
    except BrokenPipeError:
        raise
    except OSError as error:
        # A full disk or a folder that went away: what a study had appended is kept.
        what = f"{error.filename}: " if error.filename else ""
        return _report(
            LinkboundError(
                f"{what}{error.strerror or error}.",
                why="Reading or writing failed.",
                hint="See to the disk and its permissions, then run again.",
            )
        )


def _stopped(error: BaseException | None) -> int:
    """Studies that were open have noted what they keep."""
    kept = getattr(error, "__notes__", ())
    return _report(Interrupted("Stopped.", hint=" ".join(kept) or "Nothing was recorded."))


def _report(error: LinkboundError) -> int:
    click.echo(f"linkbound: {error}", err=True)
    return error.exit_code


def _end(_number: int, _frame: FrameType | None) -> None:
    """As Ctrl-C: children run in sessions of their own, and only we end them.

    Heard once: `timeout` sends it twice, and the second must not disturb that.
    """
    for number in ENDINGS:
        if signal.getsignal(number) is _end:
            signal.signal(number, lambda *_: None)
    raise KeyboardInterrupt


def main() -> None:
    """The console script. A reader that closed our output early is no error of ours."""
    for number in ENDINGS:
        # What is ignored (nohup) stays so.
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)
    try:
        code = run()
        sys.stdout.flush()
    except KeyboardInterrupt as error:
        code = _stopped(error)
    except (BrokenPipeError, SystemExit):
        # Outside its standalone mode click exits by itself only for a broken pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        code = _report(LinkboundError(f"The output could not be written: {error.strerror}."))
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
