"""Three witnesses to one path: every recorded log, a partial switch, counters, hostile input."""

import contextlib
import gzip
import json
import lzma
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import linkbound
from fake_ports import FakePorts
from linkbound.cli.trace import command
from linkbound.errors import InputError, Interrupted, LinkboundError, TimeLimit
from linkbound.evidence import Study
from linkbound.evidence.types import Level, Severity
from linkbound.links.live.meter import TrafficMeter
from linkbound.links.traffic import READ_REQUEST_SHARE, GpuBytes, Traffic
from linkbound.serve.counters import counter_witness
from linkbound.serve.parse_engine_log import MAX_LOG_BYTES, parse_engine_log
from linkbound.serve.path_types import OwnReduce, PathAnswer
from linkbound.serve.trace_files import parse_trace_log, parse_trace_logs
from linkbound.serve.trace_run import trace_command
from linkbound.serve.witnesses import judge

CASES = Path(__file__).parents[1] / "cases"
RECORDED = Path(linkbound.__file__).parent / "recorded"
VLLM = RECORDED / "h200-pair" / "vllm-0.24.0" / "logs"
MIB = 1024**2
POSTED = [
    ("004*/all_reduce_perf.txt", "unknown", "No channel line"),
    ("004*/nccl-p2p-disabled.log", "unknown", "NCCL_P2P_LEVEL=LOC"),
    ("004*/nccl-p2p-hang.log", "direct", "P2P/direct pointer 1 -> 0"),
    ("013*/nccl-p2p-off.log", "staged", "NCCL_P2P_DISABLE=1"),
    ("013*/nccl-p2p-on.log", "direct", "2 x P2P/CUMEM 1 -> 0"),
    ("032*/nccl.log", "direct", "P2P/direct pointer/read"),
    ("042*/nccl.log", "staged", "2 x SHM/direct 1 -> 0"),
    ("043*/nccl-2.2x.log", "unknown", "No space left on device"),
    ("043*/nccl-2.5-style.log", "staged", "SHM/direct 2 -> 3"),
    ("043*/nccl-2.9.6.log", "unknown", "No channel line"),
    ("045*/nccl.log", "unknown", "No channel line"),
    ("048*/nccl.log", "staged", "the driver refuses peer access (Could not enable P2P"),
    ("049*/nccl.log", "unknown", "No channel line"),
    ("051*/nccl.log", "direct", "P2P/direct pointer"),
    ("053*/nccl.log", "unknown", "No channel line"),
    ("073*/nccl.log", "unknown", "No channel line"),
    ("079*/nccl.log", "direct", "3 x P2P/CUMEM 2 -> 3"),
    ("089*/nccl-p2p-disabled.log", "unknown", "NCCL_P2P_LEVEL=LOC"),
]
RECORDED_LOGS = [
    ("h200-pair/nccl-p2p-on.log", PathAnswer.DIRECT),
    ("h200-pair/nccl-p2p-off.log", PathAnswer.STAGED),
    ("5060ti-pair/nccl-p2p-on.log", PathAnswer.DIRECT),
    ("5060ti-pair/nccl-p2p-off.log", PathAnswer.STAGED),
]
# What no other file has: a line of NCCL, or of an engine's start.
SIGNS = re.compile(rb"NCCL (?:INFO|WARN)|RCCL version|all-reduce backends|ggml_cuda|TRT-LLM\]")


def verdict_of(*paths):
    logs = parse_trace_logs((path.name, path.read_bytes()) for path in paths)
    return judge(logs.nccl, logs.engines)


def run_of(tag):
    return [VLLM / f"{tag}.engine.log", *sorted(VLLM.glob(f"{tag}.nccl.*"))]


@pytest.mark.parametrize(("name", "answer", "reason"), POSTED)
def test_every_posted_log(name, answer, reason):
    found = verdict_of(next(CASES.glob(name)))
    assert (found.answer.value, found.findings) == (answer, ())
    assert reason in found.why


@pytest.mark.parametrize(("name", "answer"), RECORDED_LOGS)
def test_every_recorded_nccl_log(name, answer):
    found = verdict_of(RECORDED / name)
    assert found.answer is answer
    assert "No engine's log says" in found.why


