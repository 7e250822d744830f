"""A real llama.cpp server, small and random: a comparison, load, percentiles, kill -9."""

import os
import signal
import threading

import pytest
from click.testing import CliRunner
from serve_cases import client_limit

from linkbound.cli.serve import command
from linkbound.evidence import Measured, Study
from linkbound.serve import serving
from linkbound.serve.contenders import Contender, ServeRun
from linkbound.serve.load import run_cell
from linkbound.serve.load_types import Arrival, Cell
from linkbound.serve.servers import Servers
from linkbound.serve.serving import run_serving
from linkbound.splits.types import Split

pytest.importorskip("gguf", reason="needs the extra engine-test (gguf)")
pytest.importorskip("xllamacpp", reason="needs the extra engine-test (xllamacpp)")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from serve_model import write_model

    path = tmp_path_factory.mktemp("model") / "small.gguf"
    write_model(path)
    return path


def run_verb(*arguments):
    return CliRunner().invoke(command, [str(one) for one in arguments], standalone_mode=False)


@pytest.fixture
def any_client(monkeypatch):
    """A busy machine must not refuse the load: what the client can do has a test of its own."""
    monkeypatch.setattr(
        "linkbound.serve.client_limit.measure_client_limit", lambda **_: client_limit()
    )
    monkeypatch.setattr("linkbound.serve.client_limit.LATE_DISPATCH_S", 5.0)


@pytest.mark.usefixtures("any_client")
def test_full_comparison(tmp_path, model):
    study_path = tmp_path / "ab.linkbound"
    result = run_verb(
        *(model, "--engine", "xllamacpp", "--split", "one", "--split", "x2", "-C", study_path),
        *("--rate", "30", "--concurrency", "3", "--requests", "24", "--prompt", "40"),
        *("--output", "10", "--slo", "ttft=30s", "--sequences", "4", "--limit", "60"),
    )
    assert result.exception is None, result.exception
    lines = result.stdout.splitlines()
    assert lines[1].split()[:3] == ["cell", "contender", "n"]
    assert [line.split("  ")[0] for line in lines[2:6]] == [
        "30/s poisson, 40 in, 10 out",
        "3 at once, 40 in, 10 out",
    ] * 2
    with Study.open(study_path) as study:
        loads = study.find("serve.load")
        assert len(loads) == 8
        for load in loads:
            assert isinstance(load.outcome, Measured), load.outcome
            values = load.outcome.values
            assert (values["requests"], values["failed"]) == (24, 0)
            assert values["output_tokens"] == 240
            assert (values["goodput"], values["wrong_lengths"]) == (1.0, 0)
            assert values["cached_share"] == 0.0
            counted = [row for row in load.samples.rows if row[1] == 0]
            assert {row[12] for row in counted} == {40}
            assert {row[13] for row in counted} == {10}
        shares = [one["share"] for one in values["ttft_from_schedule_s"]["percentiles"]]
        assert shares == [0.5, 0.9]
        (comparison,) = study.find("serve.comparison")
        assert set(comparison.parents) == {load.id for load in loads}
        assert study.find("serve.finding") == []
        assert len({o.outcome.values["text"] for o in study.find("serve.output")}) == 1
        assert len(study.find("serve.output")) == 4
        assert study.verify() == []
    again = run_verb(
        *(model, "--engine", "xllamacpp", "--split", "one", "--split", "x2", "-C", study_path),
        *("--rate", "30", "--concurrency", "3", "--requests", "24", "--prompt", "40"),
        *("--output", "10", "--slo", "ttft=30s", "--sequences", "4", "--limit", "60"),
    )
    assert again.stdout == result.stdout


@pytest.mark.usefixtures("any_client")
def test_real_servers_side_by_side(tmp_path, model):
    study_path = tmp_path / "beside.linkbound"
    result = run_verb(
        *(model, "--engine", "xllamacpp", "--split", "one", "--split", "x2", "-C", study_path),
        *("--side-by-side", "--concurrency", "3", "--requests", "12", "--prompt", "40"),
        *("--output", "10", "--sequences", "4", "--limit", "60"),
    )
    assert result.exception is None, result.exception
    with Study.open(study_path) as study:
        loads = study.find("serve.load")
        assert [load.subject["contender"] for load in loads] == [
            *("one GPU", "2 replicas", "2 replicas", "one GPU"),
        ]
        assert all(isinstance(load.outcome, Measured) for load in loads)
        assert len(study.find("serve.start")) == 2
        assert study.verify() == []


def plain_run(model, **changes):
    cells = tuple(
        Cell(
            arrival=Arrival.CLOSED,
            concurrency=2,
            requests=requests,
            prompt_tokens=32,
            output_tokens=64,
            seed=seed,
            limit_s=60.0,
        )
        for seed, requests in ((1, 40), (2, 6))
    )
    plain = {
        "engine": "xllamacpp",
        "model": str(model),
        "contenders": (Contender(split=Split(), arm=None),),
        "cells": cells,
        "repeats": 1,
        "context_tokens": 256,
        "sequences": 2,
        "ready_limit_s": 60.0,
    }
    return ServeRun(**plain | changes)


def test_kill_of_a_real_server(tmp_path, model, monkeypatch):
    running = []
    start = Servers.start

    def noting_start(servers):
        start(servers)
        running[:] = servers.processes

    def killing_run(target, cell):
        if cell.requests == 40:
            threading.Timer(0.2, os.kill, (running[0].pid, signal.SIGKILL)).start()
        return run_cell(target, cell)

    monkeypatch.setattr(Servers, "start", noting_start)
    monkeypatch.setattr(serving, "run_cell", killing_run)
    with Study.create(tmp_path / "k.linkbound") as study:
        run_serving(study, plain_run(model), client_limit(), lambda _line: None)
        killed, after = study.find("serve.load")
    assert killed.outcome.reason.code == "server-died"
    assert "SIGKILL" in killed.outcome.reason.text
    errors = {str(row[-1]).split(":")[0] for row in killed.samples.rows if row[-1]}
    assert errors
    assert errors <= {"disconnected", "refused", "cut-stream"}
    assert isinstance(after.outcome, Measured)
    assert after.outcome.values["failed"] == 0


def test_model_that_is_no_model(tmp_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"not a model")
    with Study.create(tmp_path / "b.linkbound") as study:
        run_serving(study, plain_run(bad), client_limit(), lambda _line: None)
        assert {load.outcome.reason.code for load in study.find("serve.load")} == {"server-died"}
        (start,) = study.find("serve.start")
        assert study.blob(start.outcome.log)


def test_arms_of_a_running_server_by_its_address(tmp_path, model):
    """An external server is loaded and compared too; its answers are the same each time."""
    started = plain_run(model)
    with Servers(started, started.contenders[0], tmp_path) as servers:
        servers.start()
        assert servers.wait_ready() is None
        external = plain_run(
            model,
            engine="external",
            urls=servers.target().urls,
            contenders=(Contender(split=Split(), arm=None, label="mine"),),
            cells=started.cells[1:],
            repeats=2,
        )
        with Study.create(tmp_path / "e.linkbound") as study:
            run_serving(study, external, client_limit(), lambda _line: None)
            loads = study.find("serve.load")
            outputs = study.find("serve.output")
    assert [load.outcome.values["failed"] for load in loads] == [0, 0]
    assert len({output.outcome.values["text"] for output in outputs}) == 1
    assert all(len(output.outcome.values["tokens"]) == 48 for output in outputs)
