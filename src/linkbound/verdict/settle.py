"""Which measurements would settle what is open, as commands, and what each costs (D1)."""

from collections.abc import Iterable, Mapping, Sequence

from linkbound.model.read_model import bundled_names
from linkbound.model.types import Load
from linkbound.predict.types import Plan, PlanKey
from linkbound.splits.types import Split
from linkbound.units import format_significant
from linkbound.verdict.types import Comparison, Measurement

# What `linkbound serve` does unless it is told otherwise.
REQUESTS, REPEATS = 100, 2
START_S = 90.0
"""A start of vLLM with an 8B model on an H200 took 80 to 95 s; a larger one takes longer."""
_WHY = (
    "The {aim} comparison is inside the error of the prediction; a measured pair of runs has a "
    "spread of a few percent. It prints both side by side, and you read the answer there: no "
    "verdict is made from such runs, this one stays a prediction."
)


def engine_measurements(
    comparisons: Iterable[Comparison],
    load: Load,
    model: str,
    labels: Mapping[str, str],
    seconds: Mapping[PlanKey, float],
) -> tuple[Measurement, ...]:
    """One command for each pair of splits that is open, in all arms in which it is.

    `seconds` is what a call of the whole load is predicted to take.
    """
    groups: dict[tuple[Split, Split], list[Comparison]] = {}
    for one in comparisons:
        groups.setdefault((one.baseline.split, one.plan.split), []).append(one)
    return tuple(_measurement(group, load, model, labels, seconds) for group in groups.values())


def _measurement(
    group: Sequence[Comparison],
    load: Load,
    model: str,
    labels: Mapping[str, str],
    seconds: Mapping[PlanKey, float],
) -> Measurement:
    plan, baseline = group[0].plan, group[0].baseline
    wider = max(plan, baseline, key=lambda one: one.split.gpus)
    listed = (each for one in group for each in (one.plan, one.baseline))
    plans = list({each.key: each for each in listed}.values())
    arms = dict.fromkeys(each.arm for each in plans if each.arm is not None)
    ordinals = (labels.get(key, key).removeprefix("GPU") for key in wider.placement.gpus)
    words = [
        f"linkbound serve {model}",
        # A bundled model is a configuration alone: serve refuses it without.
        *(["--dummy-weights"] if model in bundled_names() else []),
        f"--split {_option(baseline.split)} --split {_option(plan.split)}",
        *(f"--arm {arm.value}" for arm in arms),
        f"--gpus {','.join(ordinals)}",
        f"--prompt {load.prompt_tokens} --output {load.output_tokens}",
        f"--concurrency {load.concurrency}",
    ]
    names = "; ".join(each.name for each in plans)
    aims = " and ".join(dict.fromkeys(one.aim.value for one in group))
    return Measurement(
        what=f"One run each of {names} at this load on this machine",
        command=" ".join(words),
        why=_WHY.format(aim=aims),
        cost=_cost(plans, load, seconds),
    )


def _cost(plans: Sequence[Plan], load: Load, seconds: Mapping[PlanKey, float]) -> str:
    """Starts, and the calls that the requests of a cell make, twice each."""
    calls = -(-REQUESTS // load.concurrency)
    running = sum(seconds.get(plan.key, 0.0) for plan in plans) * calls
    whole = REPEATS * (len(plans) * START_S + running)
    return (
        f"about {_duration(whole)}: {REPEATS * len(plans)} starts of some {START_S:.0f} s, and "
        f"{REPEATS} x {REQUESTS} requests of each plan, about {_duration(REPEATS * running)}"
    )


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{format_significant(seconds, 2)} s"
    return f"{format_significant(seconds / 60, 2)} min"


def _option(split: Split) -> str:
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
        cost="what `linkbound links --dry-run` says there, about a minute for two GPUs",
    )
