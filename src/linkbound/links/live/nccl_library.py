"""NCCL's C interface by ctypes: which library is used, its calls, its errors as ours (L4).

No other package is between: what is timed is NCCL alone. Handles and pointers are plain numbers.
"""

import ctypes
import ctypes.util
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from linkbound.errors import LinkboundError, MissingExtra

Call = Callable[[], None]
"""A call with all its arguments: issuing it enqueues work on its stream."""
_UNIQUE_ID_BYTES = 128
_DTYPES = {"float32": 7, "bfloat16": 9}
"""ncclDataType_t; bfloat16 since NCCL 2.10."""
_SUM = 0
_IN_PROGRESS = 7
_NAMES = {
    1: "ncclUnhandledCudaError",
    2: "ncclSystemError",
    3: "ncclInternalError",
    4: "ncclInvalidArgument",
    5: "ncclInvalidUsage",
    6: "ncclRemoteError",
}


class NcclError(LinkboundError):
    """A call of NCCL that did not succeed."""


class Nccl(Protocol):
    """What is used of NCCL: a seam, so that the flow is tested without a GPU.

    Counts are elements. `communicator` and `stream` are handles. Collectives are prepared once
    and issued often; all of it raises NcclError.
    """

    path: str
    version: str

    def unique_id(self) -> bytes: ...

    def init_rank(self, ranks: int, identity: bytes, rank: int) -> int: ...

    def destroy(self, communicator: int) -> None: ...

    def start_group(self) -> None: ...

    def end_group(self) -> None: ...

    def all_reduce(
        self, source: int, result: int, count: int, communicator: int, stream: int
    ) -> Call: ...

    def all_gather(
        self, source: int, result: int, count: int, communicator: int, stream: int
    ) -> Call: ...

    def reduce_scatter(
        self, source: int, result: int, count: int, communicator: int, stream: int
    ) -> Call: ...

    def broadcast(
        self, source: int, result: int, count: int, root: int, communicator: int, stream: int
    ) -> Call: ...

    def send(self, source: int, count: int, peer: int, communicator: int, stream: int) -> Call: ...

    def receive(
        self, result: int, count: int, peer: int, communicator: int, stream: int
    ) -> Call: ...


@contextmanager
def group(nccl: Nccl) -> Iterator[None]:
    """Calls inside are issued together: several ranks of one process would deadlock otherwise."""
    nccl.start_group()
    yield
    nccl.end_group()


class _UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * _UNIQUE_ID_BYTES)]


class NcclLibrary:
    """The library on this host, for elements of one type."""

    def __init__(self, dtype: str) -> None:
        self._library, self.path = _load()
        self._cells: list[ctypes.c_void_p] = []
        self._dtype = _DTYPES[dtype]
        number = ctypes.c_int()
        self._call("ncclGetVersion", ctypes.byref(number))
        self.version = version_text(number.value)

    def unique_id(self) -> bytes:
        identity = _UniqueId()
        self._call("ncclGetUniqueId", ctypes.byref(identity))
        return bytes(identity)

    def init_rank(self, ranks: int, identity: bytes, rank: int) -> int:
        """Raises NcclError. Inside a group the handle is valid once the group has ended."""
        # The cell must outlive the call: inside a group NCCL writes to it when the group ends.
        cell = ctypes.c_void_p()
        self._cells.append(cell)
        named = _UniqueId.from_buffer_copy(identity)
        self._call("ncclCommInitRank", ctypes.byref(cell), ranks, named, rank)
        return len(self._cells) - 1

    def destroy(self, communicator: int) -> None:
        self._call("ncclCommDestroy", self._cells[communicator])

    def start_group(self) -> None:
        self._call("ncclGroupStart")

    def end_group(self) -> None:
        self._call("ncclGroupEnd")

    def all_reduce(
        self, source: int, result: int, count: int, communicator: int, stream: int
    ) -> Call:
        end = (_SUM, self._cells[communicator], stream)
        return self._prepared("ncclAllReduce", source, result, count, self._dtype, *end)

    def all_gather(
        self, source: int, result: int, count: int, communicator: int, stream: int
    ) -> Call:
        end = (self._cells[communicator], stream)
        return self._prepared("ncclAllGather", source, result, count, self._dtype, *end)

    def reduce_scatter(
        self, source: int, result: int, count: int, communicator: int, stream: int
    ) -> Call:
        end = (_SUM, self._cells[communicator], stream)
        return self._prepared("ncclReduceScatter", source, result, count, self._dtype, *end)

    def broadcast(
        self, source: int, result: int, count: int, root: int, communicator: int, stream: int
    ) -> Call:
        end = (root, self._cells[communicator], stream)
        return self._prepared("ncclBroadcast", source, result, count, self._dtype, *end)

    def send(self, source: int, count: int, peer: int, communicator: int, stream: int) -> Call:
        end = (peer, self._cells[communicator], stream)
        return self._prepared("ncclSend", source, count, self._dtype, *end)

    def receive(self, result: int, count: int, peer: int, communicator: int, stream: int) -> Call:
        end = (peer, self._cells[communicator], stream)
        return self._prepared("ncclRecv", result, count, self._dtype, *end)

    def _prepared(self, name: str, *arguments: object) -> Call:
        """The call with its arguments as C values: what is timed eagerly has no more Python in it
        than it must.
        """
        function = getattr(self._library, name)
        kinds = function.argtypes
        values = [
            each if isinstance(each, kind) else kind(each)
            for kind, each in zip(kinds, arguments, strict=True)
        ]

        def issue() -> None:
            code = function(*values)
            if code:
                self._check(name, code)

        return issue

    def _call(self, name: str, *arguments: object) -> None:
        self._check(name, getattr(self._library, name)(*arguments))

    def _check(self, name: str, code: int) -> None:
        if code not in (0, _IN_PROGRESS):
            raise NcclError(
                f"{name} failed: {error_text(code, self._last_words())}",
                why="This collective gave no result.",
                hint="Read NCCL's log; a run with NCCL_P2P_DISABLE=1 shows whether the link is it.",
            )

    def _last_words(self) -> str:
        words = self._library.ncclGetLastError(None)
        return words.decode(errors="replace").strip() if words else ""


