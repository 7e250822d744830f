"""What `linkbound profile` left in a study, read back for verdicts and pages (P1, E1)."""

import math
from collections.abc import Collection, Iterable, Mapping

import msgspec

from linkbound.evidence.study import Study
from linkbound.evidence.types import Measured, Record
from linkbound.links.types import Arm
from linkbound.model.types import ModelShape
from linkbound.profile.effects import Against, Effect
from linkbound.profile.pieces import StepPieces, last_step
from linkbound.profile.subjects import is_of
from linkbound.profile.types import CHUNK_TOKENS, Point, Timeline, chunks_of
from linkbound.report.types import EffectShown, ProfileShown, StepShown, TimelineShown
from linkbound.splits.types import Phase, Split
from linkbound.study.latest import latest
from linkbound.study.reading import MachineRead, convert, convert_picked, convert_whole
from linkbound.verdict.profiled import Profiled

PICTURED_BATCH = 32
_UNDISTURBED = {"alone": None, "delay_s": None}

_Key = tuple[Split, Arm | None, Against, Point]


def effect_records(study: Study, held: MachineRead, shape: ModelShape) -> tuple[Record, ...]:
    """What profiles of this machine and model show by themselves."""
    return _own(study.find("profile.effect"), held, shape)


def _own(records: Iterable[Record], held: MachineRead, shape: ModelShape) -> tuple[Record, ...]:
    here = held.fingerprint.id
    return tuple(one for one in records if one.machine == here and is_of(one.subject, shape))


def read_profiled(study: Study, held: MachineRead, shape: ModelShape) -> tuple[Profiled, ...]:
    """Every compared point, each as the last profile shows it."""
    found: dict[_Key, Profiled] = {}
    for record in effect_records(study, held, shape):
        effect = convert_whole(record, Effect, "text")
        for pair in effect.pairs:
            found[effect.split, effect.arm, effect.against, pair.point] = Profiled(
                split=effect.split,
                arm=effect.arm,
                against=effect.against,
                answer=effect.answer,
                pair=pair,
                record_ids=(record.id,),
            )
    return tuple(found.values())


def read_profile(study: Study, held: MachineRead, shape: ModelShape) -> ProfileShown | None:
    """What profiles of this machine and model found, the last of each; None without any."""
    parts = latest(study, "profile.parts", **_UNDISTURBED)
    steps = tuple(_step(record) for record in _own(parts, held, shape))
    if not steps:
        return None
    return ProfileShown(
        steps=steps,
        effects=tuple(
            EffectShown(text=convert(one, "text", str), record_ids=(one.id,))
            for one in _own(latest(study, "profile.effect"), held, shape)
        ),
        timelines=_timelines(study, held, shape),
    )


_STEP_NAMES = (
    "step_s",
    "low_s",
    "high_s",
    "repeats",
    "parts",
    "unexplained_s",
    "tokens_per_s",
    "bus_bytes_per_s",
    "eager_because",
)


def _step(record: Record) -> StepShown:
    beside = {"name": _name(record), "point": _point(record), "record_ids": (record.id,)}
    return convert_picked(
        record,
        StepShown,
        lambda values: {**{name: values[name] for name in _STEP_NAMES}, **beside},
    )


def _name(record: Record) -> str:
    split, arm = record.subject["split"], record.subject["arm"]
    return str(split) if arm is None else f"{split}, {arm}"


def _point(record: Record) -> Point:
    names = ("phase", "batch", "tokens", "context")
    return convert_picked(
        record, Point, lambda _values: {name: record.subject[name] for name in names}
    )


def _timelines(study: Study, held: MachineRead, shape: ModelShape) -> tuple[TimelineShown, ...]:
    """The last traced step of every split and arm at the points that are pictured."""
    runs: dict[Point, dict[str, Record]] = {}
    for record in _own(study.find("profile.run", **_UNDISTURBED), held, shape):
        if isinstance(record.outcome, Measured):
            runs.setdefault(_point(record), {})[_name(record)] = record
    return tuple(
        TimelineShown(name=name, point=point, step=step, record_ids=(record.id,))
        for point in pictured(runs)
        for name, record in runs[point].items()
        for step in (_traced(study, record),)
        if step is not None
    )


def pictured(splits_at: Mapping[Point, Collection[str]]) -> tuple[Point, ...]:
    """Of each phase the point that most splits were timed at.

    Of several the batch nearest to 32, and a prefill that is one chunk.
    """
    found = []
    for phase in (Phase.DECODE, Phase.PREFILL):
        mine = [one for one in splits_at if one.phase is phase]
        if mine:
            found.append(max(mine, key=lambda one: (len(splits_at[one]), *_preference(one))))
    return tuple(found)


def _preference(point: Point) -> tuple[int, float]:
    chunks = chunks_of(point, CHUNK_TOKENS)
    return -chunks, -abs(math.log2(point.batch / PICTURED_BATCH))


def _traced(study: Study, record: Record) -> StepPieces | None:
    """The last traced step of a run; None where it was not traced."""
    for blob in record.blobs:
        try:
            timelines = msgspec.json.decode(study.blob(blob), type=tuple[Timeline, ...])
        except msgspec.DecodeError:
            continue  # The other blob is a log.
        return last_step(timelines)
    return None
