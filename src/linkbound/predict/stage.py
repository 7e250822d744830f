"""One step on one stage: max(host, device) of compute, crossings and waiting (S4, D5)."""

from operator import mul

from linkbound.predict.calibration import Calibration, Constant
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


def phase_of(step: Step) -> Phase:
    """A step with any prompt in it launches and crosses as prefill does."""
    return Phase.PREFILL if step.chunks else Phase.DECODE


def stage_costs(
    prices: PlanPrices, step: Step, rules: SchedulerRules, paces: Paces
) -> tuple[StageCost, ...]:
    """One step on every stage; stages alike are worked out once. Raises NoForecast."""
    tokens = padded_tokens(step.tokens, rules)
    share = host_share(launch_mode(tokens, prefill=bool(step.chunks), rules=rules))
    split = prices.plan.split
    return tuple(
        _stage_cost(rank, crossing, stages, step, tokens, share, paces.of(models), split)
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
) -> StageCost:
    lows, highs = pace.prefill_shares if step.chunks else pace.decode_shares
    work = step_work(rank, step, tokens, expert_cuts(split))
    device, fuller = device_parts(work, pace), expert_imbalance(rank, work, pace, split.ep)
    if crossing is None:
        time, wait = _NOTHING, 0.0
    else:
        time, wait = crossing.time, crossing.calls * pace.wait
    low, high = pace.wait_margin
    cost = Cost(
        [*device, time.value, wait, 0.0, 0.0, fuller.value],
        [*map(mul, device, lows), time.low, wait * low, 0.0, 0.0, fuller.low],
        [*map(mul, device, highs), time.high, wait * high, 0.0, 0.0, fuller.high],
    )
    device_s = sum(cost.value)
    host = pace.host if split.tp * split.ep == 1 else pace.host_split
    launches = rank.layers * share
    if launches * host[2] > device_s:
        # What the host takes longer than the device; its interval is that of the whole launch.
        cost.put(_HOST, *(max(0.0, launches * one - device_s) for one in host))
    return StageCost(cost, stages, launches * host[0], launches * host[0] > device_s)


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