def test_no_log_of_a_case_or_a_machine_is_left_out():
    posted = {path for name, *_ in POSTED for path in CASES.glob(name)}
    machines = {RECORDED / name for name, _ in RECORDED_LOGS} | set(VLLM.glob("llama8b_*"))
    found = {
        path
        for folder in (CASES, RECORDED)
        for path in folder.rglob("*")
        if path.suffix in (".log", ".txt") and SIGNS.search(path.read_bytes())
    }
    # The start of vLLM on one GPU has no line of NCCL and none of an all-reduce.
    assert found <= posted | machines
    assert {path.name for path in (posted | machines) - found} == {"llama8b_tp1.engine.log"}


@pytest.mark.parametrize(
    ("tag", "answer", "own", "reason"),
    [
        ("llama8b_tp1", PathAnswer.UNKNOWN, OwnReduce.UNKNOWN, "one GPU: nothing crosses"),
        ("llama8b_tp2", PathAnswer.DIRECT, OwnReduce.LIVE, "registered 1040 addresses"),
        ("llama8b_tp2_nccl", PathAnswer.DIRECT, OwnReduce.OFF, "PYNCCL alone"),
        ("llama8b_tp2_off", PathAnswer.STAGED, OwnReduce.OFF, "NCCL_P2P_DISABLE=1"),
    ],
)
def test_every_recorded_engine_run(tag, answer, own, reason):
    paths = run_of(tag)
    found = verdict_of(*paths)
    assert (found.answer, found.findings) == (answer, ())
    assert reason in found.why
    log = parse_engine_log(paths[0].read_bytes().decode(), tag)
    assert (log.engine, log.version, log.own_reduce) == ("vllm", "0.24.0", own)


def test_what_the_recorded_engine_says_of_itself():
    log = parse_engine_log((VLLM / "llama8b_tp2.engine.log").read_bytes().decode(), "x")
    assert (log.nccl_version, log.world_size, log.multicast) == ("2.28.9", 2, False)
    assert log.backends == {"tp:0": ("CUSTOM", "PYNCCL")}
    assert log.facts["model_memory"] == "7.49 GiB"
    assert log.facts["kv_tokens"] == "1,965,632"


def test_nccl_variable_alone_does_not_stage_vllm():
    found = verdict_of(VLLM / "llama8b_tp2.engine.log", VLLM / "llama8b_tp2_off.nccl.rank0.log")
    assert found.answer is PathAnswer.MIXED
    assert found.why.startswith("Not staged: its custom all-reduce registered 1040 addresses")
    (finding,) = found.findings
    assert (finding.code, finding.level) == ("p2p-off-is-partial", Level.SEEN)
    assert finding.severity is Severity.ERROR
    assert "--disable-custom-all-reduce" in finding.remedy


def test_listed_but_not_seen_is_unknown():
    line = "(Worker pid=1) Using ['CUSTOM', 'PYNCCL'] all-reduce backends (in dispatch order) "
    engine = parse_engine_log(line + "for group 'tp:0' out of potential backends: []", "e")
    nccl = parse_trace_log((VLLM / "llama8b_tp2_off.nccl.rank0.log").read_bytes(), "n").nccl
    found = judge(nccl, [engine])
    assert found.answer is PathAnswer.UNKNOWN
    assert [one.level for one in found.findings] == [Level.SUSPECTED]


def test_setting_that_did_not_arrive():
    text = (
        "h:1:1 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1\n"
        "h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
    )
    found = judge(parse_trace_log(text.encode(), "n").nccl, [])
    assert [one.code for one in found.findings] == ["p2p-setting-ignored"]


