"""`linkbound fit`: what each GPU of each split holds, what that leaves, and why not (S3)."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from linkbound.cli.options import HELP, keep_option
from linkbound.errors import UsageError
from linkbound.model.types import Load, ModelShape
from linkbound.splits.types import Fit, RankMemory, Split
from linkbound.topology.types import Machine
from linkbound.values import Value

if TYPE_CHECKING:
    from linkbound.study.sources import Sources

SCHEMA = "linkbound.fit"
VERSION = 1


def split_options(function: Callable[..., None]) -> Callable[..., None]:
    """The arguments that name a model, a machine and splits: the same for every verb."""
    options = (
        click.argument("model", metavar="MODEL"),
        click.option(
            "--gpus", metavar="SIZES", help="Memory of each GPU: 2x24GiB, or 24GiB,16GiB."
        ),
        click.option(
            "--machine",
            metavar="NAME|FILE|DIR",
            help="A recorded machine, or files of one, instead of this host.",
        ),
        click.option(
            "--split",
            "split_texts",
            metavar="SPLIT",
            multiple=True,
            help="tp2, pp2, tp2pp2, ep2, x2, pp2:20,12; repeat for more [all possible].",
        ),
        click.option(
            "--override",
            "overrides",
            metavar="KEY=VALUE",
            multiple=True,
            help="A key of the model's configuration, replaced; repeat for more.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document."),
        keep_option,
    )
    for option in reversed(options):
        function = option(function)
    return function


@click.command("fit", context_settings=HELP)
@split_options
@click.option(
    "--prompt", default=1024, show_default=True, type=click.IntRange(1), help="Tokens of a prompt."
)
@click.option(
    "--output", default=256, show_default=True, type=click.IntRange(1), help="Tokens of an answer."
)
@click.option(
    "--concurrency", default=1, show_default=True, type=click.IntRange(1), help="Sequences at once."
)
@click.option(
    "--exclude", metavar="GPU", multiple=True, help="A GPU to leave out; repeat for more."
)
def command(
    model: str,
    gpus: str | None,
    machine: str | None,
    split_texts: tuple[str, ...],
    overrides: tuple[str, ...],
    as_json: bool,
    path: Path | None,
    prompt: int,
    output: int,
    concurrency: int,
    exclude: tuple[str, ...],
) -> None:
    """Show what MODEL takes on each GPU by itself, and what fits beside it.

    MODEL is a bundled name, a folder, a config.json or a GGUF file. Ends with 0 also when
    nothing fits: that is an answer.
    """
    from linkbound.splits.fit import fit_machine

    shape = read_shape(model, overrides)
    asked = read_gpus(gpus, machine)
    title, found = asked.title, asked.machine
    exclude = exclude or left_out(found)
    splits = chosen_splits(split_texts, count_left(found, exclude), shape)
    load = Load(prompt_tokens=prompt, output_tokens=output, concurrency=concurrency)
    fits = [fit_machine(shape, split, found, load, excluded=exclude) for split in splits]
    answer = document(shape, title, found, load, fits)
    if as_json:
        click.echo(json.dumps(answer, indent=2, allow_nan=False))
    else:
        from linkbound.report.fit_text import render_fit

        click.echo(render_fit(shape, whose(title), found, load, fits), nl=False)
    if path is not None:
        subject = {**answer["load"], "splits": list(split_texts), "excluded": list(exclude)}
        asked.keep(path, "fit", shape, subject, answer)


def read_shape(model: str, overrides: Iterable[str]) -> ModelShape:
    """The model that the argument names, with `KEY=VALUE` overrides."""
    from linkbound.cli.options import to_overrides
    from linkbound.model.read_model import read_model

    return read_model(model, to_overrides(tuple(overrides)))


class AskedMachine(Value, frozen=True, kw_only=True):
    """The GPUs that a model is to fit, and where they are known from."""

    title: str
    machine: Machine
    sources: "Sources | None"
    """None where nothing but memory was stated."""
    stated: bool
    """Whether --gpus set their memory."""

    def keep(
        self,
        path: Path,
        verb: str,
        shape: ModelShape,
        subject: Mapping[str, Any],
        answer: Mapping[str, Any],
    ) -> None:
        """Append an answer about these GPUs to the study at `path`."""
        from linkbound.study.answers import keep_answer, seen_machine, seen_model

        seen = [seen_model(shape)]
        if self.sources is not None:
            seen += seen_machine(self.title, self.machine, self.sources)
        if self.stated:
            seen += seen_machine(self.title, self.machine, None)
        named = {"model": shape.name, "machine": self.title, **subject}
        keep_answer(path, verb, named, answer, seen, self.machine)


def read_gpus(gpus: str | None, machine: str | None) -> AskedMachine:
    """What the machine is called, and its GPUs; with both options memory is what --gpus states."""
    from linkbound.splits.parse_gpus import parse_gpus, state_memories

    if gpus is not None and machine is None:
        return AskedMachine(
            title=f"stated: {gpus}", machine=parse_gpus(gpus), sources=None, stated=True
        )
    from linkbound.cli.options import read_machine_sources
    from linkbound.study.machines import load_machine

    sources = read_machine_sources(machine)
    found = load_machine(sources)
    if gpus is None:
        return AskedMachine(title=sources.name, machine=found, sources=sources, stated=False)
    return AskedMachine(
        title=f"{sources.name}, memory stated: {gpus}",
        machine=state_memories(found, gpus),
        sources=sources,
        stated=True,
    )


def whose(title: str) -> str:
    """The machine's name, and that it is not this host where it is not."""
    from linkbound.links.live.records import HOST_NAME

    stated = title.startswith(("stated:", HOST_NAME))
    return title if stated else f"{title} (recorded, not this host)"


