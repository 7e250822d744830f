"""Servers that die, hang, lie or cut: each is a record, and what comes after still runs."""

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from serve_cases import asked, cell, client_limit, faulty_program, two_arms

from linkbound.evidence import Failed, Measured, Skipped, Study
from linkbound.serve import start as serve_start
from linkbound.serve.compare_runs import rows_of
from linkbound.serve.contenders import Contender
from linkbound.serve.held import held_records
from linkbound.serve.load_types import Arrival
from linkbound.serve.process import Launch, ServerProcess, free_port
from linkbound.serve.servers import Servers
from linkbound.serve.serving import run_serving
from linkbound.splits.types import Split


@pytest.fixture
def program(tmp_path):
    return faulty_program(tmp_path)


def serve(tmp_path, run, limit=None):
    """(records of loads, starts, what was said)."""
    said = []
    with Study.open_or_create(tmp_path / "s.linkbound") as study:
        run_serving(study, run, limit or client_limit(), said.append)
        loads, starts = study.find("serve.load"), study.find("serve.start")
        assert study.verify() == []
        for record in loads:
            match record.outcome:
                case Failed(log=str(log)):
                    study.blob(log)
    return loads, starts, said


def test_good_server_is_measured(tmp_path, program):
    (load,), (start,), _ = serve(tmp_path, asked(program, "good"))
    assert isinstance(load.outcome, Measured)
    values = load.outcome.values
    assert (values["requests"], values["failed"], values["output_tokens"]) == (6, 0, 24)
    assert (values["wrong_lengths"], values["cached_share"]) == (0, 0.0)
    assert load.samples.column("warm_up") == (1, 0, 0, 0, 0, 0, 0)
    assert load.samples.column("used_prompt_tokens") == (16,) * 7
    assert load.parents[0] == start.id
    assert start.command[0] == program


def test_slow_start_is_waited_for(tmp_path, program):
    (load,), (start,), _ = serve(tmp_path, asked(program, "slow-start"))
    assert isinstance(load.outcome, Measured)
    assert start.outcome.values["ready_s"] > 0.3


def test_a_start_is_stamped_when_it_begins(tmp_path, program, monkeypatch):
    ready = []

    class Clock:
        @staticmethod
        def now(_):
            return datetime(2026, 1, 1, hour=len(ready), tzinfo=UTC)

    wait_ready = Servers.wait_ready

    def waited(servers):
        ready.append(servers)
        return wait_ready(servers)

    monkeypatch.setattr(serve_start, "datetime", Clock)
    monkeypatch.setattr(Servers, "wait_ready", waited)
    _, (start,), _ = serve(tmp_path, asked(program, "good"))
    assert ready
    assert start.started == "2026-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ("never-ready", "server-not-ready", "not ready after 0.6 s"),
        ("exits", "server-died", "exit code 7"),
    ],
)
def test_start_that_fails(tmp_path, program, fault, code, words):
    run = asked(program, fault, ready_limit_s=0.6 if fault == "never-ready" else 20.0)
    (load,), (start,), said = serve(tmp_path, run)
    for record in (load, start):
        assert isinstance(record.outcome, Failed)
        assert record.outcome.reason.code == code
        assert words in record.outcome.reason.text
    assert any(code in line for line in said)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("hang", "time-limit"),
        ("status-500", "http-500"),
        ("no-json", "malformed-stream"),
        ("not-events", "cut-stream"),
        ("endless-event", "malformed-stream"),
        ("cut", "cut-stream"),
        ("engine-error", "engine-error"),
        ("empty", "no-tokens"),
    ],
)
def test_fault_of_every_request_fails_the_cell(tmp_path, program, fault, code):
    cells = (cell(limit_s=0.5 if fault == "hang" else 30.0),)
    (load,), _, _ = serve(tmp_path, asked(program, fault, cells=cells))
    assert isinstance(load.outcome, Failed)
    assert load.outcome.reason.code == code
    assert load.samples.column("error")[0].startswith(code)


def test_all_failed_without_warm_up(tmp_path, program):
    run = asked(program, "status-500", cells=(cell(warm_up=0),))
    (load,), _, _ = serve(tmp_path, run)
    assert load.outcome.reason.code == "all-failed"
    assert load.outcome.reason.text == "No request was answered: 6 http-500."
    assert len(load.samples.rows) == 6


@pytest.mark.parametrize(
    ("fault", "code", "failed"), [("half-500", "http-500", 3), ("disconnects", "disconnected", 2)]
)
def test_fault_of_some_requests_is_counted(tmp_path, program, fault, code, failed):
    # One at a time: which request meets the fault must not depend on the order of arrival.
    run = asked(program, fault, cells=(cell(concurrency=1),))
    (load,), _, _ = serve(tmp_path, run)
    values = load.outcome.values
    assert (values["requests"], values["failed"]) == (6, failed)
    assert values["failures"] == {code: failed}
    assert values["output_tokens"] == 4 * (6 - failed)


def test_killed_server_costs_its_cell_only(tmp_path, program):
    run = asked(program, "killed", cells=(cell(), cell(requests=2, warm_up=1)))
    loads, starts, _ = serve(tmp_path, run)
    first, second = loads
    assert first.outcome.reason.code == "server-died"
    assert "SIGKILL" in first.outcome.reason.text
    assert len(first.samples.rows) == 7
    assert isinstance(second.outcome, Measured)
    assert [start.subject["start"] for start in starts] == [1, 2]


def test_a_hang_gets_a_fresh_server_though_its_health_answers(tmp_path, program):
    run = asked(program, "hang", cells=(cell(limit_s=0.3), cell(limit_s=0.3, warm_up=0)))
    loads, starts, _ = serve(tmp_path, run)
    assert [load.outcome.reason.code for load in loads] == ["time-limit", "all-failed"]
    assert len(starts) == 2


