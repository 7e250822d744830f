"""Words that every output shares: predicted figures, record ids, plans, shares (E2, E3).

Outputs differ in form, never in what a figure is called or how many digits it has.
"""

import unicodedata
from collections.abc import Callable, Iterable

import msgspec

from linkbound.predict.calibration import Calibration
from linkbound.predict.history import MODEL
from linkbound.predict.types import Estimate, Forecast, Plan, TermKind
from linkbound.report.types import CurveShown, LoadShown, Report
from linkbound.splits.types import Fit
from linkbound.units import format_significant
from linkbound.verdict.profiled import CODE
from linkbound.verdict.types import Answer, PlanVerdict, Reason, Verdict
from linkbound.verdict.words import NO_PLAN

SHORT_ID = 12
LEADING_REASONS = 3
NOT_KNOWN = "not known"
_MEANING = {
    Answer.KEEP: "the split pays",
    Answer.REJECT: "the split does not pay",
    Answer.UNDECIDED: "the data cannot tell",
}
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def meaning(verdict: Verdict) -> str:
    """What the word of an answer stands for: where nothing runs there was nothing to compare."""
    if any(one.code == NO_PLAN for one in verdict.reasons):
        return "no plan holds the load"
    return _MEANING[verdict.answer]


def visible(text: str) -> str:
    """`text` with control characters and direction marks spelled out as `\\u001b`.

    Names and logs come from outside: an escape sequence must not reach a terminal, nor a mark that
    turns the order of what is read.
    """
    return "".join(
        f"\\u{ord(one):04x}" if unicodedata.category(one) in _HIDDEN and one != "\n" else one
        for one in text
    )


def short_id(record_id: str) -> str:
    """The first 12 digits of a record id."""
    return visible(record_id[:SHORT_ID])


def unique(ids: Iterable[str]) -> tuple[str, ...]:
    """Record ids without repetition, in order."""
    return tuple(dict.fromkeys(ids))


def predicted(estimate: Estimate | None, scale: float = 1.0) -> str:
    """`~412 (370-455)` in the unit that `scale` converts to; a word where there is none."""
    if estimate is None:
        return "none"
    value, low, high = (
        format_significant(one * scale) for one in (estimate.value, estimate.low, estimate.high)
    )
    return f"~{value} ({low}-{high})"


def gain_words(gain: Estimate | None) -> str:
    """`~1.33x (1.16-1.47)`; a word where the two plans cannot be compared."""
    if gain is None:
        return "no ratio"
    return f"~{gain.value:.2f}x ({gain.low:.2f}-{gain.high:.2f})"


def share_words(share: float) -> str:
    """A predicted share as a percentage, without its sign: the unit stands in the header."""
    return f"~{100 * share:.1f}" if share < 0.0995 else f"~{100 * share:.0f}"


def crossing_share(forecast: Forecast) -> float:
    """Share of the whole call that crossings take."""
    return _share(forecast, TermKind.CROSSINGS)


def waiting_share(forecast: Forecast) -> float:
    """Share of the whole call that ranks wait for one another."""
    return _share(forecast, TermKind.WAITING)


def _share(forecast: Forecast, kind: TermKind) -> float:
    part = forecast.parts.get(kind)
    return 0.0 if part is None else part.value / forecast.latency_s.value


def plan_verdict(load: LoadShown, plan: Plan) -> PlanVerdict | None:
    """The answer for a plan; None for one GPU and replicas, which others are compared with."""
    return next((one for one in load.verdict.plans if one.plan == plan), None)


def plan_answer(load: LoadShown, plan: Plan) -> str:
    """keep, reject, undecided, or baseline."""
    found = plan_verdict(load, plan)
    return "baseline" if found is None else found.answer.value


def hidden_words(load: LoadShown) -> tuple[str, ...]:
    """Sends of pipelines that no sum of the call holds, one sentence a plan."""
    return tuple(
        f"{one.plan.name}: ~{format_significant(1e3 * one.hidden_sends_s)} ms of sends between "
        "stages are hidden in the call: the stages compute other sequences meanwhile. "
        "They are in no time and no share."
        for one in load.forecasts
        if one.hidden_sends_s > 0
    )


