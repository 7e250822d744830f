"""The runtime on a GPU against the same weights in float32 on a CPU, and one real profile."""

from pathlib import Path
from typing import Any

import profile_gpus
import pytest
from msgspec.structs import replace
from profile_models import MODELS

from linkbound.links.types import Arm, Launch
from linkbound.profile.launch import run_job
from linkbound.profile.plan import points
from linkbound.profile.summary import rows
from linkbound.profile.types import Device, Job
from linkbound.splits.parse_split import parse_split
from linkbound.splits.types import Phase

torch = pytest.importorskip("torch", reason="the extra torch is not installed")

TOLERANCE = 0.05
"""Relative error of a row of logits: bf16 products through three layers give 1 to 2 %."""
TOLERANCE_FLOAT8 = 0.25
"""Of 8-bit floats: a number between two is rounded up here and down there, 6 % apart. Computed in
bf16 on a CPU it is 9 to 14 %; with a scale left out it would be near 100 %."""
STEPS = 3


def _logits(job: Job) -> Any:
    from linkbound.profile.build import build, prompts
    from linkbound.profile.transport import Alone

    prompt = job.points[0]
    network, _, _ = build(job, 0, Alone())
    network.allocate(prompt.batch, prompt.tokens + STEPS)
    tokens = prompts(job, prompt, network.device)
    found = []
    with torch.inference_mode():
        network.prefill(tokens, 0, 16, 1)
        for step in range(STEPS):
            # The same tokens everywhere: an argmax between near equals would part the ways.
            network.tokens.fill_(step + 3)
            network.decode(1)
            assert network.logits is not None
            found.append(network.logits.float().cpu())
    return torch.stack(found)


@pytest.mark.gpu(1)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("model", sorted(MODELS))
def test_logits_agree_with_a_cpu(model: str, batch: int) -> None:
    job = Job(
        shape=MODELS[model],
        split=parse_split("one"),
        arm=None,
        device=Device.CUDA,
        points=points([batch], 40),
    )
    expected = _logits(replace(job, device=Device.CPU))
    found = _logits(job)
    error = (found - expected).norm(dim=-1) / expected.norm(dim=-1)
    # The median: a token whose experts are nearly equal may take others after rounding.
    assert error.median().item() < (TOLERANCE_FLOAT8 if model.startswith("fp8") else TOLERANCE)


@pytest.mark.gpu(1)
@pytest.mark.parametrize("model", ["fp8", "fp8_mixture"])
def test_steps_of_8_bit_floats_are_replayed_from_graphs(model: str) -> None:
    job = Job(
        shape=MODELS[model],
        split=parse_split("one"),
        arm=None,
        device=Device.CUDA,
        points=points([1, 8], 64),
        steps=8,
        traced_steps=2,
    )
    result = run_job(job, limit_s=120)
    assert result.findings == ()
    found = rows([result])
    assert len(found) == len(job.points)
    for row in found:
        assert row.launch == Launch.GRAPH
        assert row.float8_share > 0.7
        assert [text for text in row.bf16_because if not text.startswith("cache")] == []


@pytest.mark.gpu(2)
@pytest.mark.parametrize("arm", [Arm.P2P, Arm.NCCL, Arm.STAGED])
@pytest.mark.parametrize(
    ("model", "split"), [("dense", "tp2"), ("dense", "pp2"), ("mixture", "tp2 ep2")]
)
def test_a_pair_is_profiled_on_the_path_of_its_arm(model: str, split: str, arm: Arm) -> None:
    job = Job(
        shape=MODELS[model],
        split=parse_split(split),
        arm=arm,
        device=Device.CUDA,
        points=points([4], 64),
        steps=8,
        traced_steps=2,
    )
    result = run_job(job, limit_s=120)
    assert result.findings == ()
    assert result.path == ("staged" if arm is Arm.STAGED else "direct")
    found = rows([result])
    assert [row.point.phase for row in found] == [Phase.PREFILL, Phase.DECODE]
    for row in found:
        assert row.issued_bytes == row.crossing_bytes
        assert row.parts is not None
        assert row.parts.unmatched_s == 0
        assert row.instrument_s is not None
        assert -0.05 < row.instrument_s / row.step_s < 1
        repeatable = row.launch == Launch.EAGER or arm is not Arm.STAGED
        assert (row.calls_s is not None) == (job.split.tp > 1 and repeatable)


@pytest.mark.gpu(2)
@pytest.mark.parametrize("arm", [Arm.P2P, Arm.NCCL])
@pytest.mark.parametrize(("model", "split"), [("dense", "tp2"), ("mixture", "tp2 ep2")])
def test_a_pair_gives_the_logits_of_one_process(
    tmp_path: Path, model: str, split: str, arm: Arm
) -> None:
    from linkbound.profile.transport import Alone

    whole = profile_gpus.logits(profile_gpus.job_of(model, "one", None, Device.CPU), 0, Alone())
    expected = torch.tensor(whole)
    found = torch.tensor(profile_gpus.logits_of_two(tmp_path, model, split, arm))
    error = (found - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert error.median(dim=-1).values.max().item() < TOLERANCE
