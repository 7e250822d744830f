"""The grammar of one line of an NCCL or RCCL log, versions 2.4 to 2.30 (P3).

Pure text to parts; parse_nccl_log puts them together.
"""

import re

from linkbound.links.cells import to_number
from linkbound.links.log_types import Channels, GraphPath, GraphPattern, P2pType, TransportKind
from linkbound.values import Value

_MARK = re.compile(r"NCCL (INFO|WARN) ")
_WRITER = re.compile(r"[\w.-]{1,64}:\d{1,9}:\d{1,9}")
_DEVICE = re.compile(r"\[(\d{1,4})\]")
_FILE = re.compile(r"[\w./-]{1,200}:\d{1,6}")
# A prefix is at most a host, a process, a device and a file: what is farther left is no part of it.
_PREFIX_CHARACTERS = 400
_CHANNEL = re.compile(
    r"(?:Channel|Ring) (?P<channel>\d{1,4}(?:/\d{1,4})?) ?: "
    r"(?P<src>\d{1,6})(?:\[(?P<src_device>[0-9a-fA-F]{1,12})\])? -> "
    r"(?P<dst>\d{1,6})(?:\[(?P<dst_device>[0-9a-fA-F]{1,12})\])? "
    r"(?:\[(?:send|receive)\] )?via (?P<via>direct shared memory|\w+/.+?)"
    r"(?: comm 0x[0-9a-fA-F]+ nRanks \d+)?\s*$"
)
_RING = re.compile(r"(?:Channel|Ring) \d{1,4}(?:/\d{1,4})? ?:((?: +\d{1,6})+)\s*$")
_CHAIN = re.compile(r"(?:Ring|Tree) \d{1,4} : -?\d+ -> -?\d+ -> [-\d/]+\s*$")
_INIT = re.compile(
    r"(?:ncclCommInit\w* |ncclCommSplit\w* )?comm (?P<pointer>0x[0-9a-fA-F]{1,16}) "
    r"rank (?P<rank>\d{1,6}) nranks (?P<ranks>\d{1,6})(?P<rest>.*?) - Init (?P<what>START|COMPLETE)"
)
_NODES = re.compile(r"comm (0x[0-9a-fA-F]{1,16}) rank \d+ nRanks \d+ nNodes (\d{1,6}) ")
_FIELD = re.compile(r"\b(cudaDev|nvmlDev|busId|commId|parent) (\w{1,20})")
_SETTING = re.compile(r"(N?R?CCL_\w{1,60}|NCCL_\w{1,60}) set by environment to (.{0,200}?)\.?\s*$")
_P2P_TYPE = re.compile(
    r"Check P2P Type (?:intraNodeP2pSupport|isAllDirectP2p) ([01]) directMode ([01])"
    r"(?: isAllCudaP2p ([01]))?"
)
_CHANNELS = re.compile(
    r"(\d{1,5}) coll channels, (?:\d{1,5} collnet channels, )?(?:(\d{1,5}) nvls channels, )?"
    r"(\d{1,5}) p2p channels, (\d{1,5}) p2p channels per peer"
)
_PATTERN = re.compile(
    r"Pattern (\d{1,3}), crossNic \d+, nChannels (\d{1,4}), (?:bw|speed) "
    r"([\d.]{1,20})/([\d.]{1,20}), type (\w{1,8})/(\w{1,8})"
)
_PATHS = re.compile(r"GPU/([0-9A-Fa-f-]{1,24}) :")
_PATH_TO = re.compile(r"GPU/([0-9A-Fa-f-]{1,24}) \((\d{1,3})/([\d.]{1,20})/(\w{1,8})\)")
_NVLS = re.compile(r"NVLS multicast support is (not )?available on dev \d+")
_VERSION = re.compile(r"\b(NCCL|RCCL) version ?:? ?(\d+\.\d+(?:\.\d+)?[\w.+:-]*)")
_REFUSAL = re.compile(
    r"(?:Could not enable P2P between dev|P2P is disabled between|peer query failed between dev)"
    r".*"
)
_HEADS = (
    "Channel ",
    "Ring ",
    "NVLS multicast support",
    "Check P2P Type",
    "ncclCommInitRank comm",
    "ncclCommInitRankConfig comm",
)


class LogLine(Value, frozen=True, kw_only=True):
    """A line without its prefix, and who wrote it."""

    writer: str
    """Host, process and CUDA device, as far as they are printed."""
    warning: bool
    text: str


class ChannelLine(Value, frozen=True, kw_only=True):
    """One channel from one rank to another."""

    channel: str
    src_rank: int
    dst_rank: int
    src_device: str | None
    dst_device: str | None
    kind: TransportKind
    detail: str


class InitLine(Value, frozen=True, kw_only=True):
    """The start or the end of a communicator's initialisation on one rank."""

    pointer: str
    rank: int
    ranks: int
    complete: bool
    fields: dict[str, str]


def split_line(raw: str) -> list[LogLine]:
    """The messages in one line of the file: none, one, or more where processes tore into it."""
    lines: list[LogLine] = []
    end = len(raw)
    for found in reversed(list(_MARK.finditer(raw))):
        text = raw[found.end() : end].strip()
        line, end = _with_prefix(raw, found.start(), text, warning=found.group(1) == "WARN")
        lines.insert(0, line)
    return lines


