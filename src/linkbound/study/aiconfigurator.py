"""Measured all-reduces for AIConfigurator: its systems directory with this machine's table (D5).

Its predictions read links from `comm/BACKEND/VERSION/custom_allreduce_perf.parquet` alone (0.12.0):
of machines with NVLink, whatever the host, and fill sizes that a version lacks from its other
versions. The copy made here has the rows of this machine in one arm, no table of other versions,
and every other file as it was.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from linkbound.errors import InputError, StudyError, UsageError
from linkbound.evidence.study import Study
from linkbound.evidence.types import Provenance
from linkbound.links import Arm, Operation
from linkbound.predict.book import CurveBook
from linkbound.report.parquet import parquet_bytes
from linkbound.study.predicting import book_of
from linkbound.study.reading import read_curves, read_machine_record
from linkbound.topology.types import Machine
from linkbound.values import Value

BACKEND, FRAMEWORK = "vllm", "vLLM"
TABLE = "custom_allreduce_perf.parquet"
MANIFEST = "linkbound.json"
# Read for every system: which versions may be asked, what stands in for what.
_SHARED = (
    "query_versions.yaml",
    "perf_data_reuse_manifest.yaml",
    "attention_lane_defaults.yaml",
)
_ELEMENT_BYTES = 2
"""bfloat16: sizes are in elements there."""


class AllReduceRow(Value, frozen=True, kw_only=True):
    """One measured time, with where it is from."""

    gpus: tuple[str, ...]
    size_bytes: int
    time_s: float
    source: str
    record_ids: tuple[str, ...]


class Exported(Value, frozen=True, kw_only=True):
    """What was written, and how it was made."""

    machine: str
    arm: Arm
    system: str
    version: str
    table: str
    """Of the folder that was written."""
    rows: tuple[AllReduceRow, ...]
    not_measured: tuple[str, ...]


def export_systems(
    study: Study, machine: str, arm: Arm, *, systems: Path, system: str, version: str, out: Path
) -> Exported:
    """Write the systems directory into the new folder `out`.

    Raises StudyError where no all-reduce of the arm was measured, InputError where `systems` is
    none of AIConfigurator's.
    """
    rows, missing = all_reduces(study, machine, arm)
    folder = _data_folder(systems, system)
    table = folder / "comm" / BACKEND / version / TABLE
    if not (systems / table).is_file():
        raise InputError(
            f"{systems} has no {table}.",
            why="The measured rows take its place.",
            hint=f"It has {', '.join(_versions(systems / folder)) or 'no version'} of {BACKEND}.",
        )
    if out.exists():
        raise UsageError(
            f"{out} is there already.", why="Files would be mixed.", hint="Name a new folder."
        )
    shutil.copytree(systems / folder, out / folder)
    for other in (out / folder).glob(f"comm/{BACKEND}/*/{TABLE}"):
        other.unlink()
    for name in (f"{system}.yaml", *_SHARED):
        if (systems / name).is_file():
            shutil.copy(systems / name, out / name)
    device = read_machine_record(study, machine).machine.gpus[0].model or "GPU"
    (out / table).write_bytes(_table(rows, device, version))
    found = Exported(
        machine=machine,
        arm=arm,
        system=system,
        version=version,
        table=str(table),
        rows=rows,
        not_measured=missing,
    )
    (out / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
    return found


def all_reduces(
    study: Study, machine: str, arm: Arm
) -> tuple[tuple[AllReduceRow, ...], tuple[str, ...]]:
    """Measured all-reduces that price plans in the arm, of one group for each number of GPUs.

    A group is left out, and named, where small or large calls were not measured: half a curve would
    be drawn out to the other half. Raises StudyError where none is left.
    """
    book = book_of(study, machine)
    held = read_machine_record(study, machine).machine
    rows: list[AllReduceRow] = []
    missing = []
    for group in _groups(study, machine, held):
        found = tuple(_measured(book, group, arm))
        small = [row.size_bytes < book.direct_limit_bytes for row in found]
        if any(small) and not all(small):
            rows += found
        else:
            sizes = "from" if any(small) else "below"
            missing.append(f"{' '.join(group)}: {sizes} {book.direct_limit_bytes:,} bytes")
    if not rows:
        raise StudyError(
            f"All-reduces in arm {arm} were not measured on {machine}"
            + (f" ({'; '.join(missing)})." if missing else "."),
            why="What is assumed or published elsewhere would come back as if it were measured.",
            hint=f"Measure them: linkbound links --only collectives -C {study.path}, or name "
            "another --arm.",
        )
    return tuple(rows), tuple(missing)


def _groups(study: Study, machine: str, held: Machine) -> list[tuple[str, ...]]:
    """For each number of GPUs the first group that has a curve, in the machine's order."""
    order = [gpu.label for gpu in held.gpus]
    groups = {
        tuple(sorted(curve.key.group, key=order.index))
        for curve in read_curves(study, machine)
        if curve.key.operation is Operation.ALL_REDUCE and set(curve.key.group) <= set(order)
    }
    first: dict[int, tuple[str, ...]] = {}
    for group in sorted(groups, key=lambda one: [order.index(label) for label in one]):
        first.setdefault(len(group), group)
    return [first[size] for size in sorted(first)]


