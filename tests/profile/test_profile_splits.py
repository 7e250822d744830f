"""Every split computes what one process computes, and sends what splits.crossings lists."""

import itertools
from collections import Counter
from collections.abc import Iterable

import pytest

pytest.importorskip("torch", reason="the extra torch is not installed")

from msgspec.structs import replace
from profile_pair import (
    CASES,
    DECODES,
    GIVEN_TOKENS,
    PROMPT,
    RankResult,
    Results,
    job_of,
    run_all,
    run_case,
)

from linkbound.links.types import Operation
from linkbound.profile.decompose import align, decompose
from linkbound.profile.types import Call, Job
from linkbound.splits import Split, crossings
from linkbound.splits.types import Dispatch, Phase

TOLERANCE = 2e-4
"""Of logits whose deviation is about 1: float32 sums in another order, through three layers."""

TOLERANCE_FLOAT8 = 0.15
"""Of a row of logits, relative: each rank scales the rows of its own half of a row-parallel
product, so these round otherwise, 2 to 3 % a product; three layers have six of them in a row."""


@pytest.fixture(scope="session")
def split(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run_all(tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="session")
def single() -> dict[str, RankResult]:
    from linkbound.profile.transport import Alone

    models = {}
    for case, (model, *_) in CASES.items():
        if model not in models:
            job = replace(job_of(case), split=Split(), micro_batches=1, delay=None)
            models[model] = run_case(job, 0, Alone())
    return models


@pytest.mark.parametrize("case", sorted(CASES.keys() - GIVEN_TOKENS))
def test_split_gives_the_logits_of_one_process(
    split: Results, single: dict[str, RankResult], case: str
) -> None:
    expected = single[CASES[case][0]].logits
    assert expected is not None
    job = job_of(case)
    for number, result in enumerate(split[case]):
        last_stage = number // job.split.tp % job.split.pp == job.split.pp - 1
        assert (result.logits is not None) == last_stage
        if result.logits is None:
            continue
        for step in range(DECODES):
            rows = result.logits[step]
            # Of several micro-batches the last one's rows are left.
            wanted = expected[step][-len(rows) :]
            assert len(rows) == PROMPT.batch // job.micro_batches
            for row, right in zip(rows, wanted, strict=True):
                assert max(abs(a - b) for a, b in zip(row, right, strict=True)) < TOLERANCE


@pytest.mark.parametrize("case", sorted(GIVEN_TOKENS))
def test_split_of_8_bit_floats_is_near_one_process(split: Results, case: str) -> None:
    import torch

    from linkbound.profile.transport import Alone

    job = job_of(case)
    one = run_case(replace(job, split=Split()), 0, Alone(), given=True)
    expected = torch.tensor(one.logits)
    for result in split[case]:
        error = (torch.tensor(result.logits) - expected).norm(dim=-1) / expected.norm(dim=-1)
        assert 0 < error.median().item() < TOLERANCE_FLOAT8


def _predicted(job: Job, phase: Phase) -> Counter[tuple[str, Operation, int]]:
    tokens = PROMPT.batch * (PROMPT.tokens if phase is Phase.PREFILL else 1)
    counts: Counter[tuple[str, Operation, int]] = Counter()
    # Float32 on a CPU: the same crossings with elements twice as wide.
    shape = replace(job.shape, activation_bits=32)
    for one in crossings(shape, job.split, phase, tokens, PROMPT.batch, logits=True):
        counts[one.kind.value, one.operation, one.size_bytes] += one.count
    return counts


def _issued(calls: Iterable[tuple[int, Call]]) -> Counter[tuple[str, Operation, int]]:
    """Calls of these ranks; of a send the sender's."""
    counts: Counter[tuple[str, Operation, int]] = Counter()
    for rank, call in calls:
        received = call.operation is Operation.SEND_RECV and call.ranks[0] != rank
        if call.kind not in ("sampled", "routing") and not received:
            counts[call.kind, call.operation, call.size_bytes] += call.count
    return counts


COUNTED = sorted(
    case
    for case, (_, _, dispatch, settings) in CASES.items()
    if dispatch is not Dispatch.ALL_TO_ALL and "delay" not in settings and not settings
)


@pytest.mark.parametrize("case", COUNTED)
@pytest.mark.parametrize("phase", list(Phase))
def test_issued_calls_are_the_crossings(split: Results, case: str, phase: Phase) -> None:
    job, ranks = job_of(case), split[case]
    tp = job.split.tp
    of_replica = tp * job.split.pp
    for replica, tensor in itertools.product(range(job.split.replicas), range(tp)):
        start = replica * of_replica
        stages = range(start + tensor, start + of_replica, tp)
        calls = [(rank, call) for rank in stages for call in ranks[rank].calls[phase.value]]
        assert _issued(calls) == _predicted(job, phase)


def test_all_to_all_sends_each_token_once_to_every_rank_of_its_experts(split: Results) -> None:
    job = job_of("replicas all-to-all")
    tokens = PROMPT.batch * PROMPT.tokens
    row_bytes = job.shape.hidden * 4
    for result in split["replicas all-to-all"]:
        sizes = [
            call.size_bytes
            for call in result.calls["prefill"]
            for _ in range(call.count)
            if call.kind == "expert" and call.operation is Operation.ALL_TO_ALL
        ]
        assert len(sizes) == 2 * len(job.shape.layers)
        for size in sizes:
            assert size % row_bytes == 0
        dispatched = sizes[0] // row_bytes
        assert tokens <= dispatched <= 2 * tokens


def test_micro_batches_send_the_same_bytes_in_more_calls(split: Results) -> None:
    whole, parts = (
        sum(call.size_bytes * call.count for call in split[case][1].calls["decode"])
        for case in ("pp2", "pp2 micro-batches")
    )
    assert parts == whole


def test_the_rank_that_is_not_slowed_waits(split: Results) -> None:
    first, slowed = (result.timeline for result in split["delayed"])
    rows = decompose([first, slowed])
    assert len(rows) == 2 * DECODES
    waits = [sum(row.parts.waiting_s for row in rows if row.rank == rank) for rank in range(2)]
    assert waits[0] > waits[1]
    assert all(row.parts.unmatched_s == 0 for row in rows)
    offsets = align([first, slowed])
    assert offsets is not None
    assert abs(offsets[1].offset_s) <= offsets[1].error_s


@pytest.mark.parametrize("degree", [2, 4])
def test_a_shard_made_alone_is_the_slice_of_the_whole(degree: int) -> None:
    import torch

    from linkbound.profile.weights import Maker

    whole = Maker(7, torch.float32, torch.device("cpu")).matrix(
        "experts", (6, 8, 12), ((0, 6), (0, 8), (0, 12)), 12
    )
    each = 8 // degree
    for index in range(degree):
        columns = (index * each, (index + 1) * each)
        part = Maker(7, torch.float32, torch.device("cpu")).matrix(
            "experts", (6, 8, 12), ((2, 5), columns, (3, 12)), 12
        )
        assert torch.equal(part, whole[2:5, columns[0] : columns[1], 3:12])
    assert whole.std().item() == pytest.approx(12**-0.5, rel=0.1)
    assert len(whole.unique()) > 570


def test_another_seed_or_name_gives_other_weights() -> None:
    import torch

    from linkbound.profile.weights import Maker

    made = [
        Maker(seed, torch.float32, torch.device("cpu")).matrix(name, (64,), ((0, 64),), 1)
        for seed, name in ((0, "a"), (0, "b"), (1, "a"), (0, "a"))
    ]
    assert torch.equal(made[0], made[3])
    assert (made[0] == made[1]).sum() < 3
    assert (made[0] == made[2]).sum() < 3
