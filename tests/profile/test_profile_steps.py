"""A step from graphs is the same step; one that cannot be captured is launched call by call."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch
from msgspec.structs import replace
from profile_models import MODELS

from linkbound.links.types import Launch
from linkbound.profile import steps
from linkbound.profile.build import build
from linkbound.profile.plan import points
from linkbound.profile.steps import ASKS_HOST, Step
from linkbound.profile.transport import Alone
from linkbound.profile.types import Device, Job, Point
from linkbound.splits.parse_split import parse_split
from linkbound.splits.types import Dispatch, Phase

PREFILL, DECODE = points([3], 12)
CHUNK_TOKENS = 5
"""Three chunks of each prompt, the last one shorter."""


class StandIn:
    """What a graph does, without a GPU: computes again from and to the same memory."""

    def __init__(self, network: Any, part: Any) -> None:
        self._compute: Callable[[], Any] = lambda: network.stage(*part, self._states)
        piece = part[0]
        self._states = None if network.held.is_first else network.boundary(piece)
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        self._compute()

    def pool(self) -> None:
        """There is none."""


def _job(point: Point, split: str = "one", **settings: Any) -> Job:
    return Job(
        shape=MODELS["mixture"],
        split=parse_split(split),
        arm=None,
        device=Device.CPU,
        points=(point,),
        chunk_tokens=CHUNK_TOKENS,
        **settings,
    )


def _step(job: Job) -> tuple[Step, Any]:
    """A step as of a GPU, on a CPU."""
    torch.manual_seed(0)
    network, _, _ = build(job, 0, Alone())
    return Step(network, replace(job, device=Device.CUDA), job.points[0], 4), network


def _logits(step: Step, network: Any) -> Any:
    step.reset()
    step.run()
    return network.logits.clone()


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda _: None)
    return monkeypatch


@pytest.mark.parametrize("point", [PREFILL, DECODE])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_step_from_graphs_leaves_the_same_logits(
    on_cpu: pytest.MonkeyPatch, point: Point, micro_batches: int
) -> None:
    made: list[StandIn] = []

    def capture(network: Any, part: Any, _: object) -> tuple[StandIn, None]:
        made.append(StandIn(network, part))
        return made[-1], None

    on_cpu.setattr(steps, "_capture_stage", capture)
    with torch.inference_mode():
        step, network = _step(_job(point, micro_batches=micro_batches))
        assert step.launch is Launch.EAGER
        expected, starts = _logits(step, network), network.starts.tolist()
        step.capture()
        assert (step.launch, step.eager_because) == (Launch.GRAPH, None)
        found = _logits(step, network)
    chunks = 9 if point.phase is Phase.PREFILL else 1
    assert [one.replays for one in made] == [1] * len(made)
    assert len(made) == chunks * (micro_batches if point.phase is Phase.DECODE else 1)
    assert network.starts.tolist() == starts
    assert torch.equal(found, expected)


def test_a_step_that_cannot_be_captured_says_why_and_runs(on_cpu: pytest.MonkeyPatch) -> None:
    def capture(*_: object) -> None:
        try:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        except RuntimeError as error:
            raise RuntimeError("the capture was invalidated") from error

    on_cpu.setattr(steps, "_capture_stage", capture)
    with torch.inference_mode():
        step, network = _step(_job(PREFILL))
        expected = _logits(step, network)
        step.capture()
        assert step.launch is Launch.EAGER
        assert step.eager_because == (
            "its capture failed: operation not permitted when stream is capturing"
        )
        assert torch.equal(_logits(step, network), expected)


def test_an_all_to_all_is_left_to_the_host() -> None:
    job = _job(PREFILL, "tp2 ep2")
    job = replace(job, split=replace(job.split, dispatch=Dispatch.ALL_TO_ALL))
    with torch.inference_mode():
        step, _ = _step(job)
        step.capture()
    assert (step.launch, step.eager_because) == (Launch.EAGER, ASKS_HOST)


def test_nothing_is_captured_on_a_cpu() -> None:
    job = _job(DECODE)
    with torch.inference_mode():
        network, _, _ = build(job, 0, Alone())
        step = Step(network, job, DECODE, 4)
        step.capture()
    assert (step.launch, step.eager_because) == (Launch.EAGER, None)
