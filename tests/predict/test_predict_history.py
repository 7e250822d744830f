"""The stated errors after scores: the rule by its numbers, and what a study does with it."""

import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from predict_cases import CONFIGS
from runs_files import LLAMA, asked, row, with_rows

from linkbound.cli.main import run
from linkbound.evidence.study import Study
from linkbound.predict.calibrate import LEAST_MODEL_ERROR, NORMAL_90
from linkbound.predict.calibration import Calibration
from linkbound.predict.history import PRIOR_STARTS, Start, learn, starts_of
from linkbound.predict.points import Metric
from linkbound.predict.score_types import ScoreRow, Timing
from linkbound.serve import RunSpec
from linkbound.study.reading import read_calibration

SPEC = RunSpec(
    model="m",
    tp=1,
    pp=1,
    expert_parallel=False,
    custom_all_reduce=True,
    p2p_disabled=False,
    batch=1,
    prompt_tokens=100,
    output_tokens=10,
)


def score_row(measured: float, predicted: float = 1.0, **changes: Any) -> ScoreRow:
    plain = ScoreRow(
        tag="a",
        batch=1,
        input=100,
        metric=Metric.TPOT,
        measured=measured,
        measured_low=measured,
        measured_high=measured,
        predicted=predicted,
        low=predicted,
        high=predicted,
        error=0.0,
        seen=False,
        spec=SPEC,
        timing=Timing.BEFORE,
    )
    return msgspec.structs.replace(plain, **changes)


def start(shown: float, *unseen: str) -> Start:
    return Start(unseen=unseen, rows=3, shown=shown)


@pytest.fixture(scope="module")
def stated(h200_study: Study) -> Calibration:
    return msgspec.structs.replace(read_calibration(h200_study, "h200-pair")[1], model_error=0.1)


def test_rows_of_a_start_are_one_observation() -> None:
    rows = [
        score_row(1.1),
        score_row(0.9, tag="a"),
        score_row(2.0, tag="b", unseen=("mixture",)),
        score_row(9.0, tag="a", seen=True),
        score_row(9.0, tag="a", timing=Timing.LATER),
        score_row(9.0, tag="a", timing=Timing.UNKNOWN),
        score_row(-0.1, tag="c"),
    ]
    first, second = starts_of(rows)
    mean = (math.log(1.1) ** 2 + math.log(0.9) ** 2) / 2
    assert (first.unseen, first.rows) == ((), 2)
    assert first.shown == pytest.approx(NORMAL_90 * math.sqrt(mean))
    assert (second.unseen, second.rows) == (("mixture",), 1)
    assert second.shown == pytest.approx(NORMAL_90 * math.log(2))


def test_nothing_scored_changes_nothing(stated: Calibration) -> None:
    assert learn(stated, []) is stated
    # Whose fault it is cannot be told from a plan with two things unseen.
    assert learn(stated, [start(0.9, "mixture", "pipeline")]) is stated


def test_bad_starts_widen_at_once_and_good_ones_narrow_slowly(stated: Calibration) -> None:
    wide = learn(stated, [start(0.4)])
    assert wide.model_error == pytest.approx(math.sqrt((4 * 0.1**2 + 0.4**2) / 5))
    narrow = learn(stated, [start(0.0)] * PRIOR_STARTS)
    assert narrow.model_error == pytest.approx(0.1 / math.sqrt(2))
    assert learn(stated, [start(0.1)] * 9).model_error == pytest.approx(0.1)
    assert learn(stated, [start(0.0)] * 1000).model_error == LEAST_MODEL_ERROR
    assert narrow.learned is not None
    assert narrow.learned.stated == {"model": 0.1}
    assert (narrow.learned.starts, narrow.learned.rows) == (4, 12)
    assert narrow.unseen == stated.unseen


def test_an_unseen_part_moves_by_what_it_shows_beyond_the_model_error(
    stated: Calibration,
) -> None:
    found = learn(stated, [start(0.5, "pipeline"), start(0.05, "mixture")])
    assert found.model_error == 0.1
    beyond = 0.5**2 - 0.1**2
    assert found.unseen.pipeline == pytest.approx(
        math.sqrt((4 * stated.unseen.pipeline**2 + beyond) / 5)
    )
    assert found.unseen.mixture == pytest.approx(math.sqrt(4 * stated.unseen.mixture**2 / 5))
    assert found.unseen.quantised == stated.unseen.quantised
    assert found.learned is not None
    assert found.learned.stated == {
        "pipeline": stated.unseen.pipeline,
        "mixture": stated.unseen.mixture,
    }


