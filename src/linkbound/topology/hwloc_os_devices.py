"""What hwloc's OS devices (nvml0, cuda0, mlx5_0) add to the PCI function above them (M1 M4)."""

import re
from collections.abc import Mapping
from xml.etree.ElementTree import Element

from msgspec import structs

from linkbound.topology.pci import PciFunction, identifying_uuid, kind_of
from linkbound.topology.types import DeviceKind, Gpu

_DRIVERS = ("nvml", "cuda", "rsmi", "ze", "opencl")
"""In the order in which their word on a GPU is taken."""
_COMPUTES = re.compile(r"^(?:nvml|cuda|opencl|rsmi|ze)\d")
_NVML = re.compile(r"^nvml(\d{1,3})$")
_KIBIBYTES = re.compile(r"^(\d{1,15})(?: ?(?:KiB|kB|KB))?$")
_GPU_MEMORY = ("CUDAGlobalMemorySize", "OpenCLGlobalMemorySize", "RSMIVRAMSize")
MAX_VALUE = 200
"""Characters kept of one info: names and ids are shorter."""

OsDevices = dict[str, Mapping[str, str]]
"""Infos of each OS device of one function, by its name."""


def infos_of(element: Element) -> dict[str, str]:
    """The name and value of each <info> directly in an object."""
    return {
        info.get("name", ""): info.get("value", "")[:MAX_VALUE]
        for info in element
        if info.tag == "info"
    }


def with_os_devices(function: PciFunction, named: OsDevices) -> PciFunction:
    """The function with what the kernel and the drivers call it."""
    if not named:
        return function
    facts = {**function.facts, "OS devices": ", ".join(named)}
    if function.kind is None and any(_computes(name, named[name]) for name in named):
        return structs.replace(function, kind=DeviceKind.GPU, facts=facts)
    if kind_of(function) is DeviceKind.NIC:
        # Tools name a NIC by its verbs device (mlx5_0), not by its network interface (ib0).
        verbs = [name for name, infos in named.items() if "NodeGUID" in infos]
        return structs.replace(function, name=(verbs or list(named))[0], facts=facts)
    return structs.replace(function, facts=facts)


def with_driver_facts(gpu: Gpu, named: OsDevices) -> Gpu:
    """The GPU with its drivers' words on name, UUID and memory."""
    said: dict[str, str] = {}
    for name in sorted(named, key=_by_driver, reverse=True):
        said.update(named[name])
    uuid = identifying_uuid(said.get("NVIDIAUUID", ""))
    return structs.replace(
        gpu,
        key=uuid or gpu.key,
        uuid=uuid,
        model=said.get("GPUModel") or gpu.model,
        memory_bytes=_memory_bytes(said),
    )


def numbered(gpus: tuple[Gpu, ...], os_devices: Mapping[str, OsDevices]) -> tuple[Gpu, ...]:
    """GPUs under NVML's numbers where it numbers all of them; else in the order of buses."""
    numbers = [_nvml_number(os_devices.get(gpu.bus_id or "", {})) for gpu in gpus]
    known = [number for number in numbers if number is not None]
    if len(set(known)) < len(gpus):
        return gpus
    order = sorted(zip(known, gpus, strict=True), key=lambda item: item[0])
    return tuple(structs.replace(gpu, label=f"GPU{number}") for number, gpu in order)


def _nvml_number(named: OsDevices) -> int | None:
    return next((int(found[1]) for name in named if (found := _NVML.match(name))), None)


def _computes(name: str, infos: Mapping[str, str]) -> bool:
    return bool(_COMPUTES.match(name)) and infos.get("OpenCLDeviceType", "GPU") == "GPU"


def _by_driver(name: str) -> int:
    return next((at for at, word in enumerate(_DRIVERS) if name.startswith(word)), len(_DRIVERS))


def _memory_bytes(said: Mapping[str, str]) -> int | None:
    for name in _GPU_MEMORY:
        found = _KIBIBYTES.match(said.get(name, ""))
        if found:
            return int(found.group(1)) * 1024
    return None
