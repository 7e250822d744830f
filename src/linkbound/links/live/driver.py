"""CUDA's driver through cuda-bindings: what answers at the seam on a host with GPUs (L1-L3).

Only children import this. Memory is plain cuMemAlloc: other kinds follow other access rules.
"""

import ctypes
import importlib
import mmap
import threading
from typing import Any

from linkbound.links.live.cuda import CudaError, DeviceFacts, Event, Stream
from linkbound.links.live.kernels import machine_code, packed

_NON_BLOCKING_STREAM = 1
_EVENT_BLOCKING_NO_TIME = 1 | 2
_PINNED_PORTABLE_MAPPED = 1 | 2
_ALREADY_ENABLED = 704
_NOT_ENABLED = 705
_NOT_READY = 600


def open_driver() -> "DriverCuda":
    """The driver, initialised, with a context on every visible GPU. Raises CudaError."""
    return DriverCuda(importlib.import_module("cuda.bindings.driver"))


class DriverCuda:
    """Primary contexts of all visible GPUs; the current one is switched as calls need it."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._call("cuInit", 0)
        (count,) = self._call("cuDeviceGetCount")
        self._devices = [self._call("cuDeviceGet", ordinal)[0] for ordinal in range(count)]
        self._contexts: dict[int, Any] = {}
        self._modules: dict[int, Any] = {}
        self._functions: dict[tuple[int, str], Any] = {}
        # A context is current in a thread, not in the process.
        self._thread = threading.local()
        self._pageable: list[mmap.mmap] = []

    def devices(self) -> tuple[DeviceFacts, ...]:
        return tuple(self._facts(ordinal) for ordinal in range(len(self._devices)))

    def can_access(self, device: int, peer: int) -> bool:
        (can,) = self._call("cuDeviceCanAccessPeer", self._devices[device], self._devices[peer])
        return bool(can)

    def set_access(self, device: int, peer: int, granted: bool) -> None:
        context = self._context(peer)
        self._use(device)
        if granted:
            self._call("cuCtxEnablePeerAccess", context, 0, fine=(_ALREADY_ENABLED,))
        else:
            self._call("cuCtxDisablePeerAccess", context, fine=(_NOT_ENABLED,))

    def alloc(self, device: int, size_bytes: int) -> int:
        self._use(device)
        return int(self._call("cuMemAlloc", size_bytes)[0])

    def free(self, device: int, address: int) -> None:
        self._use(device)
        self._call("cuMemFree", address)

    def host_alloc(self, size_bytes: int) -> int:
        self._use(0)
        return int(self._call("cuMemHostAlloc", size_bytes, _PINNED_PORTABLE_MAPPED)[0])

    def pageable_alloc(self, size_bytes: int) -> int:
        memory = mmap.mmap(-1, size_bytes)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        # The first touch decides the node of each page, and no sample pays for it.
        ctypes.memset(address, 1, size_bytes)
        self._pageable.append(memory)
        return address

    def stream(self, device: int) -> Stream:
        self._use(device)
        (handle,) = self._call("cuStreamCreate", _NON_BLOCKING_STREAM)
        return Stream(device=device, handle=handle)

    def event(self, device: int, *, blocking: bool = False) -> Event:
        self._use(device)
        (handle,) = self._call("cuEventCreate", _EVENT_BLOCKING_NO_TIME if blocking else 0)
        return Event(device=device, handle=handle)

    def record(self, event: Event, stream: Stream) -> None:
        self._use(stream.device)
        self._call("cuEventRecord", event.handle, stream.handle)

    def wait(self, stream: Stream, event: Event) -> None:
        self._use(stream.device)
        self._call("cuStreamWaitEvent", stream.handle, event.handle, 0)

    def happened(self, event: Event) -> bool:
        (code,) = self._driver.cuEventQuery(event.handle)
        if int(code) == _NOT_READY:
            return False
        self._check("cuEventQuery", code)
        return True

    def finish_event(self, event: Event) -> None:
        self._call("cuEventSynchronize", event.handle)

    def finish(self, stream: Stream) -> None:
        self._use(stream.device)
        self._call("cuStreamSynchronize", stream.handle)

    def elapsed_s(self, start: Event, end: Event) -> float:
        (milliseconds,) = self._call("cuEventElapsedTime", start.handle, end.handle)
        return float(milliseconds) * 1e-3

    def copy(self, dst: int, src: int, size_bytes: int, stream: Stream) -> None:
        self._use(stream.device)
        self._call("cuMemcpyAsync", dst, src, size_bytes, stream.handle)

    def copy_peer(
        self,
        dst: int,
        dst_device: int,
        src: int,
        src_device: int,
        size_bytes: int,
        stream: Stream,
    ) -> None:
        self._use(stream.device)
        ends = (dst, self._contexts[dst_device], src, self._contexts[src_device])
        self._call("cuMemcpyPeerAsync", *ends, size_bytes, stream.handle)

    def launch(
        self, kernel: str, stream: Stream, blocks: int, threads: int, *arguments: int
    ) -> None:
        function = self._function(stream.device, kernel)
        self._use(stream.device)
        grid = (blocks, 1, 1, threads, 1, 1)
        self._call("cuLaunchKernel", function, *grid, 0, stream.handle, packed(arguments), 0)

    def write_word(self, address: int, value: int) -> None:
        ctypes.c_uint64.from_address(address).value = value

    def read_word(self, address: int) -> int:
        return ctypes.c_uint64.from_address(address).value

    def _facts(self, ordinal: int) -> DeviceFacts:
        device = self._devices[ordinal]
        (uuid,) = self._call("cuDeviceGetUuid", device)
        digits = bytes(uuid.bytes).hex()
        cuts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
        return DeviceFacts(
            ordinal=ordinal,
            uuid="GPU-" + "-".join(cuts),
            multiprocessors=self._attribute(ordinal, "MULTIPROCESSOR_COUNT"),
            l2_bytes=self._attribute(ordinal, "L2_CACHE_SIZE"),
        )

    def _attribute(self, ordinal: int, name: str) -> int:
        wanted = getattr(self._driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self._call("cuDeviceGetAttribute", wanted, self._devices[ordinal])[0])

    def _context(self, device: int) -> Any:
        if device not in self._contexts:
            (context,) = self._call("cuDevicePrimaryCtxRetain", self._devices[device])
            self._contexts[device] = context
        return self._contexts[device]

    def _use(self, device: int) -> None:
        if getattr(self._thread, "device", None) != device:
            self._call("cuCtxSetCurrent", self._context(device))
            self._thread.device = device

    def _function(self, device: int, kernel: str) -> Any:
        key = (device, kernel)
        if key not in self._functions:
            self._use(device)
            if device not in self._modules:
                major = self._attribute(device, "COMPUTE_CAPABILITY_MAJOR")
                minor = self._attribute(device, "COMPUTE_CAPABILITY_MINOR")
                code = machine_code(f"sm_{major}{minor}")
                (self._modules[device],) = self._call("cuModuleLoadData", code)
            module = self._modules[device]
            (self._functions[key],) = self._call("cuModuleGetFunction", module, kernel.encode())
        return self._functions[key]

    def _call(self, function: str, *arguments: Any, fine: tuple[int, ...] = ()) -> tuple[Any, ...]:
        code, *values = getattr(self._driver, function)(*arguments)
        if int(code) not in fine:
            self._check(function, code)
        return tuple(values)

    def _check(self, function: str, code: Any) -> None:
        if int(code) != 0:
            word = getattr(code, "name", str(code))
            raise CudaError(
                f"{function}: {word}.",
                why="What was asked of the driver was not done.",
                hint="Look at the kernel's log for messages of the driver (Xid).",
            )
