"""The head of the page and what is decided: verdicts, break-even, what would change it (D1-D5)."""

from linkbound.report.page.markup import (
    Cell,
    Citations,
    esc,
    how,
    items,
    number,
    section,
    table,
    text,
)
from linkbound.report.types import LoadShown, Report
from linkbound.report.words import (
    fits_word,
    gain_words,
    headline,
    leading_reasons,
    load_words,
    meaning,
    outcome_counts,
    reason_ids,
)
from linkbound.units import format_rate, format_time
from linkbound.verdict.types import BreakEven, Comparison, PlanVerdict, Reason

NO_SUCH_LINK = "none found"


def head(report: Report, cite: Citations) -> str:
    """Title, whose figures these are, and how much evidence stands behind them."""
    kind = "recorded machine" if report.recorded else "this host"
    return (
        f"<header><h1>{esc(report.shape.name)} <span>on</span> {esc(report.machine_name)}</h1>"
        f'<p class="note">{esc(report.machine_note)}</p>'
        f'<p class="dim">{esc(_machine_words(report))} · {kind} · '
        f"{len(report.evidence):,} records: {esc(outcome_counts(report))} · model "
        f"{cite(report.model_record_ids)} machine {cite(report.machine_record_ids)}</p>"
        "</header>\n"
    )


def _machine_words(report: Report) -> str:
    models = [gpu.model or "GPU of unknown model" for gpu in report.machine.gpus]
    return ", ".join(f"{models.count(one)}x {one}" for one in dict.fromkeys(models))


def verdicts(report: Report, cite: Citations) -> str:
    """One block a load: the word, the headline, three reasons; the rest folds away."""
    blocks = "".join(_block(load, cite) for load in report.loads)
    return f'<section id="verdict" class="verdicts">{blocks}</section>\n' if blocks else ""


def _block(load: LoadShown, cite: Citations) -> str:
    answer = load.verdict.answer
    first = leading_reasons(load.verdict)
    rest = [one for one in load.verdict.reasons if one not in first]
    more = (
        f"<details><summary>{_more(len(rest))}</summary>"
        f"{items(_reason(one, load, cite) for one in rest)}</details>"
        if rest
        else ""
    )
    return (
        f'<article class="verdict {answer.value}"><p class="load">{esc(load_words(load))}</p>'
        f'<h2><span class="word {answer.value}">{answer.value}</span> '
        f'<span class="dim">{meaning(load.verdict)}</span></h2>'
        f'<p class="headline">{esc(headline(load))}</p>'
        f"{items(_reason(one, load, cite) for one in first)}{more}</article>\n"
    )


def _more(count: int) -> str:
    return "one more reason" if count == 1 else f"{count} more reasons"


def _reason(reason: Reason, load: LoadShown, cite: Citations) -> str:
    return f"{esc(reason.text)} {cite(reason_ids(reason, load))}"


def comparisons(report: Report, cite: Citations) -> str:
    """Every plan against what it has to beat, for each load."""
    header = [text(one) for one in ("plan", "aim", "against", "fits")]
    header += [number("gain"), text("answer"), text("records")]
    content = []
    for load in report.loads:
        rows = [
            _comparison(report, plan, one, load, cite)
            for plan in load.verdict.plans
            for one in plan.comparisons
        ]
        if rows:
            content.append(table(esc(load_words(load)), header, rows))
    if not content:
        return ""
    reading = (
        "Above 1 the plan is better than the one it is compared with. In brackets: the interval, "
        "without the errors that both plans share. Keep: the whole interval gains enough; reject: "
        "none of it does."
    )
    return section("comparisons", "Every comparison", *content, how(reading))


def _comparison(
    report: Report, plan: PlanVerdict, one: Comparison, load: LoadShown, cite: Citations
) -> list[Cell]:
    ids = [record for reason in one.reasons for record in reason_ids(reason, load)]
    return [
        text(plan.plan.name),
        text(one.aim.value),
        text(one.baseline.name),
        text(fits_word(report, plan.plan)),
        number(gain_words(one.gain)),
        Cell(f'<span class="word small {one.answer.value}">{one.answer.value}</span>'),
        Cell(cite(ids)),
    ]


def break_even(report: Report, cite: Citations) -> str:
    """The link at which an answer flips."""
    header = [text("plan"), text("answer"), text("against")]
    header += [number("bandwidth"), number("latency"), text("held"), text("records")]
    content = []
    for load in report.loads:
        rows = [
            _flip(one, one.break_even, load, cite)
            for one in load.verdict.plans
            if one.break_even is not None
        ]
        if rows:
            content.append(table(esc(load_words(load)), header, rows))
    if not content:
        return ""
    reading = (
        "The split gains enough over the plan it is set against, the one that decides its answer, "
        "with a link of at least this bandwidth, or of at most this latency, while "
        f"the other one stays as it is. '{NO_SUCH_LINK}': the answer is the same for every link "
        "that was tried."
    )
    return section("break-even", "Break-even link", *content, how(reading))


def _flip(plan: PlanVerdict, flip: BreakEven, load: LoadShown, cite: Citations) -> list[Cell]:
    rate, latency = flip.bytes_per_s, flip.latency_s
    return [
        text(plan.plan.name),
        text(plan.answer.value),
        text(flip.baseline.name),
        number(NO_SUCH_LINK if rate is None else f"~{format_rate(rate)}"),
        number(NO_SUCH_LINK if latency is None else f"~{format_time(latency)}"),
        text(flip.basis),
        Cell(cite(load.record_ids[:1])),
    ]


def would_change(report: Report) -> str:
    """What would turn an answer, and the measurement that settles an open one."""
    content = []
    for load in report.loads:
        entries = [esc(one) for one in load.verdict.would_change]
        for one in load.verdict.measurements:
            cost = f" It takes {esc(one.cost)}." if one.cost else ""
            words = f"{esc(one.what)}. {esc(one.why)}{cost}"
            entries.append(f"{words}<pre><code>{esc(one.command)}</code></pre>")
        if entries:
            content.append(f"<h3>{esc(load_words(load))}</h3>{items(entries)}")
    return section("would-change", "What would change this", *content)
