"""`linkbound trace` around copies of a known size between two real GPUs."""

import json
import os
import subprocess
import sys

import pytest

from linkbound.links.live.ports import open_ports

pytestmark = pytest.mark.gpu(2)
CALLS, SIZE_BYTES = 16, 512 * 1024**2
MOVED_BYTES = CALLS * SIZE_BYTES
DIRECT = f"""
import torch
src = torch.ones({SIZE_BYTES}, dtype=torch.uint8, device="cuda:0")
dst = torch.empty_like(src, device="cuda:1")
for _ in range({CALLS}):
    dst.copy_(src)
torch.cuda.synchronize(0)
torch.cuda.synchronize(1)
"""
# The same copies by a process that never asks for peer access: the driver stages them.
STAGED = f"""
import torch
from cuda.bindings import runtime
src = torch.ones({SIZE_BYTES}, dtype=torch.uint8, device="cuda:0")
dst = torch.empty({SIZE_BYTES}, dtype=torch.uint8, device="cuda:1")
torch.cuda.synchronize(0)
for _ in range({CALLS}):
    (code,) = runtime.cudaMemcpyPeer(dst.data_ptr(), 1, src.data_ptr(), 0, {SIZE_BYTES})
    assert code == runtime.cudaError_t.cudaSuccess, code
"""


def traced(code: str) -> dict:
    argv = (sys.executable, "-m", "linkbound.cli", "trace", "--json", "--limit", "120", "--")
    environment = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    done = subprocess.run(
        [*argv, sys.executable, "-c", code],
        capture_output=True,
        env=environment,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    document = json.loads(done.stdout)
    print(json.dumps(document["traffic"], indent=1))
    print(document["witnesses"])
    return document


def gpu(document: dict, index: int) -> dict:
    idle = {one["gpu"]: one for one in document["traffic"]["idle"]}
    share = document["traffic"]["duration_s"] / document["traffic"]["idle_duration_s"]
    moved = document["traffic"]["moved"][index]
    rest = idle[moved["gpu"]]
    names = [name for name in moved if name.endswith("_bytes")]
    return {name: moved[name] - (rest[name] or 0) * share for name in names if moved[name]}


@pytest.fixture(autouse=True)
def counters() -> None:
    silent = open_ports()
    if any(one.nvlink_sent_bytes is None for one in silent.ports()):
        pytest.skip(f"NVLink's byte counters do not answer here: {silent.silent()}")
    pytest.importorskip("torch", reason="the extra torch is not installed")


def test_a_direct_copy_is_counted_on_the_link() -> None:
    document = traced(DIRECT)
    assert document["answer"] == "direct"
    src, dst = gpu(document, 0), gpu(document, 1)
    assert src["nvlink_sent_bytes"] == pytest.approx(MOVED_BYTES, rel=0.05)
    assert dst["nvlink_received_bytes"] == pytest.approx(MOVED_BYTES, rel=0.05)
    links = document["traffic"]["moved"][0]["links"]
    each = [link["sent_bytes"] for link in links]
    assert sum(each) == document["traffic"]["moved"][0]["nvlink_sent_bytes"]
    assert max(each) < 1.1 * min(each)


def test_a_staged_copy_is_counted_to_the_host() -> None:
    pytest.importorskip("cuda.bindings.runtime")
    document = traced(STAGED)
    assert document["answer"] == "staged"
    src, dst = gpu(document, 0), gpu(document, 1)
    assert src.get("nvlink_sent_bytes", 0) < 0.01 * MOVED_BYTES
    assert document["traffic"]["blind_gaps"] == 0
    # Headers of PCIe's packets: 9.6 % sent and 8.0 % received on an H200 (docs/links.md).
    assert src["pcie_sent_bytes"] / 1.096 == pytest.approx(MOVED_BYTES, rel=0.05)
    assert dst["pcie_received_bytes"] / 1.080 == pytest.approx(MOVED_BYTES, rel=0.05)
