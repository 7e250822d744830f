"""The state of GPUs while they are measured: throttling, byte counters, other processes (L1, P3).

NVML makes no CUDA context; what it refuses is left out.
"""

import importlib
from collections.abc import Mapping
from typing import Any, Protocol

from linkbound.links.live.nvml_devices import NvmlDevices, Refused
from linkbound.links.live.ports import NvmlPorts

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
        self._devices = NvmlDevices(nvml)
        self._ports = NvmlPorts(self._devices)

    def slowing(self, uuid: str) -> tuple[str, ...]:
        bits = self._of(uuid, "nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:
            bits = self._of(uuid, "nvmlDeviceGetCurrentClocksThrottleReasons")
        return tuple(word for bit, word in _SLOWING.items() if (bits or 0) & bit)

    def counters(self, uuid: str) -> Mapping[str, int]:
        ports = self._ports.of(uuid)
        found = {
            "nvlink_tx_bytes": ports.nvlink_sent_bytes,
            "nvlink_rx_bytes": ports.nvlink_received_bytes,
            "pcie_tx_bytes": ports.pcie_sent_bytes,
            "pcie_rx_bytes": ports.pcie_received_bytes,
        }
        return {name: count for name, count in found.items() if count is not None}

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

    def _of(self, uuid: str, function: str, *arguments: Any) -> Any:
        """The answer about one GPU, or None."""
        answer = self._devices.ask(uuid, function, *arguments)
        return None if isinstance(answer, Refused) else answer
