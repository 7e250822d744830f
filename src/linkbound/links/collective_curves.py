"""Curves of a run of nccl-tests (L4).

A point's time is the out-of-place one, as engines call NCCL; both together are low and high.
"""

from collections.abc import Sequence

from linkbound.links.collectives import OPERATIONS
from linkbound.links.curves import merge_repeats
from linkbound.links.types import (
    Arm,
    Curve,
    CurveKey,
    CurvePoint,
    Launch,
    NcclTestsRow,
    NcclTestsRun,
)


def curves_of_run(
    run: NcclTestsRun, *, arm: Arm | None, group: Sequence[str] | None = None
) -> tuple[tuple[Curve, ...], tuple[str, ...]]:
    """Curves of `run`, and notes on what no curve could be made of.

    `arm` is what the caller knows of the run: the table does not say. `group` are GPU labels in
    rank order, for tables without device lines.
    """
    labels = _labels(run, group)
    reason = _obstacle(run, labels)
    if reason is not None or labels is None or run.collective is None:
        return (), () if reason is None else (f"{run.source}: no curve, {reason}",)
    notes = []
    if run.launch is None:
        notes.append(f"{run.source}: the heading does not name a launch mode, taken as eager")
    kinds = list(dict.fromkeys((row.dtype, row.redop, row.root) for row in run.rows))
    curves = []
    for kind in kinds:
        rows = [row for row in run.rows if (row.dtype, row.redop, row.root) == kind]
        method = f"nccl-tests {run.collective}_perf"
        if len(kinds) > 1:
            method += "".join(f" {word}" for word in kind if word not in (None, -1))
        key = CurveKey(
            operation=OPERATIONS[run.collective],
            implementation="nccl",
            group=labels,
            arm=arm,
            launch=run.launch or Launch.EAGER,
            method=method,
        )
        points = merge_repeats(_point(row) for row in rows)
        curves.append(Curve(key=key, points=points, source=run.source))
    return tuple(curves), tuple(notes)


def _obstacle(run: NcclTestsRun, labels: tuple[str, ...] | None) -> str | None:
    if not run.rows:
        return "nothing was timed"
    if run.collective is None:
        return "the collective is not known"
    if run.collective not in OPERATIONS:
        return f"{run.collective} is none of the operations that a split needs"
    if labels is None:
        return "the GPUs are not known: name them in rank order"
    if len(labels) < 2:
        return "one rank crosses no link (busbw is 0 by definition)"
    return None


def _labels(run: NcclTestsRun, group: Sequence[str] | None) -> tuple[str, ...] | None:
    if group is not None:
        return tuple(group)
    if not run.devices:
        return None
    ranks = sorted(run.devices, key=lambda device: device.rank)
    one_host = len({device.host for device in ranks}) == 1
    return tuple(
        f"GPU{device.device}" if one_host else f"{device.host}/GPU{device.device}"
        for device in ranks
    )


def _point(row: NcclTestsRow) -> CurvePoint:
    halves = (row.out_of_place,) if row.in_place is None else (row.out_of_place, row.in_place)
    wrong = [half.wrong for half in halves if half.wrong is not None]
    repeated = len(halves) > 1
    return CurvePoint(
        size_bytes=row.size_bytes,
        time_s=row.out_of_place.time_s,
        low_s=min(half.time_s for half in halves) if repeated else None,
        high_s=max(half.time_s for half in halves) if repeated else None,
        n=len(halves),
        wrong=sum(wrong) if wrong else None,
    )
