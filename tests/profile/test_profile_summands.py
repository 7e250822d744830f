"""Sums that are written where peers read them: one buffer, used again by every all-reduce."""

from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch
from profile_models import MODELS

from linkbound.profile.build import build, prompts
from linkbound.profile.network import Network
from linkbound.profile.transport import Alone
from linkbound.profile.types import Device, Job, Point
from linkbound.splits.parse_split import parse_split
from linkbound.splits.types import Phase

PROMPT = Point(phase=Phase.PREFILL, batch=2, tokens=6)


class OneBuffer:
    """As two-shot over symmetric memory has it, of a rank whose peer adds nothing: in place."""

    IMPLEMENTATIONS = ("two_shot",)

    def __init__(self) -> None:
        self.buffer = torch.zeros(4096)

    def takes(self, size_bytes: int) -> bool:
        return size_bytes <= self.buffer.nbytes

    def implementation(self, _: int) -> str:
        return "two_shot"

    def input(self, rows: int, columns: int) -> Any:
        return self.buffer[: rows * columns].view(rows, columns)

    def reduce(self, x: Any) -> Any:
        assert x.data_ptr() == self.buffer.data_ptr()
        return x


def logits(network: Network, job: Job) -> list[Any]:
    network.allocate(PROMPT.batch, PROMPT.tokens + 2)
    found = []
    with torch.inference_mode():
        network.prefill(prompts(job, PROMPT, network.device), 0, 100, 1)
        found.append(network.logits.clone())
        for token in (3, 4):
            network.tokens.fill_(token)
            network.decode(1)
            found.append(network.logits.clone())
    return found


@pytest.mark.parametrize(
    ("model", "split"),
    [("dense", "tp2"), ("mixture", "tp2"), ("mixture", "tp2 ep2"), ("latent", "tp2 ep2")],
)
def test_no_sum_is_overwritten_while_it_is_needed(model: str, split: str) -> None:
    job = Job(
        shape=MODELS[model],
        split=parse_split(split),
        arm=None,
        device=Device.CPU,
        points=(PROMPT,),
        alone=0,
    )
    # A tensor of its own for every sum, then one buffer for all.
    apart, _, _ = build(job, 0, Alone())
    expected = logits(apart, job)
    together, _, _ = build(job, 0, Alone())
    together.exchange._symmetric = OneBuffer()  # type: ignore[assignment]
    found = logits(together, job)
    for one, right in zip(found, expected, strict=True):
        torch.testing.assert_close(one, right)
