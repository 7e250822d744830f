"""Every possible split, and which GPUs hold it."""

import itertools

import pytest
from shapes import LLAMA_8B, LLAMA_70B, MIXTRAL

from linkbound.errors import UsageError
from linkbound.splits import Split, enumerate_splits, impossible, parse_gpus, place
from linkbound.topology.types import Gpu, Machine, Pair, PairPath, PathKind


def names(splits):
    return [split.name for split in splits]


def test_two_gpus_of_a_dense_model():
    assert names(enumerate_splits(2, LLAMA_8B)) == ["one GPU", "tp2", "pp2", "2 replicas"]


def test_two_gpus_of_a_mixture():
    assert names(enumerate_splits(2, MIXTRAL)) == [
        "one GPU",
        "tp2",
        "tp2 ep2",
        "pp2",
        "2 replicas",
        "ep2 x2",
    ]


@pytest.mark.parametrize("shape", [LLAMA_8B, LLAMA_70B, MIXTRAL])
def test_all_splits_are_possible_unlike_and_small_enough(shape):
    found = enumerate_splits(8, shape)
    assert len(set(found)) == len(found)
    assert len(set(names(found))) == len(found)
    for split in found:
        assert split.gpus <= 8
        assert impossible(shape, split) is None
    assert {split.tp for split in found} == {1, 2, 4, 8}
    assert {split.pp for split in found} == set(range(1, 9))


def joined(count, kinds, **gpu_facts):
    """A machine of `count` GPUs; `kinds` maps a pair of indices to (kind, links)."""
    gpus = tuple(
        Gpu(key=f"id-{index}", label=f"GPU{index}", **{k: v[index] for k, v in gpu_facts.items()})
        for index in range(count)
    )
    pairs = []
    for one, other in itertools.permutations(range(count), 2):
        kind, links = kinds.get((min(one, other), max(one, other)), (PathKind.SYS, None))
        pair = Pair(src=gpus[one].key, dst=gpus[other].key)
        pairs.append(PairPath(pair=pair, kind=kind, nvlink_count=links))
    return Machine(sources=("test",), gpus=gpus, pairs=tuple(pairs))


BRIDGED = joined(4, {(0, 2): (PathKind.NVLINK, 4), (1, 3): (PathKind.NVLINK, 4)})


def test_tensor_groups_sit_on_nvlink_pairs():
    assert place(Split(tp=2), BRIDGED).gpus == ("id-0", "id-2")
    assert place(Split(tp=2, pp=2), BRIDGED).gpus == ("id-0", "id-2", "id-1", "id-3")
    assert place(Split(tp=2, replicas=2), BRIDGED).gpus == ("id-0", "id-2", "id-1", "id-3")


def test_a_pipeline_goes_to_the_nearest_gpu_that_is_left():
    assert place(Split(pp=4), BRIDGED).gpus == ("id-0", "id-2", "id-1", "id-3")


def test_more_links_are_better():
    machine = joined(
        3,
        {(0, 1): (PathKind.NVLINK, 2), (1, 2): (PathKind.NVLINK, 4), (0, 2): (PathKind.PIX, None)},
    )
    assert place(Split(tp=2), machine).gpus == ("id-1", "id-2")


def test_the_worst_link_of_a_group_counts():
    near = (PathKind.PIX, None)
    machine = joined(
        6,
        {
            (0, 1): (PathKind.NVLINK, 4),
            **dict.fromkeys(itertools.combinations((2, 3, 4, 5), 2), near),
        },
    )
    assert place(Split(tp=4), machine).gpus == ("id-2", "id-3", "id-4", "id-5")


def test_excluded_gpus_by_key_or_label():
    for name in ("id-0", "GPU0"):
        assert place(Split(tp=2), BRIDGED, (name,)).gpus == ("id-1", "id-3")
    with pytest.raises(UsageError, match="tp4 needs 4 GPUs, 3 of 4 are free"):
        place(Split(tp=4), BRIDGED, ("GPU0",))


def test_a_path_known_one_way_only_counts_as_unknown():
    pair = PairPath(pair=Pair(src="id-0", dst="id-1"), kind=PathKind.NVLINK, nvlink_count=4)
    both = [one for one in BRIDGED.pairs if one.kind is PathKind.SYS and "id-3" not in str(one)]
    gpus = BRIDGED.gpus[:3]
    machine = Machine(sources=("test",), gpus=gpus, pairs=(pair, *[
        one for one in both if {one.pair.src, one.pair.dst} == {"id-1", "id-2"}
    ]))  # fmt: skip
    assert place(Split(tp=2), machine).gpus == ("id-1", "id-2")


def test_unknown_links_leave_memory_to_decide():
    assert place(Split(tp=2), parse_gpus("16GiB,24GiB,24GiB")).gpus == ("GPU1", "GPU2")


def test_cores_and_nodes_come_from_the_gpu_where_known():
    machine = joined(2, {}, cpu_affinity=["0-15", None], numa_node=[0, None])
    placed = place(Split(tp=2), machine)
    assert placed.cores == {"id-0": "0-15"}
    assert placed.numa_nodes == {"id-0": 0}
