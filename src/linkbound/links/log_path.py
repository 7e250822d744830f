"""Which path the data took, by a log's channel lines, and why peer-to-peer is off where it is (P3).

A setting is intent and `isAllCudaP2p` is the driver's grant: only a channel line is a choice.
"""

from collections.abc import Iterable

from linkbound.links.log_types import (
    LogPath,
    NcclLog,
    OffBecause,
    PathSummary,
    Transport,
    TransportKind,
)

_PATH = {
    TransportKind.P2P: LogPath.DIRECT,
    TransportKind.SHM: LogPath.STAGED,
    TransportKind.NET: LogPath.NET,
}
_REASON = {
    OffBecause.SETTING: "the environment asks for it",
    OffBecause.POLICY: (
        "the driver grants peer access (isAllCudaP2p 1), but the pair is farther apart than NCCL's "
        "default level: NCCL_P2P_LEVEL=SYS would use it"
    ),
    OffBecause.DRIVER: "the driver refuses peer access",
}


def path_of(log: NcclLog) -> PathSummary:
    """The path of all channels in `log`: unknown, with the reason, where none is shown."""
    because = _off_because(log)
    kinds = {_PATH[pair.kind] for pair in log.transports if pair.kind in _PATH}
    if not kinds:
        return PathSummary(
            path=LogPath.UNKNOWN,
            pairs=log.transports,
            off_because=because,
            why=_why_unknown(log, because),
        )
    path = kinds.pop() if len(kinds) == 1 else LogPath.MIXED
    if path is LogPath.DIRECT:
        because = None
    return PathSummary(
        path=path, pairs=log.transports, off_because=because, why=_why(log, path, because)
    )


def _why(log: NcclLog, path: LogPath, because: OffBecause | None) -> str:
    counts = ", ".join(_groups(log.transports))
    if path is LogPath.DIRECT or because is None:
        return f"Channel lines: {counts}."
    return f"Channel lines: {counts}. Peer-to-peer is off: {_cause(log, because)}."


def _why_unknown(log: NcclLog, because: OffBecause | None) -> str:
    if log.transports:
        return f"Channel lines name no path that is known here: {log.transports[0].detail[:60]}."
    shown = "No channel line: the log ends before connections, or is from another subsystem."
    return shown if because is None else f"{shown} Peer-to-peer is off: {_cause(log, because)}."


def _cause(log: NcclLog, because: OffBecause) -> str:
    if because is OffBecause.SETTING:
        return f"{_REASON[because]} ({_closing_setting(log)})"
    if because is OffBecause.DRIVER and log.refusals:
        return f"{_REASON[because]} ({log.refusals[0].text})"
    return _REASON[because]


def _groups(transports: Iterable[Transport]) -> list[str]:
    """`24 x P2P/CUMEM 0 -> 1`, one entry a pair and kind, at most eight."""
    entries = [
        f"{transport.channels} x {transport.kind}/{transport.detail[:40]} "
        f"{transport.src_rank} -> {transport.dst_rank}"
        for transport in transports
    ]
    rest = len(entries) - 8
    return entries if rest <= 0 else [*entries[:8], f"{rest} more pairs"]


def _off_because(log: NcclLog) -> OffBecause | None:
    if _closing_setting(log) is not None:
        return OffBecause.SETTING
    if log.refusals or any(kind.all_cuda is False for kind in log.p2p_types):
        return OffBecause.DRIVER
    if any(kind.all_cuda and not kind.all_direct for kind in log.p2p_types):
        return OffBecause.POLICY
    return None


def _closing_setting(log: NcclLog) -> str | None:
    """The variable that closes peer-to-peer, as NAME=VALUE.

    Only the value 1 of NCCL_P2P_DISABLE counts; up to 2.2x it is printed as level LOC. In numbers,
    level 0 is LOC.
    """
    if log.settings.get("NCCL_P2P_DISABLE") == "1":
        return "NCCL_P2P_DISABLE=1"
    level = log.settings.get("NCCL_P2P_LEVEL")
    return f"NCCL_P2P_LEVEL={level}" if level in ("LOC", "0") else None
