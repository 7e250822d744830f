"""Servers side by side: all stand before the first cell, and each failure is its own."""

import json
import os
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from serve_cases import cell, client_limit, faulty_program, two_arms

from fake_ports import FakePorts
from linkbound.cli.serve import command
from linkbound.errors import InputError, UsageError
from linkbound.evidence import Measured, Study
from linkbound.links.live.meter import TrafficMeter
from linkbound.links.types import Arm
from linkbound.model.derive import kv_bytes_per_token
from linkbound.model.read_model import read_model
from linkbound.serve.beside import at_once, stand_side_by_side
from linkbound.serve.contenders import Contender, ServeRun
from linkbound.serve.held import held_records
from linkbound.serve.load_types import Arrival, TraceEntry
from linkbound.serve.process import free_port
from linkbound.serve.serving import run_serving
from linkbound.splits.parse_split import parse_split
from linkbound.splits.types import Split

ONE = Contender(split=Split(), arm=None)
REPLICAS = Contender(split=Split(replicas=2), arm=None)
MODEL = "llama-3.1-8b"


@pytest.fixture
def program(tmp_path):
    return faulty_program(tmp_path)


class CountedMeter(TrafficMeter):
    """How often a baseline was taken."""

    rests = 0

    def rest(self):
        self.rests += 1
        super().rest()


def serve(tmp_path, run, say=None):
    """(records of loads, starts, what was said, baselines that were taken)."""
    said = []
    meter = CountedMeter(FakePorts("GPU0", "GPU1"), sleep=lambda _: None, period_s=3600.0)
    with Study.open_or_create(tmp_path / "s.linkbound") as study:
        run_serving(study, run, client_limit(), say or said.append, meter=meter)
        assert study.verify() == []
        return study.find("serve.load"), study.find("serve.start"), said, meter.rests


def beside(run, **changes):
    from msgspec.structs import replace

    return replace(run, side_by_side=True, **changes)


def order_of(loads):
    return [
        (load.subject["repeat"], load.subject["seed"] % 1000, load.subject["contender"])
        for load in loads
    ]


def test_all_stand_before_the_first_cell_and_take_turns(tmp_path, program):
    arms = two_arms(program, "good").contenders
    run = beside(
        two_arms(program, "good"),
        contenders=(*arms, REPLICAS),
        cells=(cell(), cell(concurrency=1)),
        repeats=2,
    )
    loads, starts, said, rests = serve(tmp_path, run)
    names = ["tp2 p2p", "tp2 staged", "2 replicas"]
    assert said[:3] == [f"{name}: starting vllm" for name in names]
    there, back = names, names[::-1]
    assert order_of(loads) == [
        (repeat, number, name)
        for repeat, order in ((0, there), (1, back))
        for number in (0, 1)
        for name in order
    ]
    assert all(isinstance(load.outcome, Measured) for load in loads)
    assert all(load.subject["side_by_side"] is True for load in loads)
    # One start of each, one baseline for all, and every cell names its own start.
    assert [start.subject["contender"] for start in starts] == names
    assert starts[2].outcome.values["replicas"] == 2
    assert rests == 1
    own = {start.id: start.subject["contender"] for start in starts}
    assert all(own[load.parents[0]] == load.subject["contender"] for load in loads)
    ports = [one.command[one.command.index("--port") + 1] for one in starts]
    assert len(set(ports)) == 3
    assert len({start.environment["VLLM_PORT"] for start in starts}) == 3


def test_what_is_measured_is_not_started_again(tmp_path, program):
    run = beside(two_arms(program, "good"), repeats=2)
    first = beside(run, contenders=run.contenders[:1])
    serve(tmp_path, first)
    loads, starts, said, _ = serve(tmp_path, run)
    assert said[:2] == ["tp2 p2p, 2 at once: already there"] * 2
    assert [start.subject["contender"] for start in starts] == ["tp2 p2p", "tp2 staged"]
    assert order_of(loads[2:]) == [(0, 0, "tp2 staged"), (1, 0, "tp2 staged")]
    again, starts_again, said, rests = serve(tmp_path, run)
    assert (again, starts_again) == (loads, starts)
    assert len(said) == 4
    assert rests == 0
    # A cell of a server by itself is another cell.
    alone, _, _, _ = serve(tmp_path, two_arms(program, "good"))
    assert len(alone) == len(loads) + 2
    with Study.open(tmp_path / "s.linkbound") as study:
        assert len(held_records(study, run)) == 4
        assert len(held_records(study, two_arms(program, "good"))) == 2


