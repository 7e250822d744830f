"""One step on one stage: max(host, device) of compute, crossings and waiting (S4, D5)."""

from operator import mul

from linkbound.links.types import Arm
from linkbound.predict.calibration import (
    FULL_REST,
    LONG_REST_SHARE,
    Calibration,
    Constant,
)
from linkbound.predict.compute import device_parts, host_share, launch_mode, padded_tokens
from linkbound.predict.cost import KINDS, Cost
from linkbound.predict.imbalance import expert_imbalance
from linkbound.predict.pace import Pace, Paces
from linkbound.predict.price import Priced
from linkbound.predict.pricing import PlanPrices
from linkbound.predict.schedule import Step
from linkbound.predict.types import Estimate, TermKind
from linkbound.predict.work import RankWork, expert_cuts, step_work
from linkbound.serve.types import SchedulerRules
from linkbound.splits.types import Phase, Split

# Parts are laid out in this order below.
assert [kind.name for kind in KINDS] == [
    *("WEIGHTS", "MATRIX", "ATTENTION", "LAUNCH", "ROUTING"),
    *("CROSSINGS", "WAITING", "HOST", "OVERHEAD", "IMBALANCE"),
]
HOST_PATHS = (Arm.STAGED, Arm.NET)
_NOTHING = Estimate(value=0.0, low=0.0, high=0.0)
_CROSSINGS = KINDS.index(TermKind.CROSSINGS)
_HOST = KINDS.index(TermKind.HOST)
_OVERHEAD = KINDS.index(TermKind.OVERHEAD)


class StageCost:
    """The cost of a step on `stages` stages that do and send the same."""

    __slots__ = ("cost", "host_bound", "launch_s", "seconds", "stages")

    def __init__(self, cost: Cost, stages: int, launch_s: float, host_bound: bool) -> None:
        """`launch_s` is how long the host launches it, hidden or not."""
        self.cost = cost
        self.stages = stages
        self.launch_s = launch_s
        self.host_bound = host_bound
        self.seconds = cost.seconds


class _Rest:
    """How a GPU rests in a step with prompts: its clock gains by it where power sets the clock.

    Between products while data crosses the host, and whole steps while other stages compute. Decode
    steps are bound by memory, and a direct link is driven by the GPU itself.
    """

    __slots__ = ("_hosted", "_idle")

    def __init__(self, *, hosted: bool, rested: float) -> None:
        self._hosted = hosted
        self._idle = LONG_REST_SHARE * rested

    def share(self, crossing_s: float, device_s: float) -> float:
        """Of the gain of a GPU that rests `FULL_REST` of the time: 0 to 1."""
        if not self._hosted or not crossing_s:
            return self._idle
        return max(self._idle, min(1.0, crossing_s / (crossing_s + device_s) / FULL_REST))


def rested_in_row(stages: int, steps: int) -> float:
    """How far a stage rests, 0 to 1, while so many steps with prompts pass the stages in a row.

    The pipeline fills and runs empty: 1 from `FULL_REST` of the time on.
    """
    others = stages - 1
    return min(1.0, others / (others + steps) / FULL_REST)


def phase_of(step: Step) -> Phase:
    """A step with any prompt in it launches and crosses as prefill does."""
    return Phase.PREFILL if step.chunks else Phase.DECODE


def stage_costs(
    prices: PlanPrices, step: Step, rules: SchedulerRules, paces: Paces, rested: float = 0.0
) -> tuple[StageCost, ...]:
    """One step on every stage; stages alike are worked out once. Raises NoForecast.

    `rested`: how far a stage rests while others compute (`rested_in_row`).
    """
    tokens = padded_tokens(step.tokens, rules)
    share = host_share(launch_mode(tokens, prefill=bool(step.chunks), rules=rules))
    split = prices.plan.split
    rest = _Rest(hosted=prices.plan.arm in HOST_PATHS, rested=rested) if step.chunks else None
    return tuple(
        _stage_cost(rank, crossing, stages, step, tokens, share, paces.of(models), split, rest)
        for rank, crossing, stages, models in prices.alike(phase_of(step), tokens)
    )


def _stage_cost(
    rank: RankWork,
    crossing: Priced | None,
    stages: int,
    step: Step,
    tokens: int,
    share: float,
    pace: Pace,
    split: Split,
    rest: _Rest | None,
) -> StageCost:
    lows, highs = pace.prefill_shares if step.chunks else pace.decode_shares
    work = step_work(rank, step, tokens, expert_cuts(split))
    device, fuller = device_parts(work, pace), expert_imbalance(rank, work, pace, split.ep)
    if crossing is None:
        time, wait = _NOTHING, 0.0
    else:
        time, wait = crossing.time, crossing.calls * pace.wait
    least = most = device
    if rest is not None and (share_of_gain := rest.share(time.value + wait, sum(device))):
        gain, low_gain, high_gain = (share_of_gain * one for one in pace.rest_gain)
        least, most = device_parts(work, pace, high_gain), device_parts(work, pace, low_gain)
        device = device_parts(work, pace, gain)
    low, high = pace.wait_margin
    cost = Cost(
        [*device, time.value, wait, 0.0, 0.0, fuller.value],
        [*map(mul, least, lows), time.low, wait * low, 0.0, 0.0, fuller.low],
        [*map(mul, most, highs), time.high, wait * high, 0.0, 0.0, fuller.high],
    )
    device_s = sum(cost.value)
    host = pace.host if split.tp * split.ep == 1 else pace.host_split
    launches = tuple(
        share * (each + rank.layers * plain + rank.mixture_layers * routed)
        for each, plain, routed in zip(pace.host_step, host, pace.host_mixture, strict=True)
    )
    if launches[2] > device_s:
        # What the host takes longer than the device; its interval is that of the whole launch.
        cost.put(_HOST, *(max(0.0, one - device_s) for one in launches))
    return StageCost(cost, stages, launches[0], launches[0] > device_s)


def host_constant(constants: Calibration, split: Split) -> Constant:
    """The pace of launches: layers that call collectives are launched by several ranks."""
    return constants.host_layer_split_s if split.tp * split.ep > 1 else constants.host_layer_s


def add_sends(cost: Cost, prices: PlanPrices, step: Step, rules: SchedulerRules) -> None:
    """Add all sends between stages of one step, one after the other."""
    if prices.plan.split.pp == 1:
        return
    found = prices.between(phase_of(step), padded_tokens(step.tokens, rules))
    if found is not None:
        cost.put(_CROSSINGS, found.time.value, found.time.low, found.time.high)


def add_sampling(cost: Cost, step: Step, pace: Pace, times: int = 1) -> None:
    """Add what the engine spends on the sequences that get a token."""
    value = step.sampled * pace.sequence * times
    low, high = pace.sequence_margin
    cost.put(_OVERHEAD, value, value * low, value * high)
