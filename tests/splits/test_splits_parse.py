"""Splits and GPUs as people write them; anything else is one clear error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shapes import MIXTRAL

from linkbound.errors import UsageError
from linkbound.splits import Dispatch, Split, enumerate_splits, parse_gpus, parse_split
from linkbound.splits.parse_gpus import state_memories
from linkbound.units import GIB


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("tp2", Split(tp=2)),
        ("pp2", Split(pp=2)),
        ("tp2pp2", Split(tp=2, pp=2)),
        ("tp2 pp2", Split(tp=2, pp=2)),
        ("PP2,TP4", Split(tp=4, pp=2)),
        ("2x", Split(replicas=2)),
        ("x2", Split(replicas=2)),
        ("replicas2", Split(replicas=2)),
        ("2 replicas", Split(replicas=2)),
        ("tp2 2x", Split(tp=2, replicas=2)),
        ("tp2x2", Split(tp=2, replicas=2)),
        ("tp=2 pp=4", Split(tp=2, pp=4)),
        ("tp2 ep2", Split(tp=2, ep=2)),
        ("ep2 x2", Split(ep=2, replicas=2, dispatch=Dispatch.GATHER_SCATTER)),
        ("one GPU", Split()),
        ("one", Split()),
        ("tp1", Split()),
        ("pp2:20,12", Split(pp=2, stage_layers=(20, 12))),
        ("tp2:3,1 pp2", Split(tp=2, pp=2, tensor_ratio=(3.0, 1.0))),
    ],
)
def test_what_people_write(text, split):
    assert parse_split(text) == split


@pytest.mark.parametrize(
    "split",
    [
        *enumerate_splits(8, MIXTRAL),
        Split(pp=2, stage_layers=(20, 12)),
        Split(tp=2, pp=3, replicas=2, tensor_ratio=(2.5, 1.0), stage_layers=(10, 12, 10)),
    ],
    ids=lambda split: split.name,
)
def test_a_name_is_read_back(split):
    assert parse_split(split.name) == split


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tp", "'tp' is no degree"),
        ("tp2 banana", "'banana' is no degree"),
        ("tp0", "tp must be at least 1, not 0"),
        ("tp2 tp4", "tp is named twice"),
        ("ep3 tp2", "ep 3 is neither tp = 2"),
        ("pp2:20,12,3", "3 stage sizes (20, 12, 3) for pp 2"),
        ("pp2:1.5,2", "invalid literal"),
        ("tp2:0,1", "a tensor ratio must be above 0"),
        ("ep2:1,1 tp2", "only tp and pp take parts"),
        ("tp99999", "is no degree"),
    ],
)
def test_other_words_are_refused_with_the_reason(text, words):
    with pytest.raises(UsageError) as caught:
        parse_split(text)
    assert words in caught.value.seen
    assert caught.value.hint.startswith("Write tp2")


@given(st.text(max_size=40) | st.text(alphabet="tpxe0123456789:,. replicas", max_size=30))
def test_any_text_is_a_split_or_one_error(text):
    try:
        split = parse_split(text)
    except UsageError:
        return
    assert split.gpus >= 1


def sizes(text):
    return [gpu.memory_bytes / GIB for gpu in parse_gpus(text).gpus]


def test_gpus_by_their_memory():
    assert sizes("2x24GiB") == [24, 24]
    assert sizes("24GiB,16GiB") == [24, 16]
    assert sizes("2x24GiB, 1 x 16GiB") == [24, 24, 16]
    assert sizes("24G") == [24]
    assert parse_gpus("24GB").gpus[0].memory_bytes == 24_000_000_000
    machine = parse_gpus("2x24GiB")
    assert [gpu.label for gpu in machine.gpus] == ["GPU0", "GPU1"]
    assert machine.pairs == ()
    assert machine.sources == ("stated: 2x24GiB",)


@pytest.mark.parametrize(
    "text", ["", "2x", "x24GiB", "0x24GiB", "2x24", "65x24GiB", "40x8GiB,40x8GiB", "nan", "2x-1GiB"]
)
def test_other_gpus_are_refused(text):
    with pytest.raises(UsageError):
        parse_gpus(text)


def test_memories_can_be_stated_for_a_machine():
    machine = parse_gpus("2x24GiB")
    stated = state_memories(machine, "16GiB,8GiB")
    assert [gpu.memory_bytes for gpu in stated.gpus] == [16 * GIB, 8 * GIB]
    assert stated.sources == ("stated: 2x24GiB", "stated: 16GiB,8GiB")
    with pytest.raises(UsageError, match="names 3 GPUs, the machine has 2"):
        state_memories(machine, "3x8GiB")


@given(st.text(max_size=40) | st.text(alphabet="x0123456789,.GiBM ", max_size=30))
def test_any_text_is_gpus_or_one_error(text):
    try:
        machine = parse_gpus(text)
    except UsageError:
        return
    assert 1 <= len(machine.gpus) <= 64
    assert all(gpu.memory_bytes >= 1024**2 for gpu in machine.gpus)
