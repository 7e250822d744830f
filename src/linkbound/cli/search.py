"""`linkbound search MODEL`: the best split, placement, arm and batch limit (D1, D4)."""

from pathlib import Path

import click

from linkbound.cli.options import (
    HELP,
    keep_option,
    load_options,
    machine_option,
    override_option,
    read_machine_sources,
    slo_option,
    to_loads,
    to_overrides,
)
from linkbound.cli.studies import open_study
from linkbound.errors import UsageError


@click.command("search", context_settings=HELP)
@click.argument("model")
@machine_option
@load_options
@click.option(
    "--for",
    "objective",
    type=click.Choice(["latency", "throughput", "capacity", "goodput"]),
    help="What the best plan is best at [latency; goodput with --slo].",
)
@slo_option
@override_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@keep_option
def command(
    model: str,
    machine: str | None,
    prompt: int,
    output: int,
    concurrency: str,
    objective: str | None,
    slo: str | None,
    override: tuple[str, ...],
    as_json: bool,
    path: Path | None,
) -> None:
    """Search all splits of MODEL over the GPUs: placements, arms, copies and batch limits.

    Unlike GPUs and islands of NVLink are looked at too. Shows the best plan, why it is, and the
    plans that no other one beats in latency, throughput, room and goodput. All of it is predicted.
    """
    from linkbound.report.search_text import render_search, render_search_json
    from linkbound.search import Objective
    from linkbound.serve.plan import parse_slo
    from linkbound.study.reading import read_machine_record
    from linkbound.study.searching import search_machine
    from linkbound.study.stages import prepare_model, request

    if objective == Objective.GOODPUT.value and slo is None:
        raise UsageError(
            "--for goodput needs --slo.",
            why="It counts the requests that keep a demand.",
            hint="Add --slo ttft=500ms,tpot=30ms.",
        )
    demands, loads = parse_slo(slo), to_loads(prompt, output, concurrency)
    aim = objective or ("latency" if slo is None else "goodput")
    sources = read_machine_sources(machine)
    with open_study(path) as study:
        prepare_model(study, request(model, sources, overrides=to_overrides(override)))
        found = search_machine(study, sources.name, model, loads, Objective(aim), demands)
        held = read_machine_record(study, sources.name)
    labels = {gpu.key: gpu.label for gpu in held.machine.gpus}
    if as_json:
        click.echo(render_search_json(found, sources.name, sources.recorded, model, labels))
        return
    where = f"the recorded machine {sources.name}" if sources.recorded else "this host"
    click.echo(render_search(found, f"Predicted: {model} on {where}.", labels))
