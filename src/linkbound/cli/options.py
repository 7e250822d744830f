"""Options that several verbs share, and their values (notes: commands)."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from linkbound.errors import UsageError

if TYPE_CHECKING:
    from linkbound.model.types import Load
    from linkbound.study.sources import Sources

HELP = {"help_option_names": ["-h", "--help"]}
"""Settings of every verb, also where it runs without the group."""

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

machine_option: Decorator = click.option(
    "--machine",
    metavar="NAME|FILE|DIR",
    help="A recorded machine, or files of one, instead of this host.",
)
override_option: Decorator = click.option(
    "--override",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a key of the model's config; repeatable.",
)

keep_option: Decorator = click.option(
    "-C",
    "--study",
    "path",
    type=click.Path(path_type=Path),
    help="Keep the answer, and what it rests on, in this study.",
)


class Number(click.FloatRange):
    """A finite number of a range: comparisons with nan refuse nothing."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{found} is no finite number.", param, ctx)
        return found


POSITIVE = Number(min=0, min_open=True)
SHARE = Number(0, 1)


def _gain(_context: click.Context, _option: click.Parameter, value: float | None) -> float | None:
    if value is not None and not 0 <= value < 10:
        raise UsageError(
            f"--min-gain {value} is out of range.",
            why="It is a share: 0.05 means five percent.",
            hint="Give a number from 0 to 10.",
        )
    return value


def min_gain_option(words: str, default: float | None = 0.05) -> Decorator:
    """--min-gain; `words` say of what."""
    return click.option(
        "--min-gain",
        type=float,
        default=default,
        show_default=default is not None,
        callback=_gain,
        help=words,
    )


slo_option: Decorator = click.option(
    "--slo", help="What a good request keeps: ttft=200ms,tpot=20ms,e2e=5s."
)
seed_option: Decorator = click.option(
    "--seed",
    default=1,
    show_default=True,
    type=click.IntRange(0, 10**9),
    help="Of arrivals and prompts.",
)


def _together(options: Sequence[Decorator]) -> Decorator:
    """Several options as one decorator, in the order in which help shows them."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def contender_options(words: str, all_splits: str) -> Decorator:
    """--split, --arm; `words` for the first, `all_splits` says what is taken without it."""
    return _together(
        (
            click.option(
                "--split",
                "splits",
                multiple=True,
                help=f"{words}; repeatable [{all_splits}].",
            ),
            click.option(
                "--arm",
                "arms",
                multiple=True,
                type=click.Choice(["p2p", "nccl", "staged", "net"]),
                help="How GPUs of a split may talk; repeatable [p2p].",
            ),
        )
    )


arrival_options: Decorator = _together(
    (
        click.option(
            "--rate", "rates", metavar="LIST", help="Requests a second, open loop: 1,4x500,16."
        ),
        click.option("--burstiness", type=POSITIVE, help="Gamma gaps for --rate: 1 is Poisson."),
        click.option(
            "--concurrency", metavar="LIST", help="Requests at once, closed loop: 1,32x500."
        ),
        click.option(
            "--trace",
            "trace_file",
            type=click.Path(path_type=Path),
            help="Replay arrivals and lengths of this file of JSON lines.",
        ),
    )
)


def request_options(requests: int, p99_requests: int) -> Decorator:
    """--requests with this default, --prompt, --output; from how many requests there is a p99."""
    return _together(
        (
            click.option(
                "--requests",
                default=requests,
                show_default=True,
                type=click.IntRange(1, 10**6),
                help=f"Of cells that state none; p99 takes {p99_requests:,}.",
            ),
            click.option(
                "--prompt",
                default=1024,
                show_default=True,
                type=click.IntRange(1, 10**7),
                help="Prompt tokens of a request.",
            ),
            click.option(
                "--output",
                default=128,
                show_default=True,
                type=click.IntRange(1, 10**6),
                help="Output tokens of a request.",
            ),
        )
    )


def load_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--prompt, --output, --concurrency."""
    for option in (
        click.option(
            "--concurrency",
            default="1,32",
            show_default=True,
            help="Sequences at once; several with commas.",
        ),
        click.option(
            "--output",
            type=click.IntRange(1, 10**7),
            default=256,
            show_default=True,
            help="Output tokens of a sequence.",
        ),
        click.option(
            "--prompt",
            type=click.IntRange(1, 10**8),
            default=1024,
            show_default=True,
            help="Prompt tokens of a sequence.",
        ),
    ):
        function = option(function)
    return function


def to_loads(prompt: int, output: int, concurrency: str) -> "tuple[Load, ...]":
    """One load for each concurrency. Raises UsageError."""
    from linkbound.model.types import Load

    try:
        counts = [int(one) for one in concurrency.split(",")]
    except ValueError:
        counts = []
    if not counts or not all(1 <= one <= 100_000 for one in counts):
        raise UsageError(
            f"--concurrency '{concurrency}' is not a list of counts.",
            why="Each is a number of sequences at once, from 1 to 100,000.",
            hint="Write 1,32.",
        )
    return tuple(
        Load(prompt_tokens=prompt, output_tokens=output, concurrency=one)
        for one in dict.fromkeys(counts)
    )


def to_overrides(pairs: tuple[str, ...]) -> dict[str, str]:
    """KEY=VALUE pairs as a mapping. Raises UsageError."""
    found = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not key or not separator:
            raise UsageError(
                f"--override '{pair}' has no key and value.",
                why="It sets one key of the model's configuration.",
                hint="Write --override sliding_window=4096.",
            )
        found[key] = value
    return found


def stem(name: str) -> str:
    """A file name made of a model's or machine's name: its dots stay."""
    base = Path(name).name or "study"
    return "".join(one if one.isalnum() or one in "._-" else "-" for one in base)


def write_text(path: Path, text: str) -> None:
    """Write an output file. Raises UsageError where it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}.",
            why="The output belongs there.",
            hint="Name a file in a folder that exists and that you may write to.",
        ) from None


def read_machine_sources(machine: str | None) -> "Sources":
    """The named machine, else this host, else the default recorded machine, said on stderr."""
    from linkbound.study.sources import DEFAULT_MACHINE, read_host, read_sources

    if machine is not None:
        return read_sources(machine)
    host = read_host()
    if host is not None:
        return host
    click.echo(
        f"No GPU here: figures are from the recorded machine {DEFAULT_MACHINE}, "
        "not from this host. Name another with --machine.",
        err=True,
    )
    return read_sources(DEFAULT_MACHINE)
