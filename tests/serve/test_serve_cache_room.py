"""How large the caches of engines are that share their GPUs."""

from linkbound.model.read_model import read_model
from linkbound.serve.cache_room import room_bytes
from linkbound.splits.parse_split import parse_split

TOKEN = 8 * 128 * 2 * 2 * 32
"""Bytes of one token in all layers of llama-3.1-8b, bf16."""


def room(split, demands=((32, 1024), (1, 4096)), context=4096):
    return room_bytes(read_model("llama-3.1-8b"), parse_split(split), demands, context)


def test_the_largest_load_with_a_tenth_more_and_two_of_the_context():
    # A block more for each sequence.
    assert room("one") == int(1.1 * 32 * 1040 * TOKEN + 2 * 4112 * TOKEN)


def test_a_split_needs_a_part_on_each_gpu():
    assert room("tp2") == room("pp2") == room("one") // 2


def test_replicas_need_the_whole_each():
    assert room("x2") == room("one")


def test_the_widest_stage_decides():
    assert room("pp2:20,12") == int(room("one") * 20 / 32)


def test_ranks_beyond_the_heads_hold_the_same():
    assert room("tp16") == room("tp8")


def test_whole_blocks():
    assert room("one", demands=((1, 1),), context=1) == int(3.1 * 32 * TOKEN)
