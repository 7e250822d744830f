"""Placement: printed commands and plan files are run, and the child says what it really got."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from linkbound.cli import run as run_verb
from linkbound.cli.main import run
from linkbound.errors import InputError, UsageError
from linkbound.evidence.child import MULTICAST_GUARDS
from linkbound.links import Arm
from linkbound.model.types import Load
from linkbound.predict.types import Plan
from linkbound.splits.place import placement_of
from linkbound.splits.types import Dispatch, Split
from linkbound.study.commands import command_lines, servers
from linkbound.study.plan_files import plan_file, read_plan, write_plan
from linkbound.topology.types import Gpu, Machine

LOAD = Load(prompt_tokens=512, output_tokens=64, concurrency=4)
CPUS = sorted(os.sched_getaffinity(0))
TELL = (
    "import json, os; print(json.dumps({'cpus': sorted(os.sched_getaffinity(0)), "
    "'env': dict(os.environ), 'group': os.getpgrp(), 'pid': os.getpid()}))"
)


def machine(cores: tuple[str, ...] = (str(CPUS[0]), str(CPUS[-1]))) -> Machine:
    """Two GPUs, each near a processor of this host."""
    return Machine(
        sources=("made",),
        gpus=tuple(
            Gpu(
                key=f"GPU-{number}",
                uuid=f"GPU-{number}",
                label=f"GPU{number}",
                numa_node=0,
                cpu_affinity=cpus,
            )
            for number, cpus in enumerate(cores)
        ),
    )


def plan(split: Split, *, arm: Arm | None = Arm.P2P, order: tuple[int, ...] = (0, 1)) -> Plan:
    gpus = [machine().gpus[number] for number in order[: split.gpus]]
    return Plan(split=split, placement=placement_of(gpus), arm=arm)


def written(path: Path, found: Plan, **changes: Any) -> Path:
    text = write_plan(
        plan_file(
            machine(),
            found,
            LOAD,
            name="made",
            model="MODEL",
            engine="vllm",
            limit=16,
            role="best",
            why="It is.",
        )
    )
    path.write_text(json.dumps(json.loads(text) | changes))
    return path


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """This host has the plan's GPUs, the second one first."""
    turned = msgspec.structs.replace(machine(), gpus=machine().gpus[::-1])
    monkeypatch.setattr("linkbound.topology.probe.probe_machine", lambda: turned)


@pytest.fixture
def unbound() -> Any:
    """`run` binds its own process, which here is the tests'."""
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)


ENGINES = ("vllm", "sglang", "llama.cpp", "tensorrt-llm", "transformers")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.skipif(shutil.which("taskset") is None, reason="taskset is not installed")
def test_the_printed_commands_run_as_they_stand(engine: str, tmp_path: Path) -> None:
    """A program that tells what it got stands in for the engine, and for numactl."""
    split = Split(pp=2) if engine == "transformers" else Split(tp=2)
    lines = command_lines(machine(), plan(split, order=(1, 0)), engine, LOAD, limit=16)
    programs = {"vllm", "python3", "llama-server", "trtllm-serve", "transformers"}
    for name in programs:
        stub(tmp_path / name, f'exec {sys.executable} -c "{TELL}"')
    stub(tmp_path / "numactl", f'echo "$1 $2" > {tmp_path}/numactl.txt; shift 2; exec "$@"')
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(done.stdout)
    assert told["cpus"] == sorted({CPUS[0], CPUS[-1]})
    assert (tmp_path / "numactl.txt").read_text() == "--cpunodebind=0 --membind=0\n"
    assert told["env"]["CUDA_VISIBLE_DEVICES"] == "1,0"
    assert {name: told["env"][name] for name in MULTICAST_GUARDS} == MULTICAST_GUARDS
    if engine == "tensorrt-llm":
        assert (tmp_path / "trtllm.yaml").read_text() == "allreduce_strategy: AUTO\n"


def stub(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)