@pytest.mark.parametrize(
    ("text", "engine", "own", "disabled"),
    [
        (
            "INFO sglang is using nccl==2.27.5\rAll Reduce config: symmetric_memory = 16 MB, "
            "local_buffer = 16 MB, multicast = False, pull = True",
            "sglang",
            OwnReduce.LIVE,
            (),
        ),
        (
            "sglang is using nccl==2.27.5\nCustomAllreduce is disabled because it's not supported "
            "on more than two PCIe-only GPUs.",
            "sglang",
            OwnReduce.OFF,
            ("it's not supported on more than two PCIe-only GPUs",),
        ),
        (
            "(EngineCore pid=1) Custom allreduce is disabled because your platform lacks GPU P2P "
            "capability or P2P test failed. To silence this warning, specify "
            "disable_custom_all_reduce=True explicitly.",
            "vllm",
            OwnReduce.OFF,
            ("your platform lacks GPU P2P capability or P2P test failed",),
        ),
        (
            "ggml_cuda_init: found 2 CUDA devices:\nNCCL not compiled in; falling back to internal "
            "AllReduce\ninitialized AllReduce pipeline: 2 GPUs, 1024 KB chunked kernel staging",
            "llama.cpp",
            OwnReduce.UNKNOWN,
            ("NCCL not compiled in; falling back to internal AllReduce",),
        ),
        (
            "[TRT-LLM] [I] P2P not supported between local devices 0 and 1",
            "tensorrt-llm",
            OwnReduce.UNKNOWN,
            ("P2P not supported between local devices 0 and 1",),
        ),
    ],
)
def test_words_of_other_engines(text, engine, own, disabled):
    log = parse_engine_log(text, "x")
    assert (log.engine, log.own_reduce, log.disabled_because) == (engine, own, disabled)


def traffic_of(nvlink, pcie, count=2, **more):
    """Every GPU sends and receives as much."""
    return Traffic(
        source="fake",
        duration_s=1.0,
        moved=tuple(
            GpuBytes(
                gpu=f"GPU{index}",
                nvlink_sent_bytes=nvlink,
                nvlink_received_bytes=nvlink,
                # Beside the data, the requests for what was received.
                pcie_sent_bytes=pcie + round(READ_REQUEST_SHARE * pcie),
                pcie_received_bytes=pcie,
            )
            for index in range(count)
        ),
        **more,
    )


@pytest.mark.parametrize(
    ("nvlink", "pcie", "expected", "answer"),
    [
        (100 * MIB, MIB, 200e6, PathAnswer.DIRECT),
        (MIB, 100 * MIB, 200e6, PathAnswer.STAGED),
        (40 * MIB, 60 * MIB, 200e6, PathAnswer.MIXED),
        (0, MIB, 200e6, PathAnswer.UNKNOWN),
        (MIB, MIB, None, PathAnswer.UNKNOWN),
        (100 * MIB, 5 * MIB, None, PathAnswer.DIRECT),
        (MIB, 100 * MIB, None, PathAnswer.STAGED),
        (40 * MIB, 60 * MIB, None, PathAnswer.MIXED),
        (100 * MIB, 100 * MIB, 1e6, PathAnswer.UNKNOWN),
    ],
)
def test_counters(nvlink, pcie, expected, answer):
    assert counter_witness(traffic_of(nvlink, pcie), expected).answer is answer


def test_a_gpu_without_counters_of_pcie_can_show_the_link_alone():
    def counted(nvlink):
        moved = (
            GpuBytes(gpu="GPU0", nvlink_sent_bytes=nvlink, nvlink_received_bytes=0),
            GpuBytes(gpu="GPU1", nvlink_sent_bytes=0, nvlink_received_bytes=nvlink),
        )
        return Traffic(source="fake", duration_s=1.0, moved=moved)

    assert counter_witness(counted(200 * MIB), 200e6).answer is PathAnswer.DIRECT
    idle = counter_witness(counted(0), 200e6)
    assert idle.answer is PathAnswer.UNKNOWN
    assert idle.why.endswith("the link did not carry it, and no counter says what did.")


def test_weights_that_are_loaded_are_no_crossing():
    # Each GPU receives 8 GB of weights: 0.7 GB of requests go out, and no data.
    loaded = GpuBytes(
        gpu="GPU0",
        nvlink_sent_bytes=0,
        nvlink_received_bytes=0,
        pcie_sent_bytes=708_000_000,
        pcie_received_bytes=8_000_000_000,
    )
    run = Traffic(source="fake", duration_s=1.0, moved=(loaded,))
    assert counter_witness(run).answer is PathAnswer.UNKNOWN


