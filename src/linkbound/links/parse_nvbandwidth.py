"""What nvbandwidth printed, as text or JSON: matrices with the meaning of their axes (L1, L3).

The arrow in a title says which axis is the source; a waived or failed test stays visible as such.
"""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from linkbound.errors import InputError
from linkbound.links.cells import quote, to_integer, to_number
from linkbound.links.types import NvbandwidthRun, NvbandwidthTest, Waived

_TEST = r"([a-z][a-z0-9_]{2,60}_(?:ce|sm|copy)|[a-z][a-z0-9_]{2,60})"
_RUNNING = re.compile(rf"Running {_TEST}\.\s*$")
# Up to 0.4 the name stands in the line, later in the line `Running ...` above it.
_WAIVING = re.compile(rf"Waiving {_TEST}\.\s*$")
_STATUS = re.compile(r"(Waived|Error|Not Found): ?(.*)$")
_ERROR = re.compile(r"(?:ERROR|\[CUDA_ERROR)\b")
_TITLE = re.compile(r".*\b(?:bandwidth \(GB/s\)|[Ll]atency .*\(ns\))\s*$")
_SUM = re.compile(rf"SUM {_TEST} [\d.]+\s*$")
_VERSION = re.compile(r"nvbandwidth Version: (\S+)")
_DRIVER = re.compile(r"^Driver Version: (\S+)")
_DEVICE = re.compile(r"^Device (\d{1,4}): (.+)$")


def parse_nvbandwidth(text: str, source: str) -> NvbandwidthRun:
    """The tests of one output, text or JSON. Raises InputError where there is none."""
    return _parse_json(text, source) if text.lstrip().startswith("{") else _parse_text(text, source)


def _refuse(source: str, seen: str) -> InputError:
    return InputError(
        f"{source}: {seen}",
        why="nvbandwidth names each test and prints its matrix below a title with an arrow.",
        hint="Give the whole output of `nvbandwidth` or `nvbandwidth -j`.",
    )


class _Text:
    """The text that is being read: the title above a matrix and the name above the title."""

    def __init__(self) -> None:
        self.version: str | None = None
        self.driver: str | None = None
        self.devices: list[str] = []
        self.tests: list[NvbandwidthTest] = []
        self.waived: list[Waived] = []
        self.notes: list[str] = []
        self.name: str | None = None
        self.title: str | None = None
        self.columns = 0
        self.rows: list[tuple[float | None, ...]] = []

    def read(self, line: str) -> None:
        if found := _RUNNING.search(line):
            self.close()
            self.name = found.group(1)
        elif found := _WAIVING.search(line):
            self.close()
            self.waived.append(Waived(test=found.group(1), status="waived"))
        elif found := _STATUS.match(line):
            self.close()
            self._set_aside(found.group(1), found.group(2))
        elif found := _SUM.search(line):
            self.close(found.group(1))
        elif _TITLE.match(line):
            self.close()
            self.title = line.strip()
        elif found := _VERSION.search(line):
            self.version = found.group(1)
        elif found := _DRIVER.match(line):
            self.driver = found.group(1)
        elif found := _DEVICE.match(line):
            self.devices.append(found.group(2).strip())
        elif _ERROR.match(line):
            self._set_aside("error", line)
        elif self.title is not None:
            self._read_matrix(line.split())

    def _set_aside(self, status: str, reason: str) -> None:
        test = self.name or "unknown"
        text = quote(reason, 100) or None
        self.waived.append(Waived(test=test, status=status.lower(), reason=text))

    def _read_matrix(self, cells: list[str]) -> None:
        if not cells:
            if self.columns:
                self.close()
        elif not self.columns:
            self.columns = len(cells) if _counts_up(cells) else 0
        elif len(cells) == self.columns + 1 and to_integer(cells[0]) is not None:
            self.rows.append(tuple(to_number(cell) for cell in cells[1:]))
        else:
            self.notes.append(f"row of '{self.title}' not readable: '{quote(' '.join(cells))}'")

    def close(self, name: str | None = None) -> None:
        """Ends a matrix. The line SUM below names a test whose head was cut off."""
        if name is not None and self.name is None and not self.title and self.tests:
            last = self.tests[-1]
            if last.name == "unknown":
                self.tests[-1] = msgspec.structs.replace(last, name=name)
        if self.title is not None and self.rows:
            self.tests.append(
                NvbandwidthTest(
                    name=self.name or name or "unknown",
                    description=self.title,
                    matrix=tuple(self.rows),
                )
            )
        elif self.title is not None:
            self.notes.append(f"no readable matrix below '{self.title}'")
        self.title, self.columns, self.rows = None, 0, []


