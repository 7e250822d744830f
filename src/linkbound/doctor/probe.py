"""What a process of this host meets: its environment, /dev/shm, the kernel's arguments (M3)."""

import os
from collections.abc import Mapping
from pathlib import Path

from linkbound.doctor.types import Environment

_PREFIXES = ("NCCL_", "RCCL_", "CUDA_", "HIP_", "ROCR_")


def probe_environment(
    root: Path = Path("/"), variables: Mapping[str, str] | None = None
) -> Environment:
    """The variables that steer GPU libraries, and what files below `root` say."""
    given = os.environ if variables is None else variables
    return Environment(
        variables={name: given[name] for name in sorted(given) if name.startswith(_PREFIXES)},
        shm_bytes=_size_bytes(root / "dev/shm"),
        command_line=_command_line(root),
    )


def _size_bytes(folder: Path) -> int | None:
    try:
        seen = os.statvfs(folder)
    except OSError:
        return None
    return seen.f_frsize * seen.f_blocks or None


def _command_line(root: Path) -> str | None:
    try:
        return (root / "proc/cmdline").read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None
