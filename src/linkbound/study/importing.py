"""Files of a machine into records: sources as they are, and what each reader made of them (E2)."""

from collections.abc import Iterator

import msgspec

from linkbound.errors import InputError
from linkbound.evidence.study import Study
from linkbound.evidence.types import (
    Derived,
    Failed,
    Measured,
    Outcome,
    Reason,
    Record,
    Samples,
    Stated,
)
from linkbound.links import Curve, LinkEvidence, fit, path_of, read_links
from linkbound.study.machines import check_gpus, machine_files, read_files, stated_memory
from linkbound.study.sources import MANIFEST, SourceFile, Sources
from linkbound.topology.fingerprint import fingerprint
from linkbound.topology.merge import merge
from linkbound.topology.sniff import read_machine
from linkbound.topology.types import Machine


def import_topology(study: Study, sources: Sources) -> str:
    """Records of every file that tells of the machine, and of the merged Machine; its id."""
    read: list[tuple[str, Machine]] = []
    if sources.live is not None:
        read.append((study.append(_live_record(sources, sources.live)), sources.live))
    for file, machine in read_files(sources):
        record = Record(
            kind="topology.source",
            subject={"machine": sources.name, "file": file.name},
            outcome=Measured(values={"machine": msgspec.to_builtins(machine)}),
            method="linkbound.topology.read_machine",
            blobs=(study.add_blob(file.data),),
        )
        read.append((study.append(record), machine))
    machines = [machine for _, machine in read]
    check_gpus(sources, machines)
    if sources.memory_bytes:
        stated = stated_memory(sources, machines)
        read.append((study.append(_stated_record(sources, stated)), stated))
    return study.append(machine_record(sources, read))


def _live_record(sources: Sources, machine: Machine) -> Record:
    return Record(
        kind="topology.source",
        subject={"machine": sources.name, "file": "this host"},
        outcome=Measured(values={"machine": msgspec.to_builtins(machine)}),
        method="linkbound.topology.probe_machine",
    )


def _stated_record(sources: Sources, stated: Machine) -> Record:
    return Record(
        kind="topology.source",
        subject={"machine": sources.name, "file": MANIFEST},
        outcome=Stated(values={"machine": msgspec.to_builtins(stated)}),
        method="linkbound.study.sources",
    )


def machine_record(sources: Sources, read: list[tuple[str, Machine]]) -> Record:
    """The merged machine with its fingerprint, resting on the records it was read into."""
    machine = merge([machine for _, machine in read])
    identity = fingerprint(machine)
    return Record(
        kind="topology.machine",
        subject={"machine": sources.name},
        outcome=Derived(
            values={
                "machine": msgspec.to_builtins(machine),
                "fingerprint": msgspec.to_builtins(identity),
                "note": sources.note,
                "recorded": sources.recorded,
            }
        ),
        method="linkbound.topology.merge",
        machine=identity.id,
        parents=tuple(record_id for record_id, _ in read),
    )


def import_links(study: Study, sources: Sources, machine_id: str) -> None:
    """Records of curves with their fits, pair rates, latencies, and paths that logs prove."""
    labels = _labels(study, sources)
    for file in machine_files(sources):
        try:
            evidence = _read_links(file, labels)
        except InputError as error:
            if not study.find("topology.source", machine=sources.name, file=file.name):
                study.append(_unread(sources, file, error))
            continue
        source = Record(
            kind="links.source",
            subject={"machine": sources.name, "file": file.name},
            outcome=Measured(values={"tool": evidence.kind, "notes": list(evidence.notes)}),
            method="linkbound.links.read_links",
            machine=machine_id,
            blobs=(study.add_blob(file.data),),
        )
        parent = study.append(source)
        study.append_many(_link_records(evidence, sources.name, machine_id, parent))
        for curve in evidence.curves:
            _append_curve(study, curve, sources.name, machine_id, parent)


def _labels(study: Study, sources: Sources) -> tuple[str, ...]:
    record = study.find("topology.machine", machine=sources.name)[-1]
    assert isinstance(record.outcome, Derived)
    return tuple(gpu["label"] for gpu in record.outcome.values["machine"]["gpus"])


def _read_links(file: SourceFile, labels: tuple[str, ...]) -> LinkEvidence:
    """A table that names no GPUs is about all of them, where there are just two."""
    evidence = read_links(file.data, file.name)
    if len(labels) == 2 and evidence.kind == "symmetric all-reduce":
        return read_links(file.data, file.name, group=labels)
    return evidence


def curve_samples(curve: Curve) -> Samples:
    """The points of a curve as rows."""
    fields = ("size_bytes", "time_s", "low_s", "high_s", "n", "wrong")
    return Samples(
        columns=fields,
        rows=tuple(tuple(getattr(point, field) for field in fields) for point in curve.points),
    )


def _append_curve(study: Study, curve: Curve, machine: str, machine_id: str, parent: str) -> None:
    key = msgspec.to_builtins(curve.key)
    record_id = study.append(
        Record(
            kind="links.curve",
            subject={"machine": machine, **key},
            outcome=Measured(values={"source": curve.source, "points": len(curve.points)}),
            method=curve.key.method or "linkbound.links",
            machine=machine_id,
            parents=(parent,),
            samples=curve_samples(curve),
        )
    )
    study.append(
        Record(
            kind="links.fit",
            subject={"machine": machine, **key},
            outcome=Derived(values=msgspec.to_builtins(fit(curve))),
            method="linkbound.links.fit",
            machine=machine_id,
            parents=(record_id,),
        )
    )


def _link_records(
    evidence: LinkEvidence, machine: str, machine_id: str, parent: str
) -> Iterator[Record]:
    def record(kind: str, outcome: Outcome) -> Record:
        return Record(
            kind=kind,
            subject={"machine": machine, "file": evidence.source},
            outcome=outcome,
            method="linkbound.links.read_links",
            machine=machine_id,
            parents=(parent,),
        )

    if evidence.pair_rates:
        values = {"rates": msgspec.to_builtins(evidence.pair_rates)}
        yield record("links.rates", Measured(values=values))
    if evidence.latencies:
        values = {"latencies": msgspec.to_builtins(evidence.latencies)}
        yield record("links.latencies", Measured(values=values))
    if evidence.access:
        yield record(
            "links.access", Measured(values={"access": msgspec.to_builtins(evidence.access)})
        )
    for waived in evidence.waived:
        reason = Reason(code="waived", text=f"{waived.test}: {waived.reason or waived.status}")
        yield record("links.waived", Failed(reason=reason))
    for log in evidence.logs:
        yield record("links.path", Measured(values=msgspec.to_builtins(path_of(log))))


def _unread(sources: Sources, file: SourceFile, error: InputError) -> Record:
    """A file that no reader understood: the file was there, and nothing rests on it."""
    reasons = [error.seen]
    try:
        read_machine(file.data, file.name)
    except InputError as other:
        reasons.insert(0, other.seen)
    return Record(
        kind="study.unread",
        subject={"machine": sources.name, "file": file.name},
        outcome=Failed(reason=Reason(code="not-read", text=" ".join(reasons))),
        method="linkbound.study.importing",
    )
