"""Logs from files: one file may hold NCCL's lines, an engine's, or both (P3)."""

from collections.abc import Iterable

from linkbound.errors import InputError
from linkbound.links.log_types import NcclLog
from linkbound.links.parse_nccl_log import parse_nccl_log
from linkbound.serve.parse_engine_log import MAX_LOG_BYTES, parse_engine_log
from linkbound.serve.path_types import EngineLog
from linkbound.values import Value

_NO_TEXT = {
    b"\x1f\x8b": "packed with gzip",
    b"\xfd7zXZ\x00": "packed with xz",
    b"\x28\xb5\x2f\xfd": "packed with zstd",
    b"PK\x03\x04": "packed with zip",
    b"\xff\xfe": "text in UTF-16, as PowerShell writes it",
}
"""How files begin that may hold a log all the same."""


class TraceLogs(Value, frozen=True, kw_only=True):
    """What the files hold, each file at least once."""

    nccl: tuple[NcclLog, ...] = ()
    engines: tuple[EngineLog, ...] = ()


def parse_trace_logs(files: Iterable[tuple[str, bytes]]) -> TraceLogs:
    """Every log in `files` (name, content). Raises InputError for one that holds none."""
    nccl: list[NcclLog] = []
    engines: list[EngineLog] = []
    for source, data in files:
        _require_text(data, source)
        ours = parse_trace_log(data, source)
        if not ours.nccl and not ours.engines:
            raise InputError(
                f"{source}: no line of NCCL, RCCL, vLLM, SGLang, llama.cpp or TensorRT-LLM.",
                why="Only their own words say which path was chosen.",
                hint="Run with NCCL_DEBUG=INFO, or give the engine's output from its start on.",
            )
        nccl += ours.nccl
        engines += ours.engines
    return TraceLogs(nccl=tuple(nccl), engines=tuple(engines))


def _require_text(data: bytes, source: str) -> None:
    what = next((name for sign, name in _NO_TEXT.items() if data.startswith(sign)), None)
    if what is not None:
        raise InputError(
            f"{source} is {what}.",
            why="Logs are read as UTF-8.",
            hint="Unpack or convert it first.",
        )


def parse_trace_log(data: bytes, source: str) -> TraceLogs:
    """The logs in one file; none where nothing is recognised. Raises InputError past 64 MiB."""
    if len(data) > MAX_LOG_BYTES:
        raise InputError(
            f"{source} is {len(data):,} bytes.",
            why="Logs are read whole; this is more than any start of an engine prints.",
            hint="Cut it to the start, up to the first requests.",
        )
    # Logs of several processes are torn in the middle of characters too.
    text = data.decode("utf-8", errors="replace")
    nccl: tuple[NcclLog, ...] = ()
    engines: tuple[EngineLog, ...] = ()
    if "NCCL" in text:
        nccl = _nccl(text, source)
    try:
        engines = (parse_engine_log(text, source),)
    except InputError:
        # Not an engine's: the caller decides whether the file held anything at all.
        engines = ()
    return TraceLogs(nccl=nccl, engines=engines)


def _nccl(text: str, source: str) -> tuple[NcclLog, ...]:
    try:
        return (parse_nccl_log(text, source),)
    except InputError:
        return ()
