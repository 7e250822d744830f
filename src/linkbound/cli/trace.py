"""`linkbound trace`: which path did the data take, by independent witnesses (P3)."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from linkbound.cli.given import refuse_given
from linkbound.cli.options import HELP, POSITIVE
from linkbound.cli.studies import SHOWN_DIGITS, echo_json, printable
from linkbound.errors import InputError, Interrupted, TimeLimit, UsageError

if TYPE_CHECKING:
    from linkbound.evidence.types import Record
    from linkbound.links.traffic import Traffic
    from linkbound.serve.path_types import PathVerdict
    from linkbound.serve.trace_run import TracedRun

SCHEMA = "linkbound.trace"
VERSION = 1
Logs = list[tuple[str, bytes]]


@click.command("trace", context_settings=HELP)
@click.option(
    "--log",
    "files",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A log of NCCL, RCCL or an engine; repeatable: all of one run.",
)
@click.option(
    "--limit",
    "limit_s",
    type=POSITIVE,
    default=3600.0,
    show_default=True,
    help="Seconds that the command may run.",
)
@click.option(
    "-C",
    "--study",
    "path",
    type=click.Path(path_type=Path),
    help="Keep the logs and the answer in this study.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.argument("argv", nargs=-1, type=click.UNPROCESSED)
def command(
    files: tuple[Path, ...],
    limit_s: float,
    path: Path | None,
    as_json: bool,
    argv: tuple[str, ...],
) -> int:
    """Say whether data went from GPU to GPU directly or through the host.

    Give old logs with --log FILE, or a command after --, which is run with NCCL told to speak.

    The command's output passes through (with --json all of it to stderr); Ctrl-C ends the command,
    and the answer is printed then.
    """
    if bool(files) == bool(argv):
        raise UsageError(
            "trace needs logs or a command, and not both.",
            why="One reads what a run left, the other runs it.",
            hint="Write: linkbound trace --log nccl.log --log engine.log, or: "
            "linkbound trace -- python serve.py",
        )
    if files:
        refuse_given(
            ("limit_s",),
            "nothing is run",
            why="It ends a command that runs too long.",
        )
    if argv:
        return _trace_command(argv, limit_s, path, as_json)
    return _trace_files(files, path, as_json)


def _trace_files(files: tuple[Path, ...], path: Path | None, as_json: bool) -> int:
    from linkbound.serve.trace_files import parse_trace_logs
    from linkbound.serve.witnesses import judge

    logs = [(str(file), _read(file)) for file in files]
    found = parse_trace_logs(logs)
    verdict = judge(found.nccl, found.engines)
    _show(verdict, _keep(path, verdict, logs), as_json)
    return 0


def _trace_command(argv: tuple[str, ...], limit_s: float, path: Path | None, as_json: bool) -> int:
    from linkbound.links.live.meter import open_meter
    from linkbound.serve.trace_run import trace_command

    # stdout of ours is one JSON document where that was asked for.
    streams = sys.stderr if as_json else sys.stdout, sys.stderr
    traced = trace_command(
        argv,
        limit_s=limit_s,
        meter=open_meter(),
        pass_to=(streams[0].buffer, streams[1].buffer),
    )
    if traced.child.stdout and not traced.child.stdout.endswith(b"\n"):
        click.echo(file=streams[0])
    record_id = _keep(path, traced.verdict, list(traced.logs), argv, traced.traffic)
    _show(traced.verdict, record_id, as_json, traced.traffic)
    return _exit_code(traced, limit_s)


def _exit_code(traced: "TracedRun", limit_s: float) -> int:
    child = traced.child
    if child.interrupted:
        raise Interrupted(
            f"'{shlex.join(child.argv)}' was ended.",
            why="Its path is judged from what it printed until then.",
        )
    if child.timed_out:
        raise TimeLimit(
            f"'{shlex.join(child.argv)}' was stopped after {limit_s:g} s.",
            why="Its path is judged from what it printed until then.",
            hint="Give more time with --limit.",
        )
    if not child.ok:
        ended = child.ended_by or f"exit code {child.exit_code}"
        click.echo(f"The command failed ({ended}).", err=True)
        return 1
    return 0


def _read(file: Path) -> bytes:
    from linkbound.serve.parse_engine_log import MAX_LOG_BYTES

    try:
        with file.open("rb") as opened:
            # One byte more than allowed shows that the file is too long, without reading it all.
            return opened.read(MAX_LOG_BYTES + 1)
    except OSError as error:
        raise InputError(
            f"{file} cannot be read ({error.strerror}).",
            why="It was named as a log.",
            hint="Check the path.",
        ) from error


def _keep(
    path: Path | None,
    verdict: "PathVerdict",
    logs: Logs,
    argv: tuple[str, ...] = (),
    traffic: "Traffic | None" = None,
) -> str | None:
    if path is None:
        return None
    from linkbound.evidence.study import Study

    with Study.open_or_create(path) as study:
        blobs = tuple(dict.fromkeys(study.add_blob(data) for _, data in logs))
        return study.append(_record(verdict, logs, blobs, argv, traffic))


def _record(
    verdict: "PathVerdict",
    logs: Logs,
    blobs: tuple[str, ...],
    argv: tuple[str, ...],
    traffic: "Traffic | None",
) -> "Record":
    import msgspec

    from linkbound.evidence.types import Derived, Record

    return Record(
        kind="serve.trace",
        subject={"files": [name for name, _ in logs]},
        outcome=Derived(
            values={
                "verdict": msgspec.to_builtins(verdict),
                "traffic": msgspec.to_builtins(traffic),
            }
        ),
        method="linkbound.serve.witnesses",
        command=argv,
        blobs=blobs,
    )


def _show(
    verdict: "PathVerdict",
    record_id: str | None,
    as_json: bool,
    traffic: "Traffic | None" = None,
) -> None:
    if as_json:
        import msgspec

        document = {"schema": SCHEMA, "version": VERSION, "record_id": record_id}
        counted = {"traffic": msgspec.to_builtins(traffic)}
        echo_json({**document, **msgspec.to_builtins(verdict), **counted})
        return
    click.echo(f"path: {verdict.answer}")
    click.echo(f"  {printable(verdict.why)}")
    for witness in verdict.witnesses:
        click.echo(f"{witness.kind} ({printable(witness.source)}): {witness.answer}")
        click.echo(f"  {printable(witness.why)}")
        for pair in witness.pairs:
            click.echo(f"    {printable(pair)}")
    for line in _traffic_lines(traffic):
        click.echo(f"    {line}")
    for finding in verdict.findings:
        click.echo(f"{finding.severity}: {finding.code} ({finding.level})")
        click.echo(f"  {printable(finding.seen)} {finding.why} {finding.remedy}")
    if record_id is not None:
        click.echo(f"record {record_id[:SHOWN_DIGITS]}")


def _traffic_lines(traffic: "Traffic | None") -> list[str]:
    """Each GPU's bytes beyond the idle rate; nothing where nothing was counted."""
    from linkbound.links.traffic import flows

    if traffic is None:
        return []
    links = {one.gpu: len(one.links) for one in traffic.moved}
    return [
        f"{one.gpu}: NVLink ({links[one.gpu]} links) {_mb(one.nvlink_sent_bytes)} out, "
        f"{_mb(one.nvlink_received_bytes)} in; PCIe {_mb(one.host_sent_bytes)} out, "
        f"{_mb(one.host_received_bytes)} in"
        for one in flows(traffic)
    ]


def _mb(size_bytes: float | None) -> str:
    return "unknown" if size_bytes is None else f"{size_bytes / 1e6:,.1f} MB"