def test_each_replica_is_a_server_on_its_own_gpus() -> None:
    found = plan(Split(replicas=2), arm=None)
    one, two = servers(machine(), found, "vllm", LOAD, limit=16)
    assert [one.placement.gpus, two.placement.gpus] == [("GPU-0",), ("GPU-1",)]
    assert [dict(one.placement.cores), dict(two.placement.cores)] == [
        {"GPU-0": str(CPUS[0])},
        {"GPU-1": str(CPUS[-1])},
    ]
    ports = [server.launch.argv[server.launch.argv.index("--port") + 1] for server in (one, two)]
    assert ports == ["8000", "8001"]
    assert one.launch.argv[one.launch.argv.index("--max-num-seqs") + 1] == "16"


def test_what_only_measuring_needs_is_left_out() -> None:
    flags = {"vllm": "--no-enable-prefix-caching", "sglang": "--disable-radix-cache"}
    for engine, flag in flags.items():
        (server,) = servers(machine(), plan(Split(tp=2)), engine, LOAD, limit=16)
        assert flag not in server.launch.argv
        assert "NCCL_DEBUG" not in server.launch.environment


def test_stated_layers_and_shared_experts_reach_the_engine() -> None:
    (server,) = servers(machine(), plan(Split(pp=2, stage_layers=(20, 12))), "vllm", LOAD, limit=16)
    assert server.launch.environment["VLLM_PP_LAYER_PARTITION"] == "20,12"
    shared = Split(ep=2, replicas=2, dispatch=Dispatch.GATHER_SCATTER)
    (server,) = servers(machine(), plan(shared), "vllm", LOAD, limit=16)
    assert "--enable-expert-parallel" in server.launch.argv
    at = server.launch.argv.index("--data-parallel-size")
    assert server.launch.argv[at + 1] == "2"
    with pytest.raises(UsageError, match="How sglang shares experts"):
        servers(machine(), plan(shared), "sglang", LOAD, limit=16)
    with pytest.raises(UsageError, match="No command is known for 'external'"):
        servers(machine(), plan(shared), "external", LOAD, limit=16)


