"""Frozen predictions: an edit shows, only what was there first counts, and nothing is peeked at."""

import hashlib
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs_files import LLAMA, asked, row, with_rows

from linkbound.cli.main import run
from linkbound.errors import InputError
from linkbound.evidence.study import Study
from linkbound.evidence.types import Fingerprint, Provenance, canonical_json
from linkbound.predict.calibration import Calibration, Constant
from linkbound.predict.frozen import (
    FrozenContent,
    freeze,
    matched,
    parse_frozen,
    timing,
)
from linkbound.predict.points import Metric, Observation, Prediction, over
from linkbound.predict.score_types import Timing
from linkbound.predict.types import Estimate
from linkbound.serve import RunSpec
from linkbound.serve.runs import MAX_FILE_BYTES

NOW = "2026-11-30T12:00:00.250000+00:00"
ARM_ROWS = [
    row("small"),
    row("small", tp=2, tag="p2p"),
    row("small", tp=2, custom_ar=0, p2p_disable="1", tag="staged"),
]


def spec(**changes: Any) -> RunSpec:
    plain = RunSpec(
        model="m",
        tp=1,
        pp=1,
        expert_parallel=False,
        custom_all_reduce=True,
        p2p_disabled=False,
        batch=4,
        prompt_tokens=512,
        output_tokens=33,
    )
    return msgspec.structs.replace(plain, **changes)


def prediction(**changes: Any) -> Prediction:
    estimate = Estimate(value=0.05, low=0.04, high=0.07)
    return Prediction(
        spec=spec(**changes),
        shape="shape",
        estimates={Metric.PREFILL: estimate, Metric.TPOT: estimate},
    )


def constant() -> Constant:
    estimate = Estimate(value=1.0, low=0.5, high=2.0)
    return Constant(estimate=estimate, provenance=Provenance.PRIOR, basis="made up")


def content(**changes: Any) -> FrozenContent:
    names = [one.name for one in msgspec.structs.fields(Calibration) if one.type is Constant]
    calibration = Calibration(
        **{name: constant() for name in names}, model_error=0.1, gain_error=0.1
    )
    plain = FrozenContent(
        frozen=NOW,
        linkbound="0.1.0",
        machine="made-up",
        fingerprint=Fingerprint(identity={"gpus": "2x made up"}),
        engine="rules",
        calibration=calibration,
        inputs=("a" * 64,),
        predictions=(prediction(), prediction(tp=2)),
    )
    return msgspec.structs.replace(plain, **changes)


def test_what_is_written_is_read_back() -> None:
    frozen = freeze(content())
    assert parse_frozen(frozen.text.encode(), "f.json") == frozen
    assert freeze(content()) == frozen
    assert json.loads(frozen.text)["id"] == frozen.id


def test_what_an_earlier_version_wrote_stays_what_it_was() -> None:
    older = {key: value for key, value in DOCUMENT["content"].items() if key != "loads"}
    found = hashlib.sha256(canonical_json(older)).hexdigest()
    text = json.dumps({**DOCUMENT, "content": older, "id": found})
    frozen = parse_frozen(text.encode(), "f.json")
    assert (frozen.id, frozen.text, frozen.content) == (found, text, content())


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [one for key, part in value.items() for one in leaves(part, (*path, key))]
    if isinstance(value, list):
        return [one for at, part in enumerate(value) for one in leaves(part, (*path, at))]
    return [path]


DOCUMENT = json.loads(freeze(content()).text)


@given(st.sampled_from(leaves(DOCUMENT["content"])), st.integers() | st.text(max_size=4))
def test_any_edit_is_refused(path: tuple[Any, ...], value: Any) -> None:
    document = json.loads(json.dumps(DOCUMENT))
    place = document["content"]
    for step in path[:-1]:
        place = place[step]
    if place[path[-1]] == value:
        return
    place[path[-1]] = value
    with pytest.raises(InputError, match="is not what was frozen"):
        parse_frozen(json.dumps(document).encode(), "f.json")


