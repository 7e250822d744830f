"""Any file about links to evidence: which tool wrote it is told by its content (L1, L4, P3)."""

import codecs
import re
from collections.abc import Callable, Sequence

from linkbound.errors import InputError
from linkbound.links.collective_curves import curves_of_run
from linkbound.links.log_path import path_of
from linkbound.links.log_types import LogPath, NcclLog
from linkbound.links.nvbandwidth_rates import curve_of_rate, latencies_of_run, rates_of_run
from linkbound.links.parse_nccl_log import parse_nccl_log
from linkbound.links.parse_nccl_tests import parse_nccl_tests
from linkbound.links.parse_nvbandwidth import parse_nvbandwidth
from linkbound.links.parse_p2p_test import parse_p2p_test
from linkbound.links.parse_peer_copies import parse_peer_copies
from linkbound.links.parse_symm_allreduce import curves_of_symm_allreduce, parse_symm_allreduce
from linkbound.links.parse_torch_allreduce import curve_of_torch_lines
from linkbound.links.types import (
    Arm,
    Curve,
    NcclTestsRun,
    PairLatency,
    PairRate,
    PeerAccess,
    Waived,
)
from linkbound.values import Value

LARGEST_FILE_BYTES = 64 * 1024**2
"""A log of 64 ranks with every subsystem stays below this; more is no text about links."""

# Characters in which a mark must stand. Headings and the first log lines come early.
_MARKS_WITHIN = 4 * 1024**2

_KINDS = (
    "nccl-tests tables, NCCL and RCCL logs, nvbandwidth (text or JSON), p2pBandwidthLatencyTest, "
    "peer-copies.txt and symm-allreduce.txt"
)
_ARM_OF_PATH = {LogPath.DIRECT: Arm.NCCL, LogPath.STAGED: Arm.STAGED, LogPath.NET: Arm.NET}
_ARM_IN_NAME = re.compile(r"p2p[-_](on|enabled|off|disabled)\b")


class LinkEvidence(Value, frozen=True, kw_only=True):
    """What one file says about links; every part may be empty."""

    source: str
    kind: str
    """The tool that wrote the file."""
    curves: tuple[Curve, ...] = ()
    pair_rates: tuple[PairRate, ...] = ()
    latencies: tuple[PairLatency, ...] = ()
    access: tuple[PeerAccess, ...] = ()
    runs: tuple[NcclTestsRun, ...] = ()
    logs: tuple[NcclLog, ...] = ()
    waived: tuple[Waived, ...] = ()
    notes: tuple[str, ...] = ()


class _Request(Value, frozen=True, kw_only=True):
    """A decoded file and what the caller knows of it."""

    text: str
    source: str
    arm: Arm | None
    group: tuple[str, ...] | None


def read_links(
    data: bytes, source: str, *, arm: Arm | None = None, group: Sequence[str] | None = None
) -> LinkEvidence:
    """Evidence in the file `source` with content `data`. Raises InputError, and nothing else.

    `arm` and `group` (GPU labels in rank order) are what the caller knows and a table does not
    say. Without `arm` it comes from a log in the same file, else from its name, else it is unknown.
    """
    text = decode(data, source)
    request = _Request(
        text=text, source=source, arm=arm, group=None if group is None else tuple(group)
    )
    for marks, read in _READERS:
        if marks.search(text, 0, _MARKS_WITHIN):
            return read(request)
    raise InputError(
        f"{source}: this is none of the files about links that are understood.",
        why=f"Understood are {_KINDS}.",
        hint="Give the whole output of one of these tools, with its headings.",
    )


def decode(data: bytes, source: str) -> str:
    """The text of `data` (UTF-8, UTF-16 with a mark, else Latin-1); InputError where it is none."""
    if len(data) > LARGEST_FILE_BYTES:
        raise _no_text(source, f"it has more than {LARGEST_FILE_BYTES:,} bytes")
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        text = data.decode("utf-16", errors="replace")
    else:
        text = _decode_bytes(data)
    if not text.strip():
        raise _no_text(source, "the file is empty")
    if "\0" in text:
        raise _no_text(source, "the file is binary")
    return text