@pytest.mark.parametrize(
    ("fault", "codes"),
    [
        # Before it is ready: nothing of it is measured.
        ("exits", ["server-died"] * 4),
        ("never-ready", ["server-not-ready"] * 4),
        ("ignores-arm", ["arm-not-kept"] * 4),
        # While it is asked: that cell, and all that come after.
        ("killed", ["server-died"] * 4),
        ("hang", ["time-limit"] * 4),
        # Rubbish costs a cell each: the server still answers.
        ("status-500", ["http-500"] * 4),
    ],
)
def test_a_failure_costs_its_own_contender_alone(tmp_path, program, fault, codes):
    model = fault if fault == "ignores-arm" else f"{fault}-if-staged"
    limits = {"ready_limit_s": 1.5} if fault == "never-ready" else {}
    cells = (cell(limit_s=0.5), cell(limit_s=0.5, concurrency=1))
    run = beside(two_arms(program, model), cells=cells, repeats=2, **limits)
    loads, starts, said, _ = serve(tmp_path, run)
    direct = [load for load in loads if load.subject["contender"] == "tp2 p2p"]
    staged = [load for load in loads if load.subject["contender"] == "tp2 staged"]
    assert [type(load.outcome) for load in direct] == [Measured] * 4
    assert [load.outcome.reason.code for load in staged] == codes
    assert len(starts) == 2
    given_up = [line for line in said if line.startswith(f"tp2 staged: {codes[0]}")]
    assert len(given_up) == (0 if fault == "status-500" else 1)


def test_a_server_that_is_given_up_is_ended_while_the_others_go_on(tmp_path, program):
    gone = []

    def note(line):
        if line.startswith("tp2 p2p, 2 at once") and gone == [False]:
            gone.append(len(_children()))
        elif line.startswith("tp2 staged: time-limit"):
            gone.append(False)

    before = len(_children())
    run = beside(two_arms(program, "hang-if-staged"), cells=(cell(limit_s=0.5),), repeats=3)
    serve(tmp_path, run, note)
    # The one that answers, beside what stood before.
    assert gone == [False, before + 1]
    assert len(_children()) == before


def _children():
    found = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [pid for pid in found if "engine" in Path(f"/proc/{pid}/cmdline").read_text()]


def test_readiness_is_timed_from_its_own_start(tmp_path, program):
    run = beside(two_arms(program, "slow-start-if-staged"))
    _, starts, _, _ = serve(tmp_path, run)
    quick, slow = (start.outcome.values["ready_s"] for start in starts)
    assert slow > quick
    assert slow > 0.4


def test_ctrl_c_keeps_what_was_measured(tmp_path, program):
    def stop(line):
        if line.startswith("tp2 staged, 1 at once"):
            raise KeyboardInterrupt

    run = beside(two_arms(program, "good"), cells=(cell(), cell(concurrency=1)))
    with pytest.raises(KeyboardInterrupt):
        serve(tmp_path, run, stop)
    assert _children() == []
    with Study.open(tmp_path / "s.linkbound") as study:
        held = order_of(study.find("serve.load"))
    assert held == [(0, 0, "tp2 p2p"), (0, 0, "tp2 staged"), (0, 1, "tp2 p2p")]
    loads, _, said, _ = serve(tmp_path, run)
    assert sum("already there" in line for line in said) == 3
    assert order_of(loads[3:]) == [(0, 1, "tp2 staged")]


def run_of(*splits, **changes):
    contenders = tuple(
        Contender(split=parse_split(text), arm=None if text in ("one", "x2") else Arm.P2P)
        for text in splits
    )
    plain = {
        "engine": "vllm",
        "model": MODEL,
        "contenders": contenders,
        "cells": (cell(prompt_tokens=512, output_tokens=64, concurrency=64, requests=1000),),
        "repeats": 1,
        "context_tokens": 640,
        "sequences": 256,
    }
    return ServeRun(**plain | changes)


def open_loop(**changes):
    return cell(arrival=Arrival.POISSON, concurrency=None, rate_per_s=24.0, **changes)