def version_text(number: int) -> str:
    """`2.28.9` of 22809; up to 2.8 the numbers had one digit less (2708)."""
    major, rest = divmod(number, 10_000 if number >= 10_000 else 1_000)
    return f"{major}.{rest // 100}.{rest % 100}"


def error_text(code: int, last_words: str) -> str:
    """The name of a ncclResult_t with what NCCL said last."""
    name = _NAMES.get(code, f"code {code}")
    return f"{name} ({last_words[:200]})." if last_words else f"{name}."


def library_paths(site_packages: Path) -> tuple[Path, ...]:
    """Where wheels put NCCL: its own wheel for CUDA 12 or 13, or a torch that carries it."""
    places = ("nvidia/nccl/lib", "nvidia/cu13/lib", "torch/lib")
    return tuple(
        found for place in places for found in sorted((site_packages / place).glob("libnccl.so*"))
    )


def candidates() -> tuple[str, ...]:
    """Where NCCL may be loaded from on this host, in order; nothing is loaded."""
    wheels = library_paths(Path(sysconfig.get_paths()["purelib"]))
    system = ctypes.util.find_library("nccl")
    return (*map(str, wheels), *([system] if system else []))


def missing(tried: Sequence[str] = ()) -> MissingExtra:
    """The error of a host without a usable NCCL, with what was tried."""
    return MissingExtra(
        "NCCL was not found" + (f" ({'; '.join(tried)})." if tried else "."),
        why="Collectives over NCCL cannot be timed without its library, libnccl.so.2.",
        hint="Install the wheel nvidia-nccl-cu13 (or -cu12), torch, or the system's NCCL.",
    )


def _load() -> tuple[ctypes.CDLL, str]:
    tried = []
    for candidate in candidates():
        try:
            library = ctypes.CDLL(candidate)
            _declare(library)
        except (OSError, AttributeError) as error:
            tried.append(f"{Path(candidate).name}: {error}")
        else:
            return library, candidate
    raise missing(tried)


def _declare(library: ctypes.CDLL) -> None:
    number, size, pointer = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
    of = ctypes.POINTER
    signatures = {
        "ncclGetVersion": (of(number),),
        "ncclGetUniqueId": (of(_UniqueId),),
        "ncclCommInitRank": (of(pointer), number, _UniqueId, number),
        "ncclCommDestroy": (pointer,),
        "ncclGroupStart": (),
        "ncclGroupEnd": (),
        "ncclAllReduce": (pointer, pointer, size, number, number, pointer, pointer),
        "ncclAllGather": (pointer, pointer, size, number, pointer, pointer),
        "ncclReduceScatter": (pointer, pointer, size, number, number, pointer, pointer),
        "ncclBroadcast": (pointer, pointer, size, number, number, pointer, pointer),
        "ncclSend": (pointer, size, number, number, pointer, pointer),
        "ncclRecv": (pointer, size, number, number, pointer, pointer),
    }
    for name, arguments in signatures.items():
        function = getattr(library, name)
        function.restype = number
        function.argtypes = arguments
    library.ncclGetLastError.restype = ctypes.c_char_p
    library.ncclGetLastError.argtypes = (pointer,)
