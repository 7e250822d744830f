"""Copies between two GPUs in both arms: the right values arrive, whatever wrote them last."""

import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="the extra torch is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")
pytestmark = pytest.mark.gpu(2)
COPIES = """
import sys
import torch
from accelerate import hooks
from linkbound.serve.stage_copies import StageCopies

copies = StageCopies(staged=sys.argv[1] == "staged")
work = torch.randn(2048, 2048, device="cuda:0")
with copies.counted() as seen:
    for number in range(64):
        for _ in range(4):
            work = torch.tanh(work @ work)
        mark = torch.full((1 << number % 22,), number, dtype=torch.int32, device="cuda:0")
        there = hooks.send_to_device({"given": (mark + (work[0, 0] > 2),)}, 1)["given"][0]
        back = hooks.send_to_device(there * 2, torch.device("cuda:0"))
        assert back.device.index == 0 and bool((back == 2 * number).all()), number
assert [(one.src.index, one.dst.index) for one in seen] == [(0, 1), (1, 0)] * 64
found = copies.timed(seen)
assert (found.tensors, found.time_s > 0) == (128, True)
assert found.size_bytes == sum(2 * 4 * (1 << number % 22) for number in range(64))
"""


@pytest.mark.parametrize("arm", ["p2p", "staged"])
def test_copies_arrive_after_what_wrote_them(arm):
    done = subprocess.run(
        [sys.executable, "-c", COPIES, arm], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
