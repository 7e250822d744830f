"""`linkbound topo`: what is wired here, or in files of one machine that people posted (M1, M4)."""

import json
from pathlib import Path
from typing import Any

import click
import msgspec

from linkbound.cli.input_files import input_name, read_input, refuse_streams
from linkbound.cli.options import HELP, keep_option, write_text
from linkbound.errors import NothingToMeasure, UsageError
from linkbound.topology import Machine, NicPath, PairPath, merge, read_machine
from linkbound.topology.sniff import MAX_FILE_BYTES

SCHEMA = "linkbound.topo"
VERSION = 1


@click.command("topo", context_settings=HELP)
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--machine",
    metavar="NAME|FILE|DIR",
    help="A recorded machine instead of this one: its name, a file, or a folder of files.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "-o", "output", type=click.Path(path_type=Path), help="Draw the machine into FILE.svg."
)
@click.option("--force", is_flag=True, help="Overwrite the file that -o names.")
@keep_option
def command(
    files: tuple[Path, ...],
    machine: str | None,
    as_json: bool,
    output: Path | None,
    force: bool,
    path: Path | None,
) -> None:
    """Show what is wired here, or in FILEs of one machine.

    Files are the output of nvidia-smi (topo -m, topo -p2p, -q, nvlink), lspci, lstopo (XML),
    rocm-smi, or NCCL's topology XML; several of one machine are merged, - stands for stdin.
    """
    if files and machine:
        raise UsageError(
            f"Both files and --machine {machine}.",
            why="They may be different machines.",
            hint="Give one of the two.",
        )
    check_output(output, force)
    if path is not None:
        refuse_streams(files)
    found = read_machine_named(machine) if machine else read_paths(files) if files else probed()
    if output is not None:
        from linkbound.report.topology_svg import render_topology_svg

        write_text(output, render_topology_svg(found))
        click.echo(f"Wrote {output}", err=True)
    if as_json:
        click.echo(json.dumps(document(found, bool(files or machine)), indent=2, allow_nan=False))
    else:
        from linkbound.report.topology_text import render_topology_text
        from linkbound.study.sources import recorded_names

        # Files may be of this host; their names stand in the answer.
        if machine in recorded_names():
            click.echo(f"Not this host: the recorded machine {machine}")
        click.echo(render_topology_text(found), nl=False)
    if path is not None:
        _keep(path, files, machine, found)
    if not (files or machine) and not found.gpus:
        raise NothingToMeasure(
            "No GPU was found on this host.",
            why="What could be seen of it is printed.",
            hint="Give files of another machine, or --machine h200-pair.",
        )


def _keep(path: Path, files: tuple[Path, ...], machine: str | None, found: Machine) -> None:
    from linkbound.study.answers import keep_answer, seen_host, seen_machine
    from linkbound.study.sources import read_sources

    paths = [machine] if machine else [_as_path(file) for file in files]
    seen = [
        one
        for name in paths
        for one in seen_machine(name, found, read_sources(name, is_machine=False))
    ]
    seen += [] if paths else [seen_host({"machine": msgspec.to_builtins(found)})]
    named = [machine] if machine else [str(file) for file in files]
    subject = {"machine": named or ["this host"]}
    keep_answer(path, "topo", subject, document(found, bool(paths)), seen, found)


def probed() -> Machine:
    """This host as its driver and its kernel show it."""
    from linkbound.topology.probe import probe_machine

    return probe_machine()


def read_machine_named(name: str) -> Machine:
    """A recorded machine, or a file or folder of one."""
    from linkbound.study.machines import load_machine
    from linkbound.study.sources import read_sources

    return load_machine(read_sources(name, is_machine=False))


def read_paths(paths: tuple[Path, ...]) -> Machine:
    """All files as one machine: each must show some of it; a folder is read as a machine."""
    return merge(
        [
            read_machine_named(_as_path(path))
            if path.is_dir()
            else read_machine(read_input(path, MAX_FILE_BYTES), input_name(path))
            for path in paths
        ]
    )


def _as_path(path: Path) -> str:
    """A FILE argument is a path also where a recorded machine has that name."""
    return str(path.resolve())


def check_output(output: Path | None, force: bool) -> None:
    """Refuses what cannot be written before anything is read."""
    if output is None:
        if force:
            raise UsageError(
                "--force without -o.",
                why="There is nothing to overwrite.",
                hint="Name the file with -o FILE.svg.",
            )
        return
    if output.suffix != ".svg":
        raise UsageError(
            f"{output}: not a .svg file.",
            why="The picture of a machine is written as SVG.",
            hint="Name the file with -o FILE.svg, or use --json for data.",
        )
    if output.exists() and not force:
        raise UsageError(
            f"{output} exists.",
            why="It will not be overwritten without --force.",
            hint="Give another name or --force.",
        )


def document(machine: Machine, recorded: bool) -> dict[str, Any]:
    """The machine as JSON: numbers or null, and a reason beside each label that is null."""
    content: dict[str, Any] = msgspec.to_builtins(machine)
    content["pairs"] = [
        _pair(machine, src.key, dst.key)
        for src in machine.gpus
        for dst in machine.gpus
        if src.key != dst.key
    ]
    content["nic_paths"] = [_nic_path(path) for path in machine.nic_paths]
    return {"schema": SCHEMA, "version": VERSION, "recorded": recorded, **content}


def _pair(machine: Machine, src: str, dst: str) -> dict[str, Any]:
    path: PairPath = machine.path(src, dst)
    reason = {"code": "not_stated", "text": "No source says how this pair is joined."}
    return {
        "src": machine.gpu(src).label,
        "dst": machine.gpu(dst).label,
        "src_key": src,
        "dst_key": dst,
        "label": path.label,
        "reason": reason if path.label is None else None,
        "nvlink_count": path.nvlink_count,
        "hops": path.hops,
        "derived": path.derived,
        "status": {one.value: status.value for one, status in path.status.items()},
    }


def _nic_path(path: NicPath) -> dict[str, Any]:
    return {"gpu": path.gpu, "nic": path.nic, "label": path.kind.value, "derived": path.derived}
