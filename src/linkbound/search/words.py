"""Why a choice is the best, in one sentence (D1)."""

from linkbound.predict.types import Estimate, Forecast, TermKind
from linkbound.search.types import Choice, Objective
from linkbound.units import format_significant, format_time

# Terms that differ by less than this share of a call explain nothing.
TELLING = 0.02
_LEADS = {
    Objective.LATENCY: "has the lowest latency",
    Objective.THROUGHPUT: "has the most throughput",
    Objective.CAPACITY: "holds the most sequences",
    Objective.GOODPUT: "has the most goodput",
}


def why(objective: Objective, best: Choice, other: Choice | None) -> str:
    """The best choice against the best one of another split, and where the difference is."""
    name = f"{best.plan.name} {_LEADS[objective]}, {_figure(objective, best)}"
    if objective is Objective.GOODPUT and not _value(objective, best):
        return (
            "No plan is predicted to keep the demands; "
            f"{best.plan.name} has the lowest latency of all."
        )
    if objective is Objective.GOODPUT and best.goodput_per_s and not best.goodput_per_s.low:
        name += ", though whether it keeps the demands is inside the error"
    if other is None:
        return f"{name}: no other split that was looked at holds the model and has a price."
    if objective is Objective.GOODPUT and not _value(objective, other):
        return f"{name}; no other split that was looked at is predicted to keep them."
    ahead = f"{other.plan.name} is next with {_figure(objective, other)}"
    if objective is Objective.CAPACITY:
        return f"{name}; {ahead}."
    told = f"{name}; {ahead}{_where(best.forecast, other.forecast)}"
    if _overlap(objective, best, other):
        return f"{told}, and the difference is inside the error."
    return f"{told}."


def no_plan(candidates: int, unheld: str, unpriced: tuple[str, ...]) -> str:
    """Why there is no best choice; `unheld` says why a split does not hold one sequence."""
    if not candidates:
        return f"No split of these GPUs holds one sequence of the load. {unheld}".rstrip()
    return f"No plan that fits has a price: {unpriced[0]}" if unpriced else "No plan has a price."


def _figure(objective: Objective, choice: Choice) -> str:
    match objective:
        case Objective.LATENCY:
            return f"~{format_time(choice.latency_s.value)}"
        case Objective.THROUGHPUT:
            return f"~{format_significant(choice.tokens_per_s.value)} tokens/s"
        case Objective.CAPACITY:
            return "any number of them" if choice.held is None else f"{choice.held:,}"
        case Objective.GOODPUT:
            return f"~{format_significant(_value(objective, choice))} requests/s"


def _value(objective: Objective, choice: Choice) -> float:
    found = _estimate(objective, choice)
    return 0.0 if found is None else found.value


def _estimate(objective: Objective, choice: Choice) -> Estimate | None:
    match objective:
        case Objective.LATENCY:
            return choice.latency_s
        case Objective.THROUGHPUT:
            return choice.tokens_per_s
        case _:
            return choice.goodput_per_s


def _overlap(objective: Objective, best: Choice, other: Choice) -> bool:
    one, two = _estimate(objective, best), _estimate(objective, other)
    return one is not None and two is not None and one.low <= two.high and two.low <= one.high


def _where(best: Forecast, other: Forecast) -> str:
    """The kind of term of which the other plan's call takes most more than the best one's."""
    more = {
        kind: _seconds(other, kind) - _seconds(best, kind) for kind in (*other.parts, *best.parts)
    }
    kind = max(more, key=more.__getitem__)
    if more[kind] < TELLING * other.latency_s.value:
        return ""
    mine = _seconds(best, kind)
    return (
        f", ~{format_time(_seconds(other, kind))} of a call for {kind.value} where this one takes "
        f"{f'~{format_time(mine)}' if mine else 'none'}"
    )


def _seconds(found: Forecast, kind: TermKind) -> float:
    part = found.parts.get(kind)
    return 0.0 if part is None else part.value
