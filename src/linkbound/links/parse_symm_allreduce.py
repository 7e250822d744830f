"""What the recorded all-reduce script printed: NCCL through torch beside one- and two-shot (L4).

A line is a size and microseconds a call, each call one of many in a CUDA graph.
"""

import re
from collections.abc import Sequence

from linkbound.errors import InputError
from linkbound.links.cells import to_positive
from linkbound.links.types import Arm, Curve, CurveKey, CurvePoint, Launch, Operation
from linkbound.values import Value

_LINE = re.compile(r"^(\d{1,15}) \{(.{1,400})\}\s*$")
_CELL = re.compile(r"'(\w{1,30})': ([\w.+-]{1,30})")
_METHOD = {
    "nccl": ("torch_nccl", Arm.NCCL, "torch.distributed all_reduce"),
    "one_shot": ("one_shot", Arm.P2P, "torch.ops.symm_mem one_shot_all_reduce"),
    "two_shot": ("two_shot", Arm.P2P, "torch.ops.symm_mem two_shot_all_reduce_"),
}
"""Through torch an all-reduce is slower than NCCL called directly: an implementation of its own."""


class SymmAllReduce(Value, frozen=True, kw_only=True):
    """Points of each implementation in file order, and what verification said."""

    points: dict[str, tuple[CurvePoint, ...]]
    notes: tuple[str, ...]


def parse_symm_allreduce(text: str, source: str) -> SymmAllReduce:
    """Times of each implementation. Raises InputError where no line has any."""
    points: dict[str, dict[int, CurvePoint]] = {}
    notes: list[str] = []
    for line in text.splitlines():
        found = _LINE.match(line)
        if found is None or int(found.group(1)) == 0:
            if line.strip() and not line.startswith("#"):
                notes.append(f"{source}: line not understood: '{line.strip()[:60]}'")
            continue
        size_bytes = int(found.group(1))
        cells: dict[str, str] = dict(_CELL.findall(found.group(2)))
        failed = cells.get("ok") == "False"
        if failed:
            notes.append(f"{source}: one_shot differs from nccl at {size_bytes} B")
        for name in _METHOD:
            time_us = to_positive(cells.get(name, ""))
            if time_us is not None:
                points.setdefault(name, {})[size_bytes] = _point(
                    size_bytes, time_us, wrong=_wrong(name, cells, failed=failed)
                )
    if not points:
        raise InputError(
            f"{source}: no all-reduce was found.",
            why="A line is a size in bytes and times in braces: 2048 {'nccl': 10.5, ...}.",
            hint="Give the whole output of the all-reduce script.",
        )
    ordered = {
        name: tuple(by_size[size] for size in sorted(by_size)) for name, by_size in points.items()
    }
    return SymmAllReduce(points=ordered, notes=tuple(notes))


def curves_of_symm_allreduce(
    reading: SymmAllReduce, source: str, *, group: Sequence[str]
) -> tuple[Curve, ...]:
    """One curve an implementation over `group`, GPU labels in rank order (the file has none).

    Symmetric memory exists only where peer access is open: the arms follow from that.
    """
    curves = []
    for name, points in reading.points.items():
        implementation, arm, method = _METHOD[name]
        key = CurveKey(
            operation=Operation.ALL_REDUCE,
            implementation=implementation,
            group=tuple(group),
            arm=arm,
            launch=Launch.GRAPH,
            method=method,
        )
        curves.append(Curve(key=key, points=points, source=source))
    return tuple(curves)


def _wrong(name: str, cells: dict[str, str], *, failed: bool) -> int | None:
    """Only one_shot is compared (with nccl); a difference is at least one wrong element."""
    if name != "one_shot" or "ok" not in cells:
        return None
    return 1 if failed else 0


def _point(size_bytes: int, time_us: float, *, wrong: int | None) -> CurvePoint:
    return CurvePoint(size_bytes=size_bytes, time_s=time_us * 1e-6, wrong=wrong)
