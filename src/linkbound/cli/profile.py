"""`linkbound profile`: where the time of a split goes, with peer-to-peer on and off (P1)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import click

from linkbound.cli import profile_tables as tables
from linkbound.cli.fit import read_shape
from linkbound.cli.given import refuse_all_but
from linkbound.cli.options import HELP
from linkbound.cli.profile_options import refuse_ignored, to_counts, to_delay, to_limit_s
from linkbound.errors import Interrupted, LinkboundError, NothingToMeasure, UsageError
from linkbound.evidence import Finding, Study
from linkbound.links.types import Arm
from linkbound.model.types import ModelShape
from linkbound.profile.effects import Effect, effects
from linkbound.profile.host_memory import host_bytes
from linkbound.profile.launch import JobResult, require_torch, run_job
from linkbound.profile.plan import interleave, plan_jobs, plan_shards, points, shard_points
from linkbound.profile.plan_words import job_words
from linkbound.profile.records import (
    append_checks,
    append_effects,
    append_result,
    append_rows,
    row_key,
)
from linkbound.profile.shards import ShardCheck, shard_checks
from linkbound.profile.summary import Row, rows
from linkbound.profile.types import Device, Job
from linkbound.splits.parse_split import parse_split
from linkbound.units import format_capacity


@click.command("profile", context_settings=HELP)
@click.argument("model", metavar="MODEL", required=False)
@click.option(
    "--split", "split_texts", multiple=True, metavar="SPLIT", help="one, tp2, pp2, ...; repeat."
)
@click.option(
    "--arm",
    "arms",
    multiple=True,
    type=click.Choice([arm.value for arm in Arm]),
    help="Which paths are open; repeat [p2p and staged].",
)
@click.option("--batch", default="1,8,32", show_default=True, help="Sequences at once.")
@click.option(
    "--prompt", default=1024, show_default=True, type=click.IntRange(1), help="Prompt tokens."
)
@click.option(
    "--steps", default=20, show_default=True, type=click.IntRange(2), help="Timed decode steps."
)
@click.option(
    "--repeats", default=2, show_default=True, type=click.IntRange(1), help="Children of each arm."
)
@click.option(
    "--micro-batches",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Pieces of a step through a pipeline.",
)
@click.option(
    "--shards",
    metavar="CHUNKS",
    help="Time each stage's shard alone instead, with these chunks: 512,2048.",
)
@click.option("--slow", metavar="RANK:TIME", help="A control: slow a rank before each collective.")
@click.option(
    "--device",
    type=click.Choice([one.value for one in Device]),
    default=Device.CUDA.value,
    show_default=True,
    help="cpu tries the same code out; it says nothing about GPUs.",
)
@click.option("--limit", default="10min", show_default=True, help="Time limit of one child.")
@click.option(
    "--override", "overrides", metavar="KEY=VALUE", multiple=True, help="A key of the config."
)
@click.option(
    "--trace",
    "traces",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Read a rank's Kineto trace of any engine instead of running; repeat for each rank.",
)
@click.option("-C", "--study", "path", type=click.Path(path_type=Path), help="Keep records here.")
@click.option("--dry-run", is_flag=True, help="Show what would be run, and run nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    model: str | None,
    split_texts: tuple[str, ...],
    arms: tuple[str, ...],
    batch: str,
    prompt: int,
    steps: int,
    repeats: int,
    micro_batches: int,
    shards: str | None,
    slow: str | None,
    device: str,
    limit: str,
    overrides: tuple[str, ...],
    traces: tuple[Path, ...],
    path: Path | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Time splits of MODEL with random weights, and say where each step's time goes.

    Every split runs in every arm, in a fresh process each, arms in turn. Ends with 4 where a
    rank hung or died, or an arm's data took another path; what was measured stays.
    """
    if (model is None) == (not traces):
        raise UsageError(
            "profile needs a MODEL or --trace FILE, and not both.",
            why="One runs the model's shape, the other reads what was recorded.",
            hint="Write: linkbound profile llama-3.1-8b --split tp2",
        )
    if model is None:
        refuse_all_but(
            ("traces", "as_json"),
            "--trace runs nothing and keeps nothing",
            why="It reads what was recorded.",
        )
        click.echo(tables.render_traces(traces, as_json))
        return 0
    shape = read_shape(model, overrides)
    splits = [parse_split(text) for text in split_texts or ("one", "tp2")]
    batches, where = to_counts("--batch", batch), Device(device)
    refuse_ignored(splits, shards)
    limit_s, delay = to_limit_s(limit), to_delay(slow, splits, shards)
    if shards is None:
        jobs = plan_jobs(
            shape,
            splits,
            [Arm(one) for one in arms or (Arm.P2P, Arm.STAGED)],
            points(batches, prompt),
            where,
            steps=steps,
            micro_batches=micro_batches,
            delay=delay,
        )
    else:
        grid = shard_points(batches, to_counts("--shards", shards), (prompt,))
        jobs = plan_shards(shape, splits, grid, where, steps=steps)
    plan = interleave(jobs, repeats)
    if dry_run:
        click.echo(tables.render_plan(plan, as_json))
        return 0
    require_torch()
    if where is Device.CUDA:
        _require_gpus(max(1 if job.alone is not None else job.split.gpus for job in jobs))
    else:
        _require_memory(jobs)
    with _study(path) as study:
        results, run_ids, machine = _measure(plan, limit_s, study)
        found = _conclude(results, run_ids, shape, machine, study)
    click.echo(tables.render(*found, as_json))
    if len(results) < len(plan) or results[-1].interrupted:
        raise Interrupted("Stopped.", hint=_kept_words(path))
    return 4 if found.findings else 0


