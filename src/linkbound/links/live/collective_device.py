"""One GPU through CUDA's driver: what answers at the seam of collectives on a real host (L4).

Needs cuda-bindings and NVRTC (extra `gpu`), imported when a device is opened.
"""

import ctypes
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from linkbound.errors import MissingExtra
from linkbound.links.live.collective_seam import Argument, Graph
from linkbound.links.live.cuda import CudaError
from linkbound.links.live.kernels import FOLDER, compiled

_BLOCK_BYTES = 2 * 1024**2
_NOT_READY = 600
WORK_KERNEL_S = 50e-6
"""Length of one kernel of the work: between two of them others find room."""
WORK_KERNELS = 500
WORK_GRAPHS = 60
"""Graphs of so many kernels each: work that nobody ends is over after 1.5 s."""
_WORK_THREADS = 256
"""Twice on each multiprocessor: busy, with room left for a collective's blocks."""
_FIRST_TO_OVERLAP = 9
"""Compute capability from which a launch may overlap the one before (Hopper)."""


@dataclass(frozen=True, kw_only=True)
class _Work:
    """Work beside the stream: its own stream, the word that ends it, and its kernels."""

    stream: Any
    words: int
    graph: Any


class CudaDevice:
    """A CUDA device's primary context, which NCCL shares, with one stream."""

    def __init__(self, name: str) -> None:
        self._driver = _import("cuda.bindings.driver")
        self._start()
        self._device = self._call(*_lookup(name))
        self.ordinal = int(self._device)
        self._capability = tuple(
            self._attribute(f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR")
        )
        self._context = self._call("cuDevicePrimaryCtxRetain", self._device)
        self.activate()
        self._modules: dict[tuple[str, tuple[tuple[str, int], ...]], Any] = {}
        self._handles: list[Any] = []
        self._kept_alive: list[object] = []
        self._work: _Work | None = None
        self._stream = self._call("cuStreamCreate", 1)  # 1: does not wait for the default stream
        self.stream = int(self._stream)

    def activate(self) -> None:
        self._call("cuCtxSetCurrent", self._context)

    def allocate(self, size_bytes: int) -> int:
        # Whole blocks of the driver: a smaller piece has no IPC handle of its own.
        blocks = -(-size_bytes // _BLOCK_BYTES)
        return int(self._call("cuMemAlloc", blocks * _BLOCK_BYTES))

    def set_bytes(self, pointer: int, byte: int, size_bytes: int) -> None:
        self._call("cuMemsetD8Async", pointer, byte, size_bytes, self._stream)

    def write(self, pointer: int, data: bytes) -> None:
        self._call("cuMemcpyHtoD", pointer, data, len(data))

    def read(self, pointer: int, size_bytes: int) -> bytes:
        self.synchronize()
        data = bytearray(size_bytes)
        self._call("cuMemcpyDtoH", data, pointer, size_bytes)
        return bytes(data)

    def event(self) -> int:
        return self._keep(self._call("cuEventCreate", 0))

    def record(self, event: int) -> None:
        self._call("cuEventRecord", self._handles[event], self._stream)

    def elapsed_s(self, start: int, end: int) -> float:
        elapsed_ms = self._call("cuEventElapsedTime", self._handles[start], self._handles[end])
        return float(elapsed_ms) / 1e3

    def synchronize(self) -> None:
        self._call("cuStreamSynchronize", self._stream)

    def begin_capture(self) -> None:
        # Thread-local: NCCL allocates on threads of its own meanwhile, which must not end this.
        mode = self._driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._call("cuStreamBeginCapture", self._stream, mode)

    def end_capture(self) -> int:
        return self._keep(self._call("cuStreamEndCapture", self._stream))

    def graph(self, captured: int) -> Graph:
        executable = self._call("cuGraphInstantiate", self._handles[captured], 0)
        self._call("cuGraphUpload", executable, self._stream)
        return self._keep(executable), captured

    def launch_graph(self, graph: Graph) -> None:
        self._call("cuGraphLaunch", self._handles[graph[0]], self._stream)

    def drop_graph(self, graph: Graph) -> None:
        self._call("cuGraphExecDestroy", self._handles[graph[0]])
        self._call("cuGraphDestroy", self._handles[graph[1]])

    def kernel(self, file: str, name: str, defines: Mapping[str, int]) -> int:
        key = (file, tuple(sorted(defines.items())))
        if key not in self._modules:
            code = build(file, defines, "sm_{}{}".format(*self._capability))
            self._modules[key] = self._call("cuModuleLoadData", code)
        return self._keep(self._call("cuModuleGetFunction", self._modules[key], name.encode()))

    def launcher(
        self,
        kernel: int,
        blocks: int,
        threads: int,
        arguments: Sequence[Argument],
        *,
        overlap: bool = False,
    ) -> Callable[[], None]:
        return self._launcher(self._stream, kernel, blocks, threads, arguments, overlap=overlap)

    def _launcher(
        self,
        stream: Any,
        kernel: int,
        blocks: int,
        threads: int,
        arguments: Sequence[Argument],
        *,
        overlap: bool = False,
    ) -> Callable[[], None]:
        config = self._driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = blocks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.hStream = stream
        if overlap and self._capability[0] >= _FIRST_TO_OVERLAP:
            config.attrs = [self._overlap()]
            config.numAttrs = 1
        places = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(each) for each in arguments))
        address = ctypes.addressof(places)
        function = self._handles[kernel]
        self._kept_alive.append((arguments, places))
        return lambda: self._call("cuLaunchKernelEx", config, function, address, 0)

    def start_work(self) -> None:
        self._work = self._work or self._prepared_work()
        self._call("cuMemsetD32Async", self._work.words, 0, 1, self._work.stream)
        for _ in range(WORK_GRAPHS):
            self._call("cuGraphLaunch", self._work.graph, self._work.stream)

    def still_works(self) -> bool:
        if self._work is None:
            return False
        (code,) = self._driver.cuStreamQuery(self._work.stream)
        return int(code) == _NOT_READY

    def finish_work(self) -> None:
        if self._work is not None:
            self._call("cuMemsetD32Async", self._work.words, 1, 1, self._stream)
            self._call("cuStreamSynchronize", self._work.stream)

    def export_memory(self, pointer: int) -> bytes:
        return bytes(self._call("cuIpcGetMemHandle", pointer).reserved)

    def import_memory(self, handle: bytes) -> int:
        foreign = self._driver.CUipcMemHandle()
        foreign.reserved = handle
        return int(self._call("cuIpcOpenMemHandle", foreign, 1))  # 1: enables peer access

    def _overlap(self) -> Any:
        attribute = self._driver.CUlaunchAttribute()
        kinds = self._driver.CUlaunchAttributeID
        attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        return attribute

    def _prepared_work(self) -> _Work:
        stream = self._call("cuStreamCreate", 1)
        kernel = self.kernel("allreduce_work.cu", "collective_work", {"COLLECTIVE_WORK": 1})
        words = self.allocate(8)
        arguments = (ctypes.c_uint64(round(WORK_KERNEL_S * 1e9)), ctypes.c_uint64(words))
        blocks = 2 * self._attribute("MULTIPROCESSOR_COUNT")
        launch = self._launcher(stream, kernel, blocks, _WORK_THREADS, arguments)
        mode = self._driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._call("cuStreamBeginCapture", stream, mode)
        for _ in range(WORK_KERNELS):
            launch()
        graph = self._call("cuGraphInstantiate", self._call("cuStreamEndCapture", stream), 0)
        return _Work(stream=stream, words=words, graph=graph)

    def _attribute(self, name: str) -> int:
        kind = getattr(self._driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self._call("cuDeviceGetAttribute", kind, self._device))

    def _start(self) -> None:
        try:
            self._call("cuInit", 0)
        except RuntimeError as error:
            raise CudaError(
                f"CUDA's driver cannot be loaded ({error}).",
                why="Without it no GPU can be used.",
                hint="Install NVIDIA's driver; in a container, pass the GPUs in.",
            ) from error

    def _keep(self, handle: Any) -> int:
        self._handles.append(handle)
        return len(self._handles) - 1

    def _call(self, name: str, *arguments: object) -> Any:
        code, *results = getattr(self._driver, name)(*arguments)
        if int(code) != 0:
            raise CudaError(
                f"{name} failed: {code.name} ({int(code)}).",
                why="What was measured with this GPU ends here.",
                hint="Read the driver's messages (dmesg, Xid).",
            )
        return results[0] if results else None


def _lookup(name: str) -> tuple[str, bytes | int]:
    """The driver's call that finds a device by PCI bus id, or by ordinal."""
    return ("cuDeviceGetByPCIBusId", name.encode()) if ":" in name else ("cuDeviceGet", int(name))


def build(file: str, defines: Mapping[str, int], architecture: str) -> bytes:
    """Machine code of a source in `links/kernels`. Raises KernelError, MissingExtra."""
    head = "".join(f"#define {name} {value}\n" for name, value in sorted(defines.items()))
    source = head + (FOLDER / file).read_text(encoding="utf-8")
    return compiled(_import("cuda.bindings.nvrtc"), source, architecture)


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise _missing(f"{module} cannot be imported ({error}).") from error


def _missing(seen: str) -> MissingExtra:
    return MissingExtra(
        seen,
        why="Collectives run on the GPUs through cuda-bindings and NVRTC.",
        hint="Install linkbound[gpu].",
    )
