"""What a report shows: everything a study found, as values with the records behind them (E2)."""

from collections.abc import Mapping
from typing import Any

from linkbound.evidence.types import Finding, Fingerprint
from linkbound.links.types import Curve, CurveFit, PairLatency, PairRate
from linkbound.model.types import Load, ModelShape
from linkbound.predict.calibration import Calibration
from linkbound.predict.score_types import Score
from linkbound.predict.simulate.types import Simulation
from linkbound.predict.types import Forecast, Plan, RegimeCell
from linkbound.profile.decompose import Parts
from linkbound.profile.pieces import StepPieces
from linkbound.profile.types import Point
from linkbound.serve.load_types import Cell
from linkbound.splits.types import Crossing, Fit, Split
from linkbound.topology.types import Machine
from linkbound.values import Value
from linkbound.verdict.types import Verdict
from linkbound.verdict.under_load import LoadComparison


class Evidence(Value, frozen=True, kw_only=True):
    """One record of the study, as the page lists it."""

    id: str
    kind: str
    subject: Mapping[str, str]
    outcome: str
    """measured, stated, derived, predicted, skipped or failed."""
    method: str
    summary: str
    """One line of what it says."""
    parents: tuple[str, ...] = ()


class CurveShown(Value, frozen=True, kw_only=True):
    """A curve with its two regimes."""

    curve: Curve
    fit: CurveFit
    record_ids: tuple[str, ...]


class SplitShown(Value, frozen=True, kw_only=True):
    """What a split makes cross in one step of a load, on one replica."""

    split: Split
    load: Load
    crossings: tuple[Crossing, ...]
    record_ids: tuple[str, ...]


class LoadShown(Value, frozen=True, kw_only=True):
    """One load: forecasts of every plan and the verdict."""

    load: Load
    forecasts: tuple[Forecast, ...]
    verdict: Verdict
    record_ids: tuple[str, ...]
    """Records of the forecasts and of the verdict."""


class MapShown(Value, frozen=True, kw_only=True):
    """Where a plan is link-bound (S4)."""

    plan: Plan
    cells: tuple[RegimeCell, ...]
    record_ids: tuple[str, ...]


class StepShown(Value, frozen=True, kw_only=True):
    """A step of the reference runtime, as a profile measured it. Seconds."""

    name: str
    """`tp2, p2p`."""
    point: Point
    step_s: float
    low_s: float
    high_s: float
    """Least and greatest of the children's medians."""
    repeats: int
    parts: Parts | None
    unexplained_s: float | None
    tokens_per_s: float
    bus_bytes_per_s: float | None
    eager_because: str | None
    """Why the host launched it call by call; None of a graph."""
    record_ids: tuple[str, ...]


class EffectShown(Value, frozen=True, kw_only=True):
    """What a profile shows by itself, in a sentence."""

    text: str
    record_ids: tuple[str, ...]


class TimelineShown(Value, frozen=True, kw_only=True):
    """One traced step of a split and arm."""

    name: str
    point: Point
    step: StepPieces
    record_ids: tuple[str, ...]


class ProfileShown(Value, frozen=True, kw_only=True):
    """What `linkbound profile` measured of the model on this machine."""

    steps: tuple[StepShown, ...]
    effects: tuple[EffectShown, ...]
    timelines: tuple[TimelineShown, ...]
    """Of one decode and one prefill point at most, those that most splits were timed at."""


class Report(Value, frozen=True, kw_only=True):
    """A study, ready to be rendered: no renderer measures or predicts anything."""

    machine_name: str
    recorded: bool
    """Whether the machine is a recorded one and not this host."""
    machine_note: str
    """The sentence about whose figures these are, for every output."""
    machine: Machine
    fingerprint: Fingerprint
    machine_record_ids: tuple[str, ...]
    shape: ModelShape
    model_record_ids: tuple[str, ...]
    engine: str
    """Engine and scheduler rules that the predictions hold for, in one sentence."""
    excluded: Mapping[str, str]
    """GPU label to the reason why no split uses it."""
    curves: tuple[CurveShown, ...]
    pair_rates: tuple[PairRate, ...]
    pair_latencies: tuple[PairLatency, ...]
    link_record_ids: tuple[str, ...]
    fits: tuple[Fit, ...]
    fit_record_ids: tuple[str, ...]
    splits: tuple[SplitShown, ...]
    calibration: Calibration
    loads: tuple[LoadShown, ...]
    maps: tuple[MapShown, ...]
    score: Score | None
    """Predictions against this machine's engine runs; None where there are none."""
    score_record_ids: tuple[str, ...]
    profile: ProfileShown | None = None
    """None where the study holds no profile of the model on this machine."""
    findings: tuple[Finding, ...]
    not_known: tuple[str, ...]
    """What was not measured or could not be read, and why."""
    commands: tuple[str, ...]
    """Placement commands that a person can copy."""
    study_path: str
    evidence: tuple[Evidence, ...]
    versions: Mapping[str, str]


class CellShown(Value, frozen=True, kw_only=True):
    """One simulated cell of load: plans, why others are not there, and which is better."""

    cell: Cell
    simulations: tuple[Simulation, ...]
    record_ids: tuple[str, ...]
    """Of the simulations, in their order."""
    skipped: tuple[str, ...]
    comparisons: tuple[LoadComparison, ...]


class RateVerdict(Value, frozen=True, kw_only=True):
    """What a study says of splits at a rate of requests."""

    subject: Mapping[str, Any]
    """Machine, model, engine and what the cell asked."""
    comparisons: tuple[LoadComparison, ...]
    record_id: str
