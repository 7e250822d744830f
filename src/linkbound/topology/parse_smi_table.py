"""The table of plain `nvidia-smi`: driver, GPUs, memory, MIG; whole or its lines (M1 M4)."""

import re

from msgspec import structs

from linkbound.errors import InputError
from linkbound.topology.identifiers import normal_bus_id
from linkbound.topology.pci import refuse_too_long
from linkbound.topology.types import Gpu, Machine

_HEADING = re.compile(r"NVIDIA-SMI\s+\S{1,20}\s+Driver Version: (\S{1,20})")
_CUDA = re.compile(r"CUDA (?:UMD )?Version: (\d\S{0,19})")
_GPU = re.compile(
    r"^\s*\|\s+(\d{1,3})\s+(\S.{0,60}?)\s+(On|Off|N/A|WDDM|TCC|MCDM)\s*\|"
    r"\s+([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s"
)
_MEMORY = re.compile(r"\|\s+\d{1,9}MiB\s+/\s+(\d{1,9})MiB\s+\|")
_MIG = re.compile(r"\|\s+(Enabled|Disabled)\*?\s+\|\s*$")
_CUT = "..."


def parse_smi_table(text: str, source: str) -> Machine:
    """The machine in the table that `nvidia-smi` prints. Raises InputError without any row."""
    refuse_too_long(text, source)
    host: dict[str, str] = {}
    gpus: list[Gpu] = []
    for line in text.splitlines():
        row = _GPU.match(line)
        if row:
            gpus.append(_gpu(row))
        elif _HEADING.search(line):
            host |= _versions(line)
        elif gpus:
            gpus[-1] = _continued(gpus[-1], line)
    if not gpus and not host:
        raise InputError(
            f"{source}: not the table of `nvidia-smi`.",
            why="Neither its heading nor a row of a GPU was found.",
            hint="Write the file with `nvidia-smi`, without arguments.",
        )
    notes = () if gpus else (f"{source} lists no GPU.",)
    return Machine(sources=(source,), gpus=tuple(gpus), host=host, notes=notes)


def _versions(line: str) -> dict[str, str]:
    driver, cuda = _HEADING.search(line), _CUDA.search(line)
    found = {"driver": driver.group(1) if driver else "", "cuda": cuda.group(1) if cuda else ""}
    return {name: value for name, value in found.items() if value}


def _gpu(row: re.Match[str]) -> Gpu:
    index, name, mode, address = row.groups()
    bus_id = normal_bus_id(address)
    facts = {"Name": name}
    if mode != "N/A":
        facts["Persistence Mode" if mode in ("On", "Off") else "Driver Model"] = mode
    return Gpu(
        key=bus_id or f"GPU{index}",
        label=f"GPU{index}",
        bus_id=bus_id,
        vendor="NVIDIA",
        # A name that was cut to the column's width would contradict the whole one elsewhere.
        model=None if name.endswith(_CUT) else name,
        facts=facts,
    )


def _continued(gpu: Gpu, line: str) -> Gpu:
    """The second and third line of a row: memory, then MIG; the first value found stays."""
    memory = _MEMORY.search(line)
    if memory and gpu.memory_bytes is None:
        gpu = structs.replace(gpu, memory_bytes=int(memory.group(1)) * 1024**2)
    mig = _MIG.search(line)
    if mig and gpu.mig is None:
        gpu = structs.replace(gpu, mig=mig.group(1) == "Enabled")
    return gpu
