"""Answers of verbs that need no study, kept in one where the user asks for it (E1).

A source record for each thing that was looked at, and one record of the answer that rests on them.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from linkbound.evidence.study import Study
from linkbound.evidence.types import Derived, Measured, Outcome, Record, Stated
from linkbound.model.types import ModelShape
from linkbound.study.machines import read_files
from linkbound.study.sources import MANIFEST, SourceFile, Sources
from linkbound.topology.fingerprint import fingerprint
from linkbound.topology.types import Machine
from linkbound.values import Value


class Seen(Value, frozen=True, kw_only=True):
    """One thing that an answer rests on; `data` is the file as it was read."""

    name: str
    outcome: Outcome
    data: bytes | None = None


def seen_file(file: SourceFile) -> Seen:
    """A file that somebody's tool wrote."""
    outcome = Measured(values={"size_bytes": len(file.data)})
    return Seen(name=file.name, outcome=outcome, data=file.data)


def seen_host(values: Mapping[str, Any]) -> Seen:
    """This host as it was probed."""
    return Seen(name="this host", outcome=Measured(values=values))


def seen_model(shape: ModelShape) -> Seen:
    """A model with what was set by hand in it."""
    return Seen(
        name=f"model {shape.name}", outcome=Stated(values={"shape": msgspec.to_builtins(shape)})
    )


def seen_machine(title: str, machine: Machine, sources: Sources | None) -> tuple[Seen, ...]:
    """The GPUs that were stated, this host, or the files that show a machine."""
    values = {"machine": msgspec.to_builtins(machine)}
    if sources is None:
        return (Seen(name=title, outcome=Stated(values=values)),)
    if sources.live is not None:
        return (seen_host(values),)
    files = tuple(seen_file(file) for file, _ in read_files(sources))
    if not sources.memory_bytes:
        return files
    memory = Stated(values={"memory_bytes": dict(sources.memory_bytes)})
    return (*files, Seen(name=MANIFEST, outcome=memory))


def keep_answer(
    path: Path,
    verb: str,
    subject: Mapping[str, Any],
    document: Mapping[str, Any],
    seen: Iterable[Seen],
    machine: Machine | None = None,
) -> str:
    """Append the answer of `verb` to the study at `path`, made where there is none; its id.

    `document` is what --json prints. Raises StudyError.
    """
    identity = None if machine is None else fingerprint(machine).id
    with Study.open_or_create(path) as study:
        parents = study.append_many(
            [
                Record(
                    kind=f"{verb}.source",
                    subject={"name": one.name},
                    outcome=one.outcome,
                    method=f"linkbound {verb}",
                    blobs=() if one.data is None else (study.add_blob(one.data),),
                )
                for one in seen
            ]
        )
        return study.append(
            Record(
                kind=f"{verb}.answer",
                subject=subject,
                outcome=Derived(values=document),
                method=f"linkbound {verb}",
                machine=identity,
                parents=tuple(dict.fromkeys(parents)),
            )
        )
