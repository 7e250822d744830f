"""Cases that the tests of verdicts share: real ones from recorded machines, and made ones."""

from collections.abc import Collection

from linkbound.evidence.study import Study
from linkbound.links import Arm
from linkbound.model.read_model import read_model
from linkbound.model.types import Load
from linkbound.predict.candidates import excluded_gpus
from linkbound.predict.forecast import forecast
from linkbound.predict.plans import candidate_splits, plans_of
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Estimate, Forecast, Plan, StepTime, TermKind
from linkbound.splits.fit import fit_machine
from linkbound.splits.types import Fit, Placement, Split
from linkbound.study.predicting import engine_for
from linkbound.study.reading import read_access
from linkbound.verdict.decide import Case
from linkbound.verdict.types import PlanVerdict, Verdict

ONE, TP2, PP2, TWO = Split(), Split(tp=2), Split(pp=2), Split(replicas=2)


def load(prompt: int, output: int, concurrency: int) -> Load:
    return Load(prompt_tokens=prompt, output_tokens=output, concurrency=concurrency)


def engine_on(study: Study, machine: str = "h200-pair", model: str = "llama-3.1-8b") -> Engine:
    return engine_for(study, machine, read_model(model))


def excluded_on(study: Study, machine: str) -> Collection[str]:
    return tuple(excluded_gpus(engine_on(study, machine).book.machine, read_access(study, machine)))


def case_on(
    study: Study, asked: Load, machine: str = "h200-pair", model: str = "llama-3.1-8b"
) -> Case:
    """Every plan of a recorded machine under one load."""
    engine = engine_on(study, machine, model)
    excluded = excluded_on(study, machine)
    fits, forecasts = [], []
    for split in candidate_splits(engine.book.machine, engine.shape, excluded):
        fit = fit_machine(engine.shape, split, engine.book.machine, asked, excluded=excluded)
        fits.append(fit)
        if fit.fits:
            plans = plans_of(split, engine.book.machine, excluded)
            forecasts += [forecast(engine, plan, asked) for plan in plans]
    return Case(
        load=asked,
        forecasts=tuple(forecasts),
        fits=tuple(fits),
        gain_error=engine.calibration.gain_error,
    )


def of_plan(verdict: Verdict, split: Split, arm: Arm) -> PlanVerdict:
    (found,) = [one for one in verdict.plans if one.plan.split == split and one.plan.arm is arm]
    return found


def spread(value: float, share: float = 0.0) -> Estimate:
    return Estimate(value=value, low=value * (1 - share), high=value * (1 + share))


def made(
    split: Split,
    seconds: dict[TermKind, Estimate],
    *,
    arm: Arm | None = None,
    asked: Load = load(100, 10, 8),  # noqa: B008
) -> Forecast:
    """A forecast whose whole call is the given parts."""
    whole = sum(one.value for one in seconds.values())
    return Forecast(
        plan=Plan(
            split=split,
            placement=Placement(gpus=tuple(f"GPU{rank}" for rank in range(split.gpus))),
            arm=arm,
        ),
        load=asked,
        ttft_s=spread(whole / 10),
        tpot_s=spread(whole / 10),
        tokens_per_s=spread(asked.concurrency * asked.output_tokens / whole),
        latency_s=spread(whole, 0.05),
        decode=None,
        prefill=StepTime(time=spread(whole / 10), terms=(), host_bound=False),
        parts=seconds,
    )


def fits(split: Split, *, fits: bool = True, batch: int | None = 100) -> Fit:
    return Fit(
        split=split,
        fits=fits,
        reason="fits." if fits else f"{split.name} needs 40.0 GiB on GPU0, has 24.0 GiB.",
        ranks=(),
        kv_tokens=10_000 if fits else None,
        longest_context=4096 if fits else None,
        largest_batch=batch if fits else None,
    )
