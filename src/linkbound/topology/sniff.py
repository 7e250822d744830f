"""Decides by content which reader a file is for, and reads it (M4).

The list of readers is a list that can be read: name, how its text is known, what reads it.
"""

import importlib
import re
from collections.abc import Callable

from msgspec import structs

from linkbound.errors import InputError
from linkbound.topology.labels import check_size
from linkbound.topology.matrix import is_gpu, plain_lines
from linkbound.topology.parse_p2p_matrix import is_status
from linkbound.topology.parse_topo_matrix import is_link
from linkbound.topology.types import Machine
from linkbound.values import Value

MAX_FILE_BYTES = 8 * 1024**2
"""What a tool prints of the largest host is below 2 MiB; more only keeps the user waiting."""
_HEAD_CHARS = 4096
_BOMS = (
    (b"\xff\xfe\x00\x00", "utf-32"),
    (b"\x00\x00\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
    (b"\xef\xbb\xbf", "utf-8-sig"),
)
_CONTROL = re.compile(r"[\x00-\x06\x0e-\x1a\x1c-\x1f]")
"""Characters that no text tool prints; tab, line ends and the escape of colours are allowed."""


class Reader(Value, frozen=True, kw_only=True):
    """One kind of file: what it is called, how it is known, and where its parser is."""

    name: str
    matches: Callable[[str], bool]
    parser: str
    """Module and function below `linkbound.topology`."""


def _root(*tags: str) -> Callable[[str], bool]:
    pattern = re.compile(rf"<(?:{'|'.join(tags)})[\s>/]")
    return lambda text: text.lstrip()[:1] == "<" and bool(pattern.search(text[:_HEAD_CHARS]))


def _line(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(pattern, re.MULTILINE)
    return lambda text: compiled.search(text) is not None


def _row(is_cell: Callable[[str], bool], *, alone: bool) -> Callable[[str], bool]:
    """A row of a matrix; `alone`: also the row of the only GPU, whose one cell is X."""

    def matches(text: str) -> bool:
        for words in map(str.split, plain_lines(text)):
            if len(words) > 1 and is_gpu(words[0]) and is_cell(words[1]):
                cells = [word for word in words[1:3] if is_cell(word)]
                if alone or cells != ["X"]:
                    return True
        return False

    return matches


_SYSFS_KEY = re.compile(r'"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"\s*:\s*\{')

READERS = (
    Reader(
        name="hwloc XML (lstopo --of xml)",
        matches=_root("topology"),
        parser="parse_hwloc.parse_hwloc_xml",
    ),
    Reader(
        name="NCCL or RCCL topology XML (NCCL_TOPO_DUMP_FILE)",
        matches=_root("system", "cpu", "pci", "graphs"),
        parser="parse_nccl_xml.parse_nccl_xml",
    ),
    Reader(
        name="recorded /sys/bus/pci attributes (JSON)",
        matches=lambda text: text.lstrip()[:1] == "{" and _SYSFS_KEY.search(text) is not None,
        parser="parse_sysfs.parse_sysfs_json",
    ),
    Reader(
        name="rocm-smi --showtopo",
        matches=_line(r"(?:Weight|Hops|Link Type) between two GPUs"),
        parser="parse_rocm_smi.parse_rocm_smi",
    ),
    Reader(
        name="nvidia-smi topo -p2p",
        matches=_row(is_status, alone=False),
        parser="parse_p2p_matrix.parse_p2p_matrix",
    ),
    Reader(
        name="nvidia-smi topo -m",
        matches=_row(is_link, alone=True),
        parser="parse_topo_matrix.parse_topo_matrix",
    ),
    Reader(
        name="p2pBandwidthLatencyTest",
        matches=_line(r"Device=\d+ CAN(?:NOT)? Access Peer|Device: \d+, .{1,200}pciBusID:"),
        parser="parse_p2p_matrix.parse_peer_access",
    ),
    Reader(
        name="nvidia-smi -q",
        matches=_line(
            r"NVSMI LOG|^[ \t]*(?:GPU UUID|Product Name|FB Memory Usage|BAR1 Memory Usage)\b"
        ),
        parser="parse_smi_q.parse_smi_q",
    ),
    Reader(
        name="nvidia-smi nvlink",
        matches=_line(r"^[ \t]*Link \d+(?::|,)"),
        parser="parse_nvlink.parse_nvlink_status",
    ),
    Reader(
        name="nvidia-smi",
        matches=_line(r"NVIDIA-SMI \d"),
        parser="parse_smi_table.parse_smi_table",
    ),
    Reader(
        name="lspci -tv or lspci -vv",
        matches=_line(
            r"^[ |]*[-+\\]*\[[0-9a-f]{4}:[0-9a-f]{2}(?:-[0-9a-f]{2})?\]-|"
            r"^(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] |^[ \t]*(?:LnkCap|LnkSta|ACSCtl):|"
            r"^[ \t]*BAR \d: current size"
        ),
        parser="parse_lspci.parse_lspci",
    ),
)


def read_machine(data: bytes, source: str) -> Machine:
    """The machine that `data` shows, whatever tool wrote it. Raises InputError."""
    text, note = decode(data, source)
    reader = next((reader for reader in READERS if reader.matches(text)), None)
    if reader is None:
        raise InputError(
            f"{source}: not a file that tells how a machine is wired.",
            why="Understood are: " + "; ".join(reader.name for reader in READERS) + ".",
            hint="Give the whole output of one of these tools.",
        )
    machine = _parser(reader)(text, source)
    check_size(machine.gpus, machine.devices, source)
    return machine if note is None else structs.replace(machine, notes=(*machine.notes, note))


def decode(data: bytes, source: str) -> tuple[str, str | None]:
    """The text of a file, and a note where its encoding had to be taken for granted."""
    if len(data) > MAX_FILE_BYTES:
        raise _unreadable(
            source,
            f"more than {MAX_FILE_BYTES:,} bytes",
            f"Files above {MAX_FILE_BYTES:,} bytes hold no topology.",
        )
    if not data.strip():
        raise _unreadable(source, "the file is empty", "Nothing can be taken from it.")
    text, note = _text(data, source)
    control = _CONTROL.search(text)
    if control:
        raise _unreadable(
            source,
            f"binary content (byte 0x{ord(control[0]):02x} at character {control.start():,})",
            "Topology files are text.",
        )
    return text, note


def _text(data: bytes, source: str) -> tuple[str, str | None]:
    encoding = next((name for bom, name in _BOMS if data.startswith(bom)), "utf-8")
    try:
        return data.decode(encoding), None
    except UnicodeDecodeError as error:
        if encoding != "utf-8":
            raise _unreadable(
                source,
                f"not the {encoding} that its first bytes announce ({error.reason})",
                "Topology files are text.",
            ) from None
    return data.decode("latin-1"), f"{source} is not UTF-8: read as Latin-1; names may be garbled."


def _unreadable(source: str, what: str, why: str) -> InputError:
    return InputError(
        f"{source}: {what}.",
        why=why,
        hint="Check that this is the file you meant.",
    )


def _parser(reader: Reader) -> Callable[[str, str], Machine]:
    module, function = reader.parser.split(".")
    found: Callable[[str, str], Machine] = getattr(
        importlib.import_module(f"linkbound.topology.{module}"), function
    )
    return found