def _with_prefix(raw: str, start: int, text: str, *, warning: bool) -> tuple[LogLine, int]:
    """The message with the prefix that ends at `start`, and where that prefix begins."""
    rest = raw[max(0, start - _PREFIX_CHARACTERS) : start]
    begin = start - len(rest)
    rest, _ = _take(rest, _FILE)
    rest, device = _take(rest, _DEVICE)
    rest, writer = _take(rest, _WRITER)
    process = "" if writer is None else writer.rpartition(":")[0]
    line = LogLine(writer=f"{process} {device}", warning=warning, text=text)
    return line, begin + len(rest)


def _take(rest: str, pattern: re.Pattern[str]) -> tuple[str, str | None]:
    """`rest` without its last word where that word is what `pattern` says, and the word."""
    trimmed = rest.rstrip()
    word = trimmed[trimmed.rfind(" ") + 1 :]
    return (trimmed[: -len(word)], word) if pattern.fullmatch(word) else (rest, None)


def channel_of(text: str) -> ChannelLine | None:
    """`Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM` and its older forms; None for other lines."""
    found = _CHANNEL.match(text)
    if found is None:
        return None
    kind, detail = _transport(found["via"])
    return ChannelLine(
        channel=found["channel"],
        src_rank=int(found["src"]),
        dst_rank=int(found["dst"]),
        src_device=found["src_device"],
        dst_device=found["dst_device"],
        kind=kind,
        detail=detail,
    )


def _transport(via: str) -> tuple[TransportKind, str]:
    """Kind and the rest of `via`; up to 2.12 shared memory was written in words."""
    if via.startswith("direct shared memory"):
        return TransportKind.SHM, "direct"
    head, _, detail = via.partition("/")
    if head in (TransportKind.P2P, TransportKind.SHM, TransportKind.NET):
        return TransportKind(head), detail
    return TransportKind.OTHER, via


def ring_of(text: str) -> tuple[int, ...] | None:
    """The order of ranks in `Channel 00/04 :    0   1   2   3`."""
    found = _RING.match(text)
    return None if found is None else tuple(int(rank) for rank in found.group(1).split())


def init_of(text: str) -> InitLine | None:
    """The start or end of an initialisation; None for other lines."""
    found = _INIT.match(text)
    if found is None:
        return None
    return InitLine(
        pointer=found["pointer"],
        rank=int(found["rank"]),
        ranks=int(found["ranks"]),
        complete=found["what"] == "COMPLETE",
        fields=dict(_FIELD.findall(found["rest"])),
    )


def nodes_of(text: str) -> tuple[str, int] | None:
    """Pointer of a communicator and the hosts it spans."""
    found = _NODES.match(text)
    return None if found is None else (found.group(1), int(found.group(2)))


def setting_of(text: str) -> tuple[str, str] | None:
    """Name and value of a variable that arrived; 2.28 and later end some of them with a dot."""
    found = _SETTING.match(text)
    return None if found is None else (found.group(1), found.group(2))


def p2p_type_of(text: str) -> P2pType | None:
    """The line `Check P2P Type`, 2.24 and later."""
    found = _P2P_TYPE.match(text)
    if found is None:
        return None
    direct, mode, cuda = found.groups()
    return P2pType(
        all_direct=direct == "1",
        direct_mode=mode == "1",
        all_cuda=None if cuda is None else cuda == "1",
    )


def channels_of(text: str) -> Channels | None:
    """Numbers of channels; versions before NVLS do not print its number."""
    found = _CHANNELS.match(text)
    if found is None:
        return None
    collective, nvls, p2p, per_peer = found.groups()
    return Channels(
        collective=int(collective),
        nvls=None if nvls is None else int(nvls),
        p2p=int(p2p),
        p2p_per_peer=int(per_peer),
    )


def pattern_of(text: str) -> GraphPattern | None:
    """A graph search result; bandwidths are NCCL's assumptions in GB/s."""
    found = _PATTERN.match(text)
    if found is None:
        return None
    intra, inter = to_number(found.group(3)), to_number(found.group(4))
    if intra is None or inter is None:
        return None
    return GraphPattern(
        pattern=int(found.group(1)),
        channels=int(found.group(2)),
        intra_gb_per_s=intra,
        inter_gb_per_s=inter,
        intra_type=found.group(5),
        inter_type=found.group(6),
    )


def paths_of(text: str) -> list[GraphPath]:
    """GPU to GPU paths of a line of the topology dump; the system id before a bus id is dropped."""
    found = _PATHS.match(text)
    if found is None:
        return []
    src = _bus_id(found.group(1))
    paths = []
    for dst, hops, rate, kind in _PATH_TO.findall(text):
        gb_per_s = to_number(rate)
        if gb_per_s is not None and _bus_id(dst) != src:
            paths.append(
                GraphPath(src=src, dst=_bus_id(dst), hops=int(hops), gb_per_s=gb_per_s, type=kind)
            )
    return paths


def _bus_id(node: str) -> str:
    return node.rpartition("-")[2].lower()


def nvls_of(text: str) -> bool | None:
    """Whether a device says that multicast is available; None for other lines."""
    found = _NVLS.match(text)
    return None if found is None else found.group(1) is None


def version_of(line: str) -> tuple[str, str] | None:
    """Library (`nccl`, `rccl`) and version, also where the line has no prefix."""
    found = _VERSION.search(line)
    return None if found is None else (found.group(1).lower(), found.group(2).split("+")[0])


def refusal_of(text: str) -> str | None:
    """What NCCL says of a pair without peer access."""
    found = _REFUSAL.match(text)
    return None if found is None else found.group(0)


def is_torn(text: str) -> bool:
    """Whether a line begins as one of the known ones and does not end as it."""
    known = (channel_of, ring_of, nvls_of, p2p_type_of, init_of, _CHAIN.match)
    return text.startswith(_HEADS) and all(reader(text) is None for reader in known)