def _decode_bytes(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _no_text(source: str, what: str) -> InputError:
    return InputError(
        f"{source}: {what}.",
        why=f"A text of one of these is needed: {_KINDS}.",
        hint="Check that the path names the output of such a tool.",
    )


def _read_nvbandwidth(request: _Request) -> LinkEvidence:
    run = parse_nvbandwidth(request.text, request.source)
    rates = rates_of_run(run)
    notes = run.notes
    if rates:
        notes = (*notes, "nvbandwidth does not print its buffer size: rates, but no curves")
    return LinkEvidence(
        source=request.source,
        kind="nvbandwidth",
        pair_rates=rates,
        latencies=latencies_of_run(run),
        waived=run.waived,
        notes=notes,
    )


def _read_p2p_test(request: _Request) -> LinkEvidence:
    run = parse_p2p_test(request.text, request.source)
    return LinkEvidence(
        source=request.source,
        kind="p2pBandwidthLatencyTest",
        pair_rates=run.rates,
        latencies=run.latencies,
        access=run.access,
        notes=run.notes,
    )


def _read_peer_copies(request: _Request) -> LinkEvidence:
    copies = parse_peer_copies(request.text, request.source)
    single = (curve_of_rate(rate, request.source) for rate in copies.rates)
    return LinkEvidence(
        source=request.source,
        kind="peer copies",
        curves=(*copies.curves, *(curve for curve in single if curve is not None)),
        pair_rates=copies.rates,
        access=copies.access,
        notes=copies.notes,
    )


def _read_symm_allreduce(request: _Request) -> LinkEvidence:
    reading = parse_symm_allreduce(request.text, request.source)
    notes = reading.notes
    curves: tuple[Curve, ...] = ()
    if request.group is None:
        notes = (*notes, f"{request.source}: no curve, the GPUs are not in the file: name them")
    else:
        curves = curves_of_symm_allreduce(reading, request.source, group=request.group)
    return LinkEvidence(
        source=request.source, kind="symmetric all-reduce", curves=curves, notes=notes
    )


def _read_rows(request: _Request) -> LinkEvidence:
    from linkbound.links.live.rows_file import evidence_of, parse_rows

    curves, rates, latencies = evidence_of(parse_rows(request.text, request.source), request.source)
    return LinkEvidence(
        source=request.source,
        kind="linkbound links",
        curves=curves,
        pair_rates=rates,
        latencies=latencies,
    )


def _read_nccl_tests(request: _Request) -> LinkEvidence:
    runs = parse_nccl_tests(request.text, request.source)
    logs = (
        (parse_nccl_log(request.text, request.source),) if _LOG_MARKS.search(request.text) else ()
    )
    arm, notes = _arm(request, logs)
    curves: list[Curve] = []
    for run in runs:
        found, remarks = curves_of_run(run, arm=arm, group=request.group)
        curves.extend(found)
        notes.extend((*run.notes, *remarks))
    return LinkEvidence(
        source=request.source,
        kind="nccl-tests",
        curves=tuple(curves),
        runs=runs,
        logs=logs,
        notes=tuple(notes),
    )


def _arm(request: _Request, logs: tuple[NcclLog, ...]) -> tuple[Arm | None, list[str]]:
    """The arm of a table, and where it is from unless the caller gave it."""
    if request.arm is not None:
        return request.arm, []
    for log in logs:
        if (arm := _ARM_OF_PATH.get(path_of(log).path)) is not None:
            return arm, [f"arm {arm} read from the channel lines of the log in the same file"]
    if found := _ARM_IN_NAME.search(request.source):
        arm = Arm.NCCL if found.group(1) in ("on", "enabled") else Arm.STAGED
        return arm, [f"arm {arm} taken from the file name, not proven by a log"]
    return None, ["the table does not say which paths were open: arm unknown"]


def _read_log(request: _Request) -> LinkEvidence:
    log = parse_nccl_log(request.text, request.source)
    curve = curve_of_torch_lines(request.text, request.source, log, request.group)
    return LinkEvidence(
        source=request.source,
        kind="NCCL log",
        curves=() if curve is None else (curve,),
        logs=(log,),
        notes=log.notes,
    )


_LOG_MARKS = re.compile(r"\bNCCL (?:INFO|WARN) |\b[NR]CCL version")
_READERS: tuple[tuple[re.Pattern[str], Callable[[_Request], LinkEvidence]], ...] = (
    (re.compile(r'\A\s*\{"operation":"\w+","implementation":"'), _read_rows),
    (re.compile(r"^(?:no_)?peer_access \d+ push ", re.MULTILINE), _read_peer_copies),
    (re.compile(r"^\d{1,15} \{'nccl': ", re.MULTILINE), _read_symm_allreduce),
    (
        re.compile(
            r"^Device=\d+ CAN(?:NOT)? Access Peer"
            r"|^(?:\w{1,20} )?P2P=(?:En|Dis)abled \w{1,20} .{0,30}Matrix",
            re.MULTILINE,
        ),
        _read_p2p_test,
    ),
    (
        re.compile(
            r"\A\s*\{[\s\S]{0,2000}?\"nvbandwidth\"|^nvbandwidth Version"
            r"|^memcpy (?:CE|SM|local) .*\(column\)"
            r"|^(?:Running|Waiving) \w+_(?:ce|sm|copy)\.",
            re.MULTILINE,
        ),
        _read_nvbandwidth,
    ),
    (
        re.compile(
            r"^#.*(?:out-of-place|\(elements\)|\balgbw\b)|^# Collective test starting"
            r"|Test (?:CUDA |NCCL )?failure",
            re.MULTILINE,
        ),
        _read_nccl_tests,
    ),
    (_LOG_MARKS, _read_log),
)
"""What marks a file, most particular first: a table may stand inside a log, not the reverse."""
