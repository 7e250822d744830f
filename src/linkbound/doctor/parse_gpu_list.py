"""Lists of GPU names: `nvidia-smi -L` and what programs print of the environment (M4, M3)."""

import re

from linkbound.topology.types import Gpu, Machine

_GPU = re.compile(
    r"^\s*(?:\[\d\] )?(?:GPU|Device) ?(\d{1,3}): "
    r"((?:NVIDIA|Tesla|GeForce|Quadro|AMD|Radeon) ?[^,(\[]{2,60})"
    r"(?:\s*\(UUID: ([^)]{1,60})\))?\s*$"
)
_FIRST = re.compile(r"^\s*(?:\[\d\] )?(?:GPU|Device) ?0: ", re.MULTILINE)
_MOST = 512
_NO_UUID = "GPU-00000000-0000-0000-0000-000000000000"


def parse_gpu_list(text: str, source: str) -> tuple[Machine, ...]:
    """One machine with the GPUs that are listed from 0 up; none where there is no list."""
    if not _FIRST.search(text):
        return ()
    gpus: dict[str, Gpu] = {}
    for line in text.splitlines():
        found = _GPU.match(line[:200])
        if found and len(gpus) < _MOST:
            index, name, uuid = found.groups()
            label = f"GPU{int(index)}"
            known = uuid if uuid != _NO_UUID else None
            gpus.setdefault(
                label,
                Gpu(
                    key=known or label,
                    label=label,
                    uuid=known,
                    vendor="AMD" if name.startswith(("AMD", "Radeon")) else "NVIDIA",
                    model=name.strip(),
                ),
            )
    keys = {gpu.key for gpu in gpus.values()}
    if not gpus or "GPU0" not in gpus or len(keys) != len(gpus):
        return ()
    return (Machine(sources=(source,), gpus=tuple(gpus.values())),)
