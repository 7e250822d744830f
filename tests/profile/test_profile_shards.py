"""A shard's step and the calls alone, against the run of the split."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from profile_models import MODELS
from profile_results import DECODE, job, result

from linkbound.evidence import Study
from linkbound.links.types import Arm
from linkbound.profile.cells import CHECK_HEADER, check_cells
from linkbound.profile.launch import JobResult
from linkbound.profile.records import append_checks, append_result
from linkbound.profile.shards import calls_alone_s, shard_checks
from linkbound.profile.subjects import is_of, model_of

NOW = "2026-01-01T00:00:00+00:00"


def _shard(step_s: float) -> JobResult:
    return result(replace(job("tp2"), alone=0), [[step_s] * 3])


def _kept(study: Study, *results: JobResult, machine: str = "m") -> list[str]:
    return [append_result(study, one, 0, machine, NOW)[0] for one in results]


def test_shard_and_calls_add_up_to_the_prediction(tmp_path: Path) -> None:
    with Study.create(tmp_path / "s.linkbound") as study:
        run = result(job("tp2", Arm.P2P), [[0.009, 0.010, 0.011], [0.010, 0.010, 0.010]])
        ids = _kept(study, _shard(0.008), _shard(0.009), run)
        shape = run.job.shape
        (check,) = shard_checks(study, shape, "m")
        # Of profile_results: 4, 5 and 4.5 ms on both ranks, less the slower rank's 3 ms.
        assert check.shard_s == 0.0085
        assert check.calls_s == pytest.approx(0.0015)
        assert check.predicted_s == pytest.approx(0.010)
        assert check.measured_s == 0.010
        assert check.ratio == pytest.approx(1.0)
        assert check.record_ids == tuple(ids)
        assert (check.split, check.arm, check.point) == ("tp2", "p2p", DECODE)
        assert len(check_cells(check)) == len(CHECK_HEADER)
        (kept,) = append_checks(study, [check], shape, "m")
        assert study.get(kept).parents == tuple(ids)
        assert study.verify() == []


@pytest.mark.parametrize("missing", ["shard", "run", "machine", "split"])
def test_what_does_not_belong_together_is_not_compared(tmp_path: Path, missing: str) -> None:
    run = result(job("pp2" if missing == "split" else "tp2", Arm.P2P), [[0.01], [0.01]])
    with Study.create(tmp_path / "s.linkbound") as study:
        if missing != "shard":
            _kept(study, _shard(0.008), machine="other" if missing == "machine" else "m")
        if missing != "run":
            _kept(study, run)
        assert shard_checks(study, run.job.shape, "m") == ()


def test_calls_that_were_not_timed_are_not_known() -> None:
    assert calls_alone_s((), ()) is None
    assert calls_alone_s([(), ()], [(), ()]) is None
    assert calls_alone_s([(4.0, 6.0), (5.0, 4.0)], [(1.0,), (2.0,)]) == 3.5


def test_another_shape_of_the_same_name_is_not_compared(tmp_path: Path) -> None:
    run = result(job("tp2", Arm.P2P), [[0.01], [0.01]])
    shard = _shard(0.008)
    fewer = replace(run.job.shape, layers=run.job.shape.layers[:2])
    other = replace(shard, job=replace(shard.job, shape=fewer))
    with Study.create(tmp_path / "s.linkbound") as study:
        _kept(study, other, run)
        assert shard_checks(study, run.job.shape, "m") == ()
        _kept(study, shard)
        assert len(shard_checks(study, run.job.shape, "m")) == 1


def test_a_record_without_the_shapes_key_was_in_bf16() -> None:
    for model, held in (("dense", True), ("fp8", False)):
        shape = replace(MODELS[model], name="same")
        assert is_of(model_of(shape), shape)
        assert is_of({"model": "same"}, shape) == held
        assert not is_of({"model": "other"}, shape)
    assert not is_of(
        model_of(replace(MODELS["fp8"], name="same")), replace(MODELS["dense"], name="same")
    )


def test_a_control_is_no_run_of_the_split(tmp_path: Path) -> None:
    from linkbound.profile.types import Delay

    slowed = replace(job("tp2", Arm.P2P), delay=Delay(rank=1, seconds=1e-4))
    with Study.create(tmp_path / "s.linkbound") as study:
        _kept(study, _shard(0.008), result(slowed, [[0.01], [0.01]]))
        assert shard_checks(study, slowed.shape, "m") == ()
