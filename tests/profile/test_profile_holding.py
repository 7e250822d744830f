"""What each rank holds, and what the runtime refuses to compute."""

import pytest
from msgspec.structs import replace
from profile_models import MODELS

from linkbound.errors import UsageError
from linkbound.model.types import Attention, Recurrent
from linkbound.profile.holding import expert_bounds, hold, kv_heads, query_heads
from linkbound.splits.parse_split import parse_split
from linkbound.splits.ranks import rank_of


@pytest.mark.parametrize(
    ("heads", "split", "expected"),
    [
        (8, "tp2", [(0, 4), (4, 8)]),
        (2, "tp4", [(0, 1), (0, 1), (1, 2), (1, 2)]),
        (1, "tp2", [(0, 1), (0, 1)]),
    ],
)
def test_key_value_heads(heads: int, split: str, expected: list[tuple[int, int]]) -> None:
    mixer = Attention(query_heads=8, kv_heads=heads, key_dim=16, value_dim=16)
    degrees = parse_split(split)
    places = [rank_of(degrees, number) for number in range(degrees.gpus)]
    assert [kv_heads(mixer, degrees, place) for place in places] == expected
    whole = [query_heads(8, degrees, place) for place in places]
    assert [start for start, _ in whole] == [8 // degrees.tp * at for at in range(degrees.tp)]


def test_experts_that_do_not_divide_go_to_the_first_ranks() -> None:
    assert expert_bounds(6, parse_split("tp4 ep4")) == ((0, 2), (2, 4), (4, 5), (5, 6))
    assert expert_bounds(6, parse_split("ep2 x2 pp2")) == ((0, 3), (3, 6))
    assert expert_bounds(6, parse_split("tp2")) == ((0, 6),)


def test_stages_and_vocabulary_of_a_rank() -> None:
    held = hold(MODELS["dense"], parse_split("tp2 pp2:1,2"), 3)
    assert (held.first_layer, held.last_layer) == (1, 3)
    assert held.vocabulary == (128, 256)
    assert not held.is_first
    assert held.is_last


def test_layers_of_another_kind_are_refused() -> None:
    shape = MODELS["dense"]
    strange = replace(shape.layers[1], mixer=Recurrent(state_bytes=8.0))
    beside = replace(shape.layers[1], reductions=1)
    for layer, said in ((strange, "no softmax attention"), (beside, "side by side")):
        changed = replace(shape, layers=(shape.layers[0], layer, shape.layers[2]))
        with pytest.raises(UsageError, match=f"Layer 1 of .* has .*{said}"):
            hold(changed, parse_split("one"), 0)
