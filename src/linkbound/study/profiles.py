"""What `linkbound profile` left in a study, read back for verdicts and pages (P1, E1)."""

from linkbound.evidence.study import Study
from linkbound.evidence.types import Record
from linkbound.links.types import Arm
from linkbound.profile.effects import Against, Effect
from linkbound.profile.types import Point
from linkbound.splits.types import Split
from linkbound.study.reading import MachineRead, convert_whole
from linkbound.verdict.profiled import Profiled

_Key = tuple[Split, Arm | None, Against, Point]


def effect_records(study: Study, held: MachineRead, model: str) -> tuple[Record, ...]:
    """What profiles of this machine show by themselves; `model` is the name of a shape."""
    found = study.find("profile.effect", model=model)
    return tuple(one for one in found if one.machine == held.fingerprint.id)


def read_profiled(study: Study, held: MachineRead, model: str) -> tuple[Profiled, ...]:
    """Every compared point, each as the last profile shows it."""
    found: dict[_Key, Profiled] = {}
    for record in effect_records(study, held, model):
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
