"""`linkbound doctor`: findings with their remedies, from files people posted or this host (M3)."""

import json
from pathlib import Path
from textwrap import fill
from typing import Any

import click
import msgspec
from msgspec import structs

from linkbound.cli.input_files import input_name, read_input, refuse_streams
from linkbound.cli.options import HELP, keep_option
from linkbound.doctor import Diagnosis, Symptom, diagnose, diagnose_live
from linkbound.doctor.types import UnreadInput
from linkbound.doctor.vocabulary import listed
from linkbound.errors import InputError, NothingToMeasure
from linkbound.evidence.types import Finding, Level, Severity

SCHEMA = "linkbound.doctor"
VERSION = 1
_LARGEST_BYTES = 64 * 1024**2
_WIDTH = 100
_HEADINGS = {
    Severity.ERROR: "Errors",
    Severity.WARNING: "Warnings",
    Severity.INFO: "For information",
}


@click.command("doctor", context_settings=HELP)
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--symptom",
    type=click.Choice([symptom.value for symptom in Symptom]),
    help="What you noticed; causes that fit it are then named with the check that shows them.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@keep_option
def command(files: tuple[Path, ...], symptom: str | None, as_json: bool, path: Path | None) -> None:
    """Say what is wrong between the GPUs, or fine although it looks odd, and what to do.

    FILEs are logs and outputs that people post: nvidia-smi, lspci, dmesg, NCCL logs, nccl-tests,
    nvbandwidth, p2pBandwidthLatencyTest, kernel command lines and more; a folder stands for the
    files in it, - for what comes on stdin. Without FILE this host is looked at, without measuring.
    """
    noticed = None if symptom is None else Symptom(symptom)
    if not files:
        _this_host(noticed, as_json, path)
        return
    if path is not None:
        refuse_streams(files)
    inputs = [(name, read_input(file, _LARGEST_BYTES)) for name, file in named(files)]
    diagnosis = diagnose(inputs, noticed)
    diagnosis = structs.replace(diagnosis, unread=(*diagnosis.unread, *_skipped(files)))
    if not diagnosis.read:
        raise InputError(
            " ".join(unread.reason for unread in diagnosis.unread),
            why="None of the inputs could be read, so nothing is known.",
            hint="Give outputs of nvidia-smi, lspci, dmesg, NCCL or a bandwidth test, as text.",
        )
    _print(diagnosis, as_json)
    if path is not None:
        from linkbound.study.answers import keep_answer, seen_file
        from linkbound.study.sources import SourceFile

        # An input that was too large is here cut off: no source, and the answer says why.
        read = {one.name for one in diagnosis.read}
        seen = [
            seen_file(SourceFile(name=name, data=data)) for name, data in inputs if name in read
        ]
        subject = {"files": [name for name, _ in inputs], "symptom": symptom}
        keep_answer(path, "doctor", subject, document(diagnosis), seen)


def _this_host(symptom: Symptom | None, as_json: bool, path: Path | None) -> None:
    from linkbound.doctor.probe import probe_environment
    from linkbound.doctor.probe_acs import probe_acs
    from linkbound.topology.probe import probe_machine

    machine, environment = probe_machine(), probe_environment()
    acs = probe_acs(gpu.bus_id for gpu in machine.gpus if gpu.bus_id)
    diagnosis = diagnose_live(machine, environment, symptom, acs)
    _print(diagnosis, as_json)
    if path is not None:
        from linkbound.study.answers import keep_answer, seen_host

        seen = seen_host(
            msgspec.to_builtins({"machine": machine, "environment": environment, "acs": acs})
        )
        subject = {"machine": "this host", "symptom": None if symptom is None else symptom.value}
        keep_answer(path, "doctor", subject, document(diagnosis), [seen], machine)
    if not machine.gpus:
        raise NothingToMeasure(
            "No GPU was found on this host.",
            why="What could be seen of it is printed.",
            hint="Give files of another machine: linkbound doctor FILE...",
        )


def named(paths: tuple[Path, ...]) -> list[tuple[str, Path]]:
    """Every file with the name it gets in findings: short, but never the same for two."""
    files = [file for path in paths for file in _files(path)]
    names = [input_name(file) for file in files]
    return [
        (name if names.count(name) == 1 else str(file), file)
        for file in dict.fromkeys(files)
        for name in (input_name(file),)
    ]


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return [file for file in _entries(path) if file.is_file()]


def _skipped(paths: tuple[Path, ...]) -> tuple[UnreadInput, ...]:
    """Folders inside of folders, and folders without a file, one entry a named folder."""
    found = []
    for path in paths:
        inner = [one.name for one in _entries(path) if one.is_dir()] if path.is_dir() else []
        if inner:
            reason = f"{path}/: folders in it are left out ({listed(inner)}); name them too."
            found.append(UnreadInput(name=f"{path}/", reason=reason))
        elif path.is_dir() and not _files(path):
            found.append(UnreadInput(name=f"{path}/", reason=f"{path}/: no file is in it."))
    return tuple(found)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be read ({error.strerror}).",
            why="Nothing was diagnosed.",
            hint="Check the name and its permissions.",
        ) from None


def _print(diagnosis: Diagnosis, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(document(diagnosis), indent=2, allow_nan=False))
    else:
        click.echo(text_of(diagnosis))


def document(diagnosis: Diagnosis) -> dict[str, Any]:
    """The diagnosis as JSON; `findings` come worst first."""
    content: dict[str, Any] = msgspec.to_builtins(diagnosis)
    return {"schema": SCHEMA, "version": VERSION, **content}


def text_of(diagnosis: Diagnosis) -> str:
    """The diagnosis for a terminal: findings by severity, then what was and was not read."""
    blocks = []
    for severity, heading in _HEADINGS.items():
        found = [one for one in diagnosis.findings if one.severity is severity]
        if found:
            blocks.append(f"{heading}\n" + "\n".join(_paragraph(one) for one in found))
    if not blocks:
        blocks.append("Nothing was found in these inputs; that is no proof that all is well.")
    blocks += [_listing(diagnosis)] if _listing(diagnosis) else []
    return "\n\n".join(blocks)


def _paragraph(finding: Finding) -> str:
    level = "" if finding.level is Level.SEEN else f" ({finding.level.value})"
    lines = [f"  {finding.code}{level}"]
    for name, text in (("seen", finding.seen), ("why", finding.why), ("do", finding.remedy)):
        lead = f"    {name:<5}"
        lines.append(fill(text, _WIDTH, initial_indent=lead, subsequent_indent=" " * len(lead)))
    return "\n".join(lines)


def _listing(diagnosis: Diagnosis) -> str:
    lines = [f"Read: {one.name} ({', '.join(one.kinds)})" for one in diagnosis.read]
    lines += [f"Not read: {one.reason}" for one in diagnosis.unread]
    lines += [f"Note: {remark}" for remark in diagnosis.remarks]
    return "\n".join(lines)
