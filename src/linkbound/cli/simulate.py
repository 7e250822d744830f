"""`linkbound simulate`: requests over time on a plan, its queue and percentiles (P2, D1, D5)."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from linkbound.cli.freezing import check_freezing, freeze_option, frozen_option, keep_frozen
from linkbound.cli.given import refuse_given
from linkbound.cli.host_pace import fitted_host
from linkbound.cli.options import (
    HELP,
    SHARE,
    arrival_options,
    contender_options,
    machine_option,
    min_gain_option,
    override_option,
    read_machine_sources,
    request_options,
    seed_option,
    slo_option,
    to_overrides,
)
from linkbound.cli.studies import existing, open_study
from linkbound.errors import UsageError

if TYPE_CHECKING:
    from linkbound.evidence.study import Study
    from linkbound.predict.simulate import HostPace
    from linkbound.serve.types import SchedulerRules
    from linkbound.study.simulating import Asked
    from linkbound.study.sources import Sources


_STATED = (
    *("rates", "burstiness", "concurrency", "trace_file", "splits", "arms", "prefill_split"),
    *("slo", "engine_name", "requests", "prompt", "output", "seed", "balance", "reuse", "spread"),
    *("cache_tokens", "min_gain"),
)
"""What a measured cell states itself, or the simulation of one leaves as it is."""
_PRICED = ("machine", "override", "sequences", "pace_file")


@click.command("simulate", context_settings=HELP)
@click.argument("model")
@machine_option
@click.option(
    "--engine", "engine_name", default="vllm", show_default=True, help="Whose scheduler rules."
)
@contender_options("one, tp2, pp2, x2", "every one, over direct links")
@click.option("--prefill-split", help="Take prompts on GPUs of their own, split so; hand over.")
@arrival_options
@request_options(1000, p99_requests=100)
@slo_option
@seed_option
@click.option("--sequences", type=click.IntRange(1, 10**5), help="At once in an engine [its rule].")
@click.option(
    "--balance",
    type=click.Choice(["least", "round-robin"]),
    default="least",
    show_default=True,
    help="Which replica gets a request: the one with the fewest, or in turn.",
)
@click.option(
    "--reuse",
    type=SHARE,
    default=0.0,
    show_default=True,
    help="Share of a prompt that the prefix cache holds.",
)
@click.option(
    "--spread",
    type=SHARE,
    help="Relative spread of single steps [0.04, that of repeated calls].",
)
@click.option(
    "--cache-tokens",
    type=click.IntRange(1, 10**10),
    help="Of a replica, as the engine's log says [as `fit` counts].",
)
@click.option(
    "--host-pace",
    "pace_file",
    type=click.Path(path_type=Path),
    metavar="STUDY",
    help="Launch as fast as the host of the loads that `serve` measured in this study.",
)
@override_option
@min_gain_option("Least gain to keep a split.")
@click.option(
    "--score",
    "measured",
    type=click.Path(path_type=Path),
    metavar="STUDY",
    help="Simulate the cells that `serve` measured in this study, and compare.",
)
@freeze_option
@frozen_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "-C", "--study", "path", type=click.Path(path_type=Path), help="Keep the records here."
)
def command(
    model: str,
    machine: str | None,
    override: tuple[str, ...],
    pace_file: Path | None,
    measured: Path | None,
    freeze_file: Path | None,
    frozen_file: Path | None,
    as_json: bool,
    path: Path | None,
    **asked: Any,
) -> None:
    """Simulate MODEL under a load in every split, replicas beside them, and compare.

    Without --split: one GPU, replicas and every split of all usable GPUs.
    """
    from linkbound.study.stages import prepare_model, request

    check_freezing(freeze_file, measured, frozen_file)
    if measured is None:
        _refuse_unread(asked)
        wanted = _asked(asked)
    else:
        refuse_given(
            _STATED, "--score is written", why="Measured cells say themselves what was asked."
        )
    if measured is not None and frozen_file is not None:
        refuse_given(
            _PRICED, "--frozen is written", why="Nothing is simulated: what was frozen stands."
        )
        _score_frozen(path, model, frozen_file, measured, as_json)
        return
    if pace_file is not None:
        refuse_given(
            ("override",),
            "--host-pace is written",
            why="The loads there are of the model as it is, by its name.",
        )
    sources = read_machine_sources(machine)
    with open_study(path) as study:
        prepare_model(study, request(model, sources, overrides=to_overrides(override)))
        host = fitted_host(
            study,
            sources.name,
            model,
            pace_file,
            # What is asked of a plan says nothing of the servers that were measured before.
            engine=asked["engine_name"] if measured is None else None,
            measured=measured,
            sequences=None if measured is None else asked["sequences"],
        )
        if measured is None:
            wanted = msgspec.structs.replace(wanted, host=host)
        if measured is None and freeze_file is not None:
            from linkbound.report.host_pace import host_pace_lines
            from linkbound.study.freezing_loads import freeze_loads

            frozen = freeze_loads(study, sources.name, model, wanted)
            if host.cells and not as_json:
                click.echo("\n".join(host_pace_lines(host)))
            keep_frozen(study, frozen, freeze_file, as_json)
        elif measured is None:
            _simulate(study, sources, model, wanted, as_json)
        else:
            _score(study, sources, model, measured, asked["sequences"], host, as_json)


def _simulate(
    study: "Study", sources: "Sources", model: str, wanted: "Asked", as_json: bool
) -> None:
    from linkbound.report.host_pace import host_pace_lines
    from linkbound.report.simulations import render_simulations, render_simulations_json
    from linkbound.study.simulating import simulate_all

    found = simulate_all(study, sources.name, model, wanted)
    if as_json:
        click.echo(
            render_simulations_json(
                found, sources.name, sources.recorded, model, wanted.engine, wanted.host
            )
        )
        return
    head = [
        f"Simulated: {model} on {_where(sources)}.",
        *_rules_words(wanted),
        *host_pace_lines(wanted.host),
    ]
    click.echo(render_simulations(found, head))


def _score(
    study: "Study",
    sources: "Sources",
    model: str,
    measured: Path,
    sequences: int | None,
    host: "HostPace",
    as_json: bool,
) -> None:
    from linkbound.evidence.study import Study
    from linkbound.report.host_pace import host_pace_lines
    from linkbound.report.load_score import render_load_score, render_load_score_json
    from linkbound.study.simulation_score import score_loads

    with Study.open(existing(measured)) as other:
        found = score_loads(study, other, sources.name, model, sequences, host)
    if as_json:
        click.echo(render_load_score_json(found, sources.name, model, host))
    else:
        head = [
            f"Simulated: {model} on {_where(sources)}, beside the cells of {measured.name}.",
            *host_pace_lines(host),
        ]
        click.echo(render_load_score(found, head))


def _score_frozen(
    path: Path | None, model: str, frozen_file: Path, measured: Path, as_json: bool
) -> None:
    from linkbound.evidence.study import Study
    from linkbound.report.load_score import render_load_score, render_load_score_json
    from linkbound.serve.batch_records import model_label
    from linkbound.study.scoring_frozen import read_frozen
    from linkbound.study.simulation_score import score_frozen_loads

    frozen = read_frozen(frozen_file)
    models = tuple(dict.fromkeys(one.model for one in frozen.content.loads))
    if not models:
        raise UsageError(
            f"{frozen_file} holds calls and steps, and no load over time.",
            why="`predict` froze it, and compares it with what was measured.",
            hint=f"Write: linkbound predict --score FILE --frozen {frozen_file}",
        )
    if model_label(model) not in models:
        raise UsageError(
            f"{frozen_file} holds loads of {', '.join(models)}, none of {model}.",
            why="What was frozen stands, for the models that it names.",
            hint=f"Write: linkbound simulate {models[0]} --score STUDY --frozen {frozen_file}",
        )
    with open_study(path) as study, Study.open(existing(measured)) as other:
        found = score_frozen_loads(study, other, frozen)
    machine = frozen.content.machine
    if as_json:
        click.echo(render_load_score_json(found, machine, ", ".join(models)))
    else:
        head = [f"Simulated on {machine}, beside the cells of {measured.name}."]
        click.echo(render_load_score(found, head))


def _where(sources: "Sources") -> str:
    return f"the recorded machine {sources.name}" if sources.recorded else "this host"


def _refuse_unread(asked: dict[str, Any]) -> None:
    """Raises UsageError for options of a kind of load that is not asked for."""
    if asked["rates"] is None:
        refuse_given(
            ("burstiness",),
            "no --rate is written",
            why="It is the shape of the gaps between arrivals.",
        )
        if asked["concurrency"] is None and asked["trace_file"] is not None:
            refuse_given(
                ("prompt", "output"),
                "--trace alone is written",
                why="A trace has lengths of its own.",
            )


def _asked(asked: dict[str, Any]) -> "Asked":
    """What is simulated, from the options. Raises UsageError and InputError."""
    from linkbound.cli.serve_plan import read_trace
    from linkbound.links import Arm
    from linkbound.predict.simulate import Balance
    from linkbound.serve.contenders import reseeded
    from linkbound.serve.plan import LoadWords, parse_slo, plan_cells, plan_contenders
    from linkbound.serve.rules import as_served
    from linkbound.splits.parse_split import parse_split
    from linkbound.study.simulating import STEP_SPREAD, Asked

    rules = _rules(asked["engine_name"])
    words = LoadWords(
        rates=asked["rates"],
        burstiness=asked["burstiness"],
        concurrency=asked["concurrency"],
        trace=read_trace(asked["trace_file"]),
        requests=asked["requests"],
        prompt_tokens=asked["prompt"],
        output_tokens=asked["output"],
        # Token ids, warm-up and time limits are for servers.
        vocabulary="100,512",
        warm_up=0,
        limit_s=1.0,
        seed=asked["seed"],
    )
    prefill = asked["prefill_split"]
    splits = tuple(parse_split(one) for one in asked["splits"])
    if prefill is not None and not splits:
        splits = (parse_split("one"),)
    if asked["arms"] and splits and prefill is None:
        # Refuses arms that have no effect.
        plan_contenders(asked["splits"], asked["arms"], None, external=False)
    return Asked(
        engine=asked["engine_name"],
        rules=as_served(rules, asked["sequences"]),
        splits=splits,
        arms=tuple(Arm(one) for one in asked["arms"]) or (Arm.P2P,),
        # As `serve` does: the same options meet the same arrivals.
        cells=tuple(reseeded(cell, number, 0) for number, cell in enumerate(plan_cells(words))),
        slo=parse_slo(asked["slo"]),
        balance=Balance(asked["balance"]),
        reuse=asked["reuse"],
        step_spread=STEP_SPREAD if asked["spread"] is None else asked["spread"],
        prefill=None if prefill is None else parse_split(prefill),
        cache_tokens=asked["cache_tokens"],
        min_gain=asked["min_gain"],
    )


def _rules(engine_name: str) -> "SchedulerRules":
    from linkbound.serve.engines import ENGINES

    engine = ENGINES.get(engine_name)
    if engine is None or engine.rules is None:
        known = ", ".join(name for name, one in ENGINES.items() if one.rules is not None)
        raise UsageError(
            f"The scheduler rules of '{engine_name}' are not known.",
            why="They decide what a step holds.",
            hint=f"Take one of {known}.",
        )
    return engine.rules


def _rules_words(wanted: "Asked") -> list[str]:
    """Whose rules these are, and whose step times."""
    rules = wanted.rules
    lines = [
        f"Scheduler of {wanted.engine}: {rules.max_batched_tokens:,} tokens and "
        f"{rules.max_sequences:,} sequences a step, prompts "
        + ("beside decodes." if rules.mixes else "alone and first.")
    ]
    if not wanted.engine.startswith("vllm"):
        lines.append("Step times are vLLM's: no run of another engine calibrated them.")
    return lines
