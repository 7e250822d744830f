"""Forecasts of every plan as a table, and where a decode step's time goes by term (D5, E3)."""

from typing import Any

import msgspec

from linkbound.links import MEANING
from linkbound.predict.types import Estimate, Forecast, StepTime
from linkbound.report.types import Report
from linkbound.report.words import errors_words, headline, hidden_words, load_words
from linkbound.units import format_significant

SCHEMA, VERSION = "linkbound.predictions", 1


def render_predictions(report: Report) -> str:
    """A table a load; every figure is a prediction with its interval."""
    lines = [report.machine_note, f"Predicted for {report.engine}."]
    lines += [*filter(None, [errors_words(report.calibration)]), ""]
    for shown in report.loads:
        lines.append(load_words(shown))
        if not shown.forecasts:
            lines += [headline(shown), ""]
            continue
        lines.append(f"{'plan':<16} {'ttft_ms':>24} {'tpot_ms':>22} {'tok/s':>22}  bound by")
        lines += [*(_row(one) for one in shown.forecasts), *hidden_words(shown)]
        lines.append("")
        lines += _terms(shown.forecasts)
    arms = dict.fromkeys(one.plan.arm for shown in report.loads for one in shown.forecasts)
    lines += [f"{arm.value}: {MEANING[arm]}" for arm in arms if arm is not None]
    lines += [f"Not predicted: {one}" for one in _not_predicted(report)]
    return "\n".join(lines).rstrip()


def _not_predicted(report: Report) -> list[str]:
    """Plans that have no row, each with why: no memory, no room for all at once, no curve."""
    unfit = [f"{fit.split.name}: {fit.reason}" for fit in report.fits if not fit.fits]
    reasons = (" is known for ", " sequences at once do not fit")
    unpriced = [one for one in report.not_known if any(words in one for words in reasons)]
    return [*unfit, *unpriced]


def _row(one: Forecast) -> str:
    tpot = "not asked" if one.tpot_s is None else _interval(one.tpot_s, 1e3)
    bound = "host" if one.decode is not None and one.decode.host_bound else "device"
    return (
        f"{one.plan.name:<16} {_interval(one.ttft_s, 1e3):>24} {tpot:>22} "
        f"{_interval(one.tokens_per_s, 1):>22}  {bound}"
    )


def _terms(forecasts: tuple[Forecast, ...]) -> list[str]:
    lines = [
        "One decode step in the middle of the output, in us. Terms without an interval of their own"
        " (calibrated together) are in the step's:"
    ]
    for one in forecasts:
        if one.decode is None:
            continue
        lines.append(f"  {one.plan.name}: {_interval(one.decode.time, 1e6)}")
        lines += [
            f"    {term.kind.words:<40} {_interval(term.time, 1e6):>26}  "
            f"{term.provenance.value}: {_short(term.basis)}"
            for term in one.decode.terms
        ]
    return [*lines, ""]


def _short(basis: str) -> str:
    return basis if len(basis) <= 60 else basis[:57] + "..."


def _interval(one: Estimate, scale: float) -> str:
    low, value, high = (format_significant(part * scale) for part in (one.low, one.value, one.high))
    return f"~{value}" if one.low == one.high else f"~{value} ({low}-{high})"


def render_predictions_json(report: Report) -> str:
    """One JSON document; times in seconds."""
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        "machine": report.machine_name,
        "recorded": report.recorded,
        "rows": [_document(one) for shown in report.loads for one in shown.forecasts],
        "not_predicted": [
            *(f"{load_words(one)}: {headline(one)}" for one in report.loads if not one.forecasts),
            *_not_predicted(report),
        ],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode()


def _document(one: Forecast) -> dict[str, Any]:
    return {
        "split": one.plan.split.name,
        "arm": None if one.plan.arm is None else one.plan.arm.value,
        "gpus": list(one.plan.placement.gpus),
        "load": msgspec.to_builtins(one.load),
        "ttft_s": msgspec.to_builtins(one.ttft_s),
        "tpot_s": None if one.tpot_s is None else msgspec.to_builtins(one.tpot_s),
        "tokens_per_s": msgspec.to_builtins(one.tokens_per_s),
        "latency_s": msgspec.to_builtins(one.latency_s),
        "hidden_sends_s": one.hidden_sends_s,
        "decode": _step(one.decode),
        "prefill": _step(one.prefill),
        "record_ids": list(one.record_ids),
    }


def _step(step: StepTime | None) -> Any:
    return None if step is None else msgspec.to_builtins(step)