def test_silent_server_is_found_and_replaced(tmp_path, program, monkeypatch):
    monkeypatch.setattr("linkbound.serve.process._PROBE_LIMIT_S", 0.3)
    monkeypatch.setattr("linkbound.serve.process.ServerProcess.is_healthy", _quick_health)
    run = asked(program, "silent", cells=(cell(limit_s=0.5), cell(limit_s=0.5, seed=2)))
    loads, starts, _ = serve(tmp_path, run)
    assert [load.outcome.reason.code for load in loads] == ["server-silent", "server-silent"]
    assert len(starts) == 2


def _quick_health(server):
    from linkbound.serve.process import ask

    answer = ask(server.port, "/health", 0.3)
    return answer is not None and answer[0] == 200


def test_prefix_cache_spoils_a_cell(tmp_path, program):
    (load,), _, _ = serve(tmp_path, asked(program, "cached"))
    assert load.outcome.reason.code == "prefix-cache"
    assert load.outcome.reason.text.startswith("50.0% of the prompt tokens")


def test_refused_port_of_a_running_server(tmp_path):
    run = asked(
        None,
        "m",
        engine="external",
        urls=(f"http://127.0.0.1:{free_port()}",),
        contenders=(Contender(split=Split(), arm=None, label="gone"),),
    )
    (load,), (start,), _ = serve(tmp_path, run)
    assert load.outcome.reason.code == "refused"
    assert isinstance(start.outcome, Measured)


def test_load_beyond_the_client_is_refused_before_and_after(tmp_path, program):
    fast = cell(arrival=Arrival.POISSON, concurrency=None, rate_per_s=50.0)
    run = asked(program, "good", cells=(fast, cell()))
    loads, _, said = serve(tmp_path, run, client_limit(chunks_per_s=100.0))
    before, after = loads
    assert isinstance(before.outcome, Skipped)
    assert before.outcome.reason.code == "client-bound"
    assert before.outcome.reason.text.startswith("200 tokens/s is more than this client follows")
    assert isinstance(after.outcome, Failed)
    assert after.outcome.reason.code == "client-bound"
    assert any("refused" in line for line in said)


def test_turns_are_abba_and_resume_repeats_nothing(tmp_path, program):
    contenders = (
        Contender(split=Split(), arm=None),
        Contender(split=Split(replicas=2), arm=None),
    )
    run = asked(program, "good", contenders=contenders, repeats=2)
    loads, starts, _ = serve(tmp_path, run)
    names = [(load.subject["contender"], load.subject["repeat"]) for load in loads]
    assert names == [("one GPU", 0), ("2 replicas", 0), ("2 replicas", 1), ("one GPU", 1)]
    assert {row.contender: row.requests for row in rows_of(loads)} == {
        "one GPU": 12,
        "2 replicas": 12,
    }
    targets = set(loads[1].samples.column("target"))
    assert len(targets) == 2
    again, starts_again, said = serve(tmp_path, run)
    assert (again, starts_again) == (loads, starts)
    assert all("already there" in line for line in said)
    with Study.open(tmp_path / "s.linkbound") as study:
        assert len(held_records(study, run)) == 4


def test_path_of_every_arm_is_proven(tmp_path, program):
    loads, starts, _ = serve(tmp_path, two_arms(program, "good"))
    assert [load.subject["contender"] for load in loads] == ["tp2 p2p", "tp2 staged"]
    assert all(isinstance(load.outcome, Measured) for load in loads)
    with Study.open(tmp_path / "s.linkbound") as study:
        verdicts = [one.outcome.values["verdict"] for one in study.find("serve.trace")]
        assert [verdict["answer"] for verdict in verdicts] == ["direct", "staged"]
        assert verdicts[1]["witnesses"][0]["pairs"] == [
            "0 -> 1 SHM/direct/direct x1",
            "1 -> 0 SHM/direct/direct x1",
        ]
    assert [start.environment.get("NCCL_P2P_DISABLE") for start in starts] == [None, "1"]
    assert {start.environment["CUDA_VISIBLE_DEVICES"] for start in starts} == {"0,1"}


def test_arm_on_another_path_has_no_figures(tmp_path, program):
    loads, _, said = serve(tmp_path, two_arms(program, "ignores-arm"))
    direct, staged = loads
    assert isinstance(direct.outcome, Measured)
    assert isinstance(staged.outcome, Failed)
    assert staged.outcome.reason.code == "arm-not-kept"
    assert staged.outcome.reason.text.startswith("Arm staged runs direct: Channel lines: 1 x P2P")
    assert any("arm-not-kept" in line for line in said)


def test_nothing_outlives_a_run(tmp_path, program):
    # An earlier test of this process may have left one: multiprocessing keeps a resource tracker.
    before = set(_children())
    pids = set()

    def note(line):
        pids.update(set(_children()) - before)
        assert line

    with Study.create(tmp_path / "s.linkbound") as study:
        run_serving(study, asked(program, "hang", cells=(cell(limit_s=0.5),)), client_limit(), note)
    assert pids
    assert not set(_children()) & pids


def test_an_interrupt_while_a_server_is_ended_leaves_none(tmp_path, monkeypatch):
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
    launch = Launch(argv=(sys.executable, "-c", deaf))
    server = ServerProcess(launch, port=free_port(), health="/", log=tmp_path / "log")

    def interrupted(_limit_s):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(server, "_await_end", interrupted)
    with pytest.raises(KeyboardInterrupt):
        server.stop()
    assert server.pid not in _children()


def _children():
    me = os.getpid()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
            if parent == me:
                found.append(int(entry.name))
    return found
