"""Reads the byte counters of GPUs' ports: every NVLink, and PCIe (P3, L4).

The one reader of byte counters in this program.
"""

import importlib
from collections.abc import Sequence
from typing import Protocol

from linkbound.links.live.nvml_devices import NvmlDevices, Refused
from linkbound.links.traffic import GpuBytes, LinkBytes
from linkbound.topology.nvml_ask import field_number

# nvml.h field ids. Data without protocol, in KiB, by link; where these give no answer, the bytes
# of NVLink 5, headers included (from nvml.h: never run here).
_NVLINK_KIB = (138, 139)
_NVLINK_5_BYTES = (202, 204)
_PCIE_BYTES = (197, 198)
_KIB = 1024
MAX_LINKS = 36
_LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.97e9, 5: 3.94e9, 6: 7.56e9, 7: 15.1e9}
"""A PCIe lane's payload rate by generation, one way."""


class PortReader(Protocol):
    """Reads the cumulative counters of some GPUs at one moment."""

    name: str

    def ports(self) -> tuple[GpuBytes, ...]:
        """All counters of all GPUs; None in a field that gives no answer."""

    def pcie(self) -> tuple[GpuBytes, ...]:
        """PCIe's counters alone: asked often, because they are narrow."""

    def pcie_bytes_per_s(self) -> float | None:
        """What the fastest PCIe link carries one way at most; None where no GPU says."""

    def silent(self) -> dict[str, str]:
        """Counters without an answer at the last reading of all, each with the reason."""


class NvmlPorts:
    """NVML's counters of the GPUs named by their UUIDs, or of all."""

    name = "NVML"

    def __init__(self, devices: NvmlDevices, uuids: Sequence[str] | None = None) -> None:
        self._devices = devices
        every = devices.uuids()
        self._names = {uuid: f"GPU{index}" for index, uuid in enumerate(every)}
        self._uuids = every if uuids is None else tuple(uuids)
        self._links: dict[str, tuple[tuple[int, int], int, tuple[int, ...]]] = {}
        self._silent: dict[str, str] = {}
        if devices.refused is not None:
            self._silent["NVML"] = f"No NVIDIA driver answers ({devices.refused.why})."

    def ports(self) -> tuple[GpuBytes, ...]:
        return tuple(self.of(uuid) for uuid in self._uuids)

    def pcie(self) -> tuple[GpuBytes, ...]:
        return tuple(self._pcie(uuid) for uuid in self._uuids)

    def of(self, uuid: str) -> GpuBytes:
        """All counters of one GPU."""
        links = self._nvlinks(uuid)
        pcie = self._pcie(uuid)
        return GpuBytes(
            gpu=pcie.gpu,
            uuid=uuid,
            nvlink_sent_bytes=sum(one.sent_bytes for one in links) if links else None,
            nvlink_received_bytes=sum(one.received_bytes for one in links) if links else None,
            pcie_sent_bytes=pcie.pcie_sent_bytes,
            pcie_received_bytes=pcie.pcie_received_bytes,
            links=links,
        )

    def pcie_bytes_per_s(self) -> float | None:
        rates = []
        for uuid in self._uuids:
            generation = self._devices.ask(uuid, "nvmlDeviceGetMaxPcieLinkGeneration")
            width = self._devices.ask(uuid, "nvmlDeviceGetMaxPcieLinkWidth")
            if generation in _LANE_BYTES_PER_S and isinstance(width, int):
                rates.append(_LANE_BYTES_PER_S[generation] * width)
        return max(rates, default=None)

    def silent(self) -> dict[str, str]:
        return dict(self._silent)

    def _name(self, uuid: str) -> str:
        return self._names.get(uuid, uuid)

    def _pcie(self, uuid: str) -> GpuBytes:
        sent, received = self._numbers(uuid, _PCIE_BYTES, f"{self._name(uuid)} PCIe")
        return GpuBytes(
            gpu=self._name(uuid), uuid=uuid, pcie_sent_bytes=sent, pcie_received_bytes=received
        )

    def _nvlinks(self, uuid: str) -> tuple[LinkBytes, ...]:
        """Every link that counts; which ones these are is asked once."""
        if uuid not in self._links:
            self._links[uuid] = self._counting_links(uuid)
        fields, unit, links = self._links[uuid]
        if not links:
            return ()
        wanted = [(field, link) for link in links for field in fields]
        numbers = iter(self._numbers(uuid, wanted, f"{self._name(uuid)} NVLink"))
        return tuple(
            LinkBytes(link=link, sent_bytes=sent * unit, received_bytes=received * unit)
            for link, sent, received in zip(links, numbers, numbers, strict=True)
            if sent is not None and received is not None
        )

    def _counting_links(self, uuid: str) -> tuple[tuple[int, int], int, tuple[int, ...]]:
        about = f"{self._name(uuid)} NVLink"
        for fields, unit in ((_NVLINK_KIB, _KIB), (_NVLINK_5_BYTES, 1)):
            wanted = [(fields[0], link) for link in range(MAX_LINKS)]
            numbers = self._numbers(uuid, wanted, about)
            links = tuple(link for link, number in enumerate(numbers) if number is not None)
            if links:
                self._silent.pop(about, None)
                return fields, unit, links
        return _NVLINK_KIB, _KIB, ()

    def _numbers(self, uuid: str, wanted: Sequence[object], about: str) -> list[int | None]:
        """One number a field; None, and the reason kept, where there is no answer."""
        answers = self._devices.ask(uuid, "nvmlDeviceGetFieldValues", list(wanted))
        if isinstance(answers, Refused):
            self._silent[about] = answers.why
            return [None] * len(wanted)
        numbers = [field_number(answer) for answer in answers]
        if all(number is None for number in numbers):
            self._silent[about] = self._devices.word_of(answers[0].nvmlReturn)
        return [None if number is None else int(number) for number in numbers]


def open_ports(uuids: Sequence[str] | None = None) -> NvmlPorts:
    """The counters of the GPUs named, or of all that NVML shows; none where it does not answer."""
    return NvmlPorts(NvmlDevices(importlib.import_module("pynvml")), uuids)
