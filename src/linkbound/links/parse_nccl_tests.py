"""What a table of nccl-tests says: times and verification for each size (L4, L6).

Reads every collective, old and new columns, several tables in one text, and truncated output.
"""

import re

from linkbound.errors import InputError
from linkbound.links.cells import quote, to_integer, to_number, to_positive
from linkbound.links.collectives import COLLECTIVES
from linkbound.links.types import Launch, NcclTestsRow, NcclTestsRun, TestDevice, Timing

_MPI_TAG = re.compile(r"^\[\d+,\d+\]<std(?:out|err)>:?")
_VERSION = re.compile(r"nccl-tests version (\S+)(?:.*\bnccl-library=(\d{4,6})\b)?")
_STARTING = re.compile(r"Collective test starting: (\w+?)_perf\b")
_GRAPH = re.compile(r"\bgraph: (\d{1,6})\b")
_DEVICE = re.compile(
    r"#\s+Rank\s+(\d{1,6})\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+(\d{1,4})"
    r"\s+\[([^\]]{1,40})\]\s*(.*)"
)
_BOUNDS = re.compile(r"# Out of bounds values : (\d{1,9})\b")
_FAILURE = re.compile(r"Test (?:CUDA |NCCL )?failure\b.*")
_STARTS_RUN = ("# nccl-tests version", "# Collective test starting", "# nThread", "# Using devices")
_ROW = re.compile(r"\s*\d+\s+\d+\s+[a-z]\w*\s")
_FILE_NAME = re.compile(r"(?:^|[/\\])(" + "|".join(COLLECTIVES) + r")(?:_perf)?[._-]")


class _Table:
    """The run that is being read, line by line."""

    def __init__(self) -> None:
        self.collective: str | None = None
        self.launch: Launch | None = None
        self.version: str | None = None
        self.nccl_version: str | None = None
        self.devices: list[TestDevice] = []
        self.rows: list[NcclTestsRow] = []
        self.out_of_bounds: int | None = None
        self.concluded = False
        self.failed = False
        self.heading = False
        self.old_error = False
        self.notes: list[str] = []

    @property
    def empty(self) -> bool:
        return not (self.rows or self.failed or self.heading)

    def starts_anew(self, line: str) -> bool:
        """Whether `line` belongs to the next run of the same text."""
        if line.startswith(_STARTS_RUN) or "out-of-place" in line:
            return bool(self.rows or self.concluded)
        return False

    def read(self, line: str) -> None:
        if line.lstrip().startswith("#"):
            self._read_comment(line)
        elif found := _FAILURE.search(line):
            self.failed = True
            self.notes.append(f"the run failed: {quote(found.group(0), 100)}")
        elif _ROW.match(line):
            self._read_row(line)

    def _read_comment(self, line: str) -> None:
        if found := _VERSION.search(line):
            self.version = found.group(1)
            self.nccl_version = _library_version(found.group(2))
        elif found := _STARTING.search(line):
            self.collective = found.group(1)
        elif found := _DEVICE.match(line):
            self.devices.append(_device(found))
        elif found := _BOUNDS.match(line):
            self.out_of_bounds = int(found.group(1))
            self.concluded = True
        elif "out-of-place" in line or "(elements)" in line:
            self.heading = True
        elif "busbw" in line:
            self.heading = True
            self.old_error = re.search(r"busbw\s+error\b", line) is not None
        elif found := _GRAPH.search(line):
            self.launch = Launch.GRAPH if int(found.group(1)) else Launch.EAGER

    def _read_row(self, line: str) -> None:
        row = _row(line.split(), old_error=self.old_error)
        if row is None:
            self.notes.append(f"row not readable: '{quote(line)}'")
            return
        if row.in_place is None:
            self.notes.append(f"row of {row.size_bytes} B was cut after the out-of-place half")
        self.rows.append(row)

    def finish(self, source: str) -> NcclTestsRun:
        collective = self._collective(source)
        if not self.rows:
            self.notes.append("no rows: nothing was timed")
        elif not self.concluded:
            self.notes.append("no summary line: the output is truncated or an excerpt")
        if not self.devices:
            self.notes.append("no device lines: the ranks and their GPUs are not known")
        if self.old_error:
            self.notes.append("the error column is a rounding error, not a count of wrong elements")
        return NcclTestsRun(
            source=source,
            collective=collective,
            ranks=len(self.devices) or None,
            launch=self.launch,
            version=self.version,
            nccl_version=self.nccl_version,
            devices=tuple(self.devices),
            rows=tuple(self.rows),
            out_of_bounds=self.out_of_bounds,
            complete=self.concluded and not self.failed,
            notes=tuple(self.notes),
        )

    def _collective(self, source: str) -> str | None:
        if self.collective in COLLECTIVES:
            return self.collective
        if self.collective is not None:
            self.notes.append(f"'{self.collective}' is not a known collective")
            return None
        if found := _FILE_NAME.search(source):
            self.notes.append(f"collective {found.group(1)} taken from the file name")
            return found.group(1)
        self.notes.append("neither the output nor the file name says which collective this is")
        return None


