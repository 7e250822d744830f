"""`linkbound splits`: what each split makes the GPUs send to each other, by phase (S2)."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from linkbound.cli.fit import (
    chosen_splits,
    count_left,
    model_document,
    read_gpus,
    read_shape,
    split_options,
    whole,
    whose,
)
from linkbound.cli.options import HELP
from linkbound.model.types import ModelShape
from linkbound.splits.listing import Listing, Step, list_crossings
from linkbound.splits.types import Crossing, Dispatch, Phase, Split
from linkbound.topology.types import Machine

SCHEMA = "linkbound.splits"
VERSION = 1


@click.command("splits", context_settings=HELP)
@split_options
@click.option(
    "--prompt",
    default=1024,
    show_default=True,
    type=click.IntRange(1),
    help="Tokens of a prefill step.",
)
@click.option(
    "--concurrency",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Sequences of a decode step.",
)
@click.option(
    "--dispatch",
    type=click.Choice([one.value for one in Dispatch]),
    help="How experts are reached [all_reduce inside a replica, else allgather_reducescatter].",
)
@click.option("--logits", is_flag=True, help="List the gathering of logits too.")
def command(
    model: str,
    gpus: str | None,
    machine: str | None,
    split_texts: tuple[str, ...],
    overrides: tuple[str, ...],
    as_json: bool,
    path: Path | None,
    prompt: int,
    concurrency: int,
    dispatch: str | None,
    logits: bool,
) -> None:
    """List every transfer that a split of MODEL causes in a prefill and in a decode step.

    A prefill step takes the prompt of one sequence, a decode step one token of each sequence.
    """
    shape = read_shape(model, overrides)
    asked = read_gpus(gpus, machine)
    title, found = asked.title, asked.machine
    splits = chosen_splits(split_texts, count_left(found, ()), shape)
    steps = (
        Step(phase=Phase.PREFILL, tokens=prompt, sequences=1),
        Step(phase=Phase.DECODE, tokens=concurrency, sequences=concurrency),
    )
    listings = [
        list_crossings(shape, _dispatched(split, dispatch), steps, logits) for split in splits
    ]
    answer = document(shape, title, found, listings)
    if as_json:
        click.echo(json.dumps(answer, indent=2, allow_nan=False))
    else:
        from linkbound.report.crossings_text import render_crossings

        click.echo(render_crossings(shape, whose(title), found, listings), nl=False)
    if path is not None:
        subject = {
            "splits": list(split_texts),
            "prompt_tokens": prompt,
            "concurrency": concurrency,
            "dispatch": dispatch,
            "logits": logits,
        }
        asked.keep(path, "splits", shape, subject, answer)


def _dispatched(split: Split, dispatch: str | None) -> Split:
    from msgspec.structs import replace

    if dispatch is None or split.ep == 1:
        return split
    return replace(split, dispatch=Dispatch(dispatch))


def document(
    shape: ModelShape, title: str, machine: Machine, listings: Iterable[Listing]
) -> dict[str, Any]:
    """The answer as JSON; sizes in bytes of one call on one rank."""
    return {
        "schema": SCHEMA,
        "version": VERSION,
        **model_document(shape, title, machine),
        "splits": [
            {
                "name": listing.split.name,
                "gpus": listing.split.gpus,
                "possible": listing.problem is None,
                "reason": None if listing.problem is None else listing.problem.text,
                "crossings": [_crossing(step, one) for step, one in listing.crossings],
            }
            for listing in listings
        ],
    }


def _crossing(step: Step, crossing: Crossing) -> dict[str, Any]:
    return {
        "phase": crossing.phase.value,
        "tokens": step.tokens,
        "kind": crossing.kind.value,
        "operation": crossing.operation.value,
        "ranks": list(crossing.ranks),
        "size_bytes": crossing.size_bytes,
        "calls_per_step": crossing.count,
        "bytes_per_token": whole(crossing.size_bytes * crossing.count / step.tokens),
    }
