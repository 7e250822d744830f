"""Predictions against runs: the definition of error, and what the recorded runs must show."""

import hashlib
import json
import random
import shutil
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import msgspec
import pytest
from predict_cases import engine_on
from runs_files import row, with_rows

from linkbound.cli.main import run
from linkbound.errors import InputError
from linkbound.evidence.study import Study
from linkbound.links import Arm
from linkbound.predict.effects import range_error
from linkbound.predict.points import Metric, Prediction, observation, predict_specs
from linkbound.predict.score import score
from linkbound.predict.score_types import Score, Summary
from linkbound.predict.types import Estimate
from linkbound.serve.types import EngineRun, RunSpec, RunTimes
from linkbound.study.reading import read_calibration
from linkbound.study.scoring import score_file
from linkbound.study.sources import read_recorded

RECORDED = files("linkbound") / "recorded" / "h200-pair" / "vllm-0.24.0"
MEASURED = ("prefill_s", "prefill_all", "total_s", "total_all", "tpot_ms", "tok_s", "load_s", "tag")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the recorded runs with the shape they name."""
    folder = tmp_path_factory.mktemp("runs")
    with as_file(RECORDED) as source:
        shutil.copytree(source / "configs", folder / "configs")
        shutil.copy(source / "runs.jsonl", folder / "runs.jsonl")
    return folder / "runs.jsonl"


@pytest.fixture(scope="module")
def found(recorded: Path, h200_study: Study) -> Score:
    return score_file(h200_study, read_recorded("h200-pair"), recorded)


def summary(found: Score, metric: str) -> Summary:
    return next(one for one in found.summaries if one.metric == metric)


def test_error_is_the_distance_to_the_nearer_end() -> None:
    assert range_error(1.0, 0.9, 1.1) == 0
    assert range_error(0.9, 0.9, 1.1) == 0
    assert range_error(0.81, 0.9, 1.1) == pytest.approx(0.1)
    assert range_error(1.21, 0.9, 1.1) == pytest.approx(0.1)
    assert range_error(-3.0, -2.0, 1.0) == pytest.approx(0.5)
    assert range_error(5.0, -1.0, 0.0) == 1


def test_accuracy_on_the_recorded_pair(found: Score) -> None:
    tpot, prefill = summary(found, "tpot_s"), summary(found, "prefill_s")
    effect = summary(found, "staged minus nccl")
    assert None not in (tpot.median, tpot.worst, prefill.median, prefill.worst, effect.median)
    assert (tpot.rows, prefill.rows) == (8, 10)
    assert tpot.median <= 0.06  # type: ignore[operator]
    assert tpot.worst <= 0.20  # type: ignore[operator]
    assert prefill.median <= 0.12  # type: ignore[operator]
    assert prefill.worst <= 0.25  # type: ignore[operator]
    assert effect.rows >= 4
    assert effect.median <= 0.15  # type: ignore[operator]
    assert len(found.signs) >= 20
    assert [row for row in found.signs if row.helps is not row.predicted_helps] == []
    assert prefill.coverage is not None
    assert prefill.coverage >= 0.8


def again() -> list[dict[str, Any]]:
    lines = (RECORDED / "again" / "runs.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_accuracy_on_the_same_points_in_another_machine(h200_study: Study) -> None:
    """Rows that nobody calibrated with, pipelines and twins among them."""
    with as_file(RECORDED / "again") as folder:
        found = score_file(h200_study, read_recorded("h200-pair"), folder / "runs.jsonl")
    seen = {row.tag for row in found.rows if row.seen}
    assert seen == {"llama-3.1-8b_one_GPU", "llama-3.1-8b_tp2_nccl"}
    tpot, prefill = summary(found, "tpot_s"), summary(found, "prefill_s")
    effect = summary(found, "staged minus nccl")
    assert (tpot.rows, prefill.rows) == (24, 30)
    assert None not in (tpot.median, prefill.median, effect.median)
    assert tpot.median <= 0.05  # type: ignore[operator]
    assert prefill.median <= 0.08  # type: ignore[operator]
    assert effect.median <= 0.10  # type: ignore[operator]
    for one in (tpot, prefill):
        assert one.coverage is not None
        assert one.coverage >= 0.85
    wrong = {(row.split, row.arm) for row in found.signs if row.helps is not row.predicted_helps}
    assert {split for split, _ in wrong} <= {"pp2"}


def test_steady_rows_come_back_within_a_tenth() -> None:
    """Of the first runs, those whose calls differ by less than 5 %: TPOT again, through `serve`."""
    tags = {"llama8b_tp1": "one_GPU", "llama8b_tp2": "tp2_p2p"}
    tags |= {"llama8b_tp2_nccl": "tp2_nccl", "llama8b_tp2_off": "tp2_staged"}
    second = {(row["tag"], row["batch"], row["input"]): row for row in again()}
    steady = 0
    for line in (RECORDED / "runs.jsonl").read_text().splitlines():
        first = json.loads(line)
        if first["output"] == 1 or first["total_all"][-1] > 1.05 * first["total_all"][0]:
            continue
        steady += 1
        found = second["llama-3.1-8b_" + tags[first["tag"]], first["batch"], first["input"]]
        assert found["tpot_ms"] == pytest.approx(first["tpot_ms"], rel=0.10)
    assert steady == 15


def test_the_joined_rows_are_those_of_four_calls() -> None:
    rows = again()
    assert len(rows) == 8 * 5
    for row_ in rows:
        assert len(row_["prefill_all"]) == 4
        assert row_["prefill_s"] == sorted(row_["prefill_all"])[2]
        if row_["output"] > 1:
            token_s = (sorted(row_["total_all"])[2] - row_["prefill_s"]) / (row_["output"] - 1)
            assert row_["tpot_ms"] == pytest.approx(token_s * 1e3, rel=1e-4)


def test_only_calibrating_rows_are_seen(found: Score) -> None:
    assert {row.tag for row in found.rows if row.seen} == {"llama8b_tp1", "llama8b_tp2_nccl"}
    assert {row.tag for row in found.rows if not row.seen} == {"llama8b_tp2", "llama8b_tp2_off"}
    for metric in (Metric.TPOT, Metric.PREFILL):
        unseen = [row.error for row in found.rows if row.metric is metric and not row.seen]
        assert summary(found, metric.value).rows == len(unseen)
        assert summary(found, metric.value).worst == max(unseen)
    for one in found.rows:
        assert one.low < one.predicted < one.high
        assert one.measured_low <= one.measured <= one.measured_high


def test_small_prefill_on_two_gpus_is_host_bound_in_every_arm(
    found: Score, h200_study: Study
) -> None:
    rows = [
        one
        for one in found.rows
        if one.metric is Metric.PREFILL and one.spec.tp == 2 and (one.batch, one.input) == (1, 1024)
    ]
    assert len(rows) == 3
    assert max(row.predicted for row in rows) == pytest.approx(min(row.predicted for row in rows))
    constants = read_calibration(h200_study, "h200-pair")[1]
    launch = constants.host_step_s.value + 32 * constants.host_layer_split_s.value
    engine = constants.call_s.value + constants.sequence_s.value
    assert rows[0].predicted == pytest.approx(launch + engine)
    # The row that calibrates took 36.5 ms.
    assert rows[0].predicted == pytest.approx(36.5e-3, rel=0.07)


def test_effects_inside_the_spread_are_listed_but_not_scored(found: Score) -> None:
    for effect in found.effects:
        spread = max(
            one.measured_high - one.measured_low
            for one in found.rows
            if one.metric is effect.metric
            and (one.batch, one.input) == (effect.batch, effect.input)
            and one.spec.arm in (Arm.STAGED, Arm.NCCL)
        )
        assert effect.scored is (abs(effect.measured) > 3 * spread)
    assert any(not one.scored for one in found.effects)
    assert len(found.effects) == 9


def test_the_score_is_kept_with_predictions_and_file(
    found: Score, recorded: Path, h200_study: Study
) -> None:
    records = h200_study.find("predict.score", machine="h200-pair")
    blob = hashlib.sha256(recorded.read_bytes()).hexdigest()
    (record,) = [one for one in records if one.blobs == (blob,)]
    assert h200_study.blob(blob) == recorded.read_bytes()
    kinds = [h200_study.get(parent).kind for parent in record.parents]
    assert kinds == ["predict.calibration"]
    assert len(found.rows) == 4 * 9


def predictions(found: Score) -> list[tuple[object, ...]]:
    return [
        (row.spec, row.metric, row.predicted, row.low, row.high, row.seen) for row in found.rows
    ]


def scrambled(path: Path, folder: Path, seed: int) -> Path:
    """The same points with every measured field and the tag replaced by noise."""
    choose = random.Random(seed)
    lines = []
    for text in path.read_text().splitlines():
        row: dict[str, Any] = json.loads(text)
        for field in MEASURED:
            if field not in row:
                continue
            if field == "tag":
                row[field] = f"tag {choose.random()}"
            elif isinstance(row[field], list):
                row[field] = [choose.uniform(1e-4, 50) for _ in range(choose.randint(1, 4))]
            else:
                row[field] = choose.uniform(1e-4, 50)
        lines.append(json.dumps(row))
    shutil.copytree(path.parent / "configs", folder / "configs")
    (folder / "runs.jsonl").write_text("\n".join(lines))
    return folder / "runs.jsonl"


@pytest.mark.parametrize("seed", [1, 2])
def test_no_measured_field_is_read_before_predictions_are_fixed(
    seed: int, found: Score, recorded: Path, h200_study: Study, tmp_path: Path
) -> None:
    noise = scrambled(recorded, tmp_path, seed)
    again = score_file(h200_study, read_recorded("h200-pair"), noise)
    assert msgspec.json.encode(predictions(again)) == msgspec.json.encode(predictions(found))
    assert [row.measured for row in again.rows] != [row.measured for row in found.rows]


def run_of(
    tp: int, prefill: tuple[float, ...], total: tuple[float, ...], **changes: Any
) -> EngineRun:
    spec = RunSpec(
        model="m",
        tp=tp,
        pp=1,
        expert_parallel=False,
        custom_all_reduce=False,
        p2p_disabled=False,
        batch=1,
        prompt_tokens=100,
        output_tokens=11,
    )
    spec = msgspec.structs.replace(spec, **changes)
    return EngineRun(tag="t", line=1, spec=spec, times=RunTimes(prefill_s=prefill, total_s=total))


def predicted(run: EngineRun, prefill: float, tpot: float, seen: bool = False) -> Prediction:
    def estimate(value: float) -> Estimate:
        return Estimate(value=value, low=0.9 * value, high=1.1 * value)

    return Prediction(
        spec=run.spec,
        shape="m",
        estimates={Metric.PREFILL: estimate(prefill), Metric.TPOT: estimate(tpot)},
        seen=seen,
    )


def scored(*pairs: tuple[Prediction, EngineRun]) -> Score:
    return score([(one, observation(run)) for one, run in pairs])


def test_tpot_and_its_range_are_of_all_pairs_of_repeats() -> None:
    one = run_of(1, (1.0, 1.1), (2.0, 2.2))
    (prefill, tpot) = scored((predicted(one, 1.05, 0.2), one)).rows
    assert (prefill.measured, prefill.measured_low, prefill.measured_high) == (1.1, 1.0, 1.1)
    assert prefill.error == 0
    assert tpot.measured == pytest.approx(0.11)
    assert (tpot.measured_low, tpot.measured_high) == pytest.approx((0.09, 0.12))
    assert tpot.error == pytest.approx(0.2 / 0.12 - 1)


def test_signs_are_judged_where_ranges_do_not_overlap() -> None:
    one = run_of(1, (1.0, 1.2), ())
    two = run_of(2, (0.7, 0.8), ())
    near = run_of(2, (0.9, 1.1), (), p2p_disabled=True)
    found = scored(
        (predicted(one, 1.0, 0.1), one),
        (predicted(two, 1.3, 0.1), two),
        (predicted(near, 1.0, 0.1), near),
    )
    (sign,) = found.signs
    assert (sign.arm, sign.helps, sign.predicted_helps) == (Arm.NCCL, True, False)


def test_an_effect_counts_beyond_three_spreads() -> None:
    nccl = run_of(2, (1.0, 1.1), ())
    far = run_of(2, (2.0, 2.1), (), p2p_disabled=True)
    found = scored((predicted(nccl, 1.0, 0.1), nccl), (predicted(far, 2.4, 0.1), far))
    (effect,) = found.effects
    assert (effect.measured, effect.predicted) == pytest.approx((1.0, 1.4))
    assert (effect.measured_low, effect.measured_high) == pytest.approx((0.9, 1.1))
    assert effect.scored
    assert effect.error == pytest.approx(1.4 / 1.1 - 1)
    close = run_of(2, (1.3, 1.4), (), p2p_disabled=True)
    found = scored((predicted(nccl, 1.0, 0.1), nccl), (predicted(close, 2.4, 0.1), close))
    assert not found.effects[0].scored
    assert summary(found, "staged minus nccl").median is None


def test_an_effect_of_nothing_at_all_is_no_division_by_zero() -> None:
    nccl = run_of(2, (1.0,), ())
    same = run_of(2, (1.0,), (), p2p_disabled=True)
    found = scored((predicted(nccl, 1.0, 0.1), nccl), (predicted(same, 1.5, 0.1), same))
    assert (found.effects[0].measured, found.effects[0].error) == (0, 1)
    assert not found.effects[0].scored


def test_seen_rows_are_in_no_summary() -> None:
    one = run_of(1, (1.0,), (2.0,))
    found = scored((predicted(one, 9.0, 9.0, seen=True), one))
    assert [row.seen for row in found.rows] == [True, True]
    assert all(summary.median is None and summary.rows == 0 for summary in found.summaries)


def test_predictions_leave_excluded_gpus_out(desktop_study: Study) -> None:
    engine = engine_on(desktop_study, "5060ti-pair")
    spec = run_of(2, (1.0,), ()).spec
    (apart,) = predict_specs((spec,), lambda _model: engine, lambda _spec, _shape: False, ("GPU0",))
    assert isinstance(apart, Prediction)
    assert apart.estimates[Metric.TPOT].value > 0


def test_other_shapes_and_splits_are_predicted(tmp_path: Path, capsys: Any) -> None:
    path = with_rows(
        tmp_path,
        {
            "mix": "Qwen--Qwen3-30B-A3B",
            "big": "meta-llama--Meta-Llama-3.1-70B",
            "small": "Qwen--Qwen3-0.6B",
        },
        [
            row("mix"),
            row("mix", tp=2, ep=1),
            row("mix", tp=2, ep=1, p2p_disable="1", custom_ar=0),
            row("big", tp=2),
            row("big", tp=1, pp=2),
            row("big", tp=1, pp=2, p2p_disable="1"),
            row("small", output=1, total_all=None),
        ],
    )
    assert run(["predict", "--score", str(path), "--json", "--machine", "h200-pair"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["rows"]) == 6 * 2 + 1
    needed = {"tag", "batch", "input", "metric", "measured", "predicted", "low", "high", "seen"}
    for one in document["rows"]:
        assert needed <= set(one)
        assert one["metric"] in ("tpot_s", "prefill_s")
        assert 0 < one["low"] < one["predicted"] < one["high"]
        assert one["seen"] is False
    assert {"tpot_s", "prefill_s", "staged_minus_nccl"} <= set(document["summary"])
    arms = {(one["model"], one["tp"], one["pp"], one["arm"]) for one in document["rows"]}
    assert ("big", 1, 2, "staged") in arms
    assert ("mix", 2, 1, "p2p") in arms
    assert ("small", 1, 1, None) in arms


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({"pp": 2, "model": "none"}, "runs.jsonl names the model 'none'"),
        ({"model": "../configs/small"}, "runs.jsonl names the model '../configs/small'"),
        ({"model": ".."}, "runs.jsonl names the model '..'"),
        ({"model": "a" * 300}, "runs.jsonl names the model 'aaa"),
    ],
)
def test_points_that_cannot_be_are_one_error(
    changes: dict[str, Any], seen: str, tmp_path: Path, h200_study: Study
) -> None:
    path = with_rows(tmp_path, {"small": "Qwen--Qwen3-0.6B"}, [row("small", **changes)])
    with pytest.raises(InputError) as raised:
        score_file(h200_study, read_recorded("h200-pair"), path)
    assert raised.value.seen.startswith(seen)
    assert raised.value.hint


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"tp": 4}, "line 1, tp4: 4 GPUs are asked for, this machine has 2 to use."),
        ({"tp": 2, "ep": 1}, "line 1, tp2 ep2: ep 2 needs experts, the model has none."),
    ],
)
def test_points_that_this_machine_or_model_cannot_have_are_listed(
    changes: dict[str, Any], why: str, tmp_path: Path, h200_study: Study
) -> None:
    rows = [row("small", **changes), row("small")]
    path = with_rows(tmp_path, {"small": "Qwen--Qwen3-0.6B"}, rows)
    found = score_file(h200_study, read_recorded("h200-pair"), path)
    assert found.skipped == (why,)
    assert {one.spec.tp for one in found.rows} == {1}


def test_a_config_that_is_no_text_is_one_error(tmp_path: Path, h200_study: Study) -> None:
    path = with_rows(tmp_path, {"small": "Qwen--Qwen3-0.6B"}, [row("small")])
    (tmp_path / "configs" / "small" / "config.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(InputError, match=r"configs/small/config.json is not UTF-8 text"):
        score_file(h200_study, read_recorded("h200-pair"), path)


def test_a_runs_file_that_is_not_there(tmp_path: Path, capsys: Any) -> None:
    assert run(["predict", "--score", str(tmp_path / "no.jsonl")]) == 2
    assert "no.jsonl cannot be read: No such file or directory." in capsys.readouterr().err


def test_the_last_lines_are_medians_and_worsts(recorded: Path, capsys: Any) -> None:
    assert run(["predict", "--score", str(recorded), "--machine", "h200-pair"]) == 0
    lines = capsys.readouterr().out.rstrip().splitlines()
    assert [line.split()[0] for line in lines[-3:]] == ["tpot_s", "prefill_s", "staged"]
    assert all("median" in line and "worst" in line for line in lines[-3:])
    assert sum("  seen" in line for line in lines) == 2 * 9