@pytest.mark.usefixtures("host", "unbound")
def test_the_child_gets_gpus_processors_and_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "2")
    file = written(tmp_path / "p.json", plan(Split(tp=2), order=(1, 0)))
    words = ["run", "--plan", str(file), "--no-memory", "--", sys.executable, "-c", TELL]
    assert run(words) == 0
    out, err = capfd.readouterr()
    told = json.loads(out)
    assert told["cpus"] == sorted({CPUS[0], CPUS[-1]})
    assert told["env"]["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-0"
    assert told["env"]["NCCL_P2P_LEVEL"] == "SYS"
    assert "NCCL_P2P_DISABLE" not in told["env"]
    # Guards are closed whatever is inherited.
    assert {name: told["env"][name] for name in MULTICAST_GUARDS} == MULTICAST_GUARDS
    assert told["group"] == told["pid"]
    assert err.startswith("linkbound run: CUDA_VISIBLE_DEVICES=GPU-1,GPU-0; ")


@pytest.mark.usefixtures("host", "unbound")
def test_a_replica_is_bound_to_its_own_processor(tmp_path: Path, capfd: Any) -> None:
    file = written(tmp_path / "p.json", plan(Split(replicas=2), arm=None))
    for replica, cpu in ((0, CPUS[0]), (1, CPUS[-1])):
        words = ["run", "--plan", str(file), "--replica", str(replica), "--no-memory"]
        assert run([*words, "--", sys.executable, "-c", TELL]) == 0
        told = json.loads(capfd.readouterr().out)
        assert told["cpus"] == [cpu]
        assert told["env"]["CUDA_VISIBLE_DEVICES"] == f"GPU-{replica}"
        os.sched_setaffinity(0, CPUS)
    words = ["run", "--plan", str(file), "--replica", "1", "--ordinals", "--no-cores"]
    assert run([*words, "--no-memory", "--", sys.executable, "-c", TELL]) == 0
    told = json.loads(capfd.readouterr().out)
    # This host lists the second GPU first.
    assert told["env"]["CUDA_VISIBLE_DEVICES"] == "0"
    assert told["env"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert told["cpus"] == CPUS


MEMORY = """
import ctypes, platform
number = {"x86_64": 239, "aarch64": 236}[platform.machine()]
policy, mask = ctypes.c_int(), (ctypes.c_ulong * 16)()
libc = ctypes.CDLL(None, use_errno=True)
failed = libc.syscall(number, ctypes.byref(policy), mask, 1025, 0, 0)
print(ctypes.get_errno() if failed else (policy.value, mask[0]))
"""


@pytest.mark.usefixtures("host", "unbound")
def test_memory_is_bound_in_the_child_or_it_is_said(tmp_path: Path) -> None:
    """In a process of its own: a policy for memory stays for the rest of a process's life."""
    file = written(tmp_path / "p.json", plan(Split(tp=2)))
    script = (
        "import linkbound.topology.probe as probe, msgspec, sys; "
        "from linkbound.topology.types import Gpu, Machine; "
        "gpus = tuple(Gpu(key=k, uuid=k, label=k) for k in ('GPU-0', 'GPU-1')); "
        "probe.probe_machine = lambda: Machine(sources=('x',), gpus=gpus); "
        "from linkbound.cli.main import run; sys.exit(run(sys.argv[1:]))"
    )
    words = ["run", "--plan", str(file), "--", sys.executable, "-c", MEMORY]
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        check=True,
    )
    if "NOT bound" in done.stderr:
        assert "memory NOT bound to node 0 (" in done.stderr
    else:
        assert "memory of node 0" in done.stderr
        assert done.stdout.strip() == "(2, 1)"


@pytest.mark.usefixtures("host", "unbound")
@pytest.mark.parametrize(
    ("command", "code"), [("exit 7", 7), ("kill -TERM $$", 128 + signal.SIGTERM), ("true", 0)]
)
def test_the_exit_status_is_passed_through(command: str, code: int, tmp_path: Path) -> None:
    file = written(tmp_path / "p.json", plan(Split(tp=2)))
    words = ["run", "--plan", str(file), "--no-memory", "--no-cores"]
    assert run([*words, "--", "bash", "-c", command]) == code


@pytest.mark.usefixtures("host", "unbound")
def test_what_ends_it_ends_the_whole_group(tmp_path: Path) -> None:
    """The child starts a grandchild; both are gone after TERM to the parent."""
    file = written(tmp_path / "p.json", plan(Split(tp=2)))
    script = (
        "import linkbound.topology.probe as probe, sys; "
        "from linkbound.topology.types import Gpu, Machine; "
        "gpus = tuple(Gpu(key=k, uuid=k, label=k) for k in ('GPU-0', 'GPU-1')); "
        "probe.probe_machine = lambda: Machine(sources=('x',), gpus=gpus); "
        "from linkbound.cli.main import run; sys.exit(run(sys.argv[1:]))"
    )
    words = ["run", "--plan", str(file), "--no-memory", "--no-cores", "--"]
    with subprocess.Popen(
        [sys.executable, "-c", script, *words, "bash", "-c", "sleep 600 & echo $!; wait"],
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        child.send_signal(signal.SIGTERM)
        assert child.wait(timeout=60) == 128 + signal.SIGTERM
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and Path(f"/proc/{grandchild}").exists():
        time.sleep(0.05)
    state = Path(f"/proc/{grandchild}/stat")
    assert not state.exists() or " Z " in state.read_text()


@pytest.mark.usefixtures("host", "unbound")
def test_what_cannot_be_run_is_said_and_nothing_is(tmp_path: Path, capsys: Any) -> None:
    both = written(tmp_path / "both.json", plan(Split(replicas=2), arm=None))
    one = written(tmp_path / "one.json", plan(Split(tp=2)))
    text = json.loads(one.read_text())
    text["servers"][0]["gpus"][1]["uuid"] = "GPU-9"
    other = tmp_path / "other.json"
    other.write_text(json.dumps(text))
    text["servers"][0]["gpus"][1]["uuid"] = "GPU-1"
    text["servers"][0]["cores"] = ["4000-4010"]
    nowhere = tmp_path / "nowhere.json"
    nowhere.write_text(json.dumps(text))
    bad = tmp_path / "bad.json"
    bad.write_text("[]")
    for words, said in (
        ([both], "The plan has 2 servers, and --replica names none."),
        ([both, "--replica", "2"], "--replica 2: the plan has 2 servers."),
        ([other], "GPU1 of the plan (GPU-9) is not here."),
        ([nowhere], "None of the processors 4000-4010 may be used here."),
        ([bad], "is no plan: "),
        ([tmp_path / "none.json"], "cannot be read: No such file"),
        ([one, "--no-memory"], "'no-such-program' cannot be started"),
    ):
        words = ["run", "--plan", *map(str, words), "--", "no-such-program"]
        assert run(words) == 2, said
        assert said in capsys.readouterr().err


def test_a_host_without_gpus_runs_no_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "linkbound.topology.probe.probe_machine", lambda: Machine(sources=("none",))
    )
    file = written(tmp_path / "p.json", plan(Split(tp=2)))
    assert run(["run", "--plan", str(file), "--", "true"]) == 3


def test_a_plan_of_another_version_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path / "p.json", plan(Split(tp=2)), version=2)
    with pytest.raises(InputError, match=r"is linkbound\.plan 2, not linkbound\.plan 1"):
        read_plan(file)
    assert run_verb.command.name == "run"


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ({"gpus": []}, "names no GPU for server 0"),
        ({"gpus": [{"label": "GPU0", "uuid": "GPU-1"}] * 2}, "names a GPU twice for server 0"),
        ({"environment": {"A=B": "1"}}, "sets a variable for server 0 that no process can have"),
        ({"environment": {"": "1"}}, "sets a variable for server 0 that no process can have"),
        ({"environment": {"A": "x\0"}}, "sets a variable for server 0 that no process can have"),
        ({"cores": ["0-3", "4-x"]}, "names processors for server 0 that are no list: '4-x'"),
    ],
)
def test_a_plan_that_no_command_could_run_with_is_refused(
    tmp_path: Path, server: dict[str, Any], said: str
) -> None:
    """No GPU hid all of them from the command; NUL and = ended in a traceback."""
    file = written(tmp_path / "p.json", plan(Split(tp=2)))
    document = json.loads(file.read_text())
    document["servers"][0].update(server)
    file.write_text(json.dumps(document))
    with pytest.raises(InputError) as caught:
        read_plan(file)
    assert said in str(caught.value)