def parse_nccl_tests(text: str, source: str) -> tuple[NcclTestsRun, ...]:
    """The runs in `text`, in order. Raises InputError where there is no table of nccl-tests."""
    runs: list[NcclTestsRun] = []
    table = _Table()
    for raw in text.splitlines():
        line = _MPI_TAG.sub("", raw)
        if " NCCL INFO " in line or " NCCL WARN " in line:
            continue
        if table.starts_anew(line):
            runs.append(table.finish(source))
            table = _Table()
        table.read(line)
    if not table.empty:
        runs.append(table.finish(source))
    if not runs:
        raise InputError(
            f"{source}: no table of nccl-tests was found.",
            why="A table has a heading with out-of-place and in-place, then rows of sizes.",
            hint="Give the whole output of a *_perf program.",
        )
    return tuple(runs)


def _row(cells: list[str], *, old_error: bool) -> NcclTestsRow | None:
    size, count = to_integer(cells[0]), to_integer(cells[1])
    redop, root, timings = _split(cells[3:])
    out = _timing(timings[:4], old_error=old_error)
    if not size or count is None or size < 0 or out is None:
        return None
    return NcclTestsRow(
        size_bytes=size,
        count=count,
        dtype=cells[2],
        redop=redop,
        root=root,
        out_of_place=out,
        in_place=_timing(timings[4:8], old_error=old_error),
    )


def _split(cells: list[str]) -> tuple[str | None, int | None, list[str]]:
    """Reduction and root, which not every version and test prints, and the timings after them."""
    redop = cells.pop(0) if cells and cells[0].isalpha() else None
    # A time may be printed as a whole number: in a whole row the number of cells tells them apart.
    if cells and len(cells) not in (4, 8) and to_integer(cells[0]) is not None:
        return redop, to_integer(cells[0]), cells[1:]
    return redop, None, cells


def _timing(cells: list[str], *, old_error: bool) -> Timing | None:
    if len(cells) != 4:
        return None
    time_us, algbw, busbw = to_positive(cells[0]), to_number(cells[1]), to_number(cells[2])
    if time_us is None or algbw is None or busbw is None:
        return None
    is_error = old_error or to_integer(cells[3]) is None
    return Timing(
        time_s=time_us * 1e-6,
        algbw_bytes_per_s=algbw * 1e9,
        busbw_bytes_per_s=busbw * 1e9,
        wrong=None if is_error else to_integer(cells[3]),
        error=to_number(cells[3]) if is_error else None,
    )


def _device(found: re.Match[str]) -> TestDevice:
    rank, host, device, bus_id, name = found.groups()
    return TestDevice(
        rank=int(rank), host=host, device=int(device), bus_id=bus_id, name=name.strip()
    )


def _library_version(code: str | None) -> str | None:
    """22809 is 2.28.9; before 2.9 the code had four digits (2708 is 2.7.8)."""
    if code is None:
        return None
    number = int(code)
    base = 10_000 if number >= 10_000 else 1_000
    return f"{number // base}.{number % base // 100}.{number % 100}"
