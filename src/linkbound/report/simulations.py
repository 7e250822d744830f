"""Simulated loads as tables and as JSON: every figure is a prediction with its interval (E3)."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from linkbound.predict.simulate.types import CALIBRATED, HostPace, Simulation
from linkbound.report.host_pace import host_pace_document
from linkbound.report.table import render_table
from linkbound.report.types import CellShown, RateVerdict
from linkbound.report.words import predicted, visible
from linkbound.serve.contenders import asked_seed
from linkbound.units import format_significant
from linkbound.verdict.under_load import LoadComparison

SCHEMA, VERSION = "linkbound.simulations", 1
_HEADER = (
    "plan",
    "ttft p50",
    "p99",
    "tpot p50",
    "p99",
    "e2e p99",
    "tok/s",
    "good",
    "load",
)
_TIMES = ("ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s", "e2e_p99_s")
_ATTRIBUTED = (("ttft_p99_s", "ttft p99"), ("tpot_p99_s", "tpot p99"), ("e2e_p99_s", "e2e p99"))
LEAST_SHARE = 0.01
_ABSENT = "none"


def render_simulations(cells: Iterable[CellShown], head: Iterable[str]) -> str:
    """`head`, then a table for each cell, what tells plans apart, and what is not there."""
    lines = [
        *head,
        "Times in ms from when a request is due; load: the rate over what the plan can serve.",
    ]
    for shown in cells:
        lines += ["", *_cell(shown)]
    return "\n".join(lines)


def _cell(shown: CellShown) -> list[str]:
    cell = shown.cell
    lengths = (
        "lengths of the trace"
        if cell.entries
        else f"{cell.prompt_tokens:,} in, {cell.output_tokens:,} out"
    )
    lines = [f"{cell.name}, {cell.requests:,} requests, {lengths}, seed {asked_seed(cell)}"]
    if shown.simulations:
        lines += render_table(_HEADER, [_row(one) for one in shown.simulations], left=1)
    for one in shown.simulations:
        lines += _notes(one)
    lines += comparison_lines(shown.comparisons)
    lines += [f"Not simulated: {text}" for text in shown.skipped]
    return lines


def _row(one: Simulation) -> tuple[str, ...]:
    def shown(name: str, scale: float = 1.0) -> str:
        found = one.figures.get(name)
        return _ABSENT if found is None else predicted(found.whole, scale)

    rate, capacity = one.offered_per_s, one.capacity_per_s
    share = _ABSENT if rate is None or capacity is None else f"~{rate / capacity.value:.0%}"
    return (
        one.scenario.name,
        *(shown(name, 1e3) for name in _TIMES),
        shown("output_tokens_per_s"),
        shown("goodput"),
        share,
    )


def _notes(one: Simulation) -> list[str]:
    """What makes the figures of a plan mean less, or shows that its cache is short."""
    found = []
    if one.overloaded:
        found.append(
            f"{one.scenario.name}: more comes than it can serve, so that its times grow with the "
            "number of requests."
        )
    if one.uncrossed is not None and (parts := _link_parts(one)):
        found.append(f"{one.scenario.name}: of {', '.join(parts)} is the link's.")
    if one.outcome.preemptions:
        peak = one.outcome.cache_peak or 0.0
        found.append(
            f"{one.scenario.name}: the cache is full ({peak:.0%} at most), "
            f"{one.outcome.preemptions:,} times a sequence is put back and computed again."
        )
    return found


def _link_parts(one: Simulation) -> list[str]:
    """What each of the worst times would be shorter by if all that crosses took no time."""
    parts = []
    for name, title in _ATTRIBUTED:
        found, without = one.figures.get(name), (one.uncrossed or {}).get(name)
        if found is not None and without is not None:
            link_s = found.value - without
            share = link_s / found.value
            # Steps that shift by a little shift the queue by chance.
            much = f"~{format_significant(link_s * 1e3)} ms ({share:.0%})"
            parts.append(f"{title} {much if share >= LEAST_SHARE else 'less than 1 %'}")
    return parts


def comparison_lines(comparisons: Iterable[LoadComparison]) -> list[str]:
    """`KEEP tp2, p2p over ...`, one line each."""
    return [f"{one.answer.value.upper()}: {one.text}" for one in comparisons]


def render_rate_verdicts(rates: Iterable[RateVerdict]) -> str:
    """The verdicts of simulated rates, each cell with its lines."""
    lines = []
    for one in rates:
        where = one.subject
        lines += [
            f"{visible(str(where['model']))} on {visible(str(where['machine']))}, simulated: "
            f"{visible(str(where['cell']))}, {where['prompt_tokens']:,} in, "
            f"{where['output_tokens']:,} out",
            *comparison_lines(one.comparisons),
            "",
        ]
    return "\n".join(lines)


def render_simulations_json(
    cells: Iterable[CellShown],
    machine: str,
    recorded: bool,
    model: str,
    engine: str,
    host: HostPace = CALIBRATED,
) -> str:
    """One JSON document; times in seconds, a figure that so few requests do not have is absent."""
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        "machine": machine,
        "recorded": recorded,
        "model": model,
        "engine": engine,
        **host_pace_document(host),
        "cells": [_cell_document(shown) for shown in cells],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode()


def _cell_document(shown: CellShown) -> dict[str, Any]:
    cell = msgspec.to_builtins(shown.cell)
    # A trace can be long, and is the user's own file.
    cell.pop("entries")
    rows = zip(shown.simulations, shown.record_ids, strict=True)
    return {
        "cell": cell,
        "plans": [_plan_document(one, record_id) for one, record_id in rows],
        "comparisons": [comparison_document(one) for one in shown.comparisons],
        "skipped": list(shown.skipped),
    }


def _plan_document(one: Simulation, record_id: str) -> dict[str, Any]:
    scenario, outcome = one.scenario, one.outcome
    return {
        **_plan(scenario.plan.split.name, scenario.plan.arm),
        "prefill": None if scenario.prefill is None else scenario.prefill.split.name,
        "figures": {name: _figure(found) for name, found in one.figures.items()},
        "uncrossed": one.uncrossed,
        "capacity_per_s": msgspec.to_builtins(one.capacity_per_s),
        "overloaded": one.overloaded,
        "preemptions": outcome.preemptions,
        "cache_mean": outcome.cache_mean,
        "cache_peak": outcome.cache_peak,
        "busy": outcome.busy,
        "record_id": record_id,
    }


def _figure(found: Any) -> Mapping[str, Any]:
    return {
        **msgspec.to_builtins(found.whole),
        "steps": msgspec.to_builtins(found.steps),
        "draws": msgspec.to_builtins(found.draws),
        "n": found.n,
    }


def _plan(split: str, arm: Any) -> dict[str, Any]:
    return {"split": split, "arm": None if arm is None else arm.value}


def comparison_document(one: LoadComparison) -> dict[str, Any]:
    """A comparison under load as JSON."""
    return {
        **_plan(one.plan.split.name, one.plan.arm),
        "baseline": _plan(one.baseline.split.name, one.baseline.arm),
        "figure": one.figure,
        "gain": msgspec.to_builtins(one.gain),
        "answer": one.answer.value,
        "text": one.text,
    }
