"""What a search found: the best plan, why, and the plans that no other one beats (D1, D4)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from linkbound.predict.types import Plan
from linkbound.report.table import Row, render_table
from linkbound.report.words import predicted, visible
from linkbound.search import Choice, Found
from linkbound.verdict.words import load_text

SCHEMA, VERSION = "linkbound.search", 1
MOST_ROWS = 20
MOST_COPIES = 4
"""Copies whose GPUs are named in a row of the table."""
Labels = Mapping[str, str]
"""Key of a GPU to its label."""


def render_search(found: Iterable[Found], head: str, labels: Labels) -> str:
    """The best plan of each load with its reason, and a table; every figure is predicted."""
    lines = [head]
    for one in found:
        lines += ["", *_lines(one, labels)]
    return "\n".join(lines)


def _lines(found: Found, labels: Labels) -> Iterator[str]:
    yield f"{load_text(found.load)}; asked for {found.objective.value}"
    yield visible(found.reason)
    if found.best is not None:
        yield f"It runs on {gpu_words(found.best.plan, labels)}."
    if found.front:
        yield ""
        rows = [_row(choice, found, labels) for choice in found.front[:MOST_ROWS]]
        yield from render_table(_header(found), rows, left=2)
        if len(found.front) > MOST_ROWS:
            yield f"... and {len(found.front) - MOST_ROWS} more (--json has all)."
        yield (
            "latency, ttft, tpot: of the load, given at once, ttft with the wait for a place; "
            "full_: with every replica at its limit and nothing waiting; "
            "limit: sequences at once in a replica; held: in memory, of all replicas."
        )
        yield ""
    if found.candidates:
        yield _looked_at(found)
    yield from (f"No price: {visible(one)}" for one in found.unpriced)
    yield from (f"Left out: {visible(one)}" for one in found.left_out.values())


def _looked_at(found: Found) -> str:
    return (
        f"{found.candidates:,} splits with a number of copies and a batch limit, "
        f"{found.ruled_out:,} ruled out by what the fastest links could give them; "
        + (
            "every placement compared, alike ones once."
            if found.exhaustive
            else "placements from the inside out: too many to compare all."
        )
    )


def _header(found: Found) -> Row:
    return (
        "plan",
        "GPUs",
        "limit",
        "latency_s",
        "ttft_ms",
        "tpot_ms",
        "full_tok/s",
        "held",
        *(name for name, _, _ in _demanded(found)),
    )


def _row(choice: Choice, found: Found, labels: Labels) -> Row:
    return (
        choice.plan.name,
        short_gpus(choice.plan, labels),
        str(choice.limit),
        predicted(choice.latency_s),
        predicted(choice.ttft_s, 1e3),
        predicted(choice.tpot_s, 1e3),
        predicted(choice.tokens_per_s),
        "no bound" if choice.held is None else f"{choice.held:,}",
        *(predicted(getattr(choice, field), scale) for _, field, scale in _demanded(found)),
    )


def _demanded(found: Found) -> list[tuple[str, str, float]]:
    """Columns of what the demands meet, and of what keeps them: name, field, scale."""
    slo = found.slo
    if slo is None:
        return []
    times = (
        (slo.ttft_s, ("full_ttft_ms", "full_ttft_s", 1e3)),
        (slo.tpot_s, ("full_tpot_ms", "full_tpot_s", 1e3)),
        (slo.e2e_s, ("full_e2e_s", "full_latency_s", 1.0)),
    )
    shown = [column for asked, column in times if asked is not None]
    return [*shown, ("full_good_req/s", "goodput_per_s", 1.0)]


def gpu_words(plan: Plan, labels: Labels) -> str:
    """`GPU0, GPU1 and GPU2, GPU3`: each copy's GPUs in rank order."""
    copies = [", ".join(copy) for copy in _copies(plan, labels)]
    shown = copies if len(copies) <= MOST_COPIES else [*copies[: MOST_COPIES - 1], "..."]
    return " and ".join(shown)


def short_gpus(plan: Plan, labels: Labels) -> str:
    """`0-3 4-7`: the same by numbers, what follows one another as a range."""
    copies = [_ranges(copy) for copy in _copies(plan, labels)]
    if len(copies) <= MOST_COPIES:
        return " ".join(copies)
    return f"{' '.join(copies[: MOST_COPIES - 1])} ... ({len(copies)} copies)"


def _copies(plan: Plan, labels: Labels) -> Iterator[list[str]]:
    size = plan.split.tp * plan.split.pp
    keys = plan.placement.gpus
    for at in range(0, len(keys), size):
        yield [labels.get(key, key) for key in keys[at : at + size]]


def _ranges(names: Sequence[str]) -> str:
    numbers = [name.removeprefix("GPU") for name in names]
    if not all(number.isdecimal() for number in numbers):
        return ",".join(numbers)
    runs = groupby(enumerate(map(int, numbers)), key=lambda pair: pair[1] - pair[0])
    parts = [[number for _, number in run] for _, run in runs]
    return ",".join(str(one[0]) if len(one) == 1 else f"{one[0]}-{one[-1]}" for one in parts)


def render_search_json(
    found: Iterable[Found], machine: str, recorded: bool, model: str, labels: Labels
) -> str:
    """One JSON document; times in seconds, every figure predicted."""
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        "machine": machine,
        "recorded": recorded,
        "model": model,
        "searches": [_document(one, labels) for one in found],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode()


def _document(found: Found, labels: Labels) -> dict[str, Any]:
    return {
        "load": msgspec.to_builtins(found.load),
        "objective": found.objective.value,
        "slo": msgspec.to_builtins(found.slo),
        "best": None if found.best is None else _choice(found.best, labels),
        "reason": found.reason,
        "front": [_choice(one, labels) for one in found.front],
        "candidates": found.candidates,
        "ruled_out": found.ruled_out,
        "exhaustive": found.exhaustive,
        "unpriced": list(found.unpriced),
        "left_out": dict(found.left_out),
    }


def _choice(choice: Choice, labels: Labels) -> dict[str, Any]:
    plan = choice.plan
    figures = (
        *("latency_s", "ttft_s", "tpot_s", "tokens_per_s"),
        *("full_latency_s", "full_ttft_s", "full_tpot_s", "goodput_per_s"),
    )
    return {
        "split": plan.split.name,
        "arm": None if plan.arm is None else plan.arm.value,
        "gpus": [labels.get(key, key) for key in plan.placement.gpus],
        "limit": choice.limit,
        "waves": choice.waves,
        "held": choice.held,
        **{name: msgspec.to_builtins(getattr(choice, name)) for name in figures},
    }
