"""What a study measured becomes points that a frozen set can be set beside."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from linkbound.cli.main import run
from linkbound.evidence.study import Study
from linkbound.evidence.types import Failed, Measured, Reason, Record
from linkbound.links.types import Arm, Launch
from linkbound.model.read_model import read_model
from linkbound.predict.frozen import parse_frozen
from linkbound.predict.points import Metric
from linkbound.predict.score_types import Score, Timing
from linkbound.profile.launch import JobResult
from linkbound.profile.records import append_result
from linkbound.profile.types import Device, Job, Point, RankPoint
from linkbound.serve.contenders import Contender, ServeRun, cell_subject
from linkbound.serve.load_types import Arrival, Cell, Chunk, Request
from linkbound.serve.records import load_record
from linkbound.splits.types import Phase, Split
from linkbound.study.observing import Observed, observe
from linkbound.study.scoring_frozen import read_frozen, score_frozen

STARTED = (datetime.now(UTC) + timedelta(hours=12)).isoformat()
"""After anything that a test freezes, and still no time that cannot be."""


def request(index: int, sent_s: float, first_s: float, end_s: float, **changes: Any) -> Request:
    chunks = tuple(
        Chunk(at_s=at_s, read=number, size_bytes=9, has_token=True)
        for number, at_s in enumerate((first_s, end_s))
    )
    plain = Request(
        index=index,
        target="http://here",
        warm_up=False,
        prompt_tokens=512,
        output_tokens=33,
        scheduled_s=sent_s,
        sent_s=sent_s,
        chunks=chunks,
        end_s=end_s,
    )
    return msgspec.structs.replace(plain, **changes)


def load(
    study: Study,
    requests: list[Request],
    *,
    concurrency: int | None = None,
    engine: str = "vllm",
    split: Split = Split(),  # noqa: B008
    arm: Arm | None = None,
    repeat: int = 0,
    machine: str | None = None,
) -> None:
    counted = [one for one in requests if not one.warm_up]
    cell = Cell(
        arrival=Arrival.POISSON if concurrency is None else Arrival.CLOSED,
        rate_per_s=1.0 if concurrency is None else None,
        concurrency=concurrency,
        requests=len(counted),
        prompt_tokens=512,
        output_tokens=33,
        seed=repeat,
    )
    asked = ServeRun(
        engine=engine,
        model="llama-3.1-8b",
        contenders=(),
        cells=(cell,),
        repeats=1,
        context_tokens=600,
        sequences=8,
        machine=machine,
    )
    subject = cell_subject(asked, Contender(split=split, arm=arm), cell, repeat)
    outcome = Measured(values={"requests": len(counted)})
    study.append(load_record(subject, outcome, requests=requests, machine=machine, started=STARTED))


@pytest.fixture
def study(tmp_path: Path) -> Any:
    with Study.create(tmp_path / "measured.linkbound") as made:
        yield made


def one(study: Study) -> Observed:
    (found,) = observe(study)
    return found


def test_requests_that_are_all_sent_at_once_are_a_batch(study: Study) -> None:
    late = request(1, 0.1, 0.9, 4.0)
    for repeat, shift in enumerate((0.0, 0.2)):
        rows = [request(0, 0.1, 0.4 + shift, 3.0), late, request(9, -1, 0, 0, warm_up=True)]
        load(study, rows, concurrency=2, repeat=repeat, split=Split(tp=2), arm=Arm.STAGED)
    found = one(study)
    spec, metrics = found.observation.spec, found.observation.metrics
    assert (spec.batch, spec.prompt_tokens, spec.output_tokens) == (2, 512, 33)
    assert (spec.tp, spec.arm, spec.model) == (2, Arm.STAGED, "llama-3.1-8b")
    assert metrics[Metric.PREFILL].middle == pytest.approx(0.8)
    assert metrics[Metric.TPOT].middle == pytest.approx((4.0 - 0.9) / 32)
    assert found.observation.started == STARTED
    assert len(found.observation.record_ids) == 2


def test_one_request_at_a_time_is_a_batch_of_one(study: Study) -> None:
    firsts = (0.05, 0.07, 0.06)
    rows = [request(n, n, n + first, n + first + 0.32) for n, first in enumerate(firsts)]
    load(study, rows, concurrency=1)
    metrics = one(study).observation.metrics
    assert metrics[Metric.PREFILL].middle == pytest.approx(0.06)
    assert metrics[Metric.TPOT].middle == pytest.approx(0.01)


def test_loads_that_queue_or_failed_or_are_of_other_engines_are_no_batches(study: Study) -> None:
    rows = [request(0, 0.0, 0.1, 1.0), request(1, 0.0, 0.1, 1.0), request(2, 0.0, 0.1, 1.0)]
    failed = request(1, 0.0, 0.1, 1.0, error=Reason(code="cut", text="cut"))
    load(study, rows)
    load(study, rows, concurrency=2)
    load(study, rows, concurrency=3, engine="sglang")
    load(study, rows, concurrency=3, split=Split(replicas=2))
    load(study, [rows[0], failed], concurrency=2)
    assert observe(study) == ()


def profiled(
    study: Study,
    times: tuple[tuple[float, ...], ...],
    *,
    phase: Phase = Phase.DECODE,
    repeat: int = 0,
    split: Split = Split(),  # noqa: B008
    arm: Arm | None = None,
    **changes: Any,
) -> None:
    """A child's result: one row of step times for each rank."""
    decode = phase is Phase.DECODE
    point = Point(phase=phase, batch=4, tokens=1 if decode else 512, context=512 if decode else 0)
    job = Job(
        shape=read_model("llama-3.1-8b"),
        split=split,
        arm=arm,
        device=Device.CUDA,
        points=(point,),
    )
    job = msgspec.structs.replace(job, **changes)
    ranks = tuple(
        RankPoint(rank=rank, point=point, launch=Launch.GRAPH, times_s=row, calls=())
        for rank, row in enumerate(times)
    )
    result = JobResult(
        job=job,
        ranks=ranks,
        findings=(),
        environment={},
        command=(),
        duration_s=1.0,
        path=None,
        spent="",
        log="",
    )
    append_result(study, result, repeat, None, STARTED)


