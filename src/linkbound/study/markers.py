"""Which stages a study already holds, and for which inputs (E1).

Records are named by machine, model and load. Other inputs under the same names would mix two
answers in one file, so a study refuses them.
"""

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from linkbound import __version__
from linkbound.errors import StudyError
from linkbound.evidence.study import Study
from linkbound.evidence.types import Derived, Record, canonical_json
from linkbound.model.types import Load
from linkbound.study.sources import Sources
from linkbound.topology.fingerprint import fingerprint
from linkbound.values import Value


class Stage(StrEnum):
    """The stages, in order."""

    TOPOLOGY = "topology"
    LINKS = "links"
    MODEL = "model"
    SPLITS = "splits"
    SERVE = "serve"
    PREDICT = "predict"
    VERDICT = "verdict"


class StageKey(Value, frozen=True, kw_only=True):
    """A stage of a study: `scope` names what it is about, `inputs` is the hash of what it reads."""

    stage: Stage
    scope: Mapping[str, str]
    inputs: str
    loads: tuple[Load, ...] = ()


def is_held(study: Study, key: StageKey) -> bool:
    """Whether the stage is in the study. Raises StudyError where it is with other inputs."""
    loads = [msgspec.to_builtins(load) for load in key.loads]
    held = False
    for record in study.find("study.stage", stage=key.stage.value, **key.scope):
        if record.subject["inputs"] != key.inputs:
            what = ", ".join(key.scope.values())
            raise StudyError(
                f"{study.path} already holds the stage {key.stage.value} of {what}, "
                "made from other inputs.",
                why="Files of the machine, --override, --min-gain or the version of linkbound "
                "changed, and two answers under one name could not be told apart.",
                hint="Name another file: -C OTHER.linkbound.",
            )
        held = held or record.subject["loads"] == loads
    return held


def mark(study: Study, key: StageKey) -> None:
    """Note that the stage is complete."""
    study.append(
        Record(
            kind="study.stage",
            subject={
                "stage": key.stage.value,
                **key.scope,
                "inputs": key.inputs,
                "loads": [msgspec.to_builtins(load) for load in key.loads],
            },
            outcome=Derived(values={"linkbound": __version__}),
            method="linkbound.study.run_stages",
        )
    )


def machine_key(stage: Stage, sources: Sources) -> StageKey:
    """The key of a stage that reads the machine alone."""
    return StageKey(
        stage=stage, scope={"machine": sources.name}, inputs=inputs_of(machine_inputs(sources))
    )


def machine_inputs(sources: Sources) -> list[Any]:
    """What tells one state of a machine's files from another.

    Of this host only what identifies it: link speeds of idle GPUs change from one look to the next.
    """
    return [
        [[file.name, hashlib.sha256(file.data).hexdigest()] for file in sources.files],
        msgspec.to_builtins((sources.runs, sources.engine_from, sources.memory_bytes)),
        None if sources.live is None else fingerprint(sources.live).id,
    ]


def inputs_of(parts: object) -> str:
    """Hash of inputs and of the version that reads them, 16 hexadecimal digits."""
    return hashlib.sha256(canonical_json([__version__, parts])).hexdigest()[:16]
