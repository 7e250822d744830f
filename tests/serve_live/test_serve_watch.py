"""Byte counters around the cells of an A/B: agreement, contradiction, an arm that is not kept."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from serve_cases import client_limit, faulty_program, two_arms

import linkbound
from fake_ports import FakePorts
from linkbound.cli.serve_tables import traffic_lines
from linkbound.evidence import Failed, Measured, Skipped, Study
from linkbound.evidence.types import Reason
from linkbound.links.live.meter import TrafficMeter
from linkbound.links.traffic import READ_REQUEST_SHARE, GpuBytes, Traffic
from linkbound.links.types import Arm
from linkbound.model.read_model import read_model
from linkbound.serve.contenders import Contender
from linkbound.serve.expected import expected_bytes
from linkbound.serve.held import held_records
from linkbound.serve.moved import moved_by_batch
from linkbound.serve.path_types import PathAnswer
from linkbound.serve.path_watch import PathWatch
from linkbound.serve.serving import run_serving
from linkbound.serve.traffic_check import check_traffic, traffic_findings
from linkbound.serve.traffic_rows import traffic_rows
from linkbound.splits.parse_split import parse_split
from linkbound.splits.wire import Wire

VLLM = Path(linkbound.__file__).parent / "recorded" / "h200-pair" / "vllm-0.24.0"
MODEL = str(VLLM / "configs" / "llama8b")
MIB = 1024**2
# Of 7 requests of 16 tokens in and 4 out, over two ranks: 112 + 21 tokens of 65 all-reduces.
STATES_BYTES = 133 * 2 * 65 * 8192


class CellPorts(FakePorts):
    """Counts grow between the third and the fourth reading of each start: inside its one cell."""

    def __init__(self, *growths):
        # So slow a link wraps no counter, however long a cell takes on a busy host.
        super().__init__("GPU0", "GPU1", rate=1.0)
        self.growths = list(growths)
        self.readings = 0

    def ports(self):
        self.readings += 1
        if self.readings % 4 == 0:
            nvlink, pcie = self.growths.pop(0)
            for gpu in self.counts:
                self.move(gpu, nvlink, nvlink, pcie, pcie)
        return super().ports()


@pytest.fixture
def program(tmp_path):
    return faulty_program(tmp_path)


def serve(tmp_path, run, ports):
    said = []
    meter = TrafficMeter(ports, sleep=lambda _: None, period_s=3600.0)
    with Study.open_or_create(tmp_path / "s.linkbound") as study:
        run_serving(study, run, client_limit(), said.append, meter=meter)
        return (
            study.find("serve.load"),
            held_records(study, run, "serve.traffic"),
            study.find("serve.finding"),
            said,
        )


def test_three_witnesses_agree_in_both_arms(tmp_path, program):
    run = two_arms(program, MODEL)
    each = STATES_BYTES // 2
    loads, kept, findings, _ = serve(tmp_path, run, CellPorts((each, MIB), (0, each * 12 // 5)))
    assert all(isinstance(load.outcome, Measured) for load in loads)
    assert findings == []
    direct, staged = (record.outcome.values for record in kept)
    assert (direct["verdict"]["answer"], staged["verdict"]["answer"]) == ("direct", "staged")
    assert (direct["check"]["over"], direct["check"]["agrees"]) == ("NVLink", True)
    assert (staged["check"]["over"], staged["check"]["agrees"]) == ("host", True)
    assert kept[0].parents[0] == loads[0].id
    rows = traffic_rows(kept)
    assert [(row.contender, row.n, row.agrees) for row in rows] == [
        ("tp2 p2p", 1, True),
        ("tp2 staged", 1, True),
    ]
    lines = traffic_lines(rows)
    assert lines[2].split()[-6:-5] == ["NVLink"]
    assert [line.split()[-1] for line in lines[1:]] == ["agrees", "yes", "yes"]


def test_silent_staging_breaks_the_arm_that_is_to_be_direct(tmp_path, program):
    run = two_arms(program, MODEL)
    each = STATES_BYTES // 2
    loads, kept, findings, said = serve(tmp_path, run, CellPorts((0, 2 * each), (0, 2 * each)))
    direct, staged = loads
    assert isinstance(direct.outcome, Failed)
    assert direct.outcome.reason.code == "arm-not-kept"
    assert "the link was idle while data went to the host" in direct.outcome.reason.text
    assert isinstance(staged.outcome, Measured)
    codes = [record.subject["code"] for record in findings]
    assert codes == ["witnesses-disagree", "bytes-differ"]
    assert any("The logs say direct, the counters say staged" in line for line in said)
    assert kept[0].outcome.values["verdict"]["answer"] == "staged"


def test_without_counters_the_record_says_why(tmp_path, program):
    ports = FakePorts()
    ports.why = {"NVML": "No NVIDIA driver answers (x)."}
    loads, kept, findings, _ = serve(tmp_path, two_arms(program, MODEL), ports)
    assert all(isinstance(load.outcome, Measured) for load in loads)
    assert findings == []
    for record in kept:
        assert isinstance(record.outcome, Skipped)
    (row, _) = traffic_rows(kept)
    assert (row.n, row.agrees) == (0, None)
    assert row.reasons == ("NVML: No NVIDIA driver answers (x).",)
    assert traffic_lines((row,))[-1] == "tp2 p2p: NVML: No NVIDIA driver answers (x)."


def watched(tag, contender, moved, nvlink, pcie=0):
    """A batch in a child, as the offline lane watches it, with the recorded logs of such a run."""
    ports = FakePorts("GPU0", "GPU1", "GPU2", rate=1.0)
    meter = TrafficMeter(ports, sleep=lambda _: None, period_s=3600.0)
    run = replace(two_arms("engine", MODEL), contenders=(contender,))
    watch = PathWatch(meter, run, contender)
    watch.rest()
    watch.begin()
    for gpu in ("GPU0", "GPU1"):
        ports.move(gpu, nvlink, nvlink, pcie, pcie)
    ports.move("GPU2", 10**12, 0, 10**12, 0)
    logs = {path.name: path.read_bytes() for path in sorted((VLLM / "logs").glob(f"{tag}.*"))}
    return watch.end(moved, logs)


def contender_of(arm):
    return Contender(split=parse_split("tp2"), arm=arm)


def test_recorded_run_with_the_bytes_that_its_tokens_make():
    moved = moved_by_batch(8, 1024, 128, 8192)
    tokens = 8 * 1024 + 8 * 127
    seen = watched("llama8b_tp2", contender_of(Arm.P2P), moved, tokens * 65 * 8192 + 140 * MIB)
    # GPU2 is not one of the run's: its terabyte is left out.
    assert len(seen.traffic.moved) == 2
    assert (seen.check.deviation, seen.check.agrees) == (0.0, True)
    assert (seen.verdict.answer, seen.findings) == (PathAnswer.DIRECT, ())
    # Graph sizes are in the engine's log, so that a batch of 8 is not padded.
    assert seen.check.high_bytes / seen.check.low_bytes < 1.04


def test_own_all_reduce_that_is_off_leaves_nccl_and_its_protocol():
    moved = moved_by_batch(1, 1, 1001, 8192)
    payload = 1001 * 2 * 65 * 8192
    seen = watched("llama8b_tp2_nccl", contender_of(Arm.NCCL), moved, payload)
    assert seen.check.low_bytes == pytest.approx(2 * payload + 1001 * 2 * 128256, rel=0.01)
    assert seen.check.agrees is True


def test_a_variable_that_stages_nccl_alone_is_caught_by_the_bytes():
    moved = moved_by_batch(8, 1024, 128, 8192)
    seen = watched("llama8b_tp2_off", contender_of(Arm.STAGED), moved, 5 * 10**9, 0)
    codes = [finding.code for finding in seen.findings]
    assert codes == ["p2p-off-is-partial", "witnesses-disagree", "bytes-differ"]
    assert seen.verdict.answer is PathAnswer.DIRECT


def traffic(nvlink, pcie, **more):
    moved = GpuBytes(
        gpu="GPU0",
        nvlink_sent_bytes=nvlink,
        nvlink_received_bytes=nvlink,
        pcie_sent_bytes=pcie,
        pcie_received_bytes=0,
    )
    return Traffic(source="fake", duration_s=1.0, moved=(moved,), **more)


@pytest.fixture(scope="module")
def prefill():
    """8,192 tokens in one step: 8.7 GB, by Simple."""
    wire = Wire(split=parse_split("tp2"), arm=Arm.STAGED)
    return expected_bytes(read_model(MODEL), wire, moved_by_batch(1, 8192, 1, 8192))


@pytest.mark.parametrize(
    ("arm", "share", "agrees"),
    [
        (Arm.P2P, 1.0, True),
        (Arm.P2P, 1.09, True),
        (Arm.P2P, 0.91, True),
        (Arm.P2P, 1.12, False),
        (Arm.P2P, 0.88, False),
        # Packets of PCIe, and requests: 8 to 28 % more, and 10 % either way; beyond it polling.
        (Arm.STAGED, 1.0, True),
        (Arm.STAGED, 1.40, True),
        (Arm.STAGED, 0.95, False),
        (Arm.STAGED, 1.42, None),
    ],
)
def test_tolerance_of_a_prefill(prefill, arm, share, agrees):
    seen = round(prefill.payload_bytes * share)
    found = check_traffic(traffic(seen, seen), arm, prefill)
    assert found.agrees is agrees
    assert len(traffic_findings("tp2", found)) == (agrees is False)


def both(*sent_received):
    """Bytes of PCIe of each GPU, none of NVLink."""
    moved = tuple(
        GpuBytes(
            gpu=f"GPU{index}",
            nvlink_sent_bytes=0,
            nvlink_received_bytes=0,
            pcie_sent_bytes=round(sent * 1e9),
            pcie_received_bytes=round(received * 1e9),
        )
        for index, (sent, received) in enumerate(sent_received)
    )
    return Traffic(source="fake", duration_s=1.0, moved=moved)


def expected_of(split, *calls):
    wire = Wire(split=parse_split(split), arm=Arm.STAGED)
    parts = [moved_by_batch(*one[:3], 8192, one[3]) for one in calls]
    moved = replace(
        parts[0],
        prompt_tokens=sum(one.prompt_tokens for one in parts),
        prompts=sum(one.prompts for one in parts),
        decode=tuple(decode for one in parts for decode in one.decode),
    )
    return expected_bytes(read_model(MODEL), wire, moved, (1, 2, 4, 8, 16, 32, 64, 128))


def test_kernels_of_nccl_ask_the_host_for_every_128_bytes():
    """vLLM 0.24.0 on two H200, tp2 staged, 1 x 8,192: three calls of 33.319 GB for 26.173."""
    expected = expected_of("tp2", (1, 8192, 1, 3))
    assert expected.payload_bytes == pytest.approx(26.173e9, rel=1e-4)
    found = check_traffic(both((18.001, 15.144), (18.002, 15.146)), Arm.STAGED, expected)
    assert found.host_bytes == pytest.approx(33.319e9, rel=1e-3)
    assert (found.agrees, found.deviation) == (True, 0.0)
    # 24 bytes beside 128 written, 24 for 128 read, less what is taken off of the 148 answered.
    each = 1 + 24 / 128 + 24 / 128 - READ_REQUEST_SHARE * 148 / 128
    assert found.host_bytes / expected.payload_bytes == pytest.approx(each, rel=0.002)


POLLED = [
    # vLLM 0.24.0 on two H200, pp2 staged: calls, (sent, received) of GPU0 and GPU1, GB beyond.
    ([(1, 1024, 4, 1), (1, 1024, 1, 2), (1, 1024, 65, 2)], (0.200, 0.717), (0.501, 3.146), 0.358),
    ([(8, 1024, 4, 1), (8, 1024, 1, 2), (8, 1024, 65, 2)], (1.189, 3.310), (0.320, 2.196), 1.020),
    ([(1, 8192, 1, 3)], (0.598, 1.146), (0.091, 0.497), 0.541),
]


@pytest.mark.parametrize(("calls", "first", "second", "host_gb"), POLLED)
def test_what_receivers_poll_over_the_host_is_no_finding(calls, first, second, host_gb):
    expected = expected_of("pp2", *calls)
    found = check_traffic(both(first, second), Arm.STAGED, expected)
    assert found.host_bytes == pytest.approx(host_gb * 1e9, rel=0.02)
    assert traffic_findings("pp2 staged", found) == ()
    assert found.agrees is (None if found.deviation > expected.tolerance else True)
    # The same surplus over NVLink, where nobody polls, and a deficit on either path, are findings.
    sent = round(expected.high_bytes * 1.5)
    over = replace(both(first, second), moved=(traffic(sent, 0).moved[0],))
    assert traffic_findings("pp2 p2p", check_traffic(over, Arm.P2P, expected))
    less = both((0.5 * expected.low_bytes / 1e9, 0.0), (0.0, 0.0))
    (finding,) = traffic_findings("pp2 staged", check_traffic(less, Arm.STAGED, expected))
    assert "less than" in finding.seen


def test_a_surplus_says_why():
    expected = expected_of("pp2", (1, 1024, 65, 3))
    found = check_traffic(both((0.200, 0.717), (0.501, 3.146)), Arm.STAGED, expected)
    assert found.unknown.code == "host-surplus"
    assert found.deviation > 1


def test_what_cannot_be_compared_says_why(prefill):
    size = round(prefill.payload_bytes)
    blind = check_traffic(traffic(0, size, blind_gaps=3), Arm.STAGED, prefill)
    assert (blind.agrees, blind.unknown.code) == (None, "counters-wrapped")
    small = replace(prefill, low_bytes=1e6, high_bytes=1e6)
    assert check_traffic(traffic(0, 0), Arm.P2P, small).unknown.code == "too-little"
    silent = check_traffic(traffic(None, 0), Arm.P2P, prefill)
    assert (silent.unknown.code, silent.nvlink_bytes) == ("no-counters", None)
    reason = Reason(code="model-unknown", text="x")
    assert check_traffic(traffic(0, 0), Arm.P2P, reason).unknown == reason
    assert check_traffic(traffic(5, 0), None, None).over is None
