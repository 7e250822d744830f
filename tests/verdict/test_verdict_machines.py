"""Verdicts of whole studies, each on a recorded or a made machine, for the right reason."""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from verdict_cases import TP2, load, of_plan

from linkbound.evidence.study import Study
from linkbound.evidence.types import Measured, Record
from linkbound.links import Arm, Operation, PairRate
from linkbound.model.types import Load
from linkbound.splits.types import Split
from linkbound.study.markers import Stage
from linkbound.study.reading import read_verdicts
from linkbound.study.sources import Sources, read_recorded, read_sources
from linkbound.study.stages import request, run_stages
from linkbound.verdict.types import Answer, PlanVerdict, Verdict
from machines_made import ACROSS, RTX_4090, SAME_SOCKET, Link, Made, islands, write

KEEP, REJECT, UNDECIDED = Answer.KEEP, Answer.REJECT, Answer.UNDECIDED
TP4 = Split(tp=4)


def verdict_on(
    sources: Sources,
    asked: Load,
    path: Path,
    model: str = "llama-3.1-8b",
    add: Callable[[str], Iterator[Record]] | None = None,
) -> Verdict:
    """A whole study of one load; `add` makes more records of links for the machine's id."""
    with Study.create(path) as study:
        wanted = request(model, sources, (asked,))
        run_stages(study, wanted, lambda _stage, _held: None, Stage.LINKS)
        if add is not None:
            machine = study.find("topology.machine")[-1].machine
            assert machine is not None
            study.append_many(list(add(machine)))
        run_stages(study, wanted, lambda _stage, _held: None)
        ((_, found),) = read_verdicts(study)
        # Whatever a reason cites is in the study.
        for reason in found.reasons:
            for record_id in reason.record_ids:
                study.get(record_id)
    return found


def codes(one: PlanVerdict | Verdict) -> list[str]:
    return [reason.code for reason in one.reasons]


def text_of(found: Verdict, code: str, name: str = "") -> str:
    texts = [one.text for one in found.reasons if one.code == code and name in one.text]
    assert texts, (code, name, codes(found))
    return texts[0]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Verdict:
    """The recorded pair of H200 with 32 sequences at once."""
    path = tmp_path_factory.mktemp("pair") / "a.linkbound"
    return verdict_on(read_recorded("h200-pair"), load(1024, 65, 32), path)


def test_keep_on_the_recorded_pair(tmp_path: Path) -> None:
    found = verdict_on(read_recorded("h200-pair"), load(1024, 65, 1), tmp_path / "a.linkbound")
    assert found.answer is KEEP
    assert codes(of_plan(found, TP2, Arm.P2P)) == ["faster"]


def test_a_second_gpu_slower_on_the_recorded_pair(pair: Verdict) -> None:
    staged = of_plan(pair, TP2, Arm.STAGED)
    assert staged.answer is REJECT
    assert "second-gpu-slower" in codes(staged)


def test_the_link_does_not_matter_to_a_pipeline_on_the_recorded_pair(pair: Verdict) -> None:
    assert text_of(pair, "link-does-not-matter", "pp2").endswith("the speed.")
    assert "tp2" in text_of(pair, "link-matters")


def test_what_staging_takes_on_the_recorded_pair(pair: Verdict) -> None:
    """vLLM measured staged less NCCL: 1.80 (1.70 to 2.11) ms a token and 511 ms of the prefill at
    32 sequences (docs/accuracy.md); the plan's own all-reduce is faster than NCCL's.
    """
    (reason,) = [
        one for one in pair.reasons if one.code == "staging-share" and "tp2 takes" in one.text
    ]
    token, prefill = reason.figures
    assert token.low is not None
    assert token.high is not None
    assert 1.7e-3 < token.value < 2.3e-3
    assert token.high - token.low == pytest.approx(0.3 * token.value)
    assert 0.45 < prefill.value < 0.65
    assert "a token (" in reason.text
    assert "of its prefill (" in reason.text