def test_a_plan_without_servers_says_so(tmp_path: Path) -> None:
    file = written(tmp_path / "p.json", plan(Split(tp=2)))
    document = json.loads(file.read_text())
    file.write_text(json.dumps({**document, "servers": []}))
    with pytest.raises(InputError, match="names no server"):
        read_plan(file)


def test_no_command_asks_for_longer_sequences_than_the_model_takes(
    tmp_path: Path, capsys: Any
) -> None:
    """131,072 tokens are llama-3.1-8b's; with the margin on top vLLM refused to start."""
    file = tmp_path / "p.json"
    load = ["--machine", "h200-pair", "--prompt", "130816", "--output", "256", "--concurrency", "1"]
    words = ["search", "llama-3.1-8b", *load, "--engine", "vllm", "--plan", str(file)]
    assert run(words) == 0
    assert "--max-model-len 131072 " in capsys.readouterr().out
    command = read_plan(file).servers[0].command
    assert command[command.index("--max-model-len") + 1] == "131072"
    page = tmp_path / "s.linkbound"
    assert run(["study", "llama-3.1-8b", *load, "-q", "-C", str(page)]) == 0
    capsys.readouterr()
    assert run(["report", "-C", str(page), "-o", "-"]) == 0
    shown = (tmp_path / "s.html").read_text()
    assert "--max-model-len 131072 " in shown
    assert "--max-model-len 131136" not in shown
