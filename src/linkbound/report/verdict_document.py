"""The verdicts as JSON: one row a plan, aim and baseline (D1)."""

from collections.abc import Sequence
from typing import Any

import msgspec

from linkbound.predict.types import Plan
from linkbound.report.simulations import comparison_document
from linkbound.report.types import LoadShown, RateVerdict, Report
from linkbound.verdict.types import BreakEven, Comparison, PlanVerdict

SCHEMA, VERSION = "linkbound.verdict", 2


def render_verdict_json(reports: Sequence[Report], rates: Sequence[RateVerdict] = ()) -> str:
    """One JSON document, each load with its model and machine.

    A gain that is not known is null with a reason. `reports` is empty for a study whose only
    verdicts are of simulated rates.
    """
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        "loads": [{**_whose(report), **_load(one)} for report in reports for one in report.loads],
        "under_load": [
            {
                "subject": dict(one.subject),
                "comparisons": [comparison_document(each) for each in one.comparisons],
                "record_id": one.record_id,
            }
            for one in rates
        ],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode()


def _whose(report: Report) -> dict[str, Any]:
    return {
        "machine": report.machine_name,
        "recorded": report.recorded,
        "model": report.shape.name,
        "excluded": dict(report.excluded),
    }


def _load(shown: LoadShown) -> dict[str, Any]:
    verdict = shown.verdict
    return {
        "load": msgspec.to_builtins(shown.load),
        "answer": verdict.answer.value,
        "plan": None if verdict.plan is None else _plan(verdict.plan),
        "headline": verdict.headline,
        "reasons": msgspec.to_builtins(verdict.reasons),
        "plans": [_judged(one) for one in verdict.plans],
        "would_change": list(verdict.would_change),
        "measurements": msgspec.to_builtins(verdict.measurements),
        "record_ids": list(shown.record_ids),
    }


def _plan(plan: Plan) -> dict[str, Any]:
    return {
        "split": plan.split.name,
        "arm": None if plan.arm is None else plan.arm.value,
        "gpus": list(plan.placement.gpus),
    }


def _judged(one: PlanVerdict) -> dict[str, Any]:
    return {
        **_plan(one.plan),
        "answer": one.answer.value,
        "reasons": msgspec.to_builtins(one.reasons),
        "comparisons": [_comparison(each) for each in one.comparisons],
        "break_even": None if one.break_even is None else _break_even(one.break_even),
    }


def _break_even(one: BreakEven) -> dict[str, Any]:
    return {**msgspec.to_builtins(one), "baseline": _plan(one.baseline)}


def _comparison(one: Comparison) -> dict[str, Any]:
    unknown = {"code": "not-priced", "text": "The baseline does not fit, so it has no time."}
    return {
        "aim": one.aim.value,
        "baseline": _plan(one.baseline),
        "gain": None if one.gain is None else msgspec.to_builtins(one.gain),
        "reason": unknown if one.gain is None else None,
        "answer": one.answer.value,
    }
