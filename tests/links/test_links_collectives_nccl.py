"""NCCL's C interface over a library that is not there: arguments, errors, handles."""

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from linkbound.errors import MissingExtra
from linkbound.links.live import allreduce_symm, nccl_library
from linkbound.links.live.allreduce_symm import SymmCalls
from linkbound.links.live.cuda import CudaError
from linkbound.links.live.nccl_library import NcclError, NcclLibrary, group


class FakeFunction:
    """A C function: converts its arguments as ctypes does, and remembers them."""

    def __init__(self, name: str, calls: list[tuple[str, tuple[Any, ...]]]) -> None:
        self.name = name
        self.calls = calls
        self.code: int | bytes = 0
        self.argtypes: tuple[Any, ...] = ()
        self.restype: Any = None

    def __call__(self, *arguments: Any) -> int | bytes:
        assert len(arguments) == len(self.argtypes)
        self.calls.append((self.name, tuple(getattr(each, "value", each) for each in arguments)))
        if self.name == "ncclGetVersion":
            arguments[0]._obj.value = 22809
        if self.name == "ncclGetUniqueId":
            arguments[0]._obj.internal[0] = 42
        if self.name == "ncclCommInitRank":
            arguments[0]._obj.value = 0xC0
        return self.code


class FakeC(SimpleNamespace):
    """A shared library with every function that is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> FakeFunction:
        function = FakeFunction(name, self.calls)
        setattr(self, name, function)
        return function


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeC:
    fake = FakeC()
    fake.ncclGetLastError.code = b"no route to host"
    monkeypatch.setattr(nccl_library, "candidates", lambda: ("/somewhere/libnccl.so.2",))
    monkeypatch.setattr(ctypes, "CDLL", lambda _path: fake)
    return fake


def test_version_and_identity(library: FakeC) -> None:
    nccl = NcclLibrary("bfloat16")
    assert nccl.version == "2.28.9"
    assert nccl.path == "/somewhere/libnccl.so.2"
    identity = nccl.unique_id()
    assert len(identity) == 128
    assert identity[0] == 42
    assert library.calls[-1][0] == "ncclGetUniqueId"


@pytest.mark.parametrize(("dtype", "number"), [("bfloat16", 9), ("float32", 7)])
def test_calls_get_their_arguments(library: FakeC, dtype: str, number: int) -> None:
    nccl = NcclLibrary(dtype)
    with group(nccl):
        communicator = nccl.init_rank(2, bytes(128), 1)
    before = len(library.calls)
    calls = [
        nccl.all_reduce(16, 32, 4, communicator, 5),
        nccl.all_gather(16, 32, 4, communicator, 5),
        nccl.reduce_scatter(16, 32, 4, communicator, 5),
        nccl.broadcast(16, 32, 4, 0, communicator, 5),
        nccl.send(16, 4, 1, communicator, 5),
        nccl.receive(32, 4, 0, communicator, 5),
    ]
    assert len(library.calls) == before, "preparing enqueues nothing"
    for call in calls:
        call()
    assert library.calls[before:] == [
        ("ncclAllReduce", (16, 32, 4, number, 0, 0xC0, 5)),
        ("ncclAllGather", (16, 32, 4, number, 0xC0, 5)),
        ("ncclReduceScatter", (16, 32, 4, number, 0, 0xC0, 5)),
        ("ncclBroadcast", (16, 32, 4, number, 0, 0xC0, 5)),
        ("ncclSend", (16, 4, number, 1, 0xC0, 5)),
        ("ncclRecv", (32, 4, number, 0, 0xC0, 5)),
    ]
    nccl.destroy(communicator)
    assert library.calls[-1] == ("ncclCommDestroy", (0xC0,))


def test_error_names_the_call_and_what_nccl_said(library: FakeC) -> None:
    nccl = NcclLibrary("bfloat16")
    communicator = nccl.init_rank(2, bytes(128), 0)
    call = nccl.all_reduce(16, 32, 4, communicator, 5)
    library.ncclAllReduce.code = 2
    with pytest.raises(NcclError) as raised:
        call()
    assert raised.value.seen == "ncclAllReduce failed: ncclSystemError (no route to host)."
    assert "NCCL_P2P_DISABLE=1" in raised.value.hint


def test_call_in_progress_is_no_error(library: FakeC) -> None:
    nccl = NcclLibrary("bfloat16")
    library.ncclCommInitRank.code = 7
    nccl.init_rank(2, bytes(128), 0)


def test_library_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise OSError(f"{path}: wrong ELF class")

    monkeypatch.setattr(nccl_library, "candidates", lambda: ("/a/libnccl.so.2",))
    monkeypatch.setattr(ctypes, "CDLL", refuse)
    with pytest.raises(MissingExtra, match="wrong ELF class"):
        NcclLibrary("bfloat16")


def test_torch_is_not_used_without_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, "0"):
        if value is None:
            monkeypatch.delenv(allreduce_symm.GUARD, raising=False)
        else:
            monkeypatch.setenv(allreduce_symm.GUARD, value)
        with pytest.raises(CudaError, match="multicast"):
            SymmCalls(None, None, largest_bytes=16)  # type: ignore[arg-type]
