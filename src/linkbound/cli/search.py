"""`linkbound search MODEL`: the best split, placement, arm and batch limit (D1, D4)."""

from pathlib import Path
from typing import TYPE_CHECKING

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
    write_text,
)
from linkbound.cli.studies import open_study
from linkbound.errors import UsageError

if TYPE_CHECKING:
    from linkbound.study.searching import Searched
    from linkbound.topology.types import Machine


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
@click.option(
    "--engine", "engines", multiple=True, help="Print its commands; repeatable; `serve --list`."
)
@click.option(
    "--plan",
    "plan_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the best plan, for `run`, with the commands of the first --engine [vllm].",
)
@click.option(
    "--contrast",
    is_flag=True,
    help="Beside FILE, FILE-control (the machine's order, nothing bound) and FILE-worst.",
)
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
    engines: tuple[str, ...],
    plan_path: Path | None,
    contrast: bool,
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

    demands, loads = parse_slo(slo), to_loads(prompt, output, concurrency)
    _check(objective, slo, len(loads), plan_path, contrast, engines, as_json)
    aim = objective or ("latency" if slo is None else "goodput")
    sources = read_machine_sources(machine)
    with open_study(path) as study:
        wanted = request(model, sources, overrides=to_overrides(override))
        prepare_model(study, wanted)
        searched = search_machine(study, sources.name, model, loads, Objective(aim), demands)
        held = read_machine_record(study, sources.name)
    longest = wanted.shape.max_context
    labels = {gpu.key: gpu.label for gpu in held.machine.gpus}
    found = [one.found for one in searched]
    if as_json:
        click.echo(render_search_json(found, sources.name, sources.recorded, model, labels))
    else:
        where = f"the recorded machine {sources.name}" if sources.recorded else "this host"
        click.echo(render_search(found, f"Predicted: {model} on {where}.", labels))
        for one in searched:
            _echo_commands(one, held.machine, engines, longest)
    if plan_path is not None:
        names = sources.name, model
        _write_plans(plan_path, searched[0], held.machine, names, engines, contrast, longest)


def _check(
    objective: str | None,
    slo: str | None,
    loads: int,
    plan_path: Path | None,
    contrast: bool,
    engines: tuple[str, ...],
    as_json: bool,
) -> None:
    """Raises UsageError for options that do not go together, and an engine that is none."""
    from linkbound.study.commands import launch_of

    for engine in engines:
        launch_of(engine)
    if objective == "goodput" and slo is None:
        raise UsageError(
            "--for goodput needs --slo.",
            why="It counts the requests that keep a demand.",
            hint="Add --slo ttft=500ms,tpot=30ms.",
        )
    if plan_path is not None and loads != 1:
        raise UsageError(
            f"--plan is for one load, and --concurrency names {loads}.",
            why="Each has a best plan of its own.",
            hint="Write --concurrency 8.",
        )
    if plan_path is None and (contrast or (engines and as_json)):
        raise UsageError(
            "--contrast and, with --json, --engine have no effect without --plan.",
            why="They say what goes into its file.",
            hint="Add --plan FILE, or leave them out.",
        )


def _echo_commands(
    searched: "Searched", machine: "Machine", engines: tuple[str, ...], longest: int | None
) -> None:
    from linkbound.study.commands import command_lines
    from linkbound.verdict.words import load_text

    best = searched.found.best
    if best is None:
        return
    load = searched.found.load
    for engine in engines:
        click.echo(f"\n{engine}, {load_text(load)}:")
        try:
            lines = command_lines(
                machine, best.plan, engine, load, limit=best.limit, longest=longest
            )
        except UsageError as error:
            click.echo(f"  not with this engine: {error}")
            continue
        click.echo("\n".join(lines))


def _write_plans(
    path: Path,
    searched: "Searched",
    machine: "Machine",
    names: tuple[str, str],
    engines: tuple[str, ...],
    contrast: bool,
    longest: int | None,
) -> None:
    """`names` are the machine's and the model's."""
    from linkbound.study.plan_files import plan_file, write_plan
    from linkbound.study.searching import contrasts

    found, best = searched.found, searched.found.best
    if best is None:
        raise UsageError(
            f"There is no plan to write: {found.reason}",
            why="A plan names GPUs.",
            hint="Ask for a smaller load, or give a machine with more memory.",
        )
    for role, plan in contrasts(searched).items():
        if role != "best" and not contrast:
            continue
        text = write_plan(
            plan_file(
                machine,
                plan,
                found.load,
                name=names[0],
                model=names[1],
                engine=engines[0] if engines else "vllm",
                limit=best.limit,
                role=role,
                why=found.reason,
                longest=longest,
            )
        )
        target = path if role == "best" else path.with_name(f"{path.stem}-{role}{path.suffix}")
        write_text(target, text)
        click.echo(f"Wrote {target}", err=True)
