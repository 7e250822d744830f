"""Reader of engine runs: one JSON object a line, asked apart from measured (P2, E3).

Format: recorded/h200-pair/vllm-0.24.0/README.md. Unknown fields are ignored, so that a runs file
may say more than is read.
"""

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import msgspec

from linkbound.errors import InputError
from linkbound.serve.rules import VLLM
from linkbound.serve.types import EngineRun, RunSpec, RunTimes

MAX_FILE_BYTES = 64 * 1024 * 1024
# What one call may ask for: more tokens than any machine's cache holds at once, and few enough that
# the steps of the scheduler can be listed.
MAX_TOKENS = 10**8
MAX_SEQUENCES = 100_000
# Other figures are no times of calls: nothing takes less than a nanosecond or more than 30 years.
LEAST_S, MOST_S = 1e-9, 1e9
_TIMES = ("prefill_all", "prefill_s", "total_all", "total_s")
_FLAGS = {"0": False, "1": True, "False": False, "True": True}
_HINT = "Each line needs model, tp, batch, input, output and prefill_all (or prefill_s)."


def parse_runs(data: bytes, source: str) -> tuple[EngineRun, ...]:
    """All measured runs of a file in order, without rows that have no time at all.

    Raises InputError naming the line and the field.
    """
    asked, runs = 0, []
    for number, tag, row, where in _rows(data, source):
        asked += 1
        spec, started = _spec(row, where), _started(row, where)
        if any(row.get(field) is not None for field in _TIMES):
            times = _times(row, where)
            runs.append(EngineRun(tag=tag, line=number, spec=spec, times=times, started=started))
    if not asked:
        raise InputError(f"{source} holds no run.", why="It has no line of JSON.", hint=_HINT)
    return tuple(runs)


def merged(runs: Iterable[EngineRun]) -> tuple[EngineRun, ...]:
    """Runs of one tag and point as one, with the calls of all; in the order of the first."""
    groups: dict[tuple[str, RunSpec], list[EngineRun]] = {}
    for run in runs:
        groups.setdefault((run.tag, run.spec), []).append(run)
    return tuple(_merged(group) for group in groups.values())


def _merged(runs: list[EngineRun]) -> EngineRun:
    if len(runs) == 1:
        return runs[0]
    times = RunTimes(
        prefill_s=tuple(sorted(time_s for run in runs for time_s in run.times.prefill_s)),
        total_s=tuple(sorted(time_s for run in runs for time_s in run.times.total_s)),
    )
    starts = [run.started for run in runs if run.started is not None]
    # The first decides: what follows it could have been seen.
    started = min(starts) if len(starts) == len(runs) else None
    return msgspec.structs.replace(runs[0], times=times, started=started)


def parse_specs(data: bytes, source: str) -> tuple[tuple[int, str, RunSpec], ...]:
    """(line, tag, point) of every run: no measured field is looked at."""
    return tuple(
        (number, tag, _spec(row, where)) for number, tag, row, where in _rows(data, source)
    )


def _rows(data: bytes, source: str) -> Iterator[tuple[int, str, dict[str, Any], str]]:
    if len(data) > MAX_FILE_BYTES:
        raise InputError(
            f"{source} is {len(data):,} bytes.",
            why="A runs file is a few kilobytes; this is something else.",
            hint=_HINT,
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{source} is not UTF-8 text (byte {error.start}).",
            why="A runs file is JSON lines.",
            hint=_HINT,
        ) from None
    # Not splitlines: a JSON string may hold other line ends than the newline.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{source}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise InputError(
                f"{where} is not JSON.", why="A runs file has one object a line.", hint=_HINT
            ) from None
        if not isinstance(row, dict):
            raise InputError(
                f"{where} is not a JSON object.", why="Fields are read by name.", hint=_HINT
            )
        yield number, _text(row, "tag", where, absent=""), row, where