def test_a_link_bound_plan_is_told_what_to_try(pair: Verdict) -> None:
    fewer = text_of(pair, "try-fewer-ranks", "tp2, staged")
    assert "With fewer tensor ranks, 2 replicas has ~" in fewer
    pipeline = text_of(pair, "try-pipeline", "tp2, staged")
    assert "As a pipeline of smaller groups, pp2, staged has ~" in pipeline
    # Two GPUs joined by NVLink: NCCL takes peer-to-peer by itself, and there is no other order.
    assert not {"try-nccl-level", "try-order"} & set(codes(pair))


def test_an_open_comparison_names_a_measurement_with_its_cost(tmp_path: Path) -> None:
    # Of 24 sequences tp2 and two copies serve about as many tokens a second; of 32 copies more.
    found = verdict_on(read_recorded("h200-pair"), load(1024, 65, 24), tmp_path / "a.linkbound")
    open_ones = [one for one in found.plans if one.answer is UNDECIDED]
    assert open_ones
    assert found.measurements
    for one in found.measurements:
        assert one.command.startswith("linkbound serve llama-3.1-8b ")
        assert one.cost.startswith("about ")
        assert "starts of some 90 s" in one.cost


def made(folder: Path, one: Made) -> Sources:
    return read_sources(str(write(folder, one)))


PAIRS = Made(
    name="pairs",
    link=islands(2, beside=ACROSS),
    gpus=4,
    nodes=(0, 0, 1, 1),
    groups=((0, 1), (0, 2), (0, 1, 2, 3)),
)
"""Two pairs of NVLink, a socket each."""


def test_islands_of_two_nvlink_pairs(tmp_path: Path) -> None:
    found = verdict_on(
        made(tmp_path, PAIRS), load(1024, 64, 8), tmp_path / "a.linkbound", "llama-3.1-70b"
    )
    inside, across = of_plan(found, TP2, Arm.P2P), of_plan(found, TP4, Arm.P2P)
    assert inside.answer is KEEP
    # Keys are bus ids: GPU0 and GPU1, which NVLink joins.
    assert [key[5:7] for key in inside.plan.placement.gpus] == ["01", "02"]
    assert across.answer is not KEEP
    # All four over the slow link: a pipeline of the two pairs is better.
    assert "tp2 pp2" in text_of(found, "try-pipeline", "tp4, p2p")
    assert found.plan is not None
    assert found.plan.split.tp == 2


def chipset(one: int, other: int) -> Link:
    """GPU1 hangs on the chipset, four lanes of an old generation; the others on the processor."""
    if 1 in (one, other):
        return Link("PHB", direct=3.0, staged=2.8, latency_us=25.0, staged_us=40.0)
    return Link("PHB", direct=24.0, staged=18.0, latency_us=12.0)


CHIPSET = Made(
    name="chipset", link=chipset, model=RTX_4090, memory="24GiB", gpus=4, groups=((0, 2), (0, 1))
)


def test_a_card_on_the_chipset(tmp_path: Path) -> None:
    found = verdict_on(made(tmp_path, CHIPSET), load(1024, 64, 8), tmp_path / "a.linkbound")
    four = of_plan(found, TP4, Arm.P2P)
    assert four.answer is not KEEP
    assert "slow-member" in codes(four)
    assert text_of(found, "slow-member", "tp4, p2p").startswith("tp4, p2p waits for GPU1 ")
    assert "at most at 3.00 GB/s, between the others at 24.00 GB/s and more" in text_of(
        found, "slow-member", "tp4, p2p"
    )
    # `nvidia-smi topo` calls all of its links PHB: only copies tell them apart.
    assert "With its ranks on GPU0, GPU2, it has ~" in text_of(found, "try-order", "tp2, p2p")


SLOW_PEERS = Made(
    name="slow-peers",
    link=lambda _one, _other: Link("PHB", direct=5.0, staged=20.0, latency_us=40.0, staged_us=18.0),
    model=RTX_4090,
    memory="24GiB",
    gpus=2,
    groups=((0, 1),),
)


def test_peer_to_peer_slower_than_staging(tmp_path: Path) -> None:
    found = verdict_on(made(tmp_path, SLOW_PEERS), load(1024, 64, 8), tmp_path / "a.linkbound")
    text = text_of(found, "link-slower-than-staging")
    assert text.startswith("Peer-to-peer is slower than staging here: with it tp2 has ~0.")
    assert "NCCL_P2P_DISABLE=1" in text
    assert "try-nccl-level" not in codes(found)
    if found.plan is not None and found.plan.split == TP2:
        assert found.plan.arm is Arm.STAGED


