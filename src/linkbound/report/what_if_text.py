"""Verdicts with other links, beside those with the links that are there (D5)."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from linkbound.report.table import Row, render_table
from linkbound.report.words import gain_words, visible
from linkbound.units import format_rate, format_time
from linkbound.verdict.types import Answer, BreakEven, PlanVerdict, Reason, Verdict
from linkbound.verdict.what_if import Changed, WhatIf
from linkbound.verdict.words import load_text

SCHEMA, VERSION = "linkbound.what_if", 1
MOST_PLANS = 20


def render_what_if(found: Iterable[WhatIf], whose: str) -> str:
    """A block a question and load; all of it is predicted, and the links are stated."""
    lines = [f"Predicted; the links are what each question says: {visible(whose)}."]
    flips: dict[str, None] = {}
    for one in found:
        lines += ["", *_lines(one)]
        flips.update(dict.fromkeys(_flips(one.now)))
    return "\n".join([*lines, *(["", "Where an answer of now turns:", *flips] if flips else [])])


def _lines(found: WhatIf) -> Iterator[str]:
    yield f"What if: {visible(found.supposed)}"
    yield f"  now   {_answer(found.now)}"
    yield f"  then  {_answer(found.then)}"
    # Plans that the question is about come first: of many the others may be cut.
    plans = sorted(found.plans, key=lambda one: one.then is None)[:MOST_PLANS]
    rows = [_row(one) for one in plans]
    if rows:
        header = ("plan", "over", "now", "then", "~gain now", "~gain then")
        yield from (f"  {line}" for line in render_table(header, rows, left=4))
        yield from _open_lines(plans)
    if len(found.plans) > MOST_PLANS:
        yield f"  ... and {len(found.plans) - MOST_PLANS} more (--json has all)."


def _open_lines(plans: Iterable[Changed]) -> Iterator[str]:
    """Why plans without a gain are open, those with one reason together."""
    open_ones: dict[str, list[str]] = {}
    for one in plans:
        if one.reason is not None:
            open_ones.setdefault(one.reason.text, []).append(one.plan.name)
    for text, names in open_ones.items():
        yield f"  {'; '.join(names)}: {visible(text)}"


def _answer(verdict: Verdict) -> str:
    return f"{verdict.answer.value.upper()}: {visible(verdict.headline)}"


def _row(one: Changed) -> Row:
    return (
        one.plan.name,
        "-" if one.baseline is None else one.baseline.name,
        _word(one.now),
        _word(one.then),
        "-" if one.gain_now is None else gain_words(one.gain_now),
        "-" if one.gain_then is None else gain_words(one.gain_then),
    )


def _word(answer: Answer | None) -> str:
    return "not there" if answer is None else answer.value


def _flips(now: Verdict) -> Iterator[str]:
    """The links at which an answer of now turns."""
    for plan in now.plans:
        if plan.break_even is not None:
            yield f"  {load_text(now.load)}: {_flip(plan)}"


def _flip(plan: PlanVerdict) -> str:
    found = plan.break_even
    assert found is not None
    parts = []
    if found.bytes_per_s is not None:
        parts.append(f"at ~{format_rate(found.bytes_per_s)}")
    if found.latency_s is not None:
        parts.append(f"at ~{format_time(found.latency_s)}")
    return (
        f"{plan.plan.name} turns over {found.baseline.name} {' or '.join(parts)} "
        f"({visible(found.basis)})"
    )


def render_what_if_json(found: Iterable[WhatIf], machine: str, recorded: bool, model: str) -> str:
    """One JSON document."""
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        "machine": machine,
        "recorded": recorded,
        "model": model,
        "provenance": "predicted, links stated",
        "questions": [_document(one) for one in found],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode()


def _document(found: WhatIf) -> dict[str, Any]:
    turns = {one.plan.key: one.break_even for one in found.now.plans}
    return {
        "supposed": found.supposed,
        "load": msgspec.to_builtins(found.now.load),
        "now": {"answer": found.now.answer.value, "headline": found.now.headline},
        "then": {"answer": found.then.answer.value, "headline": found.then.headline},
        "plans": [
            {
                "split": one.plan.split.name,
                "arm": None if one.plan.arm is None else one.plan.arm.value,
                "aim": None if one.aim is None else one.aim.value,
                "baseline": None if one.baseline is None else one.baseline.name,
                "now": None if one.now is None else one.now.value,
                "then": None if one.then is None else one.then.value,
                "gain_now": msgspec.to_builtins(one.gain_now),
                "gain_then": msgspec.to_builtins(one.gain_then),
                "reason": _reason(one.reason),
                "break_even_now": _break_even(turns.get(one.plan.key)),
            }
            for one in found.plans
        ],
    }


def _reason(reason: Reason | None) -> dict[str, str] | None:
    return None if reason is None else {"code": reason.code, "text": reason.text}


def _break_even(found: BreakEven | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "baseline": found.baseline.name,
        "bytes_per_s": found.bytes_per_s,
        "latency_s": found.latency_s,
        "basis": found.basis,
    }
