"""Parts that ask NVML, NVRTC and CUDA's driver, on modules that stand in for them (L1, L5, L6)."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_cuda
import pytest

from linkbound.errors import MissingExtra
from linkbound.links.live import driver as driver_module
from linkbound.links.live import kernels
from linkbound.links.live.bench import Bench, Task
from linkbound.links.live.buffers import Buffers
from linkbound.links.live.cuda import CudaError
from linkbound.links.live.driver import DriverCuda
from linkbound.links.live.kernels import COPIES, KernelError, machine_code, source_text
from linkbound.links.live.state import NvmlState


class Nvml:
    """A pynvml of one GPU; what is not here is refused."""

    class NVMLError(Exception):
        """NVML's."""

    def __init__(self, slowing: int = 0) -> None:
        self.reasons = slowing

    def nvmlInit(self) -> None:  # noqa: N802
        return None

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid != "GPU-a":
            raise self.NVMLError("not found")
        return "handle"

    def nvmlDeviceGetCurrentClocksEventReasons(self, _handle: str) -> int:  # noqa: N802
        return self.reasons

    def nvmlDeviceGetFieldValues(self, _handle: str, wanted: list[Any]) -> list[Any]:  # noqa: N802
        """Two links of 10 and 20 KiB, PCIe's sent bytes alone."""
        answers = {(138, 0): 10, (138, 1): 20, (139, 0): 0, (139, 1): 0, 197: 5000}
        return [
            SimpleNamespace(
                nvmlReturn=0 if field in answers else 3,
                valueType=3,
                value=SimpleNamespace(ullVal=answers.get(field, 0)),
            )
            for field in wanted
        ]

    def nvmlDeviceGetComputeRunningProcesses(self, _handle: str) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=12)]


def test_slowing_is_named_and_idling_is_not() -> None:
    assert NvmlState(Nvml(0x1)).slowing("GPU-a") == ()
    assert NvmlState(Nvml(0x4 | 0x40)).slowing("GPU-a") == (
        "power cap",
        "hardware thermal slowdown",
    )


def test_counters_are_sums_over_links_in_bytes_and_what_is_refused_is_absent() -> None:
    assert NvmlState(Nvml()).counters("GPU-a") == {
        "nvlink_tx_bytes": 30 * 1024,
        "nvlink_rx_bytes": 0,
        "pcie_tx_bytes": 5000,
    }


def test_other_processes_are_listed() -> None:
    assert NvmlState(Nvml()).others("GPU-a") == (12,)


def test_an_unknown_gpu_and_a_missing_driver_answer_nothing() -> None:
    assert NvmlState(Nvml()).counters("GPU-b") == {}
    assert NvmlState(Nvml()).readings("GPU-a") == {}

    class Down(Nvml):
        def nvmlInit(self) -> None:  # noqa: N802
            raise self.NVMLError("driver not loaded")

    down = NvmlState(Down())
    assert (down.slowing("GPU-a"), down.others("GPU-a")) == ((), ())