def _spec(row: dict[str, Any], where: str) -> RunSpec:
    spec = RunSpec(
        model=_text(row, "model", where),
        tp=_whole(row, "tp", where),
        pp=_whole(row, "pp", where, absent=1),
        expert_parallel=_whole(row, "ep", where, absent=0, least=0) != 0,
        custom_all_reduce=_flag(row, "custom_ar", where, absent=1),
        p2p_disabled=_flag(row, "p2p_disable", where, absent=0),
        batch=_whole(row, "batch", where, most=MAX_SEQUENCES),
        prompt_tokens=_whole(row, "input", where),
        output_tokens=_whole(row, "output", where),
        # One engine with and without its server: the same scheduler and kernels.
        engine=_text(row, "engine", where, absent=VLLM.engine).removesuffix("-offline"),
    )
    tokens = spec.batch * (spec.prompt_tokens + spec.output_tokens)
    if tokens > MAX_TOKENS:
        raise InputError(
            f"{where}: batch, input and output make {tokens:,} tokens.",
            why=f"More than {MAX_TOKENS:,} are in no engine's cache at once.",
            hint="Check the three fields.",
        )
    return spec


def _text(row: dict[str, Any], key: str, where: str, *, absent: str | None = None) -> str:
    value = row.get(key, absent)
    if not isinstance(value, str) or not value.isprintable() or (absent is None and not value):
        raise InputError(
            f"{where}: {key} is {_shown(value)}.", why="It must be a printable name.", hint=_HINT
        )
    return value


def _started(row: dict[str, Any], where: str) -> str | None:
    """When the row was measured, with its offset: else it could not be set beside another time."""
    value = row.get("started")
    if value is None:
        return None
    try:
        when = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        when = None
    if when is None or when.tzinfo is None:
        raise InputError(
            f"{where}: started is {_shown(value)}.",
            why="It must be a time with its offset.",
            hint="Write 2026-11-30T12:00:00+00:00, or leave it out.",
        )
    return str(value)


def _flag(row: dict[str, Any], key: str, where: str, *, absent: int) -> bool:
    """0 or 1, as a number, a string or a truth value: what environment variables are written as."""
    value = row.get(key, absent)
    flag = _FLAGS.get(str(value)) if isinstance(value, int | str) else None
    if flag is None:
        raise InputError(
            f"{where}: {key} is {_shown(value)}.", why="It must be 0 or 1.", hint=_HINT
        )
    return flag


def _whole(
    row: dict[str, Any],
    key: str,
    where: str,
    *,
    absent: int | None = None,
    least: int = 1,
    most: int = 10**9,
) -> int:
    value = row.get(key, absent)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InputError(
            f"{where}: {key} is {_shown(value)}.",
            why=f"It must be a whole number from {least:,} to {most:,}.",
            hint=_HINT,
        )
    return value


def _shown(value: object) -> str:
    """A foreign value for a message: short, and nothing in it that a terminal would obey."""
    text = "missing" if value is None else ascii(value)
    return text if len(text) <= 60 else text[:60] + "..."


def _times(row: dict[str, Any], where: str) -> RunTimes:
    prefill = _seconds(row, "prefill_all", "prefill_s", where)
    total = _seconds(row, "total_all", "total_s", where)
    if not prefill:
        raise InputError(f"{where}: prefill_all is empty.", why="Nothing was measured.", hint=_HINT)
    return RunTimes(prefill_s=prefill, total_s=total)


def _seconds(row: dict[str, Any], key: str, single: str, where: str) -> tuple[float, ...]:
    values = row.get(key)
    if values is None:
        key, values = single, [row[single]] if row.get(single) is not None else []
    if not isinstance(values, list) or not all(_is_time(value) for value in values):
        raise InputError(
            f"{where}: {key} is {_shown(values)}.",
            why=f"It must be a list of times in seconds, each from {LEAST_S:g} to {MOST_S:g}.",
            hint=_HINT,
        )
    return tuple(sorted(float(value) for value in values))


def _is_time(value: object) -> bool:
    # NaN compares false, and Python compares whole numbers of any length with a float.
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and LEAST_S <= value <= MOST_S
    )
