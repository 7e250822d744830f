"""What to try where a split is bound by its links: fewer or nearer crossings, another path (D3)."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import permutations

from linkbound.links.types import Arm
from linkbound.predict.types import Forecast, Plan, PlanKey, TermKind
from linkbound.topology.types import Machine, PathKind
from linkbound.verdict.decide import Case
from linkbound.verdict.gain import time_gain
from linkbound.verdict.types import Reason
from linkbound.verdict.words import gain_figure, gain_text

LINK_BOUND = 0.2
"""Crossings and waiting take this share of a call or more."""
_LINK = (TermKind.CROSSINGS, TermKind.WAITING)
# NCCL from 2.23 on takes peer-to-peer up to PXB by itself, and to SYS on AMD hosts with two GPUs at
# most; up to 2.22 to SYS, but to PXB on Intel, ARM and Zhaoxin (paths.cc).
_BY_LEVEL = frozenset({PathKind.PHB, PathKind.NODE, PathKind.SYS})


def link_share(forecast: Forecast) -> float:
    """Share of the whole call that crossings and waiting for them take."""
    parts = (forecast.parts.get(kind) for kind in _LINK)
    return sum(part.value for part in parts if part is not None) / forecast.latency_s.value


def proposals(
    case: Case,
    machine: Machine,
    others: Mapping[PlanKey, Mapping[str, Forecast]],
) -> tuple[Reason, ...]:
    """What each link-bound split of the case could gain, one reason a kind of change.

    `others` holds, for a plan, the same split in another order (`order`) and over other kernels
    (their names), where there are any.
    """
    found: list[Reason] = []
    for mine in case.forecasts:
        if mine.plan.arm in (Arm.P2P, Arm.STAGED) and link_share(mine) >= LINK_BOUND:
            found += _of_plan(mine, case, others.get(mine.plan.key, {}))
        if mine.plan.arm is Arm.P2P:
            found += _of_path(mine, case, machine)
    return tuple(dict.fromkeys(found))


def _of_plan(mine: Forecast, case: Case, others: Mapping[str, Forecast]) -> Iterator[Reason]:
    split = mine.plan.split
    same = [one for one in case.forecasts if one.plan.arm in (None, mine.plan.arm)]
    fewer = [
        one
        for one in same
        if one.plan.split.tp < split.tp
        and one.plan.split.pp == split.pp
        and one.plan.split.gpus <= split.gpus
    ]
    yield from _best("try-fewer-ranks", "With fewer tensor ranks", mine, fewer, case)
    staged = [
        one
        for one in same
        if one.plan.split.pp > split.pp
        and one.plan.split.tp < split.tp
        and one.plan.split.gpus == split.gpus
    ]
    yield from _best("try-pipeline", "As a pipeline of smaller groups", mine, staged, case)
    for name, one in others.items():
        if name == "order":
            labels = ", ".join(case.labels.get(key, key) for key in one.plan.placement.gpus)
            yield from _best("try-order", f"With its ranks on {labels}", mine, [one], case)
        else:
            yield from _best(
                "try-kernel",
                f"With the all-reduce that was timed here as {name} in its engine",
                mine,
                [one],
                case,
            )


def _best(
    code: str, how: str, mine: Forecast, others: Iterable[Forecast], case: Case
) -> Iterator[Reason]:
    """The best of the others, where it gains enough to be worth a word."""
    best = min(others, key=lambda one: one.latency_s.value, default=None)
    if best is None:
        return
    gain = time_gain(best, mine, case.gain_error)
    if gain.value < 1 + case.min_gain:
        return
    other = "it" if best.plan.split == mine.plan.split else best.plan.name
    yield Reason(
        code=code,
        text=f"{mine.plan.name} spends {link_share(mine):.0%} of a call on its links. {how}, "
        f"{other} has {gain_text(gain)} its speed.",
        figures=(gain_figure(gain),),
        record_ids=tuple(dict.fromkeys((*mine.record_ids, *best.record_ids))),
    )


def _of_path(mine: Forecast, case: Case, machine: Machine) -> Iterator[Reason]:
    """Whether NCCL would take the direct path by itself, and which way is faster."""
    plan = mine.plan
    staged = next(
        (
            one
            for one in case.forecasts
            if one.plan.split == plan.split and one.plan.arm is Arm.STAGED
        ),
        None,
    )
    far = sorted({kind.value for kind in _kinds(plan, machine) if kind in _BY_LEVEL})
    if staged is None or not far:
        return
    gain = time_gain(mine, staged, 0.0)
    if gain.value < 1 + case.min_gain:
        return
    yield Reason(
        code="try-nccl-level",
        text=f"Some pairs of {plan.split.name} are joined by {', '.join(far)}, where NCCL leaves "
        "peer-to-peer off by itself in most versions: set NCCL_P2P_LEVEL=SYS and look for P2P in "
        f"its log. With it the split has {gain_text(gain)} the speed it has when staged.",
        figures=(gain_figure(gain),),
        record_ids=tuple(dict.fromkeys((*mine.record_ids, *staged.record_ids))),
    )


def _kinds(plan: Plan, machine: Machine) -> set[PathKind]:
    """Paths between GPUs of one replica."""
    size = plan.split.tp * plan.split.pp
    keys = plan.placement.gpus
    groups = [keys[at : at + size] for at in range(0, len(keys), size)]
    paths = {(path.pair.src, path.pair.dst): path.kind for path in machine.pairs}
    found = {paths.get(pair) for group in groups for pair in permutations(group, 2)}
    return {kind for kind in found if kind is not None}
