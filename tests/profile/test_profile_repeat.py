"""The calls of a step behind products, and the products without them."""

from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch
from msgspec.structs import replace
from profile_models import MODELS

from linkbound.links.types import Arm, Launch, Operation
from linkbound.profile.build import build
from linkbound.profile.repeat import repeated
from linkbound.profile.transport import Alone
from linkbound.profile.types import Call, Device, Job
from linkbound.splits.parse_split import parse_split

ROWS = 3


class Counting(Alone):
    """Nobody is there: what would be sent is written down."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []

    def all_reduce(self, x: Any, ranks: tuple[int, ...]) -> Any:
        self.sent.append(("all_reduce", x.clone()))
        return super().all_reduce(x, ranks)

    def all_gather(self, x: Any, ranks: tuple[int, ...]) -> Any:
        self.sent.append(("all_gather", x.clone()))
        return super().all_gather(x, ranks)


def _network(transport: Alone) -> Any:
    job = Job(
        shape=MODELS["dense"],
        split=parse_split("tp2"),
        arm=Arm.NCCL,
        device=Device.CPU,
        points=(),
    )
    return build(job, 0, transport)[0]


def _calls(network: Any) -> list[Call]:
    hidden_bytes = network.held.shape.hidden * 4
    one = Call(
        kind="tensor",
        operation=Operation.ALL_REDUCE,
        implementation="none",
        ranks=(0, 1),
        size_bytes=ROWS * hidden_bytes,
        count=4,
    )
    # A gather of fewer elements than a row has: its product is written elsewhere.
    small = replace(
        one, operation=Operation.ALL_GATHER, size_bytes=2 * (hidden_bytes // 2), count=1
    )
    return [one, small]


def test_what_is_sent_is_the_product_before_it() -> None:
    transport = Counting()
    with torch.inference_mode():
        network = _network(transport)
        found = repeated(network, _calls(network), Launch.EAGER, 2 * ROWS)
        assert found is not None
        found.products()
        assert transport.sent == []
        found.with_calls()
        assert [name for name, _ in transport.sent] == ["all_reduce"] * 4 + ["all_gather"]
        sums = [x for name, x in transport.sent if name == "all_reduce"]
        # Three layers in turn: the fourth product is the first layer's again, and none has grown.
        assert [torch.equal(sums[0], one) for one in sums] == [True, False, False, True]


def test_a_call_with_two_sides_is_not_repeated() -> None:
    with torch.inference_mode():
        network = _network(Alone())
        sends = [replace(_calls(network)[0], operation=Operation.SEND_RECV)]
        assert repeated(network, sends, Launch.EAGER, ROWS) is None
        assert repeated(network, (), Launch.EAGER, ROWS) is None
