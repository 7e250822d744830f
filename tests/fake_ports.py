"""Byte counters that a test sets: NVML by its functions, and a reader of ready-made counts."""

from types import SimpleNamespace
from typing import Any

from linkbound.links.traffic import GpuBytes


class FakeNvml:
    """`fields` answers by (GPU index, field) or (GPU index, field, link); all else is refused."""

    class NVMLError(Exception):
        pass

    def __init__(self, fields: dict[tuple[int, ...], int], count: int = 1) -> None:
        self.fields = fields
        self.count = count
        self.asked = 0
        self.pcie_link: tuple[int, int] | None = (5, 16)

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        if not uuid.startswith("GPU-"):
            raise self.NVMLError("Not Found")
        return int(uuid[4:])

    def nvmlDeviceGetUUID(self, handle: int) -> bytes:  # noqa: N802
        return f"GPU-{handle}".encode()

    def nvmlErrorString(self, code: int) -> str:  # noqa: N802
        return {3: "Not Supported"}[code]

    def nvmlDeviceGetMaxPcieLinkGeneration(self, _handle: int) -> int:  # noqa: N802
        return self._pcie_link(0)

    def nvmlDeviceGetMaxPcieLinkWidth(self, _handle: int) -> int:  # noqa: N802
        return self._pcie_link(1)

    def _pcie_link(self, place: int) -> int:
        if self.pcie_link is None:
            raise self.NVMLError("Not Supported")
        return self.pcie_link[place]

    def nvmlDeviceGetFieldValues(self, handle: int, wanted: list[Any]) -> list[Any]:  # noqa: N802
        self.asked += len(wanted)
        keys = [(handle, *(field if isinstance(field, tuple) else (field,))) for field in wanted]
        return [
            SimpleNamespace(
                nvmlReturn=0 if key in self.fields else 3,
                valueType=3,
                value=SimpleNamespace(ullVal=self.fields.get(key, 0)),
            )
            for key in keys
        ]


class FakePorts:
    """A reader whose counts a test moves: `counts[gpu]` is (NVLink sent, received, PCIe ...)."""

    name = "fake"

    def __init__(self, *gpus: str, rate: float | None = None) -> None:
        self.counts: dict[str, list[int | None]] = {gpu: [0, 0, 0, 0] for gpu in gpus}
        self.rate = rate
        self.why: dict[str, str] = {}

    def move(self, gpu: str, *more: int) -> None:
        """Add to a GPU's counts, in the order of the fields of GpuBytes."""
        for place, count in enumerate(more):
            self.counts[gpu][place] = (self.counts[gpu][place] or 0) + count

    def ports(self) -> tuple[GpuBytes, ...]:
        return tuple(
            GpuBytes(
                gpu=gpu,
                nvlink_sent_bytes=counts[0],
                nvlink_received_bytes=counts[1],
                pcie_sent_bytes=None if counts[2] is None else counts[2] % (1 << 32),
                pcie_received_bytes=None if counts[3] is None else counts[3] % (1 << 32),
            )
            for gpu, counts in self.counts.items()
        )

    def pcie(self) -> tuple[GpuBytes, ...]:
        return self.ports()

    def pcie_bytes_per_s(self) -> float | None:
        return self.rate

    def silent(self) -> dict[str, str]:
        return self.why
