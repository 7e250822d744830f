"""Rows, cells and records from results whose numbers are chosen."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from profile_results import DECODE, SIZE, job, result

from linkbound.evidence import Failed, Finding, Level, Measured, Severity, Study
from linkbound.links.types import Arm, Launch, Operation
from linkbound.profile.cells import HEADER, cells, notes
from linkbound.profile.effects import effects
from linkbound.profile.records import append_result, append_rows, document_of, row_key
from linkbound.profile.summary import _bus_rate, rows
from linkbound.profile.types import Call, Interval, KernelClass, StepSpan, Timeline

WRONG = Finding(
    code="arm-contradicted",
    level=Level.SEEN,
    severity=Severity.ERROR,
    seen="The log shows another path.",
    why="Times would be mixed up.",
    remedy="Choose another arm.",
)


def _two_repeats() -> list:  # type: ignore[type-arg]
    one = job("one")
    tp2 = job("tp2", Arm.STAGED)
    return [
        result(one, [[0.008, 0.008, 0.008]]),
        result(tp2, [[0.010, 0.010, 0.010], [0.010, 0.011, 0.010]]),
        result(one, [[0.008, 0.008, 0.008]]),
        result(tp2, [[0.012, 0.012, 0.012], [0.011, 0.011, 0.011]]),
    ]


def test_a_row_is_the_slowest_rank_over_all_repeats() -> None:
    single, split = rows(_two_repeats())
    assert single.step_s == 0.008
    assert single.drift == 0
    assert single.parts is None
    assert single.tokens_per_s == 500
    assert split.steps == 6
    assert split.step_s == pytest.approx(0.0115)
    assert (split.low_s, split.high_s) == (0.010, 0.012)
    assert split.drift == pytest.approx(0.2)


def test_parts_are_the_mean_and_the_rest_is_unexplained() -> None:
    split = rows(_two_repeats())[1]
    assert split.parts is not None
    assert split.parts.compute_s == pytest.approx(0.005)
    assert split.parts.communication_s == pytest.approx(0.003)
    assert split.parts.waiting_s == pytest.approx(0.001)
    assert split.parts.gap_s == pytest.approx(0.001)
    assert split.unexplained_s == pytest.approx(0.0015)
    assert split.compute_per_layer_s == pytest.approx(0.005 / 3)
    assert split.communication_per_layer_s == pytest.approx(0.001)
    # The all-reduce begins at 4 and 6 ms and ends at 9 ms on both.
    assert split.clock_error_s == pytest.approx(0.004)


def test_what_the_profiler_adds_to_a_step_is_no_rest() -> None:
    whole = result(job("tp2", Arm.P2P), [[0.0099], [0.0099]])
    # The slowest rank's median of steps that were timed under the profiler.
    under = ((0.00991, 0.00990, 0.0120), (0.00990, 0.00992, 0.0130))
    ranks = tuple(
        replace(one, under_profiler_s=times) for one, times in zip(whole.ranks, under, strict=True)
    )
    (row,) = rows([replace(whole, ranks=ranks)])
    assert row.instrument_s == pytest.approx(2e-5)
    assert row.unexplained_s == pytest.approx(0.0099 - (0.010 - 2e-5))
    assert cells(row)[9:11] == ("20.0 us (+0.2%)", "-80.0 us (-0.8%)")
    assert not any("while it was traced:" in text for text in notes([row], [], []))
    (row,) = rows([whole])
    assert row.instrument_s is None
    assert row.unexplained_s == pytest.approx(-0.0001)


def test_a_step_that_the_profiler_slows_much_is_named() -> None:
    # Its trace has 10 ms.
    (row,) = rows([result(job("tp2", Arm.STAGED), [[0.0080], [0.0080]])])
    assert (
        "tp2 staged, decode 4 after 16, took 25% longer while it was traced: its parts are those "
        "of the longer step." in notes([row], [], [])
    )
    # Where steps were slow under the profiler alone, the trace has none of it.
    whole = result(job("tp2", Arm.STAGED), [[0.0099], [0.0099]])
    ranks = tuple(replace(one, under_profiler_s=(0.0130,)) for one in whole.ranks)
    (row,) = rows([replace(whole, ranks=ranks)])
    assert not any("longer" in text and "traced:" in text for text in notes([row], [], []))


def test_bus_bandwidth_is_bytes_over_time_on_the_wire() -> None:
    split = rows(_two_repeats())[1]
    moved = 7 * SIZE * 1.0 + 4 * 256 * 2 * 0.5
    assert split.bus_bytes_per_s == pytest.approx(moved / 0.003)


def test_issued_bytes_equal_the_crossings() -> None:
    split = rows(_two_repeats())[1]
    assert split.issued_bytes == split.crossing_bytes == 7 * SIZE + 4 * 256 * 2


def test_a_split_slower_than_one_gpu_is_named() -> None:
    found = rows(_two_repeats())
    said = list(notes(found, effects(found), [WRONG]))
    assert (
        "tp2 staged is slower than one GPU, beyond the noise of the repeats: "
        "decode 4 after 16 11.5 ms against 8.00 ms (x0.696)." in said
    )
    assert any("drifted by +20.0%" in sentence for sentence in said)
    assert said[-1].startswith("arm-contradicted: The log shows another path.")


def test_what_is_multiplied_as_8_bit_floats_is_said_and_what_is_not() -> None:
    plain, stored = result(job("one"), [[0.008]]), result(job("tp2", Arm.P2P), [[0.009], [0.009]])
    because = (
        ("kv up: 4.25 bits, no 8-bit floats",),
        ("head: why", "kv up: 4.25 bits, no 8-bit floats"),
    )
    ranks = tuple(
        replace(one, float8_parameters=800 - 100 * one.rank, bf16_because=because[one.rank])
        for one in stored.ranks
    )
    said = list(notes(rows([plain, replace(stored, ranks=ranks)]), (), ()))
    assert (
        "tp2: 75.0% of the parameters are multiplied as 8-bit floats; in bf16 instead: kv up: 4.25 "
        "bits, no 8-bit floats; head: why." in said
    )
    assert len([one for one in said if "8-bit" in one]) == 1


def test_a_step_that_the_host_launches_call_by_call_is_named() -> None:
    first, second = result(job("one"), [[0.008]]), result(job("one"), [[0.009]])
    (rank,) = second.ranks
    rank = replace(rank, launch=Launch.EAGER, eager_because="its capture failed: out of memory")
    found = rows([first, replace(second, ranks=(rank,))])
    assert (
        "one GPU, decode 4 after 16, is launched call by call by the host: its capture failed: "
        "out of memory." in notes(found, (), ())
    )


def test_cells_follow_the_header() -> None:
    single, split = rows(_two_repeats())
    assert len(cells(single)) == len(cells(split)) == len(HEADER)
    assert cells(single)[:4] == ("one GPU", "-", "decode 4 after 16", "8.00 ms")
    assert cells(single)[5:11] == ("-",) * 6
    assert cells(split)[5:9] == ("5.00 ms", "3.00 ms", "1.00 ms", "1.00 ms")
    assert cells(split)[9:11] == ("-", "1.50 ms (+13.0%)")


def test_a_point_that_one_rank_lacks_has_no_row() -> None:
    whole = result(job("tp2", Arm.P2P), [[0.01], [0.01]])
    assert rows([replace(whole, ranks=whole.ranks[:1])]) == ()


def test_records_lead_from_parts_to_runs(tmp_path: Path) -> None:
    results = _two_repeats()
    with Study.create(tmp_path / "s.linkbound") as study:
        ids: dict[str, list[str]] = {}
        for number, one in enumerate(results):
            (run,) = append_result(study, one, number // 2, "m", "2026-01-01T00:00:00+00:00")
            ids.setdefault(row_key(one.job.split, one.job.arm, None, DECODE), []).append(run)
        append_rows(study, rows(results), ids, results[0].job.shape, "m")
        runs = study.find("profile.run", split="tp2", arm="staged")
        assert [run.subject["repeat"] for run in runs] == [0, 1]
        assert runs[0].samples is not None
        assert runs[0].samples.rows[4] == (1, 1, 0.011)
        assert isinstance(runs[0].outcome, Measured)
        assert runs[0].outcome.values["calls"][0]["count"] == 6
        assert study.blob(runs[0].blobs[0]) == b"a line"
        assert b"all_reduce" in study.blob(runs[0].blobs[1])
        (parts,) = study.find("profile.parts", split="tp2")
        assert parts.parents == tuple(run.id for run in runs)
        assert study.verify() == []


def test_what_was_not_measured_is_failed_with_the_reason(tmp_path: Path) -> None:
    wrong = result(job("tp2", Arm.P2P), [[0.01], [0.01]], (WRONG,))
    died = replace(WRONG, code="profile-rank-died", seen="tp2 ended with SIGKILL.")
    none = replace(wrong, ranks=(), findings=(died,))
    with Study.create(tmp_path / "s.linkbound") as study:
        for one, code in ((wrong, "arm-contradicted"), (none, "profile-rank-died")):
            (run,) = append_result(study, one, 0, None, "2026-01-01T00:00:00+00:00")
            outcome = study.get(run).outcome
            assert isinstance(outcome, Failed)
            assert outcome.reason.code == code
            assert outcome.log is not None


def test_a_row_as_a_document() -> None:
    document = document_of(rows(_two_repeats())[1])
    assert document["split"] == "tp2"
    assert document["phase"] == "decode"
    assert document["parts"]["waiting_s"] == pytest.approx(0.001)
    assert document["gpus"] == 2


def test_bus_bandwidth_of_one_group_is_not_halved_by_another() -> None:
    def timeline(rank: int, group: tuple[int, ...]) -> Timeline:
        span = StepSpan(index=0, name="s", start_s=0.0, end_s=1.0)
        interval = Interval(
            kernel=KernelClass.NCCL,
            start_s=0.1,
            end_s=0.2,
            name="x",
            operation="all_reduce",
            ranks=group,
            size_bytes=10**9,
        )
        return Timeline(rank=rank, steps=(span,), intervals=(interval,), source="t")

    call = Call(
        kind="tensor",
        operation=Operation.ALL_REDUCE,
        implementation="nccl",
        ranks=(0, 1),
        size_bytes=10**9,
        count=1,
    )
    alone = [timeline(0, (0, 1)), timeline(1, (0, 1))]
    beside = [*alone, timeline(2, (2, 3)), timeline(3, (2, 3))]
    assert _bus_rate([call], alone) == pytest.approx(10e9)
    assert _bus_rate([call], beside) == pytest.approx(10e9)
