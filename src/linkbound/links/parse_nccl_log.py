"""What a log of NCCL or RCCL shows: which path every channel takes, and why (P3).

Reads versions 2.4 to 2.30, of one or more processes, whole, cut or torn by simultaneous writes.
"""

from collections import Counter

import msgspec

from linkbound.errors import InputError
from linkbound.links import nccl_lines
from linkbound.links.cells import quote
from linkbound.links.log_types import (
    Channels,
    Communicator,
    GraphPath,
    GraphPattern,
    LogWarning,
    NcclChoice,
    NcclLog,
    P2pType,
    Transport,
    TransportKind,
)
from linkbound.links.nccl_choices import choice_of
from linkbound.links.nccl_lines import ChannelLine, InitLine, LogLine

# The longest line is that of a topology dump, some 80 characters a device.
_LONGEST_LINE = 16_384


class _Log:
    """The log that is being read. A writer is a process and the device it speaks for."""

    def __init__(self) -> None:
        self.lines = 0
        self.version: tuple[str, str] | None = None
        self.communicators: dict[tuple[str, str], Communicator] = {}
        self.current: dict[str, Communicator] = {}
        self.channels_of: dict[tuple[str | None, ChannelLine], set[str]] = {}
        self.rings: dict[tuple[int, ...], None] = {}
        self.settings: dict[str, str] = {}
        self.p2p_types: dict[P2pType, None] = {}
        self.channels: dict[Channels, None] = {}
        self.patterns: dict[GraphPattern, None] = {}
        self.paths: dict[GraphPath, None] = {}
        self.choices: Counter[NcclChoice] = Counter()
        self.nvls: bool | None = None
        self.warnings: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.torn = 0
        self.notes: list[str] = []

    def read(self, raw: str) -> None:
        if version := nccl_lines.version_of(raw):
            self._read_version(version)
        messages = nccl_lines.split_line(raw[:_LONGEST_LINE])
        self.lines += bool(messages or version)
        self.torn += max(0, len(messages) - 1)
        self.torn += bool(messages) and nccl_lines.is_torn(messages[-1].text)
        for message in messages:
            if message.warning:
                self.warnings[quote(message.text, 200)] += 1
            else:
                self._read_message(message)

    def _read_version(self, version: tuple[str, str]) -> None:
        if self.version is not None and self.version != version:
            self.notes.append(f"two versions in one log: {self.version[1]} and {version[1]}")
        self.version = self.version or version

    def _read_message(self, line: LogLine) -> None:
        text = line.text
        if channel := nccl_lines.channel_of(text):
            self._read_channel(line, channel)
        elif init := nccl_lines.init_of(text):
            self._read_init(line, init)
        elif nodes := nccl_lines.nodes_of(text):
            self._read_nodes(line, *nodes)
        elif setting := nccl_lines.setting_of(text):
            self._read_setting(*setting)
        elif ring := nccl_lines.ring_of(text):
            self.rings[ring] = None
        elif (available := nccl_lines.nvls_of(text)) is not None:
            self.nvls = available or bool(self.nvls)
        elif refusal := nccl_lines.refusal_of(text):
            self.refusals[quote(refusal, 200)] += 1
        else:
            self._read_graph(text)

    def _read_graph(self, text: str) -> None:
        if p2p_type := nccl_lines.p2p_type_of(text):
            self.p2p_types[p2p_type] = None
        elif channels := nccl_lines.channels_of(text):
            self.channels[channels] = None
        elif pattern := nccl_lines.pattern_of(text):
            self.patterns[pattern] = None
        elif choice := choice_of(text):
            self.choices[choice] += 1
        else:
            self.paths.update(dict.fromkeys(nccl_lines.paths_of(text)))

    def _read_channel(self, line: LogLine, channel: ChannelLine) -> None:
        comm = self.current.get(line.writer)
        key = ChannelLine(
            channel="",
            src_rank=channel.src_rank,
            dst_rank=channel.dst_rank,
            src_device=channel.src_device,
            dst_device=channel.dst_device,
            kind=channel.kind,
            detail=channel.detail,
        )
        name = None if comm is None else comm.comm_id or comm.pointer
        self.channels_of.setdefault((name, key), set()).add(channel.channel)

    def _read_init(self, line: LogLine, init: InitLine) -> None:
        fields = init.fields
        known = self.communicators.get((line.writer, init.pointer))
        comm = Communicator(
            pointer=init.pointer,
            rank=init.rank,
            ranks=init.ranks,
            cuda_device=_to_int(fields.get("cudaDev")),
            nvml_device=_to_int(fields.get("nvmlDev")),
            bus_id=fields.get("busId"),
            comm_id=fields.get("commId"),
            parent=fields.get("parent"),
            nodes=None if known is None else known.nodes,
            complete=init.complete,
        )
        self.communicators[line.writer, init.pointer] = comm
        self.current[line.writer] = comm

    def _read_nodes(self, line: LogLine, pointer: str, nodes: int) -> None:
        known = self.communicators.get((line.writer, pointer))
        if known is not None:
            comm = msgspec.structs.replace(known, nodes=nodes)
            self.communicators[line.writer, pointer] = comm
            self.current[line.writer] = comm

    def _read_setting(self, name: str, value: str) -> None:
        known = self.settings.setdefault(name, value)
        # Each rank writes its own files; anything else that differs between ranks is a mistake.
        if known != value and "_FILE" not in name:
            self.notes.append(f"{name} is {known} in one process and {value} in another")

    def transports(self) -> tuple[Transport, ...]:
        return tuple(
            _transport(name, key, len(seen)) for (name, key), seen in self.channels_of.items()
        )