def test_spacing_and_order_of_keys_are_no_edit() -> None:
    turned = dict(reversed(DOCUMENT["content"].items()))
    text = json.dumps({**DOCUMENT, "content": turned}, indent=3)
    found = parse_frozen(text.encode(), "f.json")
    assert (found.id, found.content) == (freeze(content()).id, content())


@given(st.binary(max_size=200))
def test_other_bytes_are_one_error(data: bytes) -> None:
    with pytest.raises(InputError):
        parse_frozen(data, "f.json")


def rehashed(**changes: Any) -> bytes:
    """A document whose hash is right and whose content is not."""
    wrong = {**DOCUMENT["content"], **changes}
    found = hashlib.sha256(canonical_json(wrong)).hexdigest()
    return json.dumps({**DOCUMENT, "content": wrong, "id": found}).encode()


@pytest.mark.parametrize(
    "changes",
    [{"frozen": "yesterday"}, {"frozen": "2026-11-30T12:00:00"}, {"predictions": 3}],
)
def test_a_right_hash_of_something_else_is_one_error(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"f\.json cannot be read"):
        parse_frozen(rehashed(**changes), "f.json")


@pytest.mark.parametrize(
    ("started", "found"),
    [
        ("2026-11-30T12:00:01+00:00", Timing.BEFORE),
        ("2026-11-30T14:00:01+02:00", Timing.BEFORE),
        ("2026-11-30T12:00:00+00:00", Timing.LATER),
        ("2026-11-30T13:59:00+02:00", Timing.LATER),
        (None, Timing.UNKNOWN),
        ("2026-11-30T13:00:00", Timing.UNKNOWN),
        ("noon", Timing.UNKNOWN),
        # The test's now is 13:00 on the day of the freezing.
        ("2026-12-01T13:00:00+00:00", Timing.BEFORE),
        ("2026-12-01T13:00:01+00:00", Timing.UNKNOWN),
        ("9999-12-31T23:59:59+00:00", Timing.UNKNOWN),
    ],
)
def test_a_measurement_is_set_beside_the_time_of_freezing(
    started: str | None, found: Timing
) -> None:
    now = datetime(2026, 11, 30, 13, tzinfo=UTC)
    assert timing(NOW, started, now) is found


def observed(**changes: Any) -> Observation:
    return Observation(tag="t", spec=spec(**changes), metrics={Metric.PREFILL: over([0.05])})


def test_points_meet_by_shape_whatever_the_model_is_called() -> None:
    pairs, rest = matched(
        [prediction(model="a")],
        [
            (observed(model="b"), "shape"),
            (observed(model="b", custom_all_reduce=False), "shape"),
            (observed(model="a"), "another shape"),
            (observed(model="a"), None),
            (observed(model="b"), None),
            (observed(model="a", batch=5), "shape"),
            (observed(model="a", tp=2), "shape"),
        ],
    )
    # On one GPU an all-reduce is none; without a shape the name decides.
    assert [(one.spec.model, one.spec.custom_all_reduce) for _, one in pairs] == [
        ("b", True),
        ("b", False),
        ("a", True),
    ]
    assert len(rest) == 4


def test_arms_do_not_meet() -> None:
    two = prediction(tp=2, custom_all_reduce=False)
    _, rest = matched([two], [(observed(tp=2, custom_all_reduce=True), "shape")])
    assert len(rest) == 1


def freeze_file(folder: Path, rows: list[dict[str, Any]], *more: str) -> Path:
    """Freeze the points of rows that were not measured yet."""
    (folder / "before").mkdir()
    points = with_rows(folder / "before", LLAMA, [asked(one) for one in rows])
    file = folder / "frozen.json"
    words = ["predict", "--points", str(points), "--freeze", str(file), "--machine", "h200-pair"]
    assert run([*words, *more]) == 0
    return file