class Nvrtc:
    """A compiler that counts how often it compiles."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.compiled = 0

    def nvrtcVersion(self) -> tuple[int, int, int]:  # noqa: N802
        return 0, 13, 0

    def nvrtcCreateProgram(self, source: bytes, *_rest: Any) -> tuple[int, bytes]:  # noqa: N802
        return 0, source

    def nvrtcCompileProgram(self, _program: bytes, _count: int, options: list[bytes]) -> tuple[int]:  # noqa: N802
        assert b"--gpu-architecture=sm_90" in options
        self.compiled += 1
        return (self.code,)

    def nvrtcGetProgramLogSize(self, _program: bytes) -> tuple[int, int]:  # noqa: N802
        return 0, 4

    def nvrtcGetProgramLog(self, _program: bytes, _log: bytes) -> tuple[int]:  # noqa: N802
        return (0,)

    def nvrtcGetCUBINSize(self, _program: bytes) -> tuple[int, int]:  # noqa: N802
        return 0, 8

    def nvrtcGetCUBIN(self, _program: bytes, _code: bytes) -> tuple[int]:  # noqa: N802
        return (0,)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "linkbound" / "kernels"


def test_kernels_are_compiled_once_and_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc = Nvrtc()
    monkeypatch.setattr(kernels, "_nvrtc", lambda: nvrtc)
    assert machine_code("sm_90") == machine_code("sm_90") == bytes(8)
    assert nvrtc.compiled == 1
    assert [path.suffix for path in cache.iterdir()] == [".cubin"]


def test_a_cache_that_cannot_be_written_costs_a_compilation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setattr(kernels, "_nvrtc", Nvrtc)
    assert machine_code("sm_90") == bytes(8)


@pytest.mark.usefixtures("cache")
def test_what_does_not_compile_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_nvrtc", lambda: Nvrtc(code=6))
    with pytest.raises(KernelError, match="nvrtcCompileProgram"):
        machine_code("sm_90")


def test_a_missing_nvrtc_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise RuntimeError("No such file: libnvrtc.so.13\nsearched here")

    module = SimpleNamespace(nvrtcVersion=absent)
    monkeypatch.setattr(kernels.importlib, "import_module", lambda _name: module)
    with pytest.raises(MissingExtra, match=r"linkbound\[gpu\]") as caught:
        machine_code("sm_90")
    assert "searched here" not in str(caught.value)


def test_every_kernel_that_is_launched_is_in_the_sources() -> None:
    source = source_text(COPIES)
    for name in (
        "copy_sm",
        "copy_pieces",
        "fill",
        "check",
        "check_pieces",
        "clear_result",
        "empty",
        "gate",
        "chain",
        "chase",
        "pingpong",
        "work_fma",
        "work_memory",
    ):
        assert f'extern "C" __global__ void {name}(' in source
        assert hasattr(fake_cuda.FakeCuda, f"_{name}")


class Driver:
    """A driver that notes calls; names in `codes` fail with that code."""

    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT=16,
        CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE=38,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=75,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=76,
    )

    def __init__(self, codes: dict[str, int] | None = None) -> None:
        self.codes = codes or {}
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "cuDeviceGetCount": 2,
            "cuDeviceCanAccessPeer": 1,
            "cuDeviceGetUuid": SimpleNamespace(bytes=bytes(range(16))),
            "cuDeviceGetAttribute": 7,
            "cuMemAlloc": 4096,
            "cuEventElapsedTime": 2.5,
        }

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append((name, arguments))
            code = self.codes.get(name, 0)
            if name == "cuEventQuery":
                return (code,)
            if name == "cuDeviceGet":
                return code, arguments[0]
            if name == "cuDevicePrimaryCtxRetain":
                return code, f"context {arguments[0]}"
            return code, answers.get(name, f"a {name}")

        return call

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [arguments for called, arguments in self.calls if called == name]


def test_the_driver_switches_contexts_only_where_it_must() -> None:
    module = Driver()
    cuda = DriverCuda(module)
    assert cuda.alloc(0, 10) == cuda.alloc(0, 20) == 4096
    cuda.alloc(1, 10)
    assert module.named("cuCtxSetCurrent") == [("context 0",), ("context 1",)]


def test_facts_have_the_uuid_as_nvml_prints_it() -> None:
    (first, second) = DriverCuda(Driver()).devices()
    assert first.uuid == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert (first.multiprocessors, second.ordinal) == (7, 1)


def test_peer_access_is_set_for_the_context_of_the_other_gpu() -> None:
    module = Driver()
    DriverCuda(module).set_access(0, 1, True)
    assert module.named("cuCtxEnablePeerAccess") == [("context 1", 0)]
    assert module.named("cuCtxSetCurrent") == [("context 0",)]


def test_access_that_is_there_already_is_fine_and_other_refusals_are_not() -> None:
    DriverCuda(Driver({"cuCtxEnablePeerAccess": 704})).set_access(0, 1, True)
    DriverCuda(Driver({"cuCtxDisablePeerAccess": 705})).set_access(0, 1, False)
    with pytest.raises(CudaError, match="cuCtxEnablePeerAccess"):
        DriverCuda(Driver({"cuCtxEnablePeerAccess": 217})).set_access(0, 1, True)


def test_a_kernel_is_loaded_once_a_gpu_and_gets_64_bit_arguments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver_module, "machine_code", lambda _architecture: b"code")
    module = Driver()
    cuda = DriverCuda(module)
    on = cuda.stream(0)
    cuda.launch("fill", on, 4, 512, 1, 2, 3, 4)
    cuda.launch("fill", on, 4, 512, 1, 2, 3, 4)
    assert module.named("cuModuleLoadData") == [(b"code",)]
    *_, (values, kinds), extra = module.named("cuLaunchKernel")[0]
    assert (values, len(kinds), extra) == ((1, 2, 3, 4), 4, 0)


def test_events_that_have_not_happened_are_no_errors() -> None:
    cuda = DriverCuda(Driver({"cuEventQuery": 600}))
    event = cuda.event(0)
    assert cuda.happened(event) is False
    assert cuda.elapsed_s(event, event) == pytest.approx(0.0025)


def test_pageable_memory_is_touched_and_words_are_written_where_they_are_read() -> None:
    cuda = DriverCuda(Driver())
    address = cuda.pageable_alloc(8192)
    assert cuda.read_word(address) == 0x0101010101010101
    cuda.write_word(address + 8, 2**63)
    assert cuda.read_word(address + 8) == 2**63


class Host:
    """Host memory whose maker's processors are noted."""

    def __init__(self) -> None:
        self.made: list[tuple[str, int, set[int]]] = []

    def host_alloc(self, size_bytes: int) -> int:
        self.made.append(("pinned", size_bytes, os.sched_getaffinity(0)))
        return len(self.made) * 2**20

    def pageable_alloc(self, size_bytes: int) -> int:
        self.made.append(("pageable", size_bytes, os.sched_getaffinity(0)))
        return len(self.made) * 2**20


