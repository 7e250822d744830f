"""One plan on one engine: what its stages are, and what crosses in a step of each size (S2, S4).

Everything that does not change from step to step is looked up once.
"""

import math
from collections.abc import Iterable

import msgspec

from linkbound.errors import LinkboundError
from linkbound.evidence.types import Provenance
from linkbound.model.types import ModelShape
from linkbound.predict.book import CurveBook
from linkbound.predict.price import NoCurve, Priced, price
from linkbound.predict.types import Estimate, Plan
from linkbound.predict.work import RankWork, is_mixture, is_quantised, rank_work
from linkbound.splits.crossings import crossings
from linkbound.splits.ranks import rank_of, same_time, stage_ranks
from linkbound.splits.types import Crossing, CrossingKind, Phase, Split

Source = tuple[Provenance, str, tuple[str, ...]]
"""How sure a figure is, what it rests on in words, and the records of that."""


StageKind = tuple[RankWork, Priced | None, int, frozenset[str]]
"""What a stage does, what crosses inside it, how many stages are so, and on which GPU models."""


class NoForecast(LinkboundError):
    """A plan cannot be priced: which crossing has no curve."""

    def __init__(self, missing: NoCurve) -> None:
        crossing = missing.crossing
        super().__init__(
            f"No time is known for {crossing.operation.value} of {crossing.size_bytes:,} bytes "
            f"over {', '.join(missing.group)} in arm {missing.arm.value}.",
            why="The split cannot be priced without it.",
            hint="Measure it, or give a table of nccl-tests for these GPUs.",
        )
        self.missing = missing


class ModelWork:
    """What a model makes each split do, kept: ranks and crossings depend on no machine."""

    def __init__(self, shape: ModelShape) -> None:
        self.shape = shape
        self.is_mixture = is_mixture(shape)
        self.is_quantised = is_quantised(shape)
        self._ranks: dict[Split, tuple[RankWork, ...]] = {}
        self._crossings: dict[tuple[Split, Phase, int], tuple[Crossing, ...]] = {}
        self._stages: dict[tuple[Split, Phase, int], tuple[tuple[Crossing, ...], ...]] = {}

    def ranks(self, split: Split) -> tuple[RankWork, ...]:
        """The work of the fullest rank of each stage; stages that do the same share one value."""
        if split not in self._ranks:
            known: list[RankWork] = []
            stages = []
            for stage in range(split.pp):
                found = rank_work(self.shape, split, stage)
                if found not in known:
                    known.append(found)
                stages.append(known[known.index(found)])
            self._ranks[split] = tuple(stages)
        return self._ranks[split]

    def crossings(self, split: Split, phase: Phase, tokens: int) -> tuple[Crossing, ...]:
        """All crossings of one step of `tokens` tokens in one replica."""
        key = (split, phase, tokens)
        if key not in self._crossings:
            # Without the gathering of logits: the constants of sampling are fitted to runs that had
            # it, and its size would be that of the sampled sequences, which is not asked for here.
            self._crossings[key] = crossings(self.shape, split, phase, tokens, tokens)
        return self._crossings[key]

    def inside(self, split: Split, phase: Phase, tokens: int) -> tuple[tuple[Crossing, ...], ...]:
        """The crossings inside each stage; the last entry holds those between stages."""
        key = (split, phase, tokens)
        if key not in self._stages:
            found: list[list[Crossing]] = [[] for _ in range(split.pp + 1)]
            for one in self.crossings(split, phase, tokens):
                sends = one.kind is CrossingKind.PIPELINE
                stage = split.pp if sends else rank_of(split, one.ranks[0]).stage
                found[stage].append(one)
            self._stages[key] = tuple(tuple(stage) for stage in found)
        return self._stages[key]


class PlanPrices:
    """The crossings of a plan, priced: inside each stage and between stages."""

    def __init__(self, work: ModelWork, book: CurveBook, plan: Plan) -> None:
        self.plan = plan
        self.ranks = work.ranks(plan.split)
        self.stages = plan.split.pp
        self._work = work
        self._book = book
        gpus = [book.gpu(key) for key in plan.placement.gpus]
        self._labels = tuple(gpu.label for gpu in gpus)
        self._models = [
            frozenset(gpus[rank].model or "" for rank in stage_ranks(plan.split, stage))
            for stage in range(plan.split.pp)
        ]
        self._inside: dict[tuple[int, Phase, int], Priced | None] = {}
        self._between: dict[tuple[Phase, int], Priced | None] = {}
        self._alike: dict[tuple[Phase, int], tuple[StageKind, ...]] = {}
        self._sources: dict[tuple[Phase, int], Source] = {}

    def inside(self, stage: int, phase: Phase, tokens: int) -> Priced | None:
        """What crosses inside a stage; None where nothing does. Raises NoForecast."""
        key = (stage, phase, tokens)
        if key not in self._inside:
            self._inside[key] = self._priced(
                self._work.inside(self.plan.split, phase, tokens)[stage]
            )
        return self._inside[key]

    def alike(self, phase: Phase, tokens: int) -> tuple[StageKind, ...]:
        """Stages by what they do and send in a step of this size, with how many of each."""
        key = (phase, tokens)
        if key not in self._alike:
            found: dict[tuple[int, Estimate | None, frozenset[str]], StageKind] = {}
            for stage, rank in enumerate(self.ranks):
                crossing = self.inside(stage, phase, tokens)
                models = self._models[stage]
                same = (id(rank), None if crossing is None else crossing.time, models)
                count = found[same][2] + 1 if same in found else 1
                found[same] = (rank, crossing, count, models)
            self._alike[key] = tuple(found.values())
        return self._alike[key]

    def between(self, phase: Phase, tokens: int) -> Priced | None:
        """All sends from stage to stage; None where there are none. Raises NoForecast."""
        key = (phase, tokens)
        if key not in self._between:
            self._between[key] = self._priced(self._work.inside(self.plan.split, phase, tokens)[-1])
        return self._between[key]

    def source(self, phase: Phase, tokens: int) -> Source:
        """What everything that crosses in a step of this size rests on."""
        key = (phase, tokens)
        if key not in self._sources:
            found = self._priced(self._work.crossings(self.plan.split, phase, tokens))
            assert found is not None, f"{self.plan.name} crosses nothing"
            self._sources[key] = (
                found.provenance,
                "; ".join(dict.fromkeys(curve.source for curve in found.curves)),
                tuple(dict.fromkeys(one for curve in found.curves for one in curve.record_ids)),
            )
        return self._sources[key]

    def _priced(self, wanted: Iterable[Crossing]) -> Priced | None:
        listed = tuple(self._slowest(one) for one in wanted)
        if not listed:
            return None
        arm = self.plan.arm
        assert arm is not None, f"{self.plan.name} crosses GPUs, so it talks over some arm"
        found = price(listed, self._labels, arm, self._book)
        if isinstance(found, NoCurve):
            raise NoForecast(found)
        return found

    def _slowest(self, crossing: Crossing) -> Crossing:
        """Of a crossing and those at the same time elsewhere the one that takes longest."""
        arm, split = self.plan.arm, self.plan.split
        sends = crossing.kind is CrossingKind.PIPELINE and split.tp > 1
        if arm is None or (split.replicas == 1 and not sends):
            return crossing
        ways = same_time(split, crossing.ranks)

        def time_s(ranks: tuple[int, ...]) -> float:
            group = tuple(self._labels[rank] for rank in ranks)
            found = self._book.read(crossing.operation, group, arm, crossing.size_bytes)
            return math.inf if found is None else found[0].time_s

        return msgspec.structs.replace(crossing, ranks=max(ways, key=time_s))
