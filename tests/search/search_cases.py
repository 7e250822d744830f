"""Machines, models and links that the tests of the search share, and a search without bounds."""

import json
import random
from collections.abc import Iterator
from functools import partial
from itertools import permutations
from typing import NamedTuple

import msgspec

from linkbound.evidence.types import Provenance
from linkbound.links import Arm, Operation
from linkbound.links.types import Curve, CurveKey, CurvePoint, Timed
from linkbound.model.parse_config import parse_config
from linkbound.model.types import Load, ModelShape
from linkbound.predict.assumed import wire_share
from linkbound.predict.book import CurveBook
from linkbound.predict.calibration import Calibration
from linkbound.predict.defaults import device_facts, prior_calibration
from linkbound.predict.forecast import call_cost
from linkbound.predict.plans import arms_of
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Plan
from linkbound.search.candidates import stagings
from linkbound.search.costs import Costs
from linkbound.search.scoring import score
from linkbound.search.types import Scores
from linkbound.search.units import unit_of, unit_splits
from linkbound.serve import VLLM
from linkbound.serve.load_types import Slo
from linkbound.splits.layouts import Layout, Signature, Unit, layouts, without
from linkbound.splits.modules import modules_of
from linkbound.splits.tree import Marks, Tree
from linkbound.splits.types import Split
from linkbound.topology.types import Gpu, Machine, Pair, PairPath, PathKind
from linkbound.units import GIB

FAST, SLOW = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"
TIERS = (PathKind.NVLINK, PathKind.PHB, PathKind.SYS)


class Tier(NamedTuple):
    """A kind of link in one arm."""

    latency_s: float
    bytes_per_s: float


Links = dict[tuple[PathKind, Arm], Tier]


class TierBook(CurveBook):
    """A call takes latency + wire bytes / bandwidth of the worst link of its group."""

    def __init__(self, machine: Machine, links: Links) -> None:
        super().__init__(machine, (), direct_limit_bytes=0)
        self._links = links
        label = {gpu.key: gpu.label for gpu in machine.gpus}
        self._kinds = {
            (label[path.pair.src], label[path.pair.dst]): path.kind for path in machine.pairs
        }

    def read(
        self, operation: Operation, group: tuple[str, ...], arm: Arm, size_bytes: int
    ) -> tuple[Timed, Curve]:
        wire = size_bytes * wire_share(operation, len(group))
        time_s = max(
            tier.latency_s + wire / tier.bytes_per_s
            for pair in permutations(group, 2)
            for kind in (self._kinds[pair],)
            if kind is not None
            for tier in (self._links[kind, arm],)
        )
        timed = Timed(time_s=time_s, low_s=time_s, high_s=time_s, provenance=Provenance.STATED)
        key = CurveKey(operation=operation, implementation="made", group=group, arm=arm)
        point = CurvePoint(size_bytes=size_bytes, time_s=time_s)
        return timed, Curve(key=key, points=(point,), source="made")


def islands(*sizes: int, memory_gib: float = 80, models: tuple[str, ...] = (FAST,)) -> Machine:
    """Islands of sizes[-1] GPUs, sizes[-2] of them in a socket and so on; models go round.

    The tiers, inside out, are NVLink, PHB and SYS, of which one size takes the first.
    """
    total = 1
    for size in sizes:
        total *= size

    def kind(one: int, other: int) -> PathKind:
        span = 1
        for at, size in enumerate(reversed(sizes)):
            span *= size
            if one // span == other // span:
                return TIERS[at]
        raise AssertionError

    return Machine(
        sources=("made",),
        gpus=tuple(
            Gpu(
                key=f"k{at}",
                label=f"GPU{at}",
                model=models[at % len(models)],
                memory_bytes=round(memory_gib * GIB),
                numa_node=at * 2 // total,
            )
            for at in range(total)
        ),
        pairs=tuple(
            PairPath(pair=Pair(src=f"k{src}", dst=f"k{dst}"), kind=kind(src, dst))
            for src, dst in permutations(range(total), 2)
        ),
    )


def small_model(
    *, layers: int = 4, heads: int = 4, experts: int = 0, hidden: int = 512
) -> ModelShape:
    """A model whose splits are few: tp and pp of up to four."""
    config: dict[str, object] = {
        "model_type": "mixtral" if experts else "llama",
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": hidden // heads,
        "vocab_size": 32000,
        "max_position_embeddings": 32768,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    }
    if experts:
        config |= {"num_local_experts": experts, "num_experts_per_tok": 2}
    return parse_config(json.dumps(config), "small")


def calibration(model: str) -> Calibration:
    return prior_calibration(device_facts(Gpu(key="x", label="x", model=model), ()))


def engine(machine: Machine, links: Links, shape: ModelShape) -> Engine:
    models = {gpu.model or "" for gpu in machine.gpus}
    others = {model: calibration(model) for model in models if model != FAST}
    return Engine(shape, TierBook(machine, links), VLLM, calibration(FAST), others=others)


def tree_of(machine: Machine) -> Tree:
    return Tree(modules_of(machine), len(machine.gpus))


def random_links(choose: random.Random) -> Links:
    """Every kind of link in every arm, in no order: peer-to-peer may be the slower one."""
    return {
        (kind, arm): Tier(
            latency_s=10 ** choose.uniform(-6, -4), bytes_per_s=10 ** choose.uniform(9, 11.5)
        )
        for kind in TIERS
        for arm in Arm
    }


