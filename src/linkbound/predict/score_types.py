"""Predictions beside measurements as rows, and what the rows come to (E3)."""

from enum import StrEnum

from linkbound.links.types import Arm
from linkbound.predict.points import Metric
from linkbound.serve.types import RunSpec
from linkbound.values import Value


class Timing(StrEnum):
    """Whether a frozen prediction was there before its measurement."""

    BEFORE = "before"
    LATER = "later"
    """Frozen when the measurement had begun, or after it."""
    UNKNOWN = "unknown"
    """Nothing says when it was measured, or what says it lies ahead of now."""


class ScoreRow(Value, frozen=True, kw_only=True):
    """One metric of one run, in seconds."""

    tag: str
    batch: int
    input: int
    metric: Metric
    measured: float
    measured_low: float
    measured_high: float
    predicted: float
    low: float
    high: float
    error: float
    """0 inside the repeats' range, else the distance to its nearer end over that end."""
    seen: bool
    spec: RunSpec
    timing: Timing | None = None
    """None where predictions were made when the file was scored, its times unread."""
    unseen: tuple[str, ...] = ()
    """What no calibrating run shows of the plan: names of `UnseenErrors`."""

    @property
    def median_error(self) -> float:
        """The distance to the median of the repeats over that median."""
        return abs(self.predicted - self.measured) / abs(self.measured)

    @property
    def timely(self) -> bool:
        """Whether the prediction was there first."""
        return self.timing in (None, Timing.BEFORE)

    @property
    def counts(self) -> bool:
        """Whether the row is in the summaries."""
        return self.timely and not self.seen


class EffectRow(Value, frozen=True, kw_only=True):
    """What another arm or another GPU changes: measured and predicted, in seconds."""

    name: str
    model: str
    batch: int
    input: int
    metric: Metric
    measured: float
    measured_low: float
    measured_high: float
    predicted: float
    error: float
    scored: bool
    """Beyond three times the repeats' spread."""

    @property
    def median_error(self) -> float:
        """The distance to the difference of the medians over that difference."""
        return abs(self.predicted - self.measured) / abs(self.measured)


class SignRow(Value, frozen=True, kw_only=True):
    """Whether the split is faster than one GPU, where the repeats' ranges do not overlap."""

    model: str
    split: str
    arm: Arm
    batch: int
    input: int
    metric: Metric
    helps: bool
    predicted_helps: bool


class Summary(Value, frozen=True, kw_only=True):
    """Medians and worsts of the rows that count; None where there is none."""

    metric: str
    rows: int
    median: float | None
    """Of the errors against the repeats' range, as `worst`."""
    worst: float | None
    to_median: float | None = None
    """Median of the errors against the repeats' medians; None too in scores of older versions."""
    to_median_worst: float | None = None
    coverage: float | None = None
    """Share of rows whose prediction interval meets the repeats' range."""


class FrozenSet(Value, frozen=True, kw_only=True):
    """Which frozen predictions were scored."""

    id: str
    frozen: str
    """When, ISO 8601."""


class Score(Value, frozen=True, kw_only=True):
    rows: tuple[ScoreRow, ...]
    effects: tuple[EffectRow, ...]
    signs: tuple[SignRow, ...]
    summaries: tuple[Summary, ...]
    skipped: tuple[str, ...] = ()
    """Points without a row, each with its line and why."""
    frozen: FrozenSet | None = None
    """None where predictions were made when the file was scored."""
