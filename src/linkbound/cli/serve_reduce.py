"""`linkbound serve --all-reduce`: an engine's own all-reduce, timed without a model (L4)."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from linkbound.cli.serve_plan import devices_of
from linkbound.cli.studies import echo_json
from linkbound.errors import LinkboundError, NothingToMeasure, UsageError

if TYPE_CHECKING:
    from linkbound.links.live.rows import LinkRow
    from linkbound.serve.engines.types import Engine

SCHEMA = "linkbound.serve.all_reduce"
VERSION = 1
_HEADER = ("bytes", "way", "launch", "us", "bus GB/s", "wrong")


def serve_reduce(
    engine: "Engine", model: str | None, asked: dict[str, Any], path: Path, as_json: bool
) -> None:
    """Time it, keep cells and curves in the study, print the table."""
    from linkbound.evidence.study import Study
    from linkbound.links.live.records import Origin
    from linkbound.serve.engine_reduce import (
        keep_engine_reduce,
        reduce_environment,
        time_engine_reduce,
    )
    from linkbound.study.importing import import_topology
    from linkbound.study.sources import read_host

    devices = devices_of(asked["gpus"])
    _check(engine, model, devices)
    host = read_host()
    if host is None:
        raise NothingToMeasure(
            "No GPU is here.", why="The all-reduce is timed between GPUs.", hint="Run it there."
        )
    started = datetime.now(UTC).isoformat(timespec="seconds")
    result = time_engine_reduce(devices, program=asked["program"], limit_s=asked["limit_s"])
    with Study.open_or_create(path) as study:
        machine = study.get(import_topology(study, host))
        origin = Origin(
            machine_name=host.name,
            machine_id=machine.machine or "",
            command=("linkbound", *sys.argv[1:]),
            environment=reduce_environment(devices),
            started=started,
            parents=(machine.id,),
        )
        keep_engine_reduce(study, origin, result)
    if as_json:
        _show_json(result.rows)
    else:
        click.echo("\n".join(reduce_lines(result.rows)))
        for finding in result.findings:
            click.echo(f"{finding.severity}: {finding.seen} {finding.why} {finding.remedy}")
    click.echo(f"Wrote {path}", err=True)
    if not any(row.samples_s for row in result.rows):
        raise LinkboundError(
            "No size was timed.",
            why="The engine's all-reduce did not run.",
            hint=f"See why: linkbound show links.finding -C {path}",
        )


def _check(engine: "Engine", model: str | None, devices: tuple[int, ...]) -> None:
    if not engine.times_reduce:
        raise UsageError(
            f"The all-reduce of {engine.name} cannot be timed by itself.",
            why="Only vLLM's is known here.",
            hint="Write --engine vllm-offline --all-reduce --gpus 0,1.",
        )
    if model is not None or len(devices) < 2:
        raise UsageError(
            "--all-reduce needs two GPUs or more, and no MODEL.",
            why="It is timed between GPUs, over sizes that any model has.",
            hint="Write: linkbound serve --engine vllm-offline --all-reduce --gpus 0,1",
        )


def reduce_lines(rows: "tuple[LinkRow, ...]") -> list[str]:
    """A row for each size, way and launch."""
    from linkbound.report.table import render_table

    lines = ["Microseconds of one call: in a CUDA graph, and launched one by one (medians)."]
    return lines + render_table(_HEADER, [_cells(row) for row in rows], left=3)


def _cells(row: "LinkRow") -> tuple[str, ...]:
    from linkbound.units import format_significant

    time_s, ranks = row.time_s, len(row.group)
    shown = ["none", "none"]
    if time_s is not None:
        rate = row.size_bytes / time_s * 2 * (ranks - 1) / ranks
        shown = [format_significant(time_s * 1e6), format_significant(rate / 1e9)]
    return (f"{row.size_bytes:,}", row.implementation, row.launch.value, *shown, str(row.wrong))


def _show_json(rows: "tuple[LinkRow, ...]") -> None:
    import msgspec

    head = {"schema": SCHEMA, "version": VERSION}
    echo_json({**head, "rows": msgspec.to_builtins(rows)})