def test_host_buffers_are_made_on_the_processors_of_their_node() -> None:
    mine = os.sched_getaffinity(0)
    one = frozenset({min(mine)})
    host = Host()
    buffers = Buffers(host, {3: one, 4: frozenset({10**6})})  # type: ignore[arg-type]
    buffers.pinned(3, "ring", 8192)
    buffers.pageable(3, "whole", 8192)
    buffers.pinned(None, "ring", 8192)
    assert [(kind, cpus) for kind, _, cpus in host.made] == [
        ("pinned", set(one)),
        ("pageable", set(one)),
        ("pinned", mine),
    ]
    assert os.sched_getaffinity(0) == mine


def test_buffers_are_kept_and_grow() -> None:
    cuda = fake_cuda.FakeCuda()
    buffers = Buffers(cuda, {})
    first = buffers.device(0, "src", 8192)
    assert buffers.device(0, "src", 4096) == first
    assert buffers.device(0, "src", 16384) != first
    assert buffers.device(0, "src", 16384, 1) != buffers.device(0, "src", 16384)
    assert buffers.pinned(None, "a", 10) == buffers.pinned(None, "a", 4096)


def test_a_gate_that_ended_by_its_own_limit_gives_no_time() -> None:
    cuda = fake_cuda.FakeCuda()
    bench = Bench(cuda, cuda.devices(), ["GPU0", "GPU1"])
    on = bench.stream(0, 1)
    task = Task(first=on, last=on, enqueue=lambda: cuda.launch("empty", on, 1, 1), size_bytes=0)
    assert bench.time([task], [3]) is not None
    release = bench.release

    def late(turn: int) -> None:
        cuda.write_word(bench.work_word - 64, turn)
        release(turn)

    bench.release = late  # type: ignore[method-assign]
    assert bench.time([task], [3]) is None
    assert bench.gate_timeouts == 1
