"""An engine's own all-reduce timed by itself: lines of ranks to rows, curves, and what prices."""

import json
import sys

import msgspec
import pytest
from click.testing import CliRunner

from linkbound.cli.serve import command
from linkbound.errors import NothingToMeasure, UsageError
from linkbound.evidence import Study
from linkbound.links.live.records import Origin
from linkbound.links.types import Arm, Launch, Operation
from linkbound.predict.book import CurveBook
from linkbound.serve.engine_reduce import (
    keep_engine_reduce,
    reduce_environment,
    time_engine_reduce,
)
from linkbound.serve.reduce_types import LIMIT_BYTES, NCCL_SIZES, SIZES, ReduceJob, ReduceLine
from linkbound.study.importing import import_topology
from linkbound.study.reading import read_curves, read_fit, read_machine_record
from linkbound.study.sources import read_recorded

# Writes what two ranks would, then ends as its name says.
PROGRAM = """#!{python}
import json, sys, time
from pathlib import Path
job = json.loads(Path(sys.argv[3]).read_text())
lines = {lines}
for rank in (0, 1):
    text = "".join(json.dumps(line) + "\\n" for line in lines[rank])
    (Path(job["folder"]) / f"rank{{rank}}.jsonl").write_text(text + {tail!r})
{end}
"""


def line(size=8192, samples=(4e-6, 5e-6), **changes):
    plain = {
        "way": "engine",
        "launch": Launch.GRAPH,
        "size_bytes": size,
        "samples_s": samples,
        "calls": 50,
        "wrong": 0,
        "version": "0.24.0",
    }
    return msgspec.to_builtins(ReduceLine(**plain | changes))


def run(tmp_path, lines, *, end="", tail="", limit_s=30.0):
    program = tmp_path / "program"
    text = PROGRAM.format(python=sys.executable, lines=json.dumps(lines), tail=tail, end=end)
    program.write_text(text)
    program.chmod(0o755)
    return time_engine_reduce((0, 1), program=str(program), limit_s=limit_s)


def test_sizes_stand_on_both_sides_of_the_limit():
    assert SIZES[0] == 8192
    assert max(SIZES) < LIMIT_BYTES
    assert all(size % 16 == 0 for size in SIZES)
    assert NCCL_SIZES[-1] == 64 * 1024 * 1024
    assert LIMIT_BYTES in NCCL_SIZES


def test_a_call_is_over_with_the_last_rank(tmp_path):
    result = run(tmp_path, [[line(samples=(4e-6, 6e-6))], [line(samples=(5e-6, 5e-6))]])
    (row,) = result.rows
    assert row.samples_s == (5e-6, 6e-6)
    assert row.group == ("GPU0", "GPU1")
    assert (row.arm, row.launch, row.implementation) == (Arm.P2P, Launch.GRAPH, "engine")
    assert row.method == "all_reduce, vLLM 0.24.0 CustomAllreduce"
    assert result.findings == ()


def test_wrong_sums_are_corruption_and_no_time(tmp_path):
    result = run(tmp_path, [[line(wrong=0)], [line(wrong=3)]])
    (row,) = result.rows
    assert row.samples_s == ()
    assert row.reason.code == "wrong-values"
    assert [one.code for one in result.findings] == ["p2p-corruption"]


def test_a_rank_that_dies_keeps_what_both_had(tmp_path):
    lines = [[line(), line(size=16384)], [line()]]
    result = run(tmp_path, lines, end="sys.exit('out of memory')", tail='{"way": "eng')
    assert [row.size_bytes for row in result.rows] == [8192]
    (finding,) = result.findings
    assert finding.code == "engine-reduce-failed"
    assert "out of memory" in finding.seen


def test_a_hang_is_ended_at_the_limit(tmp_path):
    result = run(tmp_path, [[line()], [line()]], end="time.sleep(3600)", limit_s=1.0)
    assert len(result.rows) == 1
    assert [one.code for one in result.findings] == ["engine-reduce-hang"]


def test_multicast_is_off_and_devices_are_in_order():
    told = reduce_environment((1, 0))
    assert told["CUDA_VISIBLE_DEVICES"] == "1,0"
    assert told["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert told["NCCL_NVLS_ENABLE"] == "0"
    assert told["TORCH_SYMM_MEM_DISABLE_MULTICAST"] == "1"
    assert told["VLLM_ALLREDUCE_USE_SYMM_MEM"] == "0"
    assert "NCCL_P2P_DISABLE" not in told


def test_measured_curve_prices_in_place_of_the_published_one(tmp_path):
    own = [line(size=size, samples=(size / 1e9,)) for size in SIZES]
    beside = [line(size=size, way="engine_nccl", samples=(2e-3,)) for size in NCCL_SIZES]
    result = run(tmp_path, [own + beside, own + beside])
    with Study.open_or_create(tmp_path / "s.linkbound") as study:
        sources = read_recorded("h200-pair")
        machine = study.get(import_topology(study, sources))
        origin = Origin(
            machine_name="h200-pair",
            machine_id=machine.machine,
            command=("linkbound", "serve"),
            environment=reduce_environment((0, 1)),
            started="2026-01-01T00:00:00+00:00",
            parents=(machine.id,),
        )
        keep_engine_reduce(study, origin, result)
        assert study.verify() == []
        curves = read_curves(study, "h200-pair")
        assert {curve.key.implementation for curve in curves} == {"engine", "engine_nccl"}
        assert all(read_fit(study, curve) for curve in curves)
        held = read_machine_record(study, "h200-pair").machine
    group = ("GPU0", "GPU1")
    without = CurveBook(held, (), direct_limit_bytes=LIMIT_BYTES)
    prior = without.curve(Operation.ALL_REDUCE, group, Arm.P2P, 65536)
    book = CurveBook(held, curves, direct_limit_bytes=LIMIT_BYTES)
    found = book.curve(Operation.ALL_REDUCE, group, Arm.P2P, 65536)
    assert prior.provenance != found.provenance
    timed, _ = book.read(Operation.ALL_REDUCE, group, Arm.P2P, 65536)
    assert timed.time_s == pytest.approx(65536 / 1e9)
    # Neither stands for NCCL's own collectives, nor for another arm.
    assert book.curve(Operation.ALL_REDUCE, group, Arm.P2P, LIMIT_BYTES) is None
    assert book.curve(Operation.ALL_REDUCE, group, Arm.NCCL, 65536) is None


def verb(*arguments):
    words = ["--all-reduce", *map(str, arguments)]
    return CliRunner().invoke(command, words, standalone_mode=False).exception


def test_wrong_words_are_one_clear_error():
    for arguments, words in (
        (("--engine", "vllm", "--gpus", "0,1"), "cannot be timed by itself"),
        (("--engine", "vllm-offline", "--gpus", "0"), "two GPUs or more"),
        (("--engine", "vllm-offline"), "two GPUs or more"),
        (("m", "--engine", "vllm-offline", "--gpus", "0,1"), "no MODEL"),
    ):
        error = verb(*arguments)
        assert isinstance(error, UsageError)
        assert words in str(error)


def test_without_gpus_there_is_nothing_to_time(monkeypatch):
    monkeypatch.setattr("linkbound.study.sources.read_host", lambda: None)
    error = verb("--engine", "vllm-offline", "--gpus", "0,1")
    assert isinstance(error, NothingToMeasure)


def test_job_is_read_as_it_was_written():
    job = ReduceJob(ranks=2, folder="/f")
    assert msgspec.json.decode(msgspec.json.encode(job), type=ReduceJob) == job