def test_a_profiled_step_takes_as_long_as_its_slowest_rank(study: Study) -> None:
    split, arm = Split(tp=2), Arm.P2P
    profiled(study, ((1.0, 3.0, 2.0), (2.0, 2.0, 2.0)), split=split, arm=arm)
    found = one(study)
    spec, metrics = found.observation.spec, found.observation.metrics
    assert (spec.engine, spec.batch, spec.prompt_tokens, spec.arm) == ("linkbound", 4, 512, arm)
    step = metrics[Metric.DECODE_STEP]
    assert (step.low, step.middle, step.high) == (2.0, 2.0, 3.0)


def test_repeats_of_a_profiled_step_are_its_range(study: Study) -> None:
    for repeat, step in enumerate((1.0, 1.2, 1.1)):
        profiled(study, ((step, step, 9.0),), repeat=repeat, phase=Phase.PREFILL)
    step = one(study).observation.metrics[Metric.PREFILL_STEP]
    assert (step.low, step.middle, step.high) == (1.0, 1.1, 1.2)


def test_controls_shards_and_the_cpu_are_no_steps_of_a_gpu(study: Study) -> None:
    profiled(study, ((1.0,),), device=Device.CPU)
    profiled(study, ((1.0,),), alone=0, split=Split(tp=2))
    profiled(study, ((1.0,), (1.0,)), micro_batches=2, split=Split(pp=2), arm=Arm.P2P)
    profiled(study, ((1.0,), (1.0,)), split=Split(tp=2), arm=Arm.NET)
    assert observe(study) == ()


def scored(folder: Path, study: Study) -> Score:
    """The measured study beside a set that was frozen for the recorded pair."""
    file = folder / "f.json"
    words = ["predict", "llama-3.1-8b", "--machine", "h200-pair", "--freeze", str(file)]
    load_words = ["--prompt", "512", "--output", "33", "--concurrency", "1,2,4"]
    assert run([*words, *load_words]) == 0
    return score_frozen(study, read_frozen(file), study.path)


def test_a_frozen_model_meets_loads_and_steps(tmp_path: Path, study: Study) -> None:
    load(study, [request(n, 0.0, 0.1, 0.4) for n in range(4)], concurrency=4)
    profiled(study, ((0.005,),))
    found = scored(tmp_path, study)
    assert [(row.metric, row.timing) for row in found.rows] == [
        (Metric.PREFILL, Timing.BEFORE),
        (Metric.TPOT, Timing.BEFORE),
        (Metric.DECODE_STEP, Timing.BEFORE),
    ]
    assert [one.metric for one in found.summaries] == [
        *("tpot_s", "prefill_s", "decode_step_s", "staged minus nccl")
    ]
    (record,) = study.find("predict.score")
    kinds = sorted(study.get(parent).kind for parent in record.parents)
    assert kinds == ["predict.frozen", "profile.run", "serve.load"]


def test_what_another_machine_measured_is_listed(tmp_path: Path, study: Study) -> None:
    rows = [request(0, 0.0, 0.1, 0.4)]
    load(study, rows, concurrency=1, machine="0123456789abcdef")
    found = scored(tmp_path, study)
    assert found.rows == ()
    (line,) = found.skipped
    assert line.startswith("one GPU, 1 at once, 1 x 512: measured on machine 0123456789abcdef")


def test_runs_of_a_recorded_machine_are_measured_at_an_unknown_time(
    tmp_path: Path, h200_study: Study
) -> None:
    file = tmp_path / "f.json"
    words = ["predict", "llama-3.1-8b", "--machine", "h200-pair", "--freeze", str(file)]
    assert run([*words, "--prompt", "1024", "--output", "65", "--concurrency", "8"]) == 0
    assert parse_frozen(file.read_bytes(), "f").content.machine == "h200-pair"
    with Study.create(tmp_path / "score.linkbound") as kept:
        found = score_frozen(kept, read_frozen(file), h200_study.path)
    assert {row.timing for row in found.rows} == {Timing.UNKNOWN}
    assert len(found.rows) == 4 * 2
    assert found.summaries[0].rows == 0


def test_records_that_failed_are_no_measurements(study: Study) -> None:
    study.append(
        Record(
            kind="serve.load",
            subject={"engine": "vllm"},
            outcome=Failed(reason=Reason(code="died", text="died")),
            method="linkbound.serve.load",
        )
    )
    assert observe(study) == ()
