"""What a verdict says: its headline, its reasons, and what would settle an open one (D1-D3)."""

from collections.abc import Mapping, Sequence

from linkbound.evidence.types import Figure, Provenance
from linkbound.model.types import Load
from linkbound.predict.types import Estimate, Forecast, Plan
from linkbound.splits.types import Fit, Split
from linkbound.units import format_time
from linkbound.verdict.types import Aim, Answer, Comparison, Measurement, PlanVerdict, Reason


def load_text(load: Load) -> str:
    """`1,024 in, 256 out, 32 at once`."""
    return f"{load.prompt_tokens:,} in, {load.output_tokens:,} out, {load.concurrency} at once"


def headline(
    answer: Answer,
    plan: Plan | None,
    plans: Sequence[PlanVerdict],
    load: Load,
    fits: Sequence[Fit],
) -> str:
    """The answer in one sentence; where nothing fits, what the first plan lacks."""
    where = load_text(load)
    if plan is None and not any(fit.fits for fit in fits):
        reason = next((fit.reason for fit in fits), "no plan was looked at.")
        return f"{where}: nothing here runs it. {reason}"
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
            f"{fullest.split.name} holds {fullest.largest_batch:,}, the rest would wait."
        )
    else:
        tokens = mine.kv_tokens if mine is not None else None
        room = f" and leaves room for {tokens:,} tokens of cache" if tokens is not None else ""
        text = f"{split.name} fits{room}; {fullest.split.name} does not: {fullest.reason}"
    return Reason(code="capacity-only", text=text)


def link_reason(direct: Forecast, staged: Forecast, gain: Estimate, min_gain: float) -> Reason:
    """What the direct link is worth to a split: it is the same one with and without it."""
    name, figures = direct.plan.split.name, gain_text(gain)
    if gain.high < 1 + min_gain:
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
        f"A measured gain of {comparison.plan.name} over {comparison.baseline.name} settles it "
        f"whose interval lies above {1 + min_gain:.2f}x, or below."
    )


def engine_measurement(
    comparison: Comparison, load: Load, model: str, labels: Mapping[str, str]
) -> Measurement:
    """Both plans on the engine, under the load; who runs it compares the two."""
    plan, baseline = comparison.plan, comparison.baseline
    wider = max(plan, baseline, key=lambda one: one.split.gpus)
    arm = plan.arm or baseline.arm
    ordinals = (labels.get(key, key).removeprefix("GPU") for key in wider.placement.gpus)
    words = [
        f"linkbound serve {model}",
        f"--split {_split_option(baseline.split)} --split {_split_option(plan.split)}",
        *([f"--arm {arm.value}"] if arm is not None else []),
        f"--gpus {','.join(ordinals)}",
        f"--prompt {load.prompt_tokens} --output {load.output_tokens}",
        f"--concurrency {load.concurrency}",
    ]
    return Measurement(
        what=f"One run each of {plan.name} and {baseline.name} at this load on this machine",
        command=" ".join(words),
        why=f"The {comparison.aim.value} comparison is inside the error of the prediction; a "
        "measured pair of runs has a spread of a few percent. It prints both side by side for you "
        "to compare; this verdict stays a prediction.",
    )


def _split_option(split: Split) -> str:
    """The split as `--split` takes it."""
    if split.gpus == 1:
        return "one"
    if split.gpus == split.replicas and split.ep == 1:
        return f"x{split.replicas}"
    return split.name.replace(" ", "")


def curve_measurement(names: Sequence[str]) -> Measurement:
    """Times of the calls that plans make and that no curve gives."""
    return Measurement(
        what=f"Times of the calls between the GPUs of {'; '.join(names)}",
        command="linkbound links",
        why="No curve of this machine prices them. Run it there and study the same file; or put a "
        "table of nccl-tests for these GPUs into the machine's folder.",
    )