def test_one_gpu_that_writes_to_the_host_sends_to_no_other():
    saved = GpuBytes(
        gpu="GPU0",
        nvlink_sent_bytes=0,
        nvlink_received_bytes=0,
        pcie_sent_bytes=8_000_000_000,
        pcie_received_bytes=1_000_000,
    )
    idle = GpuBytes(
        gpu="GPU1",
        nvlink_sent_bytes=0,
        nvlink_received_bytes=0,
        pcie_sent_bytes=0,
        pcie_received_bytes=0,
    )
    witness = counter_witness(Traffic(source="fake", duration_s=1.0, moved=(saved, idle)))
    assert witness.answer is PathAnswer.UNKNOWN
    assert "nothing that left a GPU came to another one" in witness.why


@pytest.mark.parametrize(
    ("traffic", "why"),
    [
        (
            Traffic(source="NVML", duration_s=1.0, moved=(), silent={"NVML": "No driver."}),
            "No driver.",
        ),
        (
            Traffic(
                source="NVML",
                duration_s=1.0,
                moved=(GpuBytes(gpu="GPU0", pcie_sent_bytes=10**9, pcie_received_bytes=0),),
                silent={"GPU0 NVLink": "Not Supported"},
            ),
            "No NVLink counter could be read (GPU0 NVLink: Not Supported). PCIe counters alone",
        ),
        (
            Traffic(
                source="NVML",
                duration_s=1.0,
                moved=(GpuBytes(gpu="GPU0"),),
                silent={"GPU0 PCIe": "Not Supported"},
            ),
            "No byte counter could be read (GPU0 PCIe: Not Supported).",
        ),
    ],
)
def test_counters_that_do_not_answer_say_why(traffic, why):
    witness = counter_witness(traffic)
    assert witness.answer is PathAnswer.UNKNOWN
    assert witness.why.startswith(why)


def test_idle_traffic_is_taken_off_and_a_blind_gap_is_said():
    rest = traffic_of(0, 10 * MIB).moved
    run = traffic_of(45 * MIB, 30 * MIB, idle=rest, idle_duration_s=0.5, blind_gaps=1)
    # 10 MiB in half a second of rest are 20 of the 30 MiB in a second of load, on two GPUs.
    assert counter_witness(run).why == ("NVLink carried 94.4 MB, the host got at least 21.0 MB.")


def test_counters_that_contradict_the_log():
    nccl = parse_trace_log((RECORDED / "h200-pair/nccl-p2p-on.log").read_bytes(), "n").nccl
    found = judge(nccl, [], [counter_witness(traffic_of(0, 500 * MIB))])
    assert found.answer is PathAnswer.STAGED
    assert [one.code for one in found.findings] == ["witnesses-disagree"]
    assert judge(nccl, [], [counter_witness(traffic_of(500 * MIB, 0))]).findings == ()


def test_counters_show_that_the_variable_alone_stages_nothing():
    nccl = parse_trace_log((VLLM / "llama8b_tp2_off.nccl.rank0.log").read_bytes(), "n").nccl
    line = "(Worker pid=1) Using ['CUSTOM', 'PYNCCL'] all-reduce backends (in dispatch order) "
    listed = parse_engine_log(line + "for group 'tp:0' out of potential backends: []", "e")
    direct = counter_witness(traffic_of(500 * MIB, MIB))
    found = judge(nccl, [listed], [direct])
    assert found.answer is PathAnswer.DIRECT
    (finding,) = found.findings
    assert (finding.code, finding.level) == ("p2p-off-is-partial", Level.SEEN)
    assert "CUSTOM stands before NCCL" in finding.seen
    assert "NVLink carried 1,048.6 MB" in finding.seen
    # Without a word of the engine the bytes alone show it.
    codes = [one.code for one in judge(nccl, [], [direct]).findings]
    assert codes == ["p2p-off-is-partial", "witnesses-disagree"]
    # Nothing on the link: the variable did what it says.
    staged = counter_witness(traffic_of(0, 500 * MIB))
    off = judge(nccl, [], [staged])
    assert (off.answer, off.findings) == (PathAnswer.STAGED, ())


@given(st.one_of(st.binary(max_size=400), st.text(max_size=400).map(str.encode)))
def test_any_bytes_give_a_log_or_our_error(data):
    with contextlib.suppress(InputError):
        parse_trace_logs([("x.log", data)])


