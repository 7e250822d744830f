"""A frozen set beside what was measured after it, in a runs file or in a study (E3)."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from linkbound.evidence.store import is_database
from linkbound.evidence.study import Study
from linkbound.model.derive import shape_key
from linkbound.model.types import ModelShape
from linkbound.predict.frozen import Frozen, FrozenContent, matched, not_yet, parse_frozen, timing
from linkbound.predict.points import Observation, Prediction, observation
from linkbound.predict.score import score
from linkbound.predict.score_types import FrozenSet, Score
from linkbound.serve import parse_runs
from linkbound.study.freezing import append_frozen
from linkbound.study.observing import Observed, observe
from linkbound.study.places import Places
from linkbound.study.runs_files import read_runs_file, shapes_beside
from linkbound.study.scoring import score_record


def read_frozen(path: Path) -> Frozen:
    """The frozen set in a file. Raises InputError where it is not what was written."""
    return parse_frozen(read_runs_file(path), path.name)


def score_frozen(study: Study, frozen: Frozen, path: Path) -> Score:
    """Compare a frozen set with the runs file or study at `path`; `study` keeps the score.

    Nothing is predicted: what was frozen stands.
    """
    content, now = frozen.content, datetime.now(UTC)
    observed, elsewhere, blobs = _measured(study, path, content)
    pairs, rest = matched(content.predictions, [(one.observation, one.shape) for one in observed])
    found = score(
        pairs,
        (*elsewhere, *map(_unasked, rest), *_ahead((one for _, one in pairs), now)),
        frozen=FrozenSet(id=frozen.id, frozen=content.frozen),
        timing=[timing(content.frozen, one.started, now) for _, one in pairs],
    )
    study.append(
        score_record(
            {"machine": content.machine, "file": path.name, "frozen": frozen.id},
            [prediction for prediction, _ in pairs],
            found,
            machine=content.fingerprint.id,
            parents=(append_frozen(study, frozen), *_held_ids(study, pairs)),
            blobs=blobs,
        )
    )
    return found


def _measured(
    study: Study, path: Path, content: FrozenContent
) -> tuple[tuple[Observed, ...], tuple[str, ...], tuple[str, ...]]:
    """What a file measured where the set holds; what was elsewhere; the blob of a runs file."""
    if is_database(path):
        with Study.open(path) as measured:
            places = Places(measured, content.fingerprint)
            found = observe(measured)
        here = tuple(one for one in found if _is_here(one, places))
        return here, _elsewhere((one for one in found if one not in here), content), ()
    data = read_runs_file(path)
    shapes = shapes_beside(path, data)
    observed = tuple(
        Observed(observation=observation(run), shape=shape_key(shape), machine=None)
        for run in parse_runs(data, path.name)
        for shape in [shapes[run.spec.model]]
        if isinstance(shape, ModelShape)
    )
    return observed, (), (study.add_blob(data),)


def _is_here(one: Observed, places: Places) -> bool:
    spec = one.observation.spec
    return places.holds(one.machine, spec.tp * spec.pp)


def _elsewhere(observed: Iterable[Observed], content: FrozenContent) -> tuple[str, ...]:
    """What was measured on a machine with other GPUs or links."""
    return tuple(
        f"{_name(one.observation)}: measured on machine {one.machine}, "
        f"frozen for {content.machine} ({content.fingerprint.id})."
        for one in observed
    )


def _unasked(one: Observation) -> str:
    return f"{_name(one)}: no prediction of it was frozen."


def _ahead(observed: Iterable[Observation], now: datetime) -> list[str]:
    """What says that it will be measured."""
    return [
        f"{_name(one)}: {reason}"
        for one in observed
        if (reason := not_yet(one.started, now)) is not None
    ]


def _name(one: Observation) -> str:
    return f"{one.tag}, {one.spec.batch} x {one.spec.prompt_tokens}"


def _held_ids(study: Study, pairs: Iterable[tuple[Prediction, Observation]]) -> list[str]:
    """Records of the measurements, where it is this study that holds them."""
    ids = dict.fromkeys(record for _, one in pairs for record in one.record_ids)
    return [one for one in ids if study.has(one)]