def test_what_an_engine_has_at_once():
    entries = tuple(
        TraceEntry(at_s=0.0, prompt_tokens=prompt, output_tokens=8) for prompt in (100, 900)
    )
    trace = cell(arrival=Arrival.TRACE, concurrency=None, entries=entries, requests=2)
    cells = (cell(concurrency=64), open_loop(requests=1000), open_loop(requests=40), trace)
    # An open loop may have all requests under way, up to what the engine takes.
    assert at_once(run_of("one", cells=cells)) == ((64, 20), (256, 20), (40, 20), (2, 908))


def test_cache_is_for_the_largest_load_divided_by_the_split():
    token = kv_bytes_per_token(read_model(MODEL))
    # 64 sequences of 36 blocks and one with a tenth more, and two of the longest that is allowed.
    whole = int(1.1 * 64 * (576 + 16) * token + 2 * (640 + 16) * token)
    run = stand_side_by_side(run_of("one", "x2", "tp2", "pp2", "pp2:20,12"))
    assert run.side_by_side
    shares = (1, 1, 1 / 2, 1 / 2, 20 / 32)
    assert run.cache_bytes == pytest.approx([whole * one for one in shares], abs=1)
    assert run.cache_of(run.contenders[4]) == run.cache_bytes[4]
    assert run_of("one").cache_of(run.contenders[0]) is None


def test_cache_has_room_for_one_sequence_of_the_context():
    token = kv_bytes_per_token(read_model(MODEL))
    small = run_of("one", cells=(cell(concurrency=1),), context_tokens=1024)
    (size,) = stand_side_by_side(small).cache_bytes
    assert size >= 1024 * token


def test_engines_that_cannot_stand_beside_others_refuse():
    for engine in ("sglang", "transformers", "tensorrt-llm", "external"):
        with pytest.raises(UsageError, match=f"--side-by-side is not for {engine}"):
            stand_side_by_side(run_of("one", engine=engine))
    # The places of llama.cpp have their size in any case: no model has to be read.
    places = stand_side_by_side(run_of("one", engine="llama.cpp", model="m.gguf"))
    assert (places.side_by_side, places.cache_bytes) == (True, ())
    with pytest.raises(InputError):
        stand_side_by_side(run_of("one", model="/no/such/model"))


def test_verb_shows_the_share_of_each_server():
    words = (MODEL, "--engine", "vllm", "--dummy-weights", "--gpus", "0,1", "--split", "tp2")
    load = ("--split", "x2", "--concurrency", "8", "--side-by-side", "--dry-run")
    result = CliRunner().invoke(command, [*words, *load], standalone_mode=False)
    assert result.exception is None, result.exception
    lines = [line for line in result.stdout.splitlines() if " serve " in line]
    assert len(lines) == 3
    sizes = [int(line.split("--kv-cache-memory-bytes ")[1].split()[0]) for line in lines]
    assert sizes[1] == sizes[2] == pytest.approx(2 * sizes[0], abs=1)
    assert all("--gpu-memory-utilization 0.05" in line for line in lines)
    ports = [int(line.split("--port ")[1].split()[0]) for line in lines]
    assert len(set(ports)) == 3


def test_ports_leave_room_for_what_an_engine_takes_beside_its_own():
    ports = sorted(free_port() for _ in range(20))
    assert all(after - before >= 8 for before, after in pairwise(ports))
    dealt = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    assert ports[-1] + 8 <= max(int(dealt[0]), 32_768)


def test_verb_measures_side_by_side_and_goes_on(tmp_path, program, monkeypatch):
    monkeypatch.setattr(
        "linkbound.serve.client_limit.measure_client_limit", lambda **_: client_limit()
    )
    words = (
        *("good", "--engine", "xllamacpp", "--program", program, "--split", "one"),
        *("--split", "x2", "--concurrency", "2", "--requests", "6", "--prompt", "8"),
        *("--output", "4", "--side-by-side", "-C", str(tmp_path / "s.linkbound"), "--json"),
    )
    result = CliRunner().invoke(command, [*words, "--repeats", "1"], standalone_mode=False)
    assert result.exception is None, result.output
    rows = json.loads(result.stdout)["rows"]
    assert [(row["contender"], row["requests"]) for row in rows] == [
        ("one GPU", 6),
        ("2 replicas", 6),
    ]
    more = CliRunner().invoke(command, [*words, "--repeats", "2"], standalone_mode=False)
    assert "one GPU, 2 at once: already there" in more.stderr
    assert [row["requests"] for row in json.loads(more.stdout)["rows"]] == [12, 12]
