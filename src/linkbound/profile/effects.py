"""What a profile shows by itself: splits against one GPU, the direct path on against off (D2, P1).

Two rows differ only where the ranges of their repeats do not meet.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

from linkbound.links.types import Arm, Launch
from linkbound.profile.summary import Row
from linkbound.profile.types import Device, Point
from linkbound.splits.types import Split
from linkbound.units import format_significant, format_time
from linkbound.values import Value

UNREPEATED_SPREAD = 0.05
"""Half-width of a single child's time: short tests differ by 5 to 10 % between runs
(NVIDIA/cuda-samples#449)."""
LEAST_SPREAD = 0.01
"""Half-width of any: two repeats can agree by chance."""


THIS, OTHER = "this", "other"


class Answer(StrEnum):
    """How a row compares."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    """The ranges of the repeats meet: within noise."""


class Against(StrEnum):
    """What a row is compared with."""

    ONE_GPU = "one GPU"
    STAGED = "staged"
    """The same split with the direct path off."""


class Pair(Value, frozen=True, kw_only=True):
    """One point of a comparison. Seconds; `gain` is the other's time over this one's."""

    point: Point
    step_s: float
    other_s: float
    gain: float
    low: float
    high: float
    by_host: str | None = None
    """`THIS` or `OTHER` where the host launched only that one call by call: its launches are in
    the comparison. None where both were launched alike."""


class Effect(Value, frozen=True, kw_only=True):
    """All points of a split and arm that give the same answer."""

    split: Split
    arm: Arm | None
    against: Against
    answer: Answer
    pairs: tuple[Pair, ...]

    @property
    def code(self) -> str:
        """`slower-than-one-gpu`, `same-as-staged`, ..."""
        joint = "as" if self.answer is Answer.SAME else "than"
        return f"{self.answer.value}-{joint}-{self.against.value}".lower().replace(" ", "-")


def effects(found: Sequence[Row]) -> tuple[Effect, ...]:
    """Every split against one GPU, then every split with the direct path against without.

    Processors have no such path, and their times are no GPU's: nothing is compared there.
    """
    rows = [
        row
        for row in found
        if row.alone is None and row.delay is None and row.device is Device.CUDA
    ]
    single = {row.point: row for row in rows if row.split == Split()}
    staged = {(row.split, row.point): row for row in rows if row.arm is Arm.STAGED}
    divided = [row for row in rows if row.split.tp * row.split.pp * row.split.ep > 1]
    direct = [row for row in divided if row.arm in (Arm.P2P, Arm.NCCL)]
    return (
        *_grouped(Against.ONE_GPU, ((row, single.get(row.point)) for row in divided)),
        *_grouped(Against.STAGED, ((row, staged.get((row.split, row.point))) for row in direct)),
    )


def _grouped(against: Against, pairs: Iterable[tuple[Row, Row | None]]) -> Iterator[Effect]:
    groups: dict[tuple[Split, Arm | None, Answer], list[Pair]] = {}
    for row, other in pairs:
        if other is not None:
            pair = compared(row, other)
            groups.setdefault((row.split, row.arm, _answer(pair)), []).append(pair)
    for (split, arm, answer), members in groups.items():
        yield Effect(split=split, arm=arm, against=against, answer=answer, pairs=tuple(members))


def compared(row: Row, other: Row) -> Pair:
    """The other row's time over this one's, with the range that the repeats leave."""
    (low_s, high_s), (other_low_s, other_high_s) = _range(row), _range(other)
    return Pair(
        point=row.point,
        step_s=row.step_s,
        other_s=other.step_s,
        gain=other.step_s / row.step_s,
        low=other_low_s / high_s,
        high=other_high_s / low_s,
        by_host=_by_host(row, other),
    )


def _by_host(row: Row, other: Row) -> str | None:
    if row.launch == other.launch:
        return None
    return THIS if row.launch == Launch.EAGER else OTHER


def _range(row: Row) -> tuple[float, float]:
    spread = LEAST_SPREAD if row.repeats > 1 else UNREPEATED_SPREAD
    return (
        min(row.low_s, row.step_s * (1 - spread)),
        max(row.high_s, row.step_s * (1 + spread)),
    )


def _answer(pair: Pair) -> Answer:
    if pair.low > 1:
        return Answer.FASTER
    return Answer.SLOWER if pair.high < 1 else Answer.SAME


def sentence(effect: Effect) -> str:
    """The effect in words, every point with its two times."""
    arm = "" if effect.arm is None else f" {effect.arm.value}"
    if effect.answer is Answer.SAME:
        how = f"as fast as {effect.against.value} within the noise of the repeats"
    else:
        how = f"{effect.answer.value} than {effect.against.value}, beyond the noise of the repeats"
    points = "; ".join(_point_words(pair) for pair in effect.pairs)
    return f"{effect.split.name}{arm} is {how}: {points}."


def _point_words(pair: Pair) -> str:
    launched = {THIS: ", launched call by call", OTHER: ", the other launched call by call"}
    return (
        f"{pair.point.name} {format_time(pair.step_s)} against {format_time(pair.other_s)} "
        f"(x{format_significant(pair.gain)}{launched.get(pair.by_host or '', '')})"
    )