SIZES: tuple[tuple[int, ...], ...] = (
    *((1,), (2,), (4,), (8,), (16,), (2, 2), (2, 3), (2, 4), (4, 2), (2, 8), (4, 4)),
    *((2, 2, 2), (2, 2, 4)),
)


class Case(NamedTuple):
    """A random question."""

    engine: Engine
    tree: Tree
    load: Load
    slo: Slo


def random_case(seed: int) -> Case:
    choose = random.Random(seed)
    sizes = choose.choice(
        [
            (1,),
            (2,),
            (4,),
            (8,),
            (2, 2),
            (2, 4),
            (4, 2),
            (2, 3),
            (2, 2, 2),
            (2, 2, 4),
            (2, 8),
            (4, 4),
            (16,),
        ]
    )
    total = 1
    for size in sizes:
        total *= size
    # Unlike GPUs, experts over replicas and long pipelines have many placements, which all are
    # priced by the search without bounds: larger machines have none of them.
    models = choose.choice([(FAST,), (FAST, SLOW)]) if total <= 6 else (FAST,)
    shape = small_model(
        layers=choose.choice([2, 3, 4]) if total <= 8 else 2,
        heads=choose.choice([2, 4]),
        experts=choose.choice([0, 0, 4]) if total <= 6 else 0,
        hidden=choose.choice([512, 1024]),
    )
    weights_gib = shape.weight_bytes / GIB
    machine = islands(*sizes, memory_gib=choose.uniform(0.4, 3) * weights_gib + 3, models=models)
    load = Load(
        prompt_tokens=choose.choice([16, 256, 2048]),
        output_tokens=choose.choice([1, 8, 64]),
        concurrency=choose.choice([1, 2, 5, 32]),
    )
    slo = Slo(
        ttft_s=10 ** choose.uniform(-3, 0),
        tpot_s=choose.choice([None, 10 ** choose.uniform(-4, -2)]),
    )
    return Case(engine(machine, random_links(choose), shape), tree_of(machine), load, slo)


def everything(case: Case) -> Iterator[tuple[Split, Scores]]:
    """Units with their scores: every split x placement x arm x limit, without bounds.

    No short cuts. Every copy is priced as a plan of its own; the worst of them counts.
    """
    costs, rules = Costs(case.engine, case.tree, case.load), case.engine.rules
    n_gpus = case.tree.size
    for unit in unit_splits(case.engine.shape, n_gpus):
        listed = _Listed(case.tree, unit_of(unit))
        for staged in stagings(costs, unit, listed.following(case.tree.free)):
            for copies in range(1, 2 if unit.replicas > 1 else n_gpus // unit.gpus + 1):
                for kinds in listed.sets(case.tree.free, copies):
                    rooms = {costs.room(staged, listed.layouts[one]) for one in kinds}
                    assert len(rooms) == 1, "GPUs of one memory"
                    (room,) = rooms
                    most = int(min(room // unit.replicas, rules.max_sequences))
                    for limit in {*(one for one in rules.graph_sizes if one <= most), most} - {0}:
                        for arm in arms_of(staged):
                            each = [
                                score(
                                    case.load,
                                    case.slo,
                                    copies * unit.replicas,
                                    limit,
                                    room * copies,
                                    partial(
                                        call_s,
                                        case,
                                        costs.plan(staged, (listed.layouts[one],), arm),
                                    ),
                                )
                                for one in kinds
                            ]
                            scores = Scores(
                                latency_s=max(one.latency_s for one in each),
                                tokens_per_s=min(one.tokens_per_s for one in each),
                                held=room * copies,
                                goodput_per_s=min(one.goodput_per_s for one in each),
                            )
                            yield staged, scores


class _Listed:
    """Which signatures copies of a unit can have together."""

    def __init__(self, tree: Tree, unit: Unit) -> None:
        self.tree = tree
        self.unit = unit
        self.layouts: dict[Signature, Layout] = {}
        self._known: dict[tuple[int, int], frozenset[frozenset[Signature]]] = {}
        self._following: dict[int, tuple[Layout, ...]] = {}

    def following(self, marks: Marks) -> tuple[Layout, ...]:
        form = self.tree.state_form(marks)
        if form not in self._following:
            self._following[form] = layouts(self.tree, self.unit, marks)
            for one in self._following[form]:
                self.layouts.setdefault(one.signature, one)
        return self._following[form]

    def sets(self, marks: Marks, copies: int) -> frozenset[frozenset[Signature]]:
        """Of a set and another that holds it, the larger costs no less: it is left out."""
        if copies == 0:
            return frozenset({frozenset()})
        key = (self.tree.state_form(marks), copies)
        if key not in self._known:
            found = {
                rest | {layout.signature}
                for layout in self.following(marks)
                for rest in self.sets(without(marks, layout), copies - 1)
            }
            self._known[key] = frozenset(
                one for one in found if not any(other < one for other in found)
            )
        return self._known[key]


def call_s(case: Case, plan: Plan, sequences: int, output: int) -> float:
    load = msgspec.structs.replace(case.load, output_tokens=output, concurrency=sequences)
    return call_cost(case.engine, plan, load).seconds