def _parse_text(text: str, source: str) -> NvbandwidthRun:
    state = _Text()
    for line in text.splitlines():
        state.read(line)
    state.close()
    if not (state.tests or state.waived):
        raise _refuse(source, "no test of nvbandwidth was found.")
    return NvbandwidthRun(
        source=source,
        version=state.version,
        driver=state.driver,
        devices=tuple(state.devices),
        tests=tuple(state.tests),
        waived=tuple(state.waived),
        notes=tuple(state.notes),
    )


def _counts_up(cells: list[str]) -> bool:
    return [to_integer(cell) for cell in cells] == list(range(len(cells)))


def _parse_json(text: str, source: str) -> NvbandwidthRun:
    try:
        document = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise _refuse(source, f"not readable as JSON ({quote(str(error))}).") from error
    body = document.get("nvbandwidth") if isinstance(document, dict) else None
    cases = body.get("testcases") if isinstance(body, dict) else None
    if not isinstance(body, dict) or not isinstance(cases, list):
        raise _refuse(source, f"the JSON has no list nvbandwidth.testcases{_told(body)}.")
    tests: list[NvbandwidthTest] = []
    waived: list[Waived] = []
    for case in cases:
        if not isinstance(case, dict):
            continue
        matrix = _matrix(case.get("bandwidth_matrix"))
        name = _text(case.get("name")) or "unknown"
        status = _text(case.get("status")) or "Passed"
        if status != "Passed" or not matrix:
            reason = _first_text(case, ("error", "reason"))
            waived.append(Waived(test=name, status=status.lower(), reason=reason))
        if matrix:
            title = _text(case.get("bandwidth_description")) or ""
            tests.append(NvbandwidthTest(name=name, description=title, matrix=matrix))
    if not (tests or waived):
        raise _refuse(source, f"the JSON lists no test{_told(body)}.")
    devices = body.get("GPU Device list")
    return NvbandwidthRun(
        source=source,
        version=_text(body.get("version")),
        driver=_text(body.get("Driver Version")),
        devices=tuple(_names(devices)) if isinstance(devices, list) else (),
        tests=tuple(tests),
        waived=tuple(waived),
        notes=tuple(
            f"{key}: {quote(told, 200)}"
            for key in ("error", "warning")
            if (told := _text(body.get(key)))
        ),
    )


def _told(body: object) -> str:
    """What the tool itself gives as the error of the whole run."""
    error = _text(body.get("error")) if isinstance(body, dict) else None
    return "" if error is None else f" (it says: {quote(error, 100)})"


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _first_text(case: dict[str, Any], keys: Iterable[str]) -> str | None:
    return next((text for key in keys if (text := _text(case.get(key)))), None)


def _names(devices: list[Any]) -> list[str]:
    """`0: NVIDIA H200 (00000000:00:06): (host)` without the leading index."""
    return [re.sub(r"^\d+: ", "", device) for device in devices if isinstance(device, str)]


def _matrix(value: object) -> tuple[tuple[float | None, ...], ...]:
    """Cells are strings in JSON too; `N/A` is where a GPU has no such peer."""
    if not isinstance(value, list):
        return ()
    return tuple(
        tuple(_cell(cell) for cell in row) for row in value if isinstance(row, list) and row
    )


def _cell(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    return to_number(str(value)) if isinstance(value, int | float | str) else None
