"""The host memory that a job on processors needs, beside what its ranks really make."""

import pytest
from msgspec.structs import replace
from profile_models import MODELS
from profile_results import job

from linkbound.profile.host_memory import host_bytes
from linkbound.profile.types import Device, Job, Point
from linkbound.splits.parse_split import parse_split
from linkbound.splits.types import Phase

PREFILL = Point(phase=Phase.PREFILL, batch=2, tokens=8)


def on_processors(name: str, split: str) -> Job:
    plain = replace(job(split, points=(PREFILL,)), shape=MODELS[name], device=Device.CPU)
    return replace(plain, alone=0) if plain.split.gpus > 1 else plain


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("split", ["one", "tp2", "pp2"])
def test_as_much_as_a_rank_makes(name: str, split: str) -> None:
    pytest.importorskip("torch", reason="the extra torch is not installed")
    from linkbound.profile.build import build
    from linkbound.profile.transport import Alone

    made_of = on_processors(name, split)
    network, _, maker = build(made_of, 0, Alone())
    network.allocate(PREFILL.batch, PREFILL.tokens)
    cached = 0
    for layer in network.layers:
        attention = layer.attention
        names = ("cache",) if hasattr(attention, "cache") else ("keys", "values")
        cached += sum(getattr(attention, one).nbytes for one in names)
    small = maker.float8_parameters
    made = (maker.parameters - small) * 4 + small + cached
    # A shape counts norms of queries and keys, which the runtime does not have; of 8-bit floats the
    # runtime keeps some matrices in float32.
    assert made * 0.9 <= host_bytes(made_of) <= made * 1.01


def test_all_ranks_of_the_largest_point_count() -> None:
    one = job("one", points=(PREFILL,))
    more = replace(PREFILL, batch=4)
    token = 3 * 2 * (16 + 16) * 4
    assert host_bytes(replace(one, points=(PREFILL, more))) - host_bytes(one) == 2 * 8 * token
    whole = job("x2", points=(PREFILL,))
    assert host_bytes(whole) == 2 * host_bytes(one)
    assert host_bytes(replace(one, split=parse_split("tp2"))) < 1.2 * host_bytes(one)
