"""Rows of a live sweep as records: cells as they come, then curves, rates and latencies (E2).

Curves, rates and latencies have the shapes of imported ones, so that the same readers read them.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from statistics import median

import msgspec

from linkbound.evidence.stats import p10, p90
from linkbound.evidence.study import Study
from linkbound.evidence.types import Derived, Failed, Finding, Measured, Reason, Record, Samples
from linkbound.links.fit import fit
from linkbound.links.live.rows import HOST, Direction, LinkRow
from linkbound.links.types import (
    Curve,
    CurveKey,
    CurvePoint,
    Operation,
    PairLatency,
    PairRate,
)
from linkbound.topology.fingerprint import fingerprint
from linkbound.topology.types import Machine
from linkbound.values import Value

METHOD = "linkbound links"
HOST_NAME = "this-host"
"""What a study calls the host that it runs on: a host name can be private."""
VERSION = 1
_POINT_FIELDS = ("size_bytes", "time_s", "low_s", "high_s", "n", "wrong")


class Origin(Value, frozen=True, kw_only=True):
    """Where and how a sweep runs: what all of its records share."""

    machine_name: str
    machine_id: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    started: str
    parents: tuple[str, ...]
    """The record of the machine."""


class Kept(Value, frozen=True, kw_only=True):
    """A row and the record that holds it."""

    row: LinkRow
    record_id: str


def append_machine(study: Study, name: str, machine: Machine) -> tuple[str, str]:
    """The machine that is measured, as the topology stage records one: record and fingerprint."""
    identity = fingerprint(machine)
    record = Record(
        kind="topology.machine",
        subject={"machine": name},
        outcome=Measured(
            values={
                "machine": msgspec.to_builtins(machine),
                "fingerprint": msgspec.to_builtins(identity),
                "note": "measured live",
                "recorded": False,
            }
        ),
        method="linkbound.topology.probe",
        machine=identity.id,
    )
    return study.append(record), identity.id


def append_cell(study: Study, origin: Origin, row: LinkRow) -> Kept:
    """The row with all of its samples; a row that only says why there is none has Failed."""
    dimensions = msgspec.to_builtins(row)
    samples = dimensions.pop("samples_s")
    subject = {
        "machine": origin.machine_name,
        "operation": row.operation.value,
        "method": row.method,
        "group": list(row.group),
        "direction": row.direction.value,
        "concurrency": row.concurrency,
        "size_bytes": row.size_bytes,
        "pieces": row.pieces,
        "numa_node": row.numa_node,
    }
    said = row.samples_s or row.counters or row.wrong == 0
    outcome = (
        Measured(values=dimensions) if said or row.reason is None else Failed(reason=row.reason)
    )
    record = Record(
        kind="links.cell",
        subject=subject,
        outcome=outcome,
        method=METHOD,
        method_version=VERSION,
        machine=origin.machine_id,
        command=origin.command,
        environment=origin.environment,
        started=origin.started,
        parents=origin.parents,
        samples=Samples(columns=("time_s",), rows=tuple((one,) for one in samples)),
    )
    return Kept(row=row, record_id=study.append(record))


def append_summaries(study: Study, origin: Origin, kept: Iterable[Kept]) -> None:
    """Curves with fits, rates, latencies and retained shares, each on the cells it rests on."""
    cells = tuple(kept)
    for curve in curves_of(cells):
        record_id = study.append(_curve_record(origin, curve))
        study.append(_fit_record(origin, curve, record_id))
    rates = tuple(rates_of(cells))
    latencies = tuple(latencies_of(cells))
    shares = [one for one in cells if one.row.retained_share is not None]
    if rates:
        values = {"rates": [msgspec.to_builtins(rate) for _, rate in rates]}
        study.append(_record(origin, "links.rates", values, (one.record_id for one, _ in rates)))
    if latencies:
        values = {"latencies": [msgspec.to_builtins(one) for _, one in latencies]}
        parents = (one.record_id for one, _ in latencies)
        study.append(_record(origin, "links.latencies", values, parents))
    if shares:
        values = {"members": [_share(one.row) for one in shares]}
        parents = (one.record_id for one in shares)
        study.append(_record(origin, "links.contention", values, parents))


def append_finding(study: Study, origin: Origin, finding: Finding, log: str) -> None:
    """A finding with the log of the child that showed it."""
    blob = study.add_blob(log.encode()) if log else None
    study.append(
        Record(
            kind="links.finding",
            subject={"machine": origin.machine_name, **msgspec.to_builtins(finding)},
            outcome=Failed(reason=Reason(code=finding.code, text=finding.seen), log=blob),
            method=METHOD,
            method_version=VERSION,
            machine=origin.machine_id,
            command=origin.command,
            environment=origin.environment,
            started=origin.started,
            parents=origin.parents,
        )
    )


def curves_of(kept: Iterable[Kept]) -> tuple[Curve, ...]:
    """Curves of what was timed call by call; sustained windows and sets are rates."""
    found: dict[CurveKey, dict[int, Kept]] = defaultdict(dict)
    for one in kept:
        row = one.row
        if row.samples_s and row.calls == 1 and row.pieces == 1 and is_pair_copy(row):
            found[_key(row)].setdefault(row.size_bytes, one)
    return tuple(_curve(key, cells) for key, cells in found.items())


def is_pair_copy(row: LinkRow) -> bool:
    """A copy of one pair or host link, by itself."""
    return row.operation is not Operation.LATENCY and row.concurrency == "alone"


def _key(row: LinkRow) -> CurveKey:
    return CurveKey(
        operation=row.operation,
        implementation=row.implementation,
        group=row.group,
        arm=row.arm,
        launch=row.launch,
        concurrency=row.concurrency,
        method=_method(row),
    )


def _method(row: LinkRow) -> str:
    node = "" if row.numa_node is None else f", buffer on node {row.numa_node}"
    return f"{METHOD} {row.method}{node}"


def _curve(key: CurveKey, cells: Mapping[int, Kept]) -> Curve:
    return Curve(
        key=key,
        points=tuple(_point(cells[size].row) for size in sorted(cells)),
        source=METHOD,
        record_ids=tuple(cells[size].record_id for size in sorted(cells)),
    )


def _point(row: LinkRow) -> CurvePoint:
    return CurvePoint(
        size_bytes=row.size_bytes,
        time_s=median(row.samples_s),
        low_s=p10(row.samples_s),
        high_s=p90(row.samples_s),
        n=len(row.samples_s),
        wrong=row.wrong,
    )


def _curve_record(origin: Origin, curve: Curve) -> Record:
    return Record(
        kind="links.curve",
        subject={"machine": origin.machine_name, **msgspec.to_builtins(curve.key)},
        outcome=Measured(values={"source": curve.source, "points": len(curve.points)}),
        method=curve.key.method,
        method_version=VERSION,
        machine=origin.machine_id,
        started=origin.started,
        parents=curve.record_ids,
        samples=Samples(
            columns=_POINT_FIELDS,
            rows=tuple(
                tuple(getattr(point, field) for field in _POINT_FIELDS) for point in curve.points
            ),
        ),
    )


def _fit_record(origin: Origin, curve: Curve, record_id: str) -> Record:
    return Record(
        kind="links.fit",
        subject={"machine": origin.machine_name, **msgspec.to_builtins(curve.key)},
        outcome=Derived(values=msgspec.to_builtins(fit(curve))),
        method="linkbound.links.fit",
        machine=origin.machine_id,
        started=origin.started,
        parents=(record_id,),
    )


def _record(
    origin: Origin, kind: str, values: Mapping[str, object], parents: Iterable[str]
) -> Record:
    return Record(
        kind=kind,
        subject={"machine": origin.machine_name, "file": METHOD},
        outcome=Derived(values=values) if kind == "links.contention" else Measured(values=values),
        method=METHOD,
        method_version=VERSION,
        machine=origin.machine_id,
        started=origin.started,
        parents=tuple(dict.fromkeys(parents)),
    )


def rates_of(kept: Iterable[Kept]) -> Iterator[tuple[Kept, PairRate]]:
    """Sustained rates of pairs and host links: alone, both ways, and in sets."""
    for one in kept:
        row = one.row
        rate = row.bytes_per_s
        sustained = row.calls > 1 or row.direction is Direction.BOTH_WAYS
        if rate is None or not sustained or row.operation is Operation.LATENCY:
            continue
        if len(row.group) != 2 or row.concurrency.endswith(", total"):
            continue
        src, dst = row.group
        yield (
            one,
            PairRate(
                src=src,
                dst=dst,
                operation=row.operation,
                implementation=row.implementation,
                method=_method(row),
                bytes_per_s=rate,
                size_bytes=row.size_bytes,
                arm=row.arm,
                concurrency=row.concurrency,
                each_way_bytes_per_s=row.each_way_bytes_per_s,
            ),
        )


def latencies_of(kept: Iterable[Kept]) -> Iterator[tuple[Kept, PairLatency]]:
    for one in kept:
        row = one.row
        if row.operation is Operation.LATENCY and row.time_s is not None and HOST not in row.group:
            src, dst = row.group
            yield (
                one,
                PairLatency(
                    src=src, dst=dst, method=_method(row), latency_s=row.time_s, arm=row.arm
                ),
            )


def _share(row: LinkRow) -> dict[str, object]:
    return {
        "set": row.concurrency,
        "src": row.group[0],
        "dst": row.group[-1],
        "method": row.method,
        "bytes_per_s": row.bytes_per_s,
        "retained_share": row.retained_share,
    }
