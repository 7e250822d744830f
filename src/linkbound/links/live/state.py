"""The state of GPUs while they are measured: throttling, byte counters, other processes (L1, P3).

NVML makes no CUDA context; what it refuses is left out.
"""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

STATE = "linkbound.links.live.state:open_state"
# nvml.h: bits of nvmlDeviceGetCurrentClocksEventReasons that slow a GPU down. Left out: idle (1),
# application clocks (2) and display (0x100), which are settings.
_SLOWING = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
# nvml.h field ids: NVLink data in KiB, all links of the scope; PCIe bytes.
_NVLINK_TX, _NVLINK_RX = 138, 139
_PCIE_TX, _PCIE_RX = 197, 198
_KIB = 1024
_VALUE_NAMES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_MAX_LINKS = 36


class State(Protocol):
    """What is asked about a GPU, by its UUID."""

    def slowing(self, uuid: str) -> tuple[str, ...]:
        """Why its clocks are below what they could be; empty where nothing slows it."""

    def counters(self, uuid: str) -> Mapping[str, int]:
        """Cumulative bytes, by `nvlink_tx_bytes` and the like; those that answer."""

    def pcie_bytes_per_s(self, uuid: str) -> Mapping[str, int]:
        """Sampled over 20 ms, by `pcie_tx` and `pcie_rx`; those that answer."""

    def others(self, uuid: str) -> tuple[int, ...]:
        """Processes that compute on it."""

    def readings(self, uuid: str) -> Mapping[str, str]:
        """Clocks, temperature, power and utilisation, for the record."""


def open_state(name: str = STATE) -> State:
    """Whoever answers under this name; NVML by default."""
    if name == STATE:
        return NvmlState(importlib.import_module("pynvml"))
    module, _, function = name.partition(":")
    opened: State = getattr(importlib.import_module(module), function)()
    return opened


class NvmlState:
    """NVML through nvidia-ml-py; every refusal is an absence."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._handles: dict[str, Any] = {}
        self._ready = self._ask("nvmlInit") is not _REFUSED

    def slowing(self, uuid: str) -> tuple[str, ...]:
        bits = self._of(uuid, "nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:
            bits = self._of(uuid, "nvmlDeviceGetCurrentClocksThrottleReasons")
        return tuple(word for bit, word in _SLOWING.items() if (bits or 0) & bit)

    def counters(self, uuid: str) -> Mapping[str, int]:
        found = {}
        for name, field in (("nvlink_tx_bytes", _NVLINK_TX), ("nvlink_rx_bytes", _NVLINK_RX)):
            total = self._nvlink_kib(uuid, field)
            if total is not None:
                found[name] = total * _KIB
        for name, field in (("pcie_tx_bytes", _PCIE_TX), ("pcie_rx_bytes", _PCIE_RX)):
            values = self._fields(uuid, [field])
            if values and values[0] is not None:
                found[name] = values[0]
        return found

    def pcie_bytes_per_s(self, uuid: str) -> Mapping[str, int]:
        found = {}
        for name, counter in (("pcie_tx", 0), ("pcie_rx", 1)):
            value = self._of(uuid, "nvmlDeviceGetPcieThroughput", counter)
            if value is not None:
                found[name] = int(value) * 1000
        return found

    def others(self, uuid: str) -> tuple[int, ...]:
        found = self._of(uuid, "nvmlDeviceGetComputeRunningProcesses")
        return tuple(int(one.pid) for one in found or ())

    def readings(self, uuid: str) -> Mapping[str, str]:
        use = self._of(uuid, "nvmlDeviceGetUtilizationRates")
        power = self._of(uuid, "nvmlDeviceGetPowerUsage")
        said = {
            "sm_clock_mhz": self._of(uuid, "nvmlDeviceGetClockInfo", 1),
            "memory_clock_mhz": self._of(uuid, "nvmlDeviceGetClockInfo", 2),
            "temperature_c": self._of(uuid, "nvmlDeviceGetTemperature", 0),
            "power_watts": None if power is None else power / 1000,
            "gpu_utilisation_percent": None if use is None else use.gpu,
            "pcie_generation": self._of(uuid, "nvmlDeviceGetCurrPcieLinkGeneration"),
            "pcie_width": self._of(uuid, "nvmlDeviceGetCurrPcieLinkWidth"),
            "pcie_replays": self._of(uuid, "nvmlDeviceGetPcieReplayCounter"),
        }
        return {name: str(value) for name, value in said.items() if value is not None}

    def _nvlink_kib(self, uuid: str, field: int) -> int | None:
        """Over all links that answer."""
        links = self._fields(uuid, [(field, link) for link in range(_MAX_LINKS)])
        counted = [one for one in links if one is not None]
        return sum(counted) if counted else None

    def _fields(self, uuid: str, wanted: Sequence[Any]) -> list[int | None]:
        answers = self._of(uuid, "nvmlDeviceGetFieldValues", list(wanted))
        return [_number(answer) for answer in answers or ()]

    def _of(self, uuid: str, function: str, *arguments: Any) -> Any:
        """The answer about one GPU, or None."""
        if not self._ready:
            return None
        if uuid not in self._handles:
            self._handles[uuid] = self._ask("nvmlDeviceGetHandleByUUID", uuid)
        handle = self._handles[uuid]
        answer = _REFUSED if handle is _REFUSED else self._ask(function, handle, *arguments)
        return None if answer is _REFUSED else answer

    def _ask(self, function: str, *arguments: Any) -> Any:
        call = getattr(self._nvml, function, None)
        if call is None:
            return _REFUSED
        try:
            return call(*arguments)
        except self._nvml.NVMLError:
            return _REFUSED


def _number(answer: Any) -> int | None:
    if answer.nvmlReturn != 0 or not 0 <= answer.valueType < len(_VALUE_NAMES):
        return None
    return int(getattr(answer.value, _VALUE_NAMES[answer.valueType]))


class _Refused:
    """NVML gave no answer: unlike None, which is an answer of some calls."""


_REFUSED = _Refused()
