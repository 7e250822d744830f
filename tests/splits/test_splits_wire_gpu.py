"""What NCCL puts on the wire for each size, by the hardware's counters, against what is assumed.

Prints a row for each arm, operation and size: `pytest -s`. NCCL's TUNING lines are kept beside.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from linkbound.links.arms import nccl_environment
from linkbound.links.live.ports import open_ports
from linkbound.links.parse_nccl_log import parse_nccl_log
from linkbound.links.traffic import PCIE_OVERHEAD
from linkbound.links.types import Arm, Operation
from linkbound.links.wire import nccl_factor, payload_bytes

torch = pytest.importorskip("torch", reason="the extra torch is not installed")
pytestmark = pytest.mark.gpu(2)
SIZES = [1 << power for power in range(12, 27)]
# Housekeeping over PCIe is some 35 MB/s a GPU: a few percent of this.
LEAST_OVER_PCIE_BYTES = 64 << 20
RANK = """
import json, sys
import torch
import torch.distributed as dist
from linkbound.links.live.meter import open_meter
from linkbound.links.traffic import total

rank, sizes = int(sys.argv[1]), json.loads(sys.argv[2])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", rank=rank, world_size=2, device_id=torch.device("cuda", rank))
meter = open_meter() if rank == 0 else None
most = torch.zeros(max(sizes), dtype=torch.uint8, device="cuda")
whole = torch.zeros(max(sizes), dtype=torch.uint8, device="cuda")

def reduce(size):
    dist.all_reduce(most[:size].view(torch.bfloat16))

def gather(size):
    dist.all_gather_into_tensor(whole[:size], most[: size // 2])

def send(size):
    dist.send(most[:size], 1) if rank == 0 else dist.recv(most[:size], 0)

def together():
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()

together()
if meter is not None:
    meter.rest(0.5)
for name, call in (("all_reduce", reduce), ("all_gather", gather), ("send_recv", send)):
    for size in sizes:
        calls = min(3000, max(4, (128 << 20) // size))
        call(size)
        together()
        if meter is not None:
            meter.begin()
        for _ in range(calls):
            call(size)
        torch.cuda.synchronize()
        together()
        if meter is not None:
            seen = meter.end()
            names = ("nvlink_sent_bytes", "host_sent_bytes", "host_received_bytes")
            row = {"operation": name, "size": size, "calls": calls, "blind": seen.blind_gaps}
            row |= {one: total(seen, one) for one in names}
            row |= {"pcie_sent": sum(one.pcie_sent_bytes or 0 for one in seen.moved)}
            print("ROW " + json.dumps(row | {"duration_s": seen.duration_s}), flush=True)
        together()
dist.destroy_process_group()
"""


def rows_of(arm: Arm, folder: Path) -> list[dict[str, Any]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environment = {
        **os.environ,
        **nccl_environment(arm),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING",
        "NCCL_DEBUG_FILE": str(folder / "nccl.%p.log"),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), json.dumps(SIZES)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in (0, 1)
    ]
    try:
        ended = [rank.communicate(timeout=120) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, (_, errors) in zip(ranks, ended, strict=True):
        assert rank.returncode == 0, errors.decode()[-2000:]
    lines = ended[0][0].decode().splitlines()
    return [json.loads(line[4:]) for line in lines if line.startswith("ROW ")]


@pytest.mark.parametrize("arm", [Arm.P2P, Arm.STAGED])
def test_every_size_is_on_the_wire_as_assumed(arm: Arm, tmp_path: Path) -> None:
    ports = open_ports()
    if any(one.nvlink_sent_bytes is None for one in ports.ports()):
        pytest.skip(f"NVLink's byte counters do not answer here: {ports.silent()}")
    rows = rows_of(arm, tmp_path)
    log = "".join(path.read_text() for path in tmp_path.glob("nccl.*.log"))
    said = parse_nccl_log(log, "nccl")
    for choice in said.choices:
        print(
            f"{arm} said {choice.operation} {choice.size_bytes} {choice.algorithm} "
            f"{choice.protocol} x{choice.calls}"
        )
    direct = arm is Arm.P2P
    wrong = []
    for row in rows:
        operation, size = Operation(row["operation"]), row["size"]
        payload = payload_bytes(operation, 2, size) * row["calls"]
        nvlink, host = row["nvlink_sent_bytes"] / payload, row["host_sent_bytes"] / payload
        factor = nccl_factor(operation, size, direct=direct)
        low, high = factor.low, factor.high
        if not direct:
            low, high = low * PCIE_OVERHEAD[0], high * PCIE_OVERHEAD[1]
        print(
            f"{arm} {operation} {size:>9} B x{row['calls']}: NVLink {nvlink:.3f}, host {host:.3f} "
            f"(PCIe sent {row['pcie_sent'] / payload:.3f}, received "
            f"{row['host_received_bytes'] / payload:.3f}), assumed {low:.3f} to {high:.3f}, "
            f"{row['blind']} blind, {row['duration_s']:.2f} s"
        )
        if not direct and payload < LEAST_OVER_PCIE_BYTES:
            continue
        seen, other = (nvlink, host) if direct else (host, nvlink)
        if not low * 0.95 <= seen <= high * 1.05 or (not direct and other > 0.01):
            wrong.append((operation.value, size, seen, low, high))
    assert len(rows) == 3 * len(SIZES)
    assert wrong == []
    # NCCL's own word for an all-reduce and the bytes that passed speak of one protocol.
    for row in rows:
        if row["operation"] == "all_reduce" and direct:
            word = nccl_factor(Operation.ALL_REDUCE, row["size"], direct=True, choices=said.choices)
            if word.why.startswith("NCCL's log"):
                payload = payload_bytes(Operation.ALL_REDUCE, 2, row["size"]) * row["calls"]
                assert row["nvlink_sent_bytes"] / payload == pytest.approx(word.low, rel=0.05)