def _measured(book: CurveBook, group: tuple[str, ...], arm: Arm) -> Iterator[AllReduceRow]:
    """Points of the curves that price calls of their size."""
    curves = (
        book.curve(Operation.ALL_REDUCE, group, arm, size) for size in (1, book.direct_limit_bytes)
    )
    seen: set[int] = set()
    for curve in curves:
        if curve is None or curve.provenance is not Provenance.MEASURED:
            continue
        for point in curve.points:
            prices = book.curve(Operation.ALL_REDUCE, group, arm, point.size_bytes) == curve
            whole = point.size_bytes % _ELEMENT_BYTES == 0
            if prices and whole and point.size_bytes not in seen:
                seen.add(point.size_bytes)
                yield AllReduceRow(
                    gpus=group,
                    size_bytes=point.size_bytes,
                    time_s=point.time_s,
                    source=curve.source,
                    record_ids=curve.record_ids,
                )


def _table(rows: tuple[AllReduceRow, ...], device: str, version: str) -> bytes:
    """The table in the columns of AIConfigurator 0.12.0; milliseconds, bfloat16 elements."""
    count = len(rows)
    return parquet_bytes(
        {
            "framework": [FRAMEWORK] * count,
            "version": [version] * count,
            "device": [device] * count,
            "op_name": ["all_reduce"] * count,
            "kernel_source": ["vLLM_custom_graph"] * count,
            "allreduce_dtype": ["bfloat16"] * count,
            "num_gpus": [len(row.gpus) for row in rows],
            "message_size": [row.size_bytes // _ELEMENT_BYTES for row in rows],
            "latency": [row.time_s * 1e3 for row in rows],
            "backend": ["vllm_graph"] * count,
        }
    )


def _data_folder(systems: Path, system: str) -> Path:
    """Where the system's tables are, relative to `systems`."""
    file = systems / f"{system}.yaml"
    known = sorted(one.stem for one in systems.glob("*.yaml") if _DATA.search(one.read_text()))
    if Path(system).name != system or system not in known:
        raise InputError(
            f"{file} is no system of AIConfigurator.",
            why="Its tables are copied, and one of them is replaced.",
            hint=f"Its systems are {', '.join(known)}."
            if known
            else "Give the folder aiconfigurator_core/systems of an installed AIConfigurator.",
        )
    found = _DATA.search(file.read_text())
    assert found is not None
    folder = Path(found[1])
    if folder.is_absolute() or ".." in folder.parts or not (systems / folder).is_dir():
        raise InputError(
            f"{file} names its tables as {found[1]}, which is no folder beside it.",
            why="They are copied.",
            hint="Give the folder as it was installed.",
        )
    return folder


_DATA = re.compile(r"^data_dir:\s*([^\s#]+)", re.MULTILINE)


def _versions(folder: Path) -> list[str]:
    return sorted(one.parent.name for one in folder.glob(f"comm/{BACKEND}/*/{TABLE}"))