def best_uncrossed(load: LoadShown) -> Forecast | None:
    """The fastest plan over which nothing crosses: what splits in every arm have to beat."""
    return min(
        (one for one in load.forecasts if one.plan.arm is None),
        key=lambda one: one.latency_s.value,
        default=None,
    )


def fit_of(report: Report, plan: Plan) -> Fit | None:
    """Whether a plan's split fits; None where nobody worked it out."""
    return next((one for one in report.fits if one.split == plan.split), None)


def fits_word(report: Report, plan: Plan) -> str:
    """yes, no, or that it is not known."""
    found = fit_of(report, plan)
    if found is None:
        return NOT_KNOWN
    return "yes" if found.fits else "no"


def leading_reasons(verdict: Verdict) -> list[Reason]:
    """Three reasons: the first ones, and of what was profiled and of the link the most telling."""
    plan = "" if verdict.plan is None else verdict.plan.name
    split = "" if verdict.plan is None else verdict.plan.split.name
    profiled = [one for one in verdict.reasons if one.code.startswith(CODE)]
    profiled.sort(key=lambda one: plan not in one.text)
    link = [one for one in verdict.reasons if one.code.startswith("link-")]
    link.sort(key=lambda one: split not in one.text)
    rest = [one for one in verdict.reasons if one not in (*link, *profiled)]
    first = LEADING_REASONS - bool(link) - bool(profiled)
    return [*rest[:first], *profiled[:1], *link, *rest[first:], *profiled[1:]][:LEADING_REASONS]


def reason_ids(reason: Reason, load: LoadShown) -> tuple[str, ...]:
    """Records of a reason; else the verdict's own, the load's first, which names the forecasts."""
    return unique(reason.record_ids) or load.record_ids[:1]


def load_words(load: LoadShown) -> str:
    """`1,024 in, 256 out, 32 at once`."""
    asked = load.load
    return f"{asked.prompt_tokens:,} in, {asked.output_tokens:,} out, {asked.concurrency:,} at once"


def headline(load: LoadShown) -> str:
    """The verdict's headline without the load, which stands beside it."""
    words = visible(load.verdict.headline).removeprefix(f"{load_words(load)}: ")
    return words[:1].upper() + words[1:]


def curve_words(shown: CurveShown) -> str:
    """`nccl, arm staged, graph`: what distinguishes a curve from others of its operation."""
    key = shown.curve.key
    parts = [key.implementation, f"arm {key.arm.value}" if key.arm else "", key.launch.value]
    if key.concurrency != "alone":
        parts.append(key.concurrency)
    return visible(", ".join(part for part in parts if part))


def or_word(value: float | None, write: Callable[[float], str], word: str = NOT_KNOWN) -> str:
    """A figure, or the word for its absence."""
    return word if value is None else write(value)


def errors_words(calibration: Calibration) -> str:
    """`model error 12 % instead of 9.7 %, ...`: what scores moved; empty where nothing did."""
    learned = calibration.learned
    if learned is None:
        return ""
    now = {MODEL: calibration.model_error, **msgspec.to_builtins(calibration.unseen)}
    moved = ", ".join(
        f"{name} error {100 * now[name]:.3g} % instead of {100 * before:.3g} %"
        for name, before in learned.stated.items()
    )
    starts = f"{learned.starts} starts, {learned.rows} rows"
    return f"Scores of frozen predictions ({starts}) moved stated errors: {moved}."


def outcome_counts(report: Report) -> str:
    """`19 measured, 6 derived`: how many records of each outcome the study has."""
    counts: dict[str, int] = {}
    for one in report.evidence:
        counts[one.outcome] = counts.get(one.outcome, 0) + 1
    return ", ".join(f"{count} {visible(outcome)}" for outcome, count in counts.items())
