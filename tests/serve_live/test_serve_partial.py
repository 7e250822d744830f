"""NCCL's variable alone on a real vLLM: logs and counters of `scripts/gpu partial`."""

import gzip
from pathlib import Path

import msgspec

from linkbound.evidence.types import Level
from linkbound.links.traffic import Traffic
from linkbound.serve.counters import counter_witness
from linkbound.serve.path_types import PathAnswer
from linkbound.serve.trace_files import parse_trace_log
from linkbound.serve.witnesses import judge

PARTIAL = Path(__file__).parent / "recorded" / "partial"


def test_the_run_is_reported_as_not_staged():
    logs = [
        parse_trace_log(gzip.decompress(file.read_bytes()), file.stem)
        for file in sorted(PARTIAL.glob("*.gz"))
    ]
    traffic = msgspec.json.decode((PARTIAL / "traffic.json").read_bytes(), type=Traffic)
    found = judge(
        [one for log in logs for one in log.nccl],
        [one for log in logs for one in log.engines],
        [counter_witness(traffic)],
    )
    assert found.answer is PathAnswer.MIXED
    assert found.why.startswith(
        "Not staged: its custom all-reduce registered 144 addresses for CUDA graphs, and that "
        "works only over peer-to-peer. NCCL's part is staged."
    )
    (finding,) = found.findings
    assert (finding.code, finding.level) == ("p2p-off-is-partial", Level.SEEN)
    assert finding.seen == (
        "NCCL_P2P_DISABLE is 1, but vllm: its custom all-reduce registered 144 addresses for CUDA "
        "graphs; the counters: NVLink carried 2,011.0 MB, the host got at least 4,748.4 MB: both "
        "carried data."
    )
