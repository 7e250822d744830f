"""What the reference runtime measured here of a load's own points, beside what is predicted (D2).

It is another engine than the one that predictions are for: its times stand as evidence, and
change no answer.
"""

from collections.abc import Iterable, Iterator

from linkbound.evidence.types import Figure, Provenance
from linkbound.links.types import Arm
from linkbound.model.types import Load
from linkbound.profile.effects import Against, Answer, Pair
from linkbound.profile.types import Point
from linkbound.splits.types import Phase, Split
from linkbound.units import format_significant, format_time
from linkbound.values import Value
from linkbound.verdict.types import Reason

CODE = "measured-against-"
_PHASES = {Phase.PREFILL: "in prefill", Phase.DECODE: "in a decode step"}


class Profiled(Value, frozen=True, kw_only=True):
    """One point of a split and arm, compared with one GPU or with the same split staged."""

    split: Split
    arm: Arm | None
    against: Against
    answer: Answer
    pair: Pair
    record_ids: tuple[str, ...]


def profiled_reasons(load: Load, found: Iterable[Profiled]) -> tuple[Reason, ...]:
    """A sentence for each split, arm and comparison that was timed at the load's batch and prompt.

    Points of other batches and prompts say nothing about the load and are left out.
    """
    groups: dict[tuple[Split, Arm | None, Against], list[Profiled]] = {}
    for one in found:
        if _is_of(one.pair.point, load):
            groups.setdefault((one.split, one.arm, one.against), []).append(one)
    return tuple(_reason(members) for members in groups.values())


def _is_of(point: Point, load: Load) -> bool:
    before, new = (
        (0, load.prompt_tokens) if point.phase is Phase.PREFILL else (load.prompt_tokens, 1)
    )
    return (point.batch, point.context, point.tokens) == (load.concurrency, before, new)


def _reason(members: list[Profiled]) -> Reason:
    first = members[0]
    arm = "" if first.arm is None else f", {first.arm.value}"
    return Reason(
        code=f"{CODE}{first.against.value.lower().replace(' ', '-')}",
        text=f"Measured by the reference runtime: {first.split.name}{arm} is "
        f"{'; '.join(_answers(members))}.",
        figures=tuple(
            Figure(
                value=one.pair.gain,
                unit="x",
                provenance=Provenance.MEASURED,
                low=one.pair.low,
                high=one.pair.high,
            )
            for one in members
        ),
        record_ids=tuple(dict.fromkeys(record for one in members for record in one.record_ids)),
    )


def _answers(members: list[Profiled]) -> Iterator[str]:
    """`slower than one GPU in prefill (238 ms against 184 ms, x0.77)`, an answer at a time."""
    for answer in dict.fromkeys(one.answer for one in members):
        times = " and ".join(_times(one.pair) for one in members if one.answer is answer)
        yield f"{_words(answer, members[0].against)} {times}"


def _words(answer: Answer, against: Against) -> str:
    if answer is Answer.SAME:
        return f"as fast as {against.value} within noise"
    return f"{answer.value} than {against.value}"


def _times(pair: Pair) -> str:
    launched = "" if pair.by_host is None else ", one of them launched call by call"
    return (
        f"{_PHASES[pair.point.phase]} ({format_time(pair.step_s)} against "
        f"{format_time(pair.other_s)}, x{format_significant(pair.gain)}{launched})"
    )