TORN = (
    "Using ['",
    "CUSTOM",
    "'] all-reduce backends (in dispatch order) for group 'tp:0'",
    "\r",
    "\n",
    "Registering 99999999999999999999 cuda graph addresses",
    "vLLM is using nccl==",
    "NCCL INFO ",
    "Channel 00/0 : 0[0] -> 1[1] via P2P/",
    "world_size=",
    "7",
    "Custom allreduce is disabled because",
)


@given(st.lists(st.sampled_from(TORN)).map("".join))
def test_torn_words_give_a_log_or_our_error(text):
    with contextlib.suppress(InputError):
        parse_trace_logs([("x.log", text.encode())])


def test_too_long_for_a_log():
    with pytest.raises(InputError, match="67,108,865 bytes"):
        parse_trace_log(bytes(MAX_LOG_BYTES + 1), "x.log")


def run_verb(*arguments):
    return CliRunner().invoke(command, list(arguments), standalone_mode=False)


def test_verb_over_files_keeps_evidence(tmp_path):
    study = tmp_path / "t.linkbound"
    logs = [part for path in run_of("llama8b_tp2_off") for part in ("--log", str(path))]
    result = run_verb(*logs, "--json", "-C", str(study))
    document = json.loads(result.stdout)
    assert (result.return_value, document["answer"], document["schema"]) == (
        0,
        "staged",
        "linkbound.trace",
    )
    with Study.open(study) as kept:
        record = kept.get(document["record_id"])
        assert record.outcome.values["verdict"]["answer"] == "staged"
        assert [kept.blob(one) for one in record.blobs] == [
            path.read_bytes() for path in run_of("llama8b_tp2_off")
        ]


def test_verb_text_names_witnesses():
    result = run_verb("--log", str(RECORDED / "5060ti-pair/nccl-p2p-on.log"))
    assert result.stdout.splitlines()[0] == "path: direct"
    assert "    1 -> 0 P2P/CUMEM x2" in result.stdout.splitlines()


def no_gpu():
    return TrafficMeter(FakePorts())


def test_command_is_told_to_let_nccl_speak():
    log = RECORDED / "h200-pair" / "nccl-p2p-off.log"
    code = (
        "import os, pathlib, sys;"
        "path = os.environ['NCCL_DEBUG_FILE'].replace('%h', 'h').replace('%p', '1');"
        f"pathlib.Path(path).write_bytes(pathlib.Path({str(log)!r}).read_bytes());"
        "print(os.environ['NCCL_DEBUG'])"
    )
    traced = trace_command([sys.executable, "-c", code], limit_s=30, meter=no_gpu())
    assert traced.verdict.answer is PathAnswer.STAGED
    assert traced.child.stdout == b"INFO\n"
    assert [name for name, _ in traced.logs] == ["stdout", "nccl.h.1.log"]


class FilePorts:
    """Counters that a child moves: NVLink bytes sent by the first of two GPUs, in a file."""

    name = "file"

    def __init__(self, path):
        self.path = path

    def ports(self):
        moved = int(self.path.read_text())
        still = {"pcie_sent_bytes": 0, "pcie_received_bytes": 0}
        return (
            GpuBytes(gpu="GPU0", nvlink_sent_bytes=moved, nvlink_received_bytes=0, **still),
            GpuBytes(gpu="GPU1", nvlink_sent_bytes=0, nvlink_received_bytes=moved, **still),
        )

    pcie = ports

    def pcie_bytes_per_s(self):
        return None

    def silent(self):
        return {}


def test_verb_counts_what_the_command_moves(tmp_path, monkeypatch):
    counts, study = tmp_path / "counts", tmp_path / "t.linkbound"
    counts.write_text("1000")
    meter = TrafficMeter(FilePorts(counts), sleep=lambda _: None)
    monkeypatch.setattr("linkbound.links.live.meter.open_meter", lambda: meter)
    code = f"open({str(counts)!r}, 'w').write(str(1000 + 4 * 10**9))"
    arguments = ("-C", str(study), "--", sys.executable, "-c", code)
    lines = run_verb(*arguments).stdout.splitlines()
    assert lines[0] == "path: direct"
    assert "counters (file): direct" in lines
    assert "    GPU0: NVLink (0 links) 4,000.0 MB out, 0.0 MB in; PCIe 0.0 MB out, 0.0 MB in" in (
        lines
    )
    with Study.open(study) as kept:
        (record,) = kept.find("serve.trace")
        assert record.outcome.values["traffic"]["moved"][0]["nvlink_sent_bytes"] == 4 * 10**9


