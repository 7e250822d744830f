"""A study that holds a profile: the verdict shows it, and is made again after a new one."""

from pathlib import Path

import msgspec
import pytest

from linkbound.errors import StudyError
from linkbound.evidence import Derived, Record, Study
from linkbound.profile.types import Point
from linkbound.report.types import LoadShown
from linkbound.splits.types import Phase
from linkbound.study.gather import gather
from linkbound.study.profiles import pictured
from linkbound.study.sources import read_recorded
from linkbound.study.stages import request, run_stages
from linkbound.verdict.profiled import CODE
from recorded_profile import recorded_profile

MODEL = "llama-3.1-8b"


def profiled(loads: tuple[LoadShown, ...]) -> list[str]:
    return [
        one.text for shown in loads for one in shown.verdict.reasons if one.code.startswith(CODE)
    ]


def shown(path: Path, *records: Record) -> tuple[LoadShown, ...]:
    """The loads of a study after these records came to it."""
    sources = read_recorded("h200-pair")
    asked = request(MODEL, sources)
    with Study.open_or_create(path) as study:
        study.append_many(records)
        run_stages(study, asked, lambda _stage, _held: None)
        return gather(study, sources.name, MODEL, asked.loads).loads


def test_a_verdict_shows_a_profile_of_its_machine_and_model(tmp_path: Path) -> None:
    path = tmp_path / "a.linkbound"
    assert profiled(shown(path)) == []
    loads = shown(path, *recorded_profile())
    texts = profiled(loads)
    # Two loads, each with tp2 and pp2 against one GPU (pp2 in both arms) and pp2 against staged.
    assert len(texts) == 8
    assert "tp2, p2p is faster than one GPU" in texts[0]
    assert shown(path) == loads
    with Study.open(path) as study:
        assert study.verify() == []


def test_a_profile_of_another_machine_is_not_shown(tmp_path: Path) -> None:
    elsewhere = [msgspec.structs.replace(one, machine="0" * 16) for one in recorded_profile()]
    assert profiled(shown(tmp_path / "a.linkbound", *elsewhere)) == []


def test_the_last_profile_of_a_point_counts(tmp_path: Path) -> None:
    effect = next(
        one for one in recorded_profile()
        if one.kind == "profile.effect" and one.subject["model"] == MODEL
    )  # fmt: skip
    values = msgspec.to_builtins(effect.outcome)["values"]
    for pair in values["pairs"]:
        pair["step_s"] *= 2
    again = msgspec.structs.replace(
        effect, outcome=msgspec.structs.replace(effect.outcome, values=values)
    )
    texts = profiled(shown(tmp_path / "a.linkbound", effect, again))
    assert len(texts) == 2
    assert "5.82 ms against 3.94 ms" in texts[0]


def test_a_report_has_the_steps_of_its_model(tmp_path: Path) -> None:
    sources = read_recorded("h200-pair")
    asked = request(MODEL, sources)
    with Study.create(tmp_path / "a.linkbound") as study:
        study.append_many(recorded_profile())
        run_stages(study, asked, lambda _stage, _held: None)
        profile = gather(study, sources.name, MODEL, asked.loads).profile
    assert profile is not None
    # One GPU, tp2 p2p, pp2 in both arms: four batches, prefill of three. No shard, no control.
    assert len(profile.steps) == 4 * 7 + 2
    names = {one.name for one in profile.steps}
    assert names == {"one GPU", "tp2, p2p", "pp2, p2p", "pp2, staged"}
    single = next(one for one in profile.steps if one.name == "one GPU" and one.point.batch == 1)
    assert single.parts is not None
    assert single.parts.communication_s == 0
    assert len(profile.effects) == 7
    assert profile.timelines == ()


@pytest.mark.parametrize("kind", ["profile.parts", "profile.effect"])
def test_a_profile_of_another_version_is_one_error(tmp_path: Path, kind: str) -> None:
    found = next(one for one in recorded_profile() if one.kind == kind)
    broken = msgspec.structs.replace(found, outcome=Derived(values={"step_s": "soon"}))
    with pytest.raises(StudyError, match="is not of this version"):
        shown(tmp_path / "a.linkbound", broken)


def test_the_point_that_most_splits_share_is_pictured() -> None:
    def decode(batch: int) -> Point:
        return Point(phase=Phase.DECODE, batch=batch, tokens=1, context=1024)

    def prefill(batch: int) -> Point:
        return Point(phase=Phase.PREFILL, batch=batch, tokens=1024)

    both, one = ("one GPU", "tp2, p2p"), ("one GPU",)
    points = {decode(1): both, decode(8): both, decode(32): one}
    chunks = {prefill(1): both, prefill(8): both, prefill(32): both}
    assert pictured({**points, **chunks}) == (decode(8), prefill(8))
    assert pictured({}) == ()
