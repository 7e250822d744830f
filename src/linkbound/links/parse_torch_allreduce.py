"""Times of torch's all_reduce that a script printed below its NCCL log (L4, P3).

Lines `allreduce BYTES TIMEus RATE GB/s` (recorded/h200-pair/README.md): bf16, eager, one process a
GPU, as engines run NCCL. The log above them says which GPUs, and which path was open.
"""

import re

from linkbound.links.log_path import path_of
from linkbound.links.log_types import LogPath, NcclLog
from linkbound.links.types import Arm, Curve, CurveKey, CurvePoint, Launch, Operation

METHOD = "torch all_reduce, one process a GPU"
_LINE = re.compile(r"^allreduce (\d{1,15}) (\d{1,12}(?:\.\d{1,6})?)us\b", re.MULTILINE | re.ASCII)
_ARM = {LogPath.DIRECT: Arm.NCCL, LogPath.STAGED: Arm.STAGED, LogPath.NET: Arm.NET}


def curve_of_torch_lines(
    text: str, source: str, log: NcclLog, group: tuple[str, ...] | None
) -> Curve | None:
    """The curve of the printed lines; None without lines, or where the log names no GPUs."""
    times = {int(size): float(time_us) * 1e-6 for size, time_us in _LINE.findall(text)}
    points = tuple(
        CurvePoint(size_bytes=size, time_s=times[size])
        for size in sorted(times)
        if size > 0 and times[size] > 0
    )
    labels = group or _labels(log)
    if not points or labels is None:
        return None
    return Curve(
        key=CurveKey(
            operation=Operation.ALL_REDUCE,
            implementation="torch_nccl",
            group=labels,
            arm=_ARM.get(path_of(log).path),
            launch=Launch.EAGER,
            method=METHOD,
        ),
        points=points,
        source=source,
    )


def _labels(log: NcclLog) -> tuple[str, ...] | None:
    """GPUs of the largest communicator in rank order, by the index that nvidia-smi uses."""
    whole = [one for one in log.communicators if one.complete and one.ranks > 1]
    size = max((one.ranks for one in whole), default=0)
    labels = {
        one.rank: f"GPU{one.nvml_device}"
        for one in whole
        if one.ranks == size and one.nvml_device is not None
    }
    if not labels or sorted(labels) != list(range(size)):
        return None
    return tuple(labels[rank] for rank in range(size))