def _kept_words(path: Path | None) -> str:
    if path is None:
        return "What was measured is shown and not kept: no study was named with -C."
    return f"What was measured is shown, and kept in {path}; run again."


def _require_gpus(wanted: int) -> None:
    from linkbound.topology.probe import probe_machine

    count = len(probe_machine().gpus)
    if count < wanted:
        raise NothingToMeasure(
            f"{count} GPUs are here, {wanted} are needed.",
            why="Each rank has a GPU of its own.",
            hint="Choose smaller splits, time shards alone with --shards, or try the code out "
            "with --device cpu.",
        )


def _require_memory(jobs: Sequence[Job]) -> None:
    """Children come one after another: the largest must fit."""
    from linkbound.topology import probe

    available = probe.read_available_bytes()
    largest = max(jobs, key=host_bytes)
    needed = host_bytes(largest)
    if available is not None and needed > available:
        raise NothingToMeasure(
            f"{job_words(largest)} needs at least {format_capacity(needed)} of this host's memory, "
            f"{format_capacity(available)} are available.",
            why="On processors every rank's weights, in float32, and its cache are in it; the "
            "kernel would end what runs.",
            hint="Choose a smaller model or fewer layers (--override num_hidden_layers=2), a "
            "smaller --batch or --prompt, or a shard alone with --shards.",
        )


@contextmanager
def _study(path: Path | None) -> Iterator[Study | None]:
    if path is None:
        yield None
        return
    with Study.open_or_create(path) as study:
        yield study


class _Found(NamedTuple):
    """What the children of a plan came to."""

    rows: tuple[Row, ...]
    effects: tuple[Effect, ...]
    checks: tuple[ShardCheck, ...]
    findings: list[Finding]


def _measure(
    plan: Sequence[tuple[int, Job]], limit_s: float, study: Study | None
) -> tuple[list[JobResult], dict[str, list[str]], str | None]:
    """Run every child in order, each result written before the next child starts.

    Stops where the user interrupts, with what the child that ran had finished; the results, their
    records by row, and the machine.
    """
    machine = None if study is None else _machine_id()
    results: list[JobResult] = []
    run_ids: dict[str, list[str]] = {}
    for number, (repeat, job) in enumerate(plan, start=1):
        click.echo(f"{number}/{len(plan)}  {job_words(job)}  repeat {repeat + 1}", err=True)
        started = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            result = run_job(job, limit_s=limit_s)
        except KeyboardInterrupt:
            break
        results.append(result)
        click.echo(f"  {result.duration_s:.1f} s: {result.spent}", err=True)
        for finding in result.findings:
            click.echo(f"  {finding.seen}", err=True)
        if study is not None:
            ids = append_result(study, result, repeat, machine, started)
            for point, record_id in zip(job.points, ids, strict=True):
                key = row_key(job.split, job.arm, job.alone, point)
                run_ids.setdefault(key, []).append(record_id)
        if result.interrupted:
            break
    return results, run_ids, machine


def _conclude(
    results: Sequence[JobResult],
    run_ids: dict[str, list[str]],
    shape: ModelShape,
    machine: str | None,
    study: Study | None,
) -> _Found:
    """Rows, what they show, and checks; kept where there is a study."""
    found = rows(results)
    shown = effects(found)
    checks: tuple[ShardCheck, ...] = ()
    if study is not None:
        append_rows(study, found, run_ids, shape, machine)
        append_effects(study, shown, run_ids, shape, machine)
        own = {one for ids in run_ids.values() for one in ids}
        every = shard_checks(study, shape, machine)
        checks = tuple(one for one in every if own & set(one.record_ids))
        append_checks(study, checks, shape, machine)
    findings = [finding for result in results for finding in result.findings]
    return _Found(found, shown, checks, findings)


def _machine_id() -> str | None:
    from linkbound.topology.fingerprint import fingerprint
    from linkbound.topology.probe import probe_machine

    try:
        return fingerprint(probe_machine()).id
    except LinkboundError:
        return None
