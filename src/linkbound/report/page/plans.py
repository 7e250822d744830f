"""Plans side by side on one scale, and where the time of a step goes (D1, S4, E3)."""

from collections.abc import Sequence

from linkbound.predict.types import Forecast, StepTime, TermKind
from linkbound.report.page.markup import (
    Cell,
    Citations,
    esc,
    figure,
    how,
    items,
    number,
    section,
    table,
    text,
)
from linkbound.report.page.plot import Bar, Interval, Segment, bars, ranges
from linkbound.report.types import LoadShown, Report
from linkbound.report.words import (
    best_uncrossed,
    crossing_share,
    fits_word,
    hidden_words,
    load_words,
    plan_answer,
    predicted,
    share_words,
    unique,
    waiting_share,
)
from linkbound.units import format_significant, format_time

TERM_LOOKS = {
    TermKind.WEIGHTS: "t-weights",
    TermKind.MATRIX: "t-matrix",
    TermKind.ATTENTION: "t-attention",
    TermKind.LAUNCH: "t-launch",
    TermKind.ROUTING: "t-routing",
    TermKind.CROSSINGS: "t-crossings",
    TermKind.WAITING: "t-waiting",
    TermKind.HOST: "t-host",
    TermKind.OVERHEAD: "t-overhead",
    TermKind.IMBALANCE: "t-imbalance",
}


def plans(report: Report, cite: Citations) -> str:
    """For each load the whole call of every plan with its interval, then all figures."""
    return section(
        "plans", "Plans side by side", *(_load(report, one, cite) for one in report.loads)
    )


def _load(report: Report, load: LoadShown, cite: Citations) -> str:
    if not load.forecasts:
        return f"<p>{esc(load_words(load))}: no plan could be priced.</p>"
    ids = unique((*(one for f in load.forecasts for one in f.record_ids), *load.record_ids))
    baseline = best_uncrossed(load)
    beat = (
        None
        if baseline is None
        else (baseline.latency_s.value, f"best without crossings: {baseline.plan.name}")
    )
    picture = ranges(
        f"Whole call, {load_words(load)}",
        [_interval(one, load) for one in load.forecasts],
        "seconds, predicted",
        beat,
    )
    line = (
        "No plan without crossings could be priced."
        if beat is None
        else "Left of the dashed line a plan beats the best over which nothing crosses."
    )
    reading = (
        f"Predicted: the line is the value, the bar its interval. {line} Intervals "
        "overlap more than the ratio of two plans is uncertain, since both share the same compute."
    )
    return figure(f"Whole call, {load_words(load)}", picture, reading, cite(ids)) + _figures(
        report, load, cite
    )


def _interval(one: Forecast, load: LoadShown) -> Interval:
    found = one.latency_s
    return Interval(
        name=one.plan.name,
        look=f"a-{plan_answer(load, one.plan)}",
        value=found.value,
        low=found.low,
        high=found.high,
        label=f"~{format_time(found.value)} {plan_answer(load, one.plan)}",
    )


def _figures(report: Report, load: LoadShown, cite: Citations) -> str:
    header = [text("plan"), text("fits")]
    header += [number(one) for one in ("TTFT ms", "TPOT ms", "tok/s", "link %", "wait %")]
    header += [text("verdict"), text("records")]
    rows = [_row(report, load, one, cite) for one in load.forecasts]
    reading = (
        "TTFT: from a batch given at once to the last first token. TPOT: per token after it. tok/s "
        "counts all sequences. link and wait are shares of the whole call. ~ is predicted, its "
        "interval stands in brackets."
    )
    hidden = "".join(f"<p>{esc(one)}</p>" for one in hidden_words(load))
    return table(esc(load_words(load)), header, rows) + hidden + how(reading)


def _row(report: Report, load: LoadShown, one: Forecast, cite: Citations) -> list[Cell]:
    answer = plan_answer(load, one.plan)
    split = one.plan.arm is not None
    return [
        text(one.plan.name),
        text(fits_word(report, one.plan)),
        number(predicted(one.ttft_s, 1e3)),
        number(predicted(one.tpot_s, 1e3)),
        number(predicted(one.tokens_per_s)),
        number(share_words(crossing_share(one)) if split else "-"),
        number(share_words(waiting_share(one)) if split else "-"),
        Cell(f'<span class="word small {answer}">{answer}</span>'),
        Cell(cite(one.record_ids or load.record_ids)),
    ]


def step_split(report: Report, cite: Citations) -> str:
    """Where one decode step and the first prefill step go, as stacked bars."""
    content = []
    for load in report.loads:
        decodes = [(one, one.decode) for one in load.forecasts if one.decode is not None]
        prefills = [(one, one.prefill) for one in load.forecasts]
        content.append(_stacks(f"One decode step, {load_words(load)}", decodes, load, cite))
        content.append(_stacks(f"First prefill step, {load_words(load)}", prefills, load, cite))
    kinds = {term.kind for _, step in _steps(report) for term in step.terms}
    legend = "".join(
        f'<li><span class="swatch {look}"></span> {esc(kind.words)}</li>'
        for kind, look in TERM_LOOKS.items()
        if kind in kinds
    )
    legends = f'<ul class="legend">{legend}</ul>' if content else ""
    return section("steps", "Where a step's time goes", legends, *content, _bases(report))


def _steps(report: Report) -> list[tuple[Forecast, StepTime]]:
    return [
        (one, step)
        for load in report.loads
        for one in load.forecasts
        for step in (one.decode, one.prefill)
        if step is not None
    ]


def _bases(report: Report) -> str:
    """What each kind of term rests on, once for all plans."""
    bases = {
        f"<b>{esc(term.kind.words)}</b>, {term.provenance.value}: {esc(term.basis)}"
        for _, step in _steps(report)
        for term in step.terms
    }
    if not bases:
        return ""
    return f"<details><summary>What each term rests on</summary>{items(sorted(bases))}</details>"


def _stacks(
    title: str,
    steps: Sequence[tuple[Forecast, StepTime]],
    load: LoadShown,
    cite: Citations,
) -> str:
    if not steps:
        return ""
    rows = [_stack(forecast.plan.name, step) for forecast, step in steps]
    ids = [record for _, step in steps for term in step.terms for record in term.record_ids]
    reading = (
        "Predicted, in milliseconds. Blue is what the link takes: solid while bytes move, hatched "
        "while a rank waits for the other. Point at a part for its interval."
    )
    picture = bars(title, rows, "ms")
    return figure(title, picture, reading, cite(unique((*ids, *load.record_ids))))


def _stack(name: str, step: StepTime) -> Bar:
    terms = sorted(step.terms, key=lambda one: list(TERM_LOOKS).index(one.kind))
    bound = ", host-bound" if step.host_bound else ""
    return Bar(
        name=name,
        segments=tuple(
            Segment(
                look=TERM_LOOKS[one.kind],
                value=one.time.value * 1e3,
                label=format_significant(one.time.value * 1e3),
                title=f"{one.kind.words}: {predicted(one.time, 1e3)} ms, {one.provenance.value}",
            )
            for one in terms
        ),
        label=f"~{format_significant(step.time.value * 1e3)} ms{bound}",
    )