def later(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def measured(
    folder: Path, config: str, factor: float, capsys: Any, study: Path
) -> tuple[Path, Path]:
    """Freeze points into a study, and a runs file that takes `factor` times what was frozen."""
    rows = [row("small", tag="one"), row("small", tp=2, tag="two")]
    (folder / "before").mkdir()
    (folder / "after").mkdir()
    models = {"small": config}
    points = with_rows(folder / "before", models, [asked(one) for one in rows])
    file = folder / "f.json"
    words = ["--points", str(points), "--freeze", str(file), "--machine", "h200-pair"]
    assert run(["predict", *words, "-C", str(study), "--json"]) == 0
    frozen = json.loads(capsys.readouterr().out)["content"]["predictions"]
    for one, said in zip(rows, frozen, strict=True):
        prefill = factor * said["estimates"]["prefill_s"]["value"]
        total = prefill + factor * said["estimates"]["tpot_s"]["value"] * (one["output"] - 1)
        one.update(prefill_all=[prefill], total_all=[total], started=later(60))
    return file, with_rows(folder / "after", models, rows)


def predicted(study: Path, capsys: Any, model: str = "llama-3.1-8b") -> dict[str, Any]:
    words = ["predict", model, "--machine", "h200-pair", "--concurrency", "2"]
    assert run([*words, "-C", str(study), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    found: dict[str, Any] = next(one["latency_s"] for one in rows if one["split"] == "one GPU")
    return found


@pytest.mark.parametrize(
    ("config", "moved", "factor", "wider"),
    [
        (LLAMA["small"], "model", 1.6, True),
        # The model error is stated at its least already; that of ranks smaller than any run is not.
        ("Qwen--Qwen3-0.6B", "size", 1.6, True),
        ("Qwen--Qwen3-0.6B", "size", 1.0, False),
    ],
)
def test_a_score_moves_later_intervals_of_its_study(
    config: str, moved: str, factor: float, wider: bool, tmp_path: Path, capsys: Any
) -> None:
    study, model = tmp_path / "s.linkbound", str(CONFIGS / config)
    file, runs = measured(tmp_path, config, factor, capsys, study)
    before = predicted(study, capsys, model)
    words = ["predict", "--score", str(runs), "--frozen", str(file), "-C", str(study)]
    assert run(words) == 0
    capsys.readouterr()
    after = predicted(study, capsys, model)
    assert after["value"] == before["value"]
    widths = [one["high"] / one["value"] - 1 for one in (before, after)]
    assert (widths[1] > 1.5 * widths[0]) if wider else (widths[1] < 0.95 * widths[0])
    with Study.open(study) as held:
        records = held.find("predict.calibration", machine="h200-pair")
        (score,) = (one for one in held.find("predict.score") if "frozen" in one.subject)
        assert score.id in records[-1].parents
        assert score.id not in records[0].parents
        learned = read_calibration(held, "h200-pair")[1].learned
    assert learned is not None
    assert (learned.starts, learned.rows) == (2, 4)
    # What taught the errors is no proof of them any more; scoring it again teaches nothing new.
    assert run(words) == 0
    capsys.readouterr()
    assert predicted(study, capsys, model) == after
    # Never in silence: text and page say what was stated before.
    asked_again = ["--machine", "h200-pair", "--concurrency", "2", "-C", str(study)]
    assert run(["predict", model, *asked_again]) == 0
    said = f"Scores of frozen predictions (2 starts, 4 rows) moved stated errors: {moved} error "
    assert said in capsys.readouterr().out
    assert run(["study", model, *asked_again, "-q"]) == 0
    assert said in " ".join(capsys.readouterr().out.split())
    assert said in study.with_suffix(".html").read_text()
    again = tmp_path / "again.json"
    points = str(tmp_path / "before" / "runs.jsonl")
    words = ["--points", points, "--freeze", str(again), "--machine", "h200-pair", "--json"]
    assert run(["predict", *words, "-C", str(study)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert all(one["seen"] for one in document["content"]["predictions"])
    assert run(["check", str(study)]) == 0


def test_a_score_that_was_not_frozen_moves_nothing(tmp_path: Path, capsys: Any) -> None:
    study = tmp_path / "s.linkbound"
    before = predicted(study, capsys)
    runs = with_rows(tmp_path, LLAMA, [row("small", prefill_all=[9.0], total_all=[99.0])])
    words = ["predict", "--score", str(runs), "--machine", "h200-pair", "-C", str(study)]
    assert run(words) == 0
    capsys.readouterr()
    assert predicted(study, capsys) == before