def test_failing_and_endless_commands():
    result = run_verb("--", sys.executable, "-c", "import sys; sys.exit('gone')")
    assert result.return_value == 1
    assert "exit code 1" in result.stderr
    code = "import time; time.sleep(60)"
    endless = run_verb("--limit", "0.2", "--", sys.executable, "-c", code)
    assert isinstance(endless.exception, TimeLimit)


def test_output_of_the_command_passes_through():
    code = "import sys; print('serving', end=''); print('ready', file=sys.stderr)"
    result = run_verb("--", sys.executable, "-c", code)
    assert result.stdout.splitlines()[:2] == ["serving", "path: unknown"]
    assert result.stderr == "ready\n"
    whole = run_verb("--json", "--", sys.executable, "-c", code)
    assert json.loads(whole.stdout)["answer"] == "unknown"
    assert "serving" in whole.stderr


def test_a_witness_that_is_listed_was_given():
    lines = run_verb("--", "true").stdout.splitlines()
    assert lines[1] == "  No line of NCCL or of an engine was seen."
    assert any(line.startswith("counters (") for line in lines)
    assert judge((), ()).why == "No witness was given."
    assert "last words" not in run_verb("--", "false").stderr


def test_an_interrupt_ends_a_server_and_the_answer_comes():
    log = RECORDED / "h200-pair" / "nccl-p2p-off.log"
    code = (
        "import os, pathlib, signal, time;"
        "path = os.environ['NCCL_DEBUG_FILE'].replace('%h', 'h').replace('%p', '1');"
        f"pathlib.Path(path).write_bytes(pathlib.Path({str(log)!r}).read_bytes());"
        "os.kill(os.getppid(), signal.SIGINT); time.sleep(60)"
    )
    result = run_verb("--", sys.executable, "-c", code)
    assert result.stdout.splitlines()[0] == "path: staged"
    assert isinstance(result.exception, Interrupted)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--log", "a", "--", "true"),
        ("--log", "missing.log"),
        ("--log", "a", "--limit", "3"),
        ("--", "no-such-cmd"),
    ],
)
def test_wrong_use_is_one_error(arguments):
    error = run_verb(*arguments).exception
    assert isinstance(error, LinkboundError)
    assert error.exit_code == 2
    assert error.why
    assert error.hint


@pytest.mark.parametrize(
    ("pack", "words"),
    [
        (gzip.compress, "packed with gzip"),
        (lzma.compress, "packed with xz"),
        (lambda data: data.decode().encode("utf-16"), "text in UTF-16"),
    ],
)
def test_a_log_that_is_no_plain_text_is_named(pack, words, tmp_path):
    file = tmp_path / "nccl.log"
    file.write_bytes(pack((RECORDED / "h200-pair" / "nccl-p2p-off.log").read_bytes()))
    error = run_verb("--log", str(file)).exception
    assert isinstance(error, InputError)
    assert words in str(error)


def test_the_job_of_the_partial_switch_is_called_by_its_name(tmp_path):
    """`scripts/gpu partial` with a module that stands for vLLM, and no GPU."""
    script = Path(__file__).parents[2] / "scripts" / "partial_switch.py"
    fake = Path(__file__).with_name("fake_vllm")
    paths = [str(fake), *filter(None, [os.environ.get("PYTHONPATH")])]
    study = tmp_path / "t.linkbound"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "linkbound.cli", "trace", "--json", "-C", study),
            *("--limit", "60", "--", sys.executable, script),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    document = json.loads(done.stdout)
    assert document["answer"] == "mixed"
    assert document["why"].startswith("Not staged: its custom all-reduce registered")
    assert [one["code"] for one in document["findings"]] == ["p2p-off-is-partial"]
    with Study.open(study) as kept:
        (record,) = kept.find("serve.trace")
        assert record.id == document["record_id"]
