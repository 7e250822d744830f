"""What the recorded copy script printed: peer copies with and without peer access, host legs (L1).

Lines are `peer_access BYTES push TIMEus RATEGB/s pull TIMEus RATEGB/s`, `pinned BYTES d2h RATE h2d
RATE`, then rates of torch's `copy_`. Copies go from GPU 0 to GPU 1; push is queued on GPU 0.
"""

import re

from linkbound.errors import InputError
from linkbound.links.cells import to_integer, to_positive
from linkbound.links.types import Arm, Curve, CurveKey, CurvePoint, Operation, PairRate, PeerAccess
from linkbound.values import Value

_COPY = re.compile(r"^(no_)?peer_access (\d{1,15}) push (\S+)us \S+ pull (\S+)us \S+\s*$")
_PINNED = re.compile(r"^pinned (\d{1,15}) d2h (\S+) h2d (\S+)\s*$")
_CAN = re.compile(r"^(\d{1,3}) (\d{1,3}) can ([01])\b")
_TORCH = re.compile(r"^(cuda:\d{1,3}|pin) (cuda:\d{1,3}|pin) (\S+)\s*$")
_TORCH_HEAD = re.compile(r"^# torch: .*\bcopies of (\d{1,6}) (GiB|MiB)\b")
_UNIT = {"GiB": 1024**3, "MiB": 1024**2}
_PAIR = ("GPU0", "GPU1")
# The tool prints the median of this many copies, but not their spread.
_REPEATS = 5


class PeerCopies(Value, frozen=True, kw_only=True):
    """Curves of the first part, rates of the second, the runtime's answers."""

    curves: tuple[Curve, ...]
    rates: tuple[PairRate, ...]
    access: tuple[PeerAccess, ...]
    notes: tuple[str, ...]


def parse_peer_copies(text: str, source: str) -> PeerCopies:
    """Curves and rates of `text`. Raises InputError where no line is a copy."""
    points: dict[CurveKey, list[CurvePoint]] = {}
    rates: list[PairRate] = []
    access: list[PeerAccess] = []
    notes: list[str] = []
    torch_bytes: int | None = None
    for line in text.splitlines():
        if found := _COPY.match(line):
            _add_copies(points, found, notes)
        elif found := _PINNED.match(line):
            _add_legs(points, found, notes)
        elif found := _CAN.match(line):
            src, dst, can = found.groups()
            access.append(PeerAccess(src=f"GPU{src}", dst=f"GPU{dst}", granted=can == "1"))
        elif found := _TORCH_HEAD.match(line):
            torch_bytes = int(found.group(1)) * _UNIT[found.group(2)]
        elif (found := _TORCH.match(line)) and (rate := _torch_rate(found, torch_bytes)):
            rates.append(rate)
        elif line.strip() and not line.startswith(("#", "cuda.bindings ")):
            notes.append(f"{source}: line not understood: '{line[:60]}'")
    if not points and not rates:
        raise InputError(
            f"{source}: no peer copy was found.",
            why="Lines begin with peer_access, no_peer_access or pinned and a size in bytes.",
            hint="Give the whole output of the copy script.",
        )
    curves = tuple(_curve(key, found, source) for key, found in points.items())
    return PeerCopies(curves=curves, rates=tuple(rates), access=tuple(access), notes=tuple(notes))


def _curve(key: CurveKey, points: list[CurvePoint], source: str) -> Curve:
    by_size = {point.size_bytes: point for point in points}
    return Curve(key=key, points=tuple(by_size[size] for size in sorted(by_size)), source=source)


def _add_copies(
    points: dict[CurveKey, list[CurvePoint]], found: re.Match[str], notes: list[str]
) -> None:
    staged, size, push, pull = found.groups()
    for direction, cell in (("push", push), ("pull", pull)):
        time_us = to_positive(cell)
        if time_us is None or int(size) == 0:
            notes.append(f"no time in '{found.group(0).strip()[:60]}'")
            continue
        key = CurveKey(
            operation=Operation.COPY,
            implementation="driver" if staged else "copy_engine",
            group=_PAIR,
            arm=Arm.STAGED if staged else Arm.P2P,
            method=f"cudaMemcpyPeerAsync, {direction}",
        )
        point = CurvePoint(size_bytes=int(size), time_s=time_us * 1e-6, n=_REPEATS)
        points.setdefault(key, []).append(point)


def _add_legs(
    points: dict[CurveKey, list[CurvePoint]], found: re.Match[str], notes: list[str]
) -> None:
    size, out, back = found.groups()
    legs = (
        (Operation.DEVICE_TO_HOST, ("GPU0", "host"), out),
        (Operation.HOST_TO_DEVICE, ("host", "GPU1"), back),
    )
    for operation, group, cell in legs:
        rate = to_positive(cell)
        if rate is None or rate <= 0.05 or int(size) == 0:
            notes.append(f"no rate in '{found.group(0).strip()[:60]}'")
            continue
        key = CurveKey(
            operation=operation, implementation="pinned", group=group, method="cudaMemcpyAsync"
        )
        points.setdefault(key, []).append(_leg_point(int(size), rate))


def _leg_point(size_bytes: int, rate_gb_per_s: float) -> CurvePoint:
    """Only a rate with one decimal is printed: the interval is what rounding leaves open."""
    return CurvePoint(
        size_bytes=size_bytes,
        time_s=size_bytes / (rate_gb_per_s * 1e9),
        low_s=size_bytes / ((rate_gb_per_s + 0.05) * 1e9),
        high_s=size_bytes / ((rate_gb_per_s - 0.05) * 1e9),
    )


def _torch_rate(found: re.Match[str], size_bytes: int | None) -> PairRate | None:
    src, dst = (_end(name) for name in found.groups()[:2])
    rate = to_positive(found.group(3))
    if rate is None or src == dst == "host":
        return None
    operation, implementation, arm = Operation.COPY, "copy_engine", None
    if src == "host":
        operation, implementation = Operation.HOST_TO_DEVICE, "pinned"
    elif dst == "host":
        operation, implementation = Operation.DEVICE_TO_HOST, "pinned"
    elif src == dst:
        operation = Operation.LOCAL_COPY
    else:
        # torch enables peer access before its first copy between two GPUs, where it is granted.
        arm = Arm.P2P
    return PairRate(
        src=src,
        dst=dst,
        operation=operation,
        implementation=implementation,
        method="torch copy_",
        bytes_per_s=rate * 1e9,
        size_bytes=size_bytes,
        arm=arm,
    )


def _end(name: str) -> str:
    index = to_integer(name.removeprefix("cuda:"))
    return "host" if index is None else f"GPU{index}"