def left_out(machine: Machine) -> tuple[str, ...]:
    """GPUs that no study splits over: of another model than most. Said on stderr."""
    from linkbound.predict.candidates import excluded_gpus

    found = excluded_gpus(machine, ())
    for reason in found.values():
        click.echo(f"Left out: {reason}", err=True)
    return tuple(found)


def count_left(machine: Machine, excluded: Iterable[str]) -> int:
    """GPUs that may be used. Refuses a name that no GPU has, and leaving out all of them."""
    left = {gpu.label for gpu in machine.gpus}
    for name in excluded:
        named = {gpu.label for gpu in machine.gpus if name in (gpu.key, gpu.label)}
        if not named:
            raise UsageError(
                f"--exclude {name}: no such GPU.",
                why="Nothing would be left out.",
                hint=f"GPUs here are {', '.join(gpu.label for gpu in machine.gpus)}.",
            )
        left -= named
    if not left:
        raise UsageError(
            f"Of {len(machine.gpus)} GPUs no GPU is left.",
            why="A model needs one.",
            hint="Exclude fewer, or give a machine with --machine or --gpus.",
        )
    return len(left)


def chosen_splits(texts: Iterable[str], n_gpus: int, shape: ModelShape) -> tuple[Split, ...]:
    """The splits that were named, else all that so many GPUs allow."""
    from linkbound.splits.parse_split import parse_split
    from linkbound.splits.plans import enumerate_splits

    return tuple(parse_split(text) for text in texts) or enumerate_splits(n_gpus, shape)


def model_document(shape: ModelShape, title: str, machine: Machine) -> dict[str, Any]:
    """What every document of a model on a machine begins with."""
    from linkbound.model.derive import kv_bytes_per_token

    return {
        "model": shape.name,
        "parameters": shape.parameters,
        "weight_bytes": round(shape.weight_bytes),
        "kv_bytes_per_token": whole(kv_bytes_per_token(shape)),
        "gaps": list(shape.gaps),
        "machine": title,
        "sources": list(machine.sources),
    }


def document(
    shape: ModelShape, title: str, machine: Machine, load: Load, fits: Iterable[Fit]
) -> dict[str, Any]:
    """The answer as JSON; what does not exist is null beside the split's reason."""
    return {
        "schema": SCHEMA,
        "version": VERSION,
        **model_document(shape, title, machine),
        "load": {
            "prompt_tokens": load.prompt_tokens,
            "output_tokens": load.output_tokens,
            "concurrency": load.concurrency,
        },
        "splits": [_split_document(fit) for fit in fits],
    }


def whole(number: float) -> float | int:
    """An integer where the number is one, so that JSON shows 131072 and not 131072.0."""
    return int(number) if number == int(number) else number


def _split_document(fit: Fit) -> dict[str, Any]:
    return {
        "name": fit.split.name,
        "gpus": fit.split.gpus,
        "fits": fit.fits,
        "reason": fit.reason,
        "kv_tokens": fit.kv_tokens,
        "longest_context": fit.longest_context,
        "largest_batch": fit.largest_batch,
        "per_gpu": [_rank_document(rank) for rank in fit.ranks],
    }


def _rank_document(rank: RankMemory) -> dict[str, Any]:
    return {
        "gpu": rank.gpu,
        "rank": rank.rank,
        "capacity_bytes": rank.capacity_bytes,
        "usable_bytes": round(rank.usable_bytes),
        "weights_bytes": _part_bytes(rank, "weights"),
        "activations_bytes": _part_bytes(rank, "activations"),
        "cuda_graphs_bytes": _part_bytes(rank, "CUDA graphs"),
        "non_torch_bytes": _part_bytes(rank, "non-torch"),
        "kv_cache_bytes": _part_bytes(rank, "KV cache"),
        "kv_bytes_per_token": whole(rank.kv_bytes_per_token),
        "kv_tokens": rank.kv_tokens,
        "parts": [
            {
                "name": part.name,
                "size_bytes": round(part.size_bytes),
                "low_bytes": round(part.low_bytes),
                "high_bytes": round(part.high_bytes),
                "basis": part.basis,
            }
            for part in rank.parts
        ],
    }


def _part_bytes(rank: RankMemory, name: str) -> int | None:
    return next((round(part.size_bytes) for part in rank.parts if part.name == name), None)
