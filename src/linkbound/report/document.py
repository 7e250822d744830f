"""The report as one JSON document: SI units in keys, a reason beside what is missing (E2, E3).

`report.schema.json` beside this file is its schema; keys are added within a version, never changed.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from linkbound.links.types import PairRate
from linkbound.predict.calibration import Constant
from linkbound.predict.types import Forecast
from linkbound.report.types import CurveShown, LoadShown, MapShown, Report, SplitShown
from linkbound.report.words import plan_answer
from linkbound.splits.types import Fit
from linkbound.verdict.types import PlanVerdict

SCHEMA = "linkbound.report"
VERSION = 1
Json = dict[str, Any]


def render_json(report: Report) -> str:
    """The document as indented text."""
    return json.dumps(build_document(report), indent=2, allow_nan=False) + "\n"


def build_document(report: Report) -> Json:
    """The document as plain values."""
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "machine": _machine(report),
        "model": _model(report),
        "engine": report.engine,
        "excluded": dict(report.excluded),
        "loads": [_load(one) for one in report.loads],
        "curves": [_curve(one) for one in report.curves],
        "pairs": {
            "rates": [_rate(one) for one in report.pair_rates],
            "latencies": [_plain(one) for one in report.pair_latencies],
            "record_ids": list(report.link_record_ids),
        },
        "fits": [_fit(one, report.fit_record_ids) for one in report.fits],
        "splits": [_split(one) for one in report.splits],
        "maps": [_map(one) for one in report.maps],
        "calibration": _calibration(report),
        **_score(report),
        **_profile(report),
        "findings": [_plain(one) for one in report.findings],
        "not_known": list(report.not_known),
        "commands": list(report.commands),
        "study_path": report.study_path,
        "evidence": [_plain(one) for one in report.evidence],
        "versions": dict(report.versions),
    }


def _plain(value: msgspec.Struct) -> Json:
    found: Json = msgspec.to_builtins(value, str_keys=True)
    return found


def _reason(code: str, text: str, missing: object) -> Json | None:
    """Why `missing` is null; None where it is not."""
    return {"code": code, "text": text} if missing is None else None


def _machine(report: Report) -> Json:
    machine = report.machine
    gpus = [_plain(gpu) for gpu in machine.gpus]
    return {
        "name": report.machine_name,
        "recorded": report.recorded,
        "note": report.machine_note,
        "fingerprint": {"id": report.fingerprint.id, **_plain(report.fingerprint)},
        "gpus": [{name: value for name, value in gpu.items() if name != "facts"} for gpu in gpus],
        "pairs": [
            {
                "src": machine.gpu(path.pair.src).label,
                "dst": machine.gpu(path.pair.dst).label,
                "label": path.label,
                "reason": _reason("not_stated", "No source says how it is joined.", path.label),
                "derived": path.derived,
                "status": {one.value: status.value for one, status in path.status.items()},
            }
            for path in machine.pairs
        ],
        "sources": list(machine.sources),
        "notes": list(machine.notes),
        "contradictions": [_plain(one) for one in machine.contradictions],
        "record_ids": list(report.machine_record_ids),
    }


def _model(report: Report) -> Json:
    shape = report.shape
    return {
        "name": shape.name,
        "architecture": shape.architecture,
        "parameters": shape.parameters,
        "weight_bytes": shape.weight_bytes,
        "layers": len(shape.layers),
        "max_context": shape.max_context,
        "source": shape.source,
        "gaps": list(shape.gaps),
        "record_ids": list(report.model_record_ids),
    }


def _load(shown: LoadShown) -> Json:
    verdict = shown.verdict
    return {
        "load": _plain(shown.load),
        "verdict": {
            "answer": verdict.answer.value,
            "plan": None
            if verdict.plan is None
            else _named(_plain(verdict.plan), verdict.plan.name),
            "reason": _reason("no_plan", verdict.headline, verdict.plan),
            "headline": verdict.headline,
            "reasons": [_plain(one) for one in verdict.reasons],
            "plans": [_plan_verdict(one) for one in verdict.plans],
            "would_change": list(verdict.would_change),
            "measurements": [_plain(one) for one in verdict.measurements],
        },
        "forecasts": [_forecast(one, shown) for one in shown.forecasts],
        "record_ids": list(shown.record_ids),
    }


def _named(plan: Json, name: str) -> Json:
    return {"name": name, **plan}


def _plan_verdict(one: PlanVerdict) -> Json:
    found = _plain(one)
    found["plan"] = _named(found["plan"], one.plan.name)
    del found["reasons"]  # of its comparisons, where they are codes of the verdict's reasons
    for comparison, plain in zip(one.comparisons, found["comparisons"], strict=True):
        plain["plan"] = comparison.plan.name
        plain["baseline"] = comparison.baseline.name
        plain["reasons"] = [reason.code for reason in comparison.reasons]
        plain["reason"] = _reason(
            "no_ratio", "One of the two does not fit or cannot be priced.", comparison.gain
        )
    found["break_even"] = None
    if one.break_even is not None:
        flip = one.break_even
        lacking = flip.latency_s if flip.bytes_per_s is not None else None
        reason = _reason("never_flips", "No link that was tried turns the answer.", lacking)
        baseline = flip.baseline.name
        found["break_even"] = {**_plain(flip), "baseline": baseline, "reason": reason}
    found["reason"] = _reason(
        "no_break_even",
        "No link turns the answer, nothing crosses, or the link has no fit.",
        one.break_even,
    )
    return found


def _forecast(one: Forecast, shown: LoadShown) -> Json:
    found = _plain(one)
    del found["load"]
    found["plan"] = _named(found["plan"], one.plan.name)
    found["verdict"] = plan_answer(shown, one.plan)
    found["reason"] = _reason("one_token", "A single output token has no TPOT.", one.tpot_s)
    return found


def _curve(shown: CurveShown) -> Json:
    fit = _plain(shown.fit)
    missing = None if None in fit.values() else fit
    return {
        **_plain(shown.curve.key),
        "points": [_plain(one) for one in shown.curve.points],
        "points_reason": _reason(
            "no_repeats",
            "Where low_s, high_s, n or wrong is null, the tool printed no repeats or checks.",
            None,
        ),
        "fit": {
            **fit,
            "reason": _reason("regime_not_reached", "The timed sizes do not reach it.", missing),
        },
        "provenance": shown.curve.provenance.value,
        "source": shown.curve.source,
        "record_ids": list(shown.record_ids),
    }


def _rate(one: PairRate) -> Json:
    reason = _reason("not_printed", "The tool does not print its buffer size.", one.size_bytes)
    return {**_plain(one), "reason": reason}


def _fit(one: Fit, record_ids: Iterable[str]) -> Json:
    return {**_plain(one), "name": one.split.name, "record_ids": list(record_ids)}


def _split(shown: SplitShown) -> Json:
    return {**_plain(shown), "name": shown.split.name}


def _map(shown: MapShown) -> Json:
    found = _plain(shown)
    found["plan"] = _named(found["plan"], shown.plan.name)
    return found


def _calibration(report: Report) -> Json:
    found = report.calibration
    fields: Mapping[str, object] = {name: getattr(found, name) for name in found.__struct_fields__}
    return {
        "constants": {
            name: _plain(one) for name, one in fields.items() if isinstance(one, Constant)
        },
        "model_error": found.model_error,
        "gain_error": found.gain_error,
        "unseen_errors": _plain(found.unseen),
        "learned": None if found.learned is None else _plain(found.learned),
        "record_ids": list(found.record_ids),
    }


def _score(report: Report) -> Json:
    """`score` and, where it is null, `score_reason`."""
    found = report.score
    reason = _reason("no_runs", "The study has no engine runs of this machine.", found)
    if found is None:
        return {"score": None, "score_reason": reason}
    content = {**_plain(found), "record_ids": list(report.score_record_ids)}
    return {"score": content, "score_reason": None}


def _profile(report: Report) -> Json:
    """`profile` and, where it is null, `profile_reason`; timelines are pictures of the page."""
    found = report.profile
    reason = _reason("not_profiled", "The study has no profile of the model here.", found)
    if found is None:
        return {"profile": None, "profile_reason": reason}
    content = {
        "steps": [_plain(one) for one in found.steps],
        "effects": [_plain(one) for one in found.effects],
    }
    return {"profile": content, "profile_reason": None}