def after(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def measure(folder: Path, rows: list[dict[str, Any]]) -> Path:
    (folder / "after").mkdir(exist_ok=True)
    return with_rows(folder / "after", LLAMA, rows)


def test_only_rows_measured_after_the_freezing_count(tmp_path: Path, capsys: Any) -> None:
    file = freeze_file(tmp_path, ARM_ROWS)
    out = capsys.readouterr().out
    found_id = parse_frozen(file.read_bytes(), "f").id
    assert f"id {found_id}" in out
    assert "Frozen 6 figures of 3 points" in out
    rows = [
        {**ARM_ROWS[0], "started": after(60)},
        {**ARM_ROWS[1], "started": after(-60)},
        ARM_ROWS[2],
        row("small", batch=7, started=after(60)),
    ]
    runs = measure(tmp_path, rows)
    words = ["predict", "--score", str(runs), "--frozen", str(file)]
    assert run([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["timing"] for one in document["rows"]] == [
        *("before", "before", "later", "later", "unknown", "unknown")
    ]
    assert document["frozen"]["id"] == found_id
    assert document["summary"]["tpot_s"]["rows"] == 1
    assert document["signs"] == []
    assert document["skipped"] == ["small row, 7 x 512: no prediction of it was frozen."]
    assert run(words) == 0
    out = capsys.readouterr().out
    assert "Measured after that: 2 of 6 rows." in out
    assert out.count("not frozen before") == 2
    assert out.count("measured at an unknown time") == 2


def test_a_row_that_says_it_will_be_measured_does_not_count(tmp_path: Path, capsys: Any) -> None:
    file = freeze_file(tmp_path, ARM_ROWS)
    ahead = after(25 * 3600)
    rows = [{**ARM_ROWS[0], "started": ahead}, {**ARM_ROWS[1], "started": after(23 * 3600)}]
    words = ["predict", "--score", str(measure(tmp_path, rows)), "--frozen", str(file)]
    capsys.readouterr()
    assert run([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {one["timing"] for one in document["rows"][:2]} == {"unknown"}
    assert {one["timing"] for one in document["rows"][2:]} == {"before"}
    assert document["summary"]["tpot_s"]["rows"] == 1
    (line,) = document["skipped"]
    assert f"it says that it began {ahead}, more than a day after now" in line


def test_what_was_frozen_is_scored_and_not_what_is_predicted_now(
    tmp_path: Path, capsys: Any
) -> None:
    file = freeze_file(tmp_path, ARM_ROWS)
    frozen = parse_frozen(file.read_bytes(), "f")
    runs = measure(tmp_path, [{**one, "started": after(60)} for one in ARM_ROWS])
    capsys.readouterr()
    assert run(["predict", "--score", str(runs), "--frozen", str(file), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    told = [time.value for one in frozen.content.predictions for time in one.estimates.values()]
    assert [one["predicted"] for one in rows] == told
    signs = json.loads(run_json(runs, file, capsys))["signs"]
    assert {one["arm"] for one in signs} <= {"p2p", "staged"}


def run_json(runs: Path, file: Path, capsys: Any) -> str:
    assert run(["predict", "--score", str(runs), "--frozen", str(file), "--json"]) == 0
    return str(capsys.readouterr().out)


def test_times_that_are_in_the_points_are_not_read(tmp_path: Path) -> None:
    found = []
    for name, times in (("a", [0.01]), ("b", [9.0, 99.0])):
        folder = tmp_path / name
        folder.mkdir()
        rows = [{**one, "prefill_all": times, "total_all": times} for one in ARM_ROWS]
        points = with_rows(folder, LLAMA, rows)
        words = ["--points", str(points), "--freeze", str(folder / "f.json")]
        assert run(["predict", *words, "--machine", "h200-pair"]) == 0
        read = parse_frozen((folder / "f.json").read_bytes(), "f")
        found.append(msgspec.structs.replace(read.content, frozen=NOW))
    assert found[0] == found[1]


def test_a_changed_set_is_refused(tmp_path: Path, capsys: Any) -> None:
    file = freeze_file(tmp_path, ARM_ROWS[:1])
    text = file.read_text()
    assert text.count('"batch": 4') == 1
    file.write_text(text.replace('"batch": 4', '"batch": 5'))
    runs = measure(tmp_path, [row("small", batch=5, started=after(60))])
    assert run(["predict", "--score", str(runs), "--frozen", str(file)]) == 2
    assert "is not what was frozen" in capsys.readouterr().err


def test_calibrating_points_are_marked_when_they_are_frozen(tmp_path: Path) -> None:
    rows = [row("small", batch=8, input=1024, output=65), row("small", batch=3)]
    file = freeze_file(tmp_path, rows)
    frozen = parse_frozen(file.read_bytes(), "f")
    assert [one.seen for one in frozen.content.predictions] == [True, False]


def test_a_model_is_frozen_in_every_plan_as_calls_and_as_steps(tmp_path: Path, capsys: Any) -> None:
    file, study = tmp_path / "f.json", tmp_path / "s.linkbound"
    words = ["predict", "llama-3.1-8b", "--machine", "h200-pair", "--concurrency", "4"]
    assert run([*words, "--freeze", str(file), "-C", str(study)]) == 0
    capsys.readouterr()
    frozen = parse_frozen(file.read_bytes(), "f")
    points = [(one.spec.engine, one.spec.tp, one.spec.pp) for one in frozen.content.predictions]
    # One GPU; tp2 in three arms; pp2 in two.
    assert points == [
        (engine, tp, pp)
        for tp, pp in ((1, 1), (2, 1), (2, 1), (2, 1), (1, 2), (1, 2))
        for engine in ("vllm", "linkbound")
    ]
    assert frozen.content.left_out == ("2 replicas: no run of one engine is asked so.",)
    steps = frozen.content.predictions[1]
    call = frozen.content.predictions[0]
    assert set(steps.estimates) == {Metric.DECODE_STEP, Metric.PREFILL_STEP}
    # The device's part of a step is no longer than the step with host and engine.
    assert steps.estimates[Metric.PREFILL_STEP].value < call.estimates[Metric.PREFILL].value
    with Study.open(study) as kept:
        (record,) = kept.find("predict.frozen")
        assert record.subject["id"] == frozen.id
        assert record.started == frozen.content.frozen
        assert kept.blob(record.blobs[0]) == file.read_bytes()
        assert set(record.parents) == set(frozen.content.inputs)
    assert run(["check", str(study)]) == 0


def test_a_mixture_is_frozen_without_what_a_row_cannot_say(tmp_path: Path) -> None:
    file = tmp_path / "f.json"
    words = ["predict", "mixtral-8x7b", "--machine", "h200-pair", "--concurrency", "4"]
    assert run([*words, "--freeze", str(file)]) == 0
    content = parse_frozen(file.read_bytes(), "f").content
    assert {(one.spec.tp, one.spec.pp) for one in content.predictions} == {(1, 1), (2, 1), (1, 2)}
    assert {one.split(",")[0].split(":")[0] for one in content.left_out} == {"2 replicas", "ep2 x2"}
    assert all("mixture" in one.unseen for one in content.predictions)


def test_a_frozen_file_is_never_overwritten(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "f.json"
    file.write_text("something")
    words = ["predict", "llama-3.1-8b", "--machine", "h200-pair", "--freeze", str(file)]
    assert run(words) == 2
    assert "is there already" in capsys.readouterr().err
    assert file.read_text() == "something"


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        ([], "predict needs one of MODEL"),
        (["llama-3.1-8b", "--score", "a"], "predict needs one of MODEL"),
        (["--points", "a"], "--points needs --freeze FILE."),
        (["--score", "a", "--freeze", "b"], "--freeze and --score do not go together."),
        (["llama-3.1-8b", "--frozen", "a"], "--frozen needs --score FILE."),
    ],
)
def test_options_that_do_not_go_together(words: list[str], seen: str, capsys: Any) -> None:
    assert run(["predict", *words]) == 2
    assert seen in capsys.readouterr().err


def test_a_file_that_is_too_large_is_no_frozen_set(tmp_path: Path, capsys: Any) -> None:
    runs = measure(tmp_path, [row("small")])
    file = tmp_path / "f.json"
    with file.open("wb") as stream:
        stream.truncate(MAX_FILE_BYTES + 2)
    assert run(["predict", "--score", str(runs), "--frozen", str(file)]) == 2
    assert "f.json is not JSON" in capsys.readouterr().err
