"""Simulated loads frozen before `serve` runs them, then set beside its cells."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from linkbound.cli.main import run
from linkbound.evidence.study import Study
from linkbound.evidence.types import Measured
from linkbound.links.types import Arm
from linkbound.predict.frozen import parse_frozen
from linkbound.serve.contenders import Contender, ServeRun, cell_subject, reseeded
from linkbound.serve.latency import LoadSummary, spread
from linkbound.serve.plan import LoadWords, plan_cells
from linkbound.serve.records import load_record
from linkbound.splits.types import Split

ASKED = ["--rate", "4,8", "--requests", "120", "--prompt", "512", "--output", "16"]
SPLITS = ["--split", "one", "--split", "tp2", "--arm", "staged"]
LATER, EARLIER = (datetime.now(UTC) + timedelta(hours=12)).isoformat(), "1999-01-01T00:00:00+00:00"
FUTURE = "2999-01-01T00:00:00+00:00"
"""No time that can be."""


def freeze(folder: Path, rates: str = "4,8") -> Path:
    file = folder / "f.json"
    asked = [rates if one == "4,8" else one for one in ASKED]
    words = ["simulate", "llama-3.1-8b", "--machine", "h200-pair", *asked, *SPLITS]
    assert run([*words, "--freeze", str(file)]) == 0
    return file


def summary(time_s: float) -> LoadSummary:
    times = spread([time_s] * 120)
    return LoadSummary(
        requests=120,
        failed=0,
        failures={},
        duration_s=30.0,
        output_tokens=1920,
        requests_per_s=4.0,
        output_tokens_per_s=64.0,
        chunks_per_s=64.0,
        ttft_from_schedule_s=times,
        ttft_from_send_s=times,
        tpot_s=times,
        chunk_gap_s=times,
        e2e_s=times,
        dispatch_lag_s=times,
        goodput=None,
        cached_share=None,
        wrong_lengths=0,
    )


def serve(path: Path, started: str | None, rates: str = "4,8", **changes: Any) -> None:
    """What `serve` would keep of the same words: cells drawn in its order, two repeats."""
    words = LoadWords(
        rates=rates,
        burstiness=None,
        concurrency=None,
        requests=120,
        prompt_tokens=512,
        output_tokens=16,
        vocabulary="100,512",
        warm_up=2,
        limit_s=300.0,
        seed=1,
    )
    asked = ServeRun(
        engine="vllm",
        model="models/llama-3.1-8b",
        contenders=(),
        repeats=2,
        context_tokens=4096,
        sequences=256,
    )
    asked = msgspec.structs.replace(asked, **changes)
    contender = Contender(split=Split(tp=2), arm=Arm.STAGED)
    measured = Measured(values=msgspec.to_builtins(summary(0.01)))
    with Study.create(path) as study:
        for repeat in range(2):
            for number, cell in enumerate(plan_cells(words)):
                subject = cell_subject(asked, contender, reseeded(cell, number, repeat), repeat)
                study.append(load_record(subject, measured, started=started, machine=asked.machine))


def score(path: Path, file: Path, capsys: Any) -> dict[str, Any]:
    words = ["simulate", "llama-3.1-8b", "--score", str(path), "--frozen", str(file)]
    capsys.readouterr()
    assert run([*words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_loads_are_frozen_as_serve_will_draw_them(tmp_path: Path, capsys: Any) -> None:
    file = freeze(tmp_path)
    out = capsys.readouterr().out
    content = parse_frozen(file.read_bytes(), "f").content
    names = [(one.contender, one.cell.rate_per_s, one.cell.seed) for one in content.loads]
    assert names == [
        ("one GPU", 4.0, 1000),
        ("tp2 staged", 4.0, 1000),
        ("one GPU", 8.0, 1001),
        ("tp2 staged", 8.0, 1001),
    ]
    assert "of 4 points at " in out
    for one in content.loads:
        assert "goodput" not in one.figures
        assert all(part.low <= part.value <= part.high for part in one.figures.values())
        assert {"ttft_p99_s", "tpot_p50_s", "output_tokens_per_s"} <= set(one.figures)


def test_cells_measured_after_it_are_scored(tmp_path: Path, capsys: Any) -> None:
    file = freeze(tmp_path)
    frozen = parse_frozen(file.read_bytes(), "f")
    serve(tmp_path / "m.linkbound", LATER)
    document = score(tmp_path / "m.linkbound", file, capsys)
    assert document["frozen"]["id"] == frozen.id
    assert {row["timing"] for row in document["rows"]} == {"before"}
    assert document["skipped"] == []
    fixed = {
        (one.cell.name, name): figure.value
        for one in frozen.content.loads
        if one.contender == "tp2 staged"
        for name, figure in one.figures.items()
    }
    for row in document["rows"]:
        assert row["predicted"]["value"] == fixed[row["cell"].split(",")[0], row["figure"]]
    assert {one["rows"] for one in document["summaries"]} == {2}


def test_cells_that_state_their_requests_are_found_by_the_same_words(
    tmp_path: Path, capsys: Any
) -> None:
    file = freeze(tmp_path, "4x60,8")
    serve(tmp_path / "same.linkbound", LATER, "4x60,8")
    document = score(tmp_path / "same.linkbound", file, capsys)
    assert document["skipped"] == []
    assert len({row["cell"] for row in document["rows"]}) == 2
    serve(tmp_path / "other.linkbound", LATER)
    document = score(tmp_path / "other.linkbound", file, capsys)
    assert [one.rsplit(": ", 1)[1] for one in document["skipped"]] == [
        "no prediction of it was frozen."
    ]
    assert len({row["cell"] for row in document["rows"]}) == 1


@pytest.mark.parametrize(
    ("started", "timing"), [(EARLIER, "later"), (None, "unknown"), (FUTURE, "unknown")]
)
def test_cells_that_were_not_measured_after_it_count_nowhere(
    started: str | None, timing: str, tmp_path: Path, capsys: Any
) -> None:
    file = freeze(tmp_path)
    serve(tmp_path / "m.linkbound", started)
    document = score(tmp_path / "m.linkbound", file, capsys)
    assert {row["timing"] for row in document["rows"]} == {timing}
    assert document["summaries"] == []
    words = ["simulate", "llama-3.1-8b", "--score", str(tmp_path / "m.linkbound")]
    assert run([*words, "--frozen", str(file)]) == 0
    out = capsys.readouterr().out
    assert f"Measured after that: 0 of {len(document['rows'])} rows." in out
    assert ("clocks differ" in "".join(document["skipped"])) is (started == FUTURE)


def test_other_cells_and_machines_are_listed(tmp_path: Path, capsys: Any) -> None:
    file = freeze(tmp_path)
    serve(tmp_path / "a.linkbound", LATER, machine="0123456789abcdef")
    document = score(tmp_path / "a.linkbound", file, capsys)
    assert document["rows"] == []
    assert all("measured on machine 0123456789abcdef" in one for one in document["skipped"])
    serve(tmp_path / "b.linkbound", LATER, model="models/another")
    document = score(tmp_path / "b.linkbound", file, capsys)
    assert [one.rsplit(": ", 1)[1] for one in document["skipped"]] == [
        "no prediction of it was frozen."
    ] * 2


def test_a_study_keeps_set_and_score(tmp_path: Path, capsys: Any) -> None:
    file, kept = freeze(tmp_path), tmp_path / "kept.linkbound"
    serve(tmp_path / "m.linkbound", LATER)
    words = ["simulate", "llama-3.1-8b", "--score", str(tmp_path / "m.linkbound")]
    assert run([*words, "--frozen", str(file), "-C", str(kept)]) == 0
    with Study.open(kept) as study:
        (record,) = study.find("predict.load_score")
        (parent,) = record.parents
        assert study.get(parent).kind == "predict.frozen"
    assert run(["check", str(kept)]) == 0
    capsys.readouterr()
    assert run(["simulate", "llama-3.1-8b", *ASKED, "--freeze", str(file)]) == 2
    assert "is there already" in capsys.readouterr().err
