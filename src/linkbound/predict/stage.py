"""One step on one stage: max(host, device) of compute, crossings and waiting (S4, D5)."""

from operator import mul

from linkbound.evidence.types import Provenance
from linkbound.predict.calibration import Calibration, Constant
from linkbound.predict.compute import device_parts, host_s, launch_mode, padded_tokens
from linkbound.predict.cost import KINDS, Cost
from linkbound.predict.pace import Pace
from linkbound.predict.price import Priced
from linkbound.predict.pricing import PlanPrices
from linkbound.predict.schedule import Step
from linkbound.predict.types import Estimate, TermKind
from linkbound.predict.work import RankWork, step_work
from linkbound.serve.types import SchedulerRules
from linkbound.splits.types import Phase, Split

# Parts are laid out in this order below.
assert [kind.name for kind in KINDS] == [
    *("WEIGHTS", "MATRIX", "ATTENTION", "LAUNCH", "ROUTING"),
    *("CROSSINGS", "WAITING", "HOST", "OVERHEAD"),
]
_NOTHING = Estimate(value=0.0, low=0.0, high=0.0)
_CROSSINGS = KINDS.index(TermKind.CROSSINGS)
_HOST = KINDS.index(TermKind.HOST)
_OVERHEAD = KINDS.index(TermKind.OVERHEAD)


class StageCost:
    """The cost of a step on `stages` stages that do and send the same."""

    __slots__ = ("cost", "host_bound", "seconds", "stages")

    def __init__(self, cost: Cost, host_bound: bool) -> None:
        self.cost = cost
        self.host_bound = host_bound
        self.seconds = cost.seconds
        self.stages = 1


def phase_of(step: Step) -> Phase:
    """A step with any prompt in it launches and crosses as prefill does."""
    return Phase.PREFILL if step.chunks else Phase.DECODE


def stage_costs(
    prices: PlanPrices, step: Step, rules: SchedulerRules, pace: Pace
) -> tuple[StageCost, ...]:
    """One step on every stage; stages alike are worked out once. Raises NoForecast."""
    phase = phase_of(step)
    tokens = padded_tokens(step.tokens, rules)
    found: dict[tuple[int, Estimate | None], StageCost] = {}
    for stage, rank in enumerate(prices.ranks):
        crossing = prices.inside(stage, phase, tokens)
        key = (id(rank), None if crossing is None else crossing.time)
        if key in found:
            found[key].stages += 1
        else:
            found[key] = _stage_cost(rank, crossing, step, tokens, rules, pace, prices.plan.split)
    return tuple(found.values())


def _stage_cost(
    rank: RankWork,
    crossing: Priced | None,
    step: Step,
    tokens: int,
    rules: SchedulerRules,
    pace: Pace,
    split: Split,
) -> StageCost:
    lows, highs = pace.prefill_shares if step.chunks else pace.decode_shares
    device = device_parts(step_work(rank, step, tokens), pace)
    if crossing is None:
        time, wait = _NOTHING, 0.0
    else:
        time, wait = crossing.time, crossing.calls * pace.wait
    low, high = pace.wait_margin
    cost = Cost(
        [*device, time.value, wait, 0.0, 0.0],
        [*map(mul, device, lows), time.low, wait * low, 0.0, 0.0],
        [*map(mul, device, highs), time.high, wait * high, 0.0, 0.0],
    )
    mode = launch_mode(step.tokens, prefill=bool(step.chunks), rules=rules)
    launch_s = host_s(rank.layers, mode, crossing=crossing is not None, constants=pace.constants)
    device_s = cost.seconds
    if launch_s:
        _add_host(cost, launch_s, device_s, host_constant(pace.constants, split))
    return StageCost(cost, launch_s > device_s)


def _add_host(cost: Cost, launch_s: float, device_s: float, constant: Constant) -> None:
    """What the host takes longer than the device; its interval is that of the whole launch."""
    low = high = launch_s
    if constant.provenance is not Provenance.CALIBRATED:
        low *= constant.estimate.low / constant.value
        high *= constant.estimate.high / constant.value
    value, low, high = (max(0.0, one - device_s) for one in (launch_s, low, high))
    cost.put(_HOST, value, low, high)


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