FAR_PAIR = Made(
    name="far-pair",
    link=lambda _one, _other: Link("SYS", direct=24.0, staged=6.0, latency_us=12.0, staged_us=60.0),
    gpus=2,
    nodes=(0, 1),
    groups=((0, 1),),
)


def test_a_pair_that_nccl_leaves_staged_by_itself(tmp_path: Path) -> None:
    found = verdict_on(made(tmp_path, FAR_PAIR), load(1024, 64, 8), tmp_path / "a.linkbound")
    text = text_of(found, "try-nccl-level")
    assert text.startswith("Some pairs of tp2 are joined by SYS, where NCCL leaves ")
    assert "set NCCL_P2P_LEVEL=SYS" in text


def beside_each_other(bytes_per_s: float) -> Callable[[str], Iterator[Record]]:
    """What the two pairs of GPUs reach while both copy."""

    def records(machine: str) -> Iterator[Record]:
        rates = [
            PairRate(
                src=f"GPU{src}",
                dst=f"GPU{dst}",
                operation=Operation.COPY,
                implementation="copy_engine",
                method="made up",
                bytes_per_s=bytes_per_s,
                arm=Arm.P2P,
                concurrency="disjoint pairs",
            )
            for src, dst in ((0, 1), (1, 0), (2, 3), (3, 2))
        ]
        yield Record(
            kind="links.rates",
            subject={"machine": "switched", "file": "made up"},
            outcome=Measured(values={"rates": msgspec.to_builtins(rates)}),
            method="made up",
            machine=machine,
        )

    return records


SWITCHED = Made(
    name="switched",
    link=lambda _one, _other: Link("PIX", direct=24.0, staged=12.0, latency_us=10.0),
    gpus=4,
    groups=((0, 1), (0, 1, 2, 3)),
)
"""Four GPUs below one switch."""
TWO_PAIRS = Split(tp=2, replicas=2)


@pytest.mark.parametrize(
    ("together", "code"),
    [(24e9, None), (16e9, "shared-path"), (0.4e9, "demand-above-contended")],
)
def test_two_groups_on_a_path_that_they_share(
    together: float, code: str | None, tmp_path: Path
) -> None:
    found = verdict_on(
        made(tmp_path, SWITCHED),
        load(1024, 64, 32),
        tmp_path / "a.linkbound",
        "llama-3.1-70b",
        beside_each_other(together),
    )
    both = of_plan(found, TWO_PAIRS, Arm.P2P)
    shared = [one for one in codes(both) if one in ("shared-path", "demand-above-contended")]
    assert shared == ([] if code is None else [code])
    if code == "demand-above-contended":
        assert both.answer is REJECT
        assert "400 MB/s" in text_of(found, code) or "0.40 GB/s" in text_of(found, code)
    if code is None:
        assert both.answer is not REJECT


def test_replicas_that_share_nothing_are_no_groups(tmp_path: Path) -> None:
    found = verdict_on(
        made(tmp_path, SWITCHED),
        load(1024, 64, 8),
        tmp_path / "a.linkbound",
        add=beside_each_other(1e9),
    )
    assert not any(
        code in codes(of_plan(found, TP4, arm))
        for code in ("shared-path", "demand-above-contended")
        for arm in (Arm.P2P, Arm.STAGED)
    )


def test_where_only_the_split_holds_it(tmp_path: Path) -> None:
    """A card of 24 GiB does not hold 32B parameters in 16 bits; four do."""
    one = Made(
        name="cards",
        link=lambda _one, _other: SAME_SOCKET,
        model=RTX_4090,
        memory="24GiB",
        gpus=4,
        groups=((0, 1), (0, 1, 2, 3)),
    )
    found = verdict_on(made(tmp_path, one), load(512, 64, 4), tmp_path / "a.linkbound", "qwen3-32b")
    assert found.answer is KEEP
    assert "capacity-only" in codes(of_plan(found, TP4, Arm.P2P))
