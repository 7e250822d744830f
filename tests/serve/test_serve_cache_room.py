"""How large the caches of engines are that share their GPUs."""

from linkbound.model.read_model import read_model
from linkbound.serve.cache_room import room_bytes
from linkbound.serve.plan import plan_contenders

TOKEN = 8 * 128 * 2 * 2 * 32
"""Bytes of one token in all layers of llama-3.1-8b, bf16."""


def room(*splits, demands=((32, 1024), (1, 4096))):
    contenders = plan_contenders(splits, (), None, external=False)
    return room_bytes(read_model("llama-3.1-8b"), contenders, demands)


def test_the_largest_load_with_a_tenth_more_and_two_of_the_longest():
    assert room("one") == int(1.1 * 32 * 1024 * TOKEN + 2 * 4096 * TOKEN)


def test_a_split_needs_a_part_on_each_gpu_and_the_widest_contender_decides():
    assert room("tp2") == room("pp2") == room("one") // 2
    assert room("tp2", "one") == room("one")


def test_ranks_beyond_the_heads_hold_the_same():
    assert room("tp16") == room("tp8")


def test_whole_blocks():
    assert room("one", demands=((1, 1),)) == int(3.1 * 16 * TOKEN)