def parse_nccl_log(text: str, source: str) -> NcclLog:
    """Everything that `text` shows. Raises InputError where no line is NCCL's or RCCL's."""
    log = _Log()
    for raw in text.splitlines():
        log.read(raw)
    if not log.lines:
        raise InputError(
            f"{source}: no line of NCCL or RCCL was found.",
            why="Their lines contain NCCL INFO or NCCL WARN.",
            hint="Run with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH,P2P,SHM,NET.",
        )
    library, version = log.version or (None, None)
    return NcclLog(
        source=source,
        library=library,
        version=version,
        communicators=tuple(log.communicators.values()),
        transports=log.transports(),
        rings=tuple(log.rings),
        settings=log.settings,
        p2p_types=tuple(log.p2p_types),
        channels=tuple(log.channels),
        patterns=tuple(log.patterns),
        paths=tuple(log.paths),
        choices=tuple(
            msgspec.structs.replace(choice, calls=calls) for choice, calls in log.choices.items()
        ),
        nvls_available=log.nvls,
        warnings=_counted(log.warnings),
        refusals=_counted(log.refusals),
        torn_lines=log.torn,
        notes=(*log.notes, *_gaps(log)),
    )


def _gaps(log: _Log) -> list[str]:
    """What the log leaves open about its communicators."""
    notes = []
    if log.version is None:
        notes.append("no version line")
    unfinished = [comm for comm in log.communicators.values() if not comm.complete]
    if unfinished:
        notes.append(f"{len(unfinished)} communicators did not finish their initialisation")
    sources = {key.src_rank for _, key in log.channels_of}
    missing = {rank for ring in log.rings for rank in ring} - sources
    if log.channels_of and missing:
        listed = ", ".join(str(rank) for rank in sorted(missing)[:16])
        notes.append(f"no channel line of rank {listed}: their direction is not shown")
    return notes


def _transport(name: str | None, key: ChannelLine, channels: int) -> Transport:
    network = key.kind is TransportKind.NET
    return Transport(
        src_rank=key.src_rank,
        dst_rank=key.dst_rank,
        src_device=key.src_device,
        dst_device=key.dst_device,
        kind=key.kind,
        detail=key.detail,
        channels=channels,
        comm_id=name,
        gdr="GDRDMA" in key.detail if network else None,
        copy_engine=not network and "CE" in key.detail.split("/"),
    )


def _counted(texts: Counter[str]) -> tuple[LogWarning, ...]:
    return tuple(LogWarning(text=text, count=count) for text, count in texts.items())


def _to_int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
