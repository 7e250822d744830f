"""What a verdict says: its headline, its reasons, and what would settle an open one (D1-D3)."""

from collections.abc import Sequence

from linkbound.evidence.types import Figure, Provenance
from linkbound.model.types import Load
from linkbound.predict.types import Estimate, Forecast, Plan
from linkbound.splits.types import Fit, Split
from linkbound.units import format_time
from linkbound.verdict.types import Aim, Answer, Comparison, PlanVerdict, Reason

NO_PLAN = "no-plan-holds"
"""Code of the reason of a verdict where the load is in memory nowhere."""


def load_text(load: Load) -> str:
    """`1,024 in, 256 out, 32 at once`."""
    return f"{load.prompt_tokens:,} in, {load.output_tokens:,} out, {load.concurrency:,} at once"


def headline(
    answer: Answer,
    plan: Plan | None,
    plans: Sequence[PlanVerdict],
    load: Load,
) -> str:
    """The answer in one sentence."""
    where = load_text(load)
    alike = "; ".join(one.plan.name for one in plans if one.answer is answer)
    if plan is None:
        return f"{where}: it fits, but no plan could be priced. Undecided: {alike or 'all'}."
    match answer:
        case Answer.KEEP:
            return f"{where}: keep {plan.name}. Kept: {alike}."
        case Answer.REJECT:
            return f"{where}: do not split; run {plan.name}."
        case Answer.UNDECIDED:
            return f"{where}: undecided between {plan.name} and {alike}."


def no_plan_headline(load: Load) -> str:
    """That the load is in memory nowhere."""
    return f"{load_text(load)}: nothing here runs it, neither one GPU nor a split."


def no_plan_reason(load: Load, fits: Sequence[Fit]) -> Reason:
    """What the plan that holds most lacks; where nothing fits at all, what the first one lacks."""
    fullest = _fullest(fits)
    if fullest is None:
        text = next((fit.reason for fit in fits), "No plan was looked at.")
    else:
        text = (
            f"{fullest.split.name} holds most, ~{fullest.largest_batch:,} of {load.concurrency:,} "
            "sequences at once; the rest would queue, which is not predicted here."
        )
    return Reason(code=NO_PLAN, text=text)


def fewer_at_once(fits: Sequence[Fit]) -> tuple[str, ...]:
    """The load that would be held; nothing where no plan holds the model."""
    fullest = _fullest(fits)
    if fullest is None:
        return ()
    return (
        f"At most ~{fullest.largest_batch:,} sequences at once: {fullest.split.name} holds them.",
    )


def _fullest(fits: Sequence[Fit]) -> Fit | None:
    return max(
        (fit for fit in fits if fit.fits and fit.largest_batch),
        key=lambda fit: fit.largest_batch or 0,
        default=None,
    )


def gain_reason(
    aim: Aim,
    forecast: Forecast,
    baseline: Forecast,
    gain: Estimate,
    answer: Answer,
    min_gain: float,
) -> Reason:
    """What the plan gains over a baseline, and whether that is enough."""
    code, words = _gain_words(aim, forecast.plan.name, baseline.plan.name, gain, answer, min_gain)
    calls = (
        f"a call takes ~{format_time(forecast.latency_s.value)} against "
        f"~{format_time(baseline.latency_s.value)}"
    )
    return Reason(
        code=code,
        text=f"{words}: {calls}.",
        figures=(gain_figure(gain),),
        record_ids=tuple(dict.fromkeys((*forecast.record_ids, *baseline.record_ids))),
    )


def _gain_words(
    aim: Aim, mine: str, other: str, gain: Estimate, answer: Answer, min_gain: float
) -> tuple[str, str]:
    """Code and sentence."""
    figures = gain_text(gain)
    latency = aim is Aim.LATENCY
    what = "the speed" if latency else "the throughput"
    if answer is Answer.KEEP:
        code = "faster" if latency else "more-throughput"
        return code, f"{mine} has {figures} {what} of {other}"
    if gain.high < 1 and latency:
        return "second-gpu-slower", f"{mine} is slower than {other}, {figures} its speed"
    if answer is Answer.REJECT and gain.value < 1:
        code = "gain-too-small" if latency else "replicas-better"
        return code, f"{mine} has only {figures} {what} of {other}"
    if answer is Answer.REJECT:
        words = f"{mine} gains less than {min_gain:.0%} over {other}, {figures} {what}"
        return "gain-too-small", words
    words = f"Whether {mine} gains {min_gain:.0%} over {other} is inside the error"
    return "within-error", f"{words}, {figures} {what}"


def gain_text(gain: Estimate) -> str:
    """`~1.20x (1.10-1.30)`."""
    return f"~{gain.value:.2f}x ({gain.low:.2f}-{gain.high:.2f})"


def gain_figure(gain: Estimate) -> Figure:
    """A ratio of two predicted times."""
    return Figure(
        value=gain.value,
        unit="x",
        provenance=Provenance.CALIBRATED,
        low=gain.low,
        high=gain.high,
        basis="predicted: calls of both plans, shared errors left out",
    )


def capacity_reason(split: Split, mine: Fit | None, fullest: Fit, load: Load) -> Reason:
    """What the split holds that no smaller plan does."""
    if fullest.fits:
        text = (
            f"{split.name} holds all {load.concurrency:,} sequences at once; "
            f"{fullest.split.name} holds ~{fullest.largest_batch:,}, the rest would wait."
        )
    else:
        tokens = mine.kv_tokens if mine is not None else None
        room = f" and leaves room for ~{tokens:,} tokens of cache" if tokens is not None else ""
        text = f"{split.name} fits{room}; {fullest.split.name} does not: {fullest.reason}"
    return Reason(code="capacity-only", text=text)


def link_reason(direct: Forecast, staged: Forecast, gain: Estimate, min_gain: float) -> Reason:
    """What the direct link is worth to a split: it is the same one with and without it."""
    name, figures = direct.plan.split.name, gain_text(gain)
    if gain.high < 1:
        code = "link-slower-than-staging"
        text = (
            f"Peer-to-peer is slower than staging here: with it {name} has {figures} the speed. "
            "Switch it off: NCCL_P2P_DISABLE=1 and the engine's own all-reduce too."
        )
    elif gain.high < 1 + min_gain:
        code = "link-does-not-matter"
        text = f"The direct link does not matter here: with it {name} has {figures} the speed."
    elif gain.low >= 1 + min_gain:
        code = "link-matters"
        text = f"The direct link matters: {name} has {figures} the speed it has when staged."
    else:
        code = "link-unclear"
        text = f"Whether the direct link matters for {name} is inside the error: {figures}."
    return Reason(
        code=code,
        text=text,
        figures=(gain_figure(gain),),
        record_ids=tuple(dict.fromkeys((*direct.record_ids, *staged.record_ids))),
    )


def settling_text(comparison: Comparison, min_gain: float) -> str:
    """Which measured ratio would close an open comparison."""
    return (
        f"A measured gain of {comparison.plan.name} over {comparison.baseline.name} answers that "
        f"comparison for you if its interval lies above {1 + min_gain:.2f}x, or below."
    )
