"""One GPU as the collectives use it: memory, a stream, events, graphs, kernels, IPC (L4).

`Device` is the seam; `CudaDevice` is the real one, on cuda-bindings and NVRTC (extra `gpu`).
"""

import ctypes
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from linkbound.errors import MissingExtra
from linkbound.links.live.cuda import CudaError
from linkbound.links.live.kernels import FOLDER, compiled

Argument = ctypes.c_uint32 | ctypes.c_uint64 | ctypes.Structure
"""A kernel's argument: its C type is its own."""
Graph = tuple[int, int]
"""Handles of the executable graph and of what it was made from."""

_BLOCK_BYTES = 2 * 1024**2
_FIRST_TO_OVERLAP = 9
"""Compute capability from which a launch may overlap the one before (Hopper)."""


class Device(Protocol):
    """All work goes to one stream of the device, in order; only `synchronize` waits."""

    ordinal: int
    """Its number among the visible devices."""
    stream: int

    def activate(self) -> None:
        """Make it the current device of this thread."""

    def allocate(self, size_bytes: int) -> int: ...

    def set_bytes(self, pointer: int, byte: int, size_bytes: int) -> None: ...

    def write(self, pointer: int, data: bytes) -> None: ...

    def read(self, pointer: int, size_bytes: int) -> bytes: ...

    def event(self) -> int: ...

    def record(self, event: int) -> None: ...

    def elapsed_s(self, start: int, end: int) -> float: ...

    def synchronize(self) -> None: ...

    def begin_capture(self) -> None: ...

    def end_capture(self) -> int:
        """What was captured: not yet launchable, since other devices may still be capturing."""

    def graph(self, captured: int) -> Graph: ...

    def launch_graph(self, graph: Graph) -> None: ...

    def drop_graph(self, graph: Graph) -> None: ...

    def kernel(self, file: str, name: str, defines: Mapping[str, int]) -> int:
        """A kernel of a source in `links/kernels`, built for this device."""

    def launcher(
        self,
        kernel: int,
        blocks: int,
        threads: int,
        arguments: Sequence[Argument],
        *,
        overlap: bool = False,
    ) -> Callable[[], None]:
        """A call that launches the kernel, all else prepared.

        `overlap`: the launch may begin before the kernel ahead of it ended (PDL).
        """

    def export_memory(self, pointer: int) -> bytes: ...

    def import_memory(self, handle: bytes) -> int: ...


class CudaDevice:
    """A CUDA device's primary context, which NCCL shares, with one stream."""

    def __init__(self, name: str) -> None:
        self._driver = _import("cuda.bindings.driver")
        self._start()
        self._device = self._call(*_lookup(name))
        self.ordinal = int(self._device)
        self._capability = self._read_capability()
        self._context = self._call("cuDevicePrimaryCtxRetain", self._device)
        self.activate()
        self._modules: dict[tuple[str, tuple[tuple[str, int], ...]], Any] = {}
        self._handles: list[Any] = []
        self._kept_alive: list[object] = []
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
        config = self._driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = blocks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.hStream = self._stream
        if overlap and self._capability[0] >= _FIRST_TO_OVERLAP:
            config.attrs = [self._overlap()]
            config.numAttrs = 1
        places = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(each) for each in arguments))
        address = ctypes.addressof(places)
        function = self._handles[kernel]
        self._kept_alive.append((arguments, places))
        return lambda: self._call("cuLaunchKernelEx", config, function, address, 0)

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

    def _read_capability(self) -> tuple[int, int]:
        kinds = self._driver.CUdevice_attribute
        major, minor = (
            int(self._call("cuDeviceGetAttribute", getattr(kinds, kind), self._device))
            for kind in (
                "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR",
                "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR",
            )
        )
        return major, minor

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
