"""Shards that `linkbound profile --shards` timed, for machines with the same GPUs (P1, D5)."""

import msgspec

from linkbound.evidence.study import Study
from linkbound.evidence.types import Measured, Record
from linkbound.model.types import ModelShape
from linkbound.predict.shards import ShardPoint, ShardTable, ShardTime
from linkbound.predict.types import Estimate
from linkbound.profile.effects import LEAST_SPREAD, UNREPEATED_SPREAD
from linkbound.profile.shards import middle_step_s
from linkbound.profile.subjects import is_of
from linkbound.profile.types import Device
from linkbound.splits.types import Dispatch
from linkbound.study.reading import MachineRead, read_machines

_NAMES = ("split", "dispatch", "phase", "batch", "tokens", "context")


def read_shards(study: Study, held: MachineRead, shape: ModelShape) -> ShardTable:
    """Times of the first rank's shard of splits of the model.

    Those of this machine, and of any other in the study whose GPUs are all of this one model: a
    shard needs one GPU, and no peers.
    """
    machines = _alike(study, held)
    groups: dict[tuple[object, ...], list[Record]] = {}
    for record in study.find("profile.shard", device=Device.CUDA.value, alone=0):
        same = record.machine in machines and is_of(record.subject, shape)
        if same and isinstance(record.outcome, Measured):
            key = tuple(record.subject[name] for name in _NAMES)
            groups.setdefault(key, []).append(record)
    return ShardTable(_time(members) for members in groups.values())


def _alike(study: Study, held: MachineRead) -> frozenset[str]:
    """Fingerprints of machines that have GPUs of the same one model."""
    found = {held.fingerprint.id}
    mine = _models(held)
    if len(mine) == 1 and None not in mine:
        found |= {one.fingerprint.id for one in read_machines(study) if _models(one) == mine}
    return frozenset(found)


def _models(held: MachineRead) -> set[str | None]:
    return {gpu.model for gpu in held.machine.gpus}


def _time(members: list[Record]) -> ShardTime:
    """The median step of all children; one child alone is good for five percent."""
    subject = members[0].subject
    each_s = [middle_step_s([one]) for one in members]
    value = middle_step_s(members)
    spread = LEAST_SPREAD if len(members) > 1 else UNREPEATED_SPREAD
    dispatch = subject["dispatch"]
    return ShardTime(
        split=str(subject["split"]),
        dispatch=None if dispatch is None else Dispatch(dispatch),
        point=msgspec.convert({name: subject[name] for name in _NAMES[2:]}, ShardPoint),
        time=Estimate(
            value=value,
            low=min(*each_s, value * (1 - spread)),
            high=max(*each_s, value * (1 + spread)),
        ),
        record_ids=tuple(one.id for one in members),
    )
