"""Reader of engine runs: one JSON object a line, asked apart from measured (P2, E3).

Format: recorded/h200-pair/vllm-0.24.0/README.md. Unknown fields are ignored, so that a runs file
may say more than is read.
"""

import json
import math
from collections.abc import Iterator
from typing import Any

from linkbound.errors import InputError
from linkbound.serve.types import EngineRun, RunSpec, RunTimes

MAX_FILE_BYTES = 64 * 1024 * 1024
_HINT = "Each line needs model, tp, batch, input, output and prefill_all (or prefill_s)."


def parse_runs(data: bytes, source: str) -> tuple[EngineRun, ...]:
    """All runs of a file in order. Raises InputError naming the line and the field."""
    rows = tuple(
        EngineRun(tag=tag, line=number, spec=_spec(row, where), times=_times(row, where))
        for number, tag, row, where in _rows(data, source)
    )
    if not rows:
        raise InputError(f"{source} holds no run.", why="It has no line of JSON.", hint=_HINT)
    return rows


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
    for number, line in enumerate(text.splitlines(), start=1):
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
        yield number, str(row.get("tag", "")), row, where


def _spec(row: dict[str, Any], where: str) -> RunSpec:
    model = row.get("model")
    if not isinstance(model, str) or not model:
        raise InputError(f"{where} names no model.", why="Its shape decides the work.", hint=_HINT)
    return RunSpec(
        model=model,
        tp=_whole(row, "tp", where),
        pp=_whole(row, "pp", where, absent=1),
        expert_parallel=_whole(row, "ep", where, absent=0, least=0) != 0,
        custom_all_reduce=_whole(row, "custom_ar", where, absent=1, least=0) != 0,
        p2p_disabled=str(row.get("p2p_disable", "0")) == "1",
        batch=_whole(row, "batch", where),
        prompt_tokens=_whole(row, "input", where),
        output_tokens=_whole(row, "output", where),
    )


def _whole(
    row: dict[str, Any], key: str, where: str, *, absent: int | None = None, least: int = 1
) -> int:
    value = row.get(key, absent)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 10**9:
        raise InputError(
            f"{where}: {key} is {value!r}.",
            why=f"It must be a whole number of at least {least}.",
            hint=_HINT,
        )
    return value


def _times(row: dict[str, Any], where: str) -> RunTimes:
    prefill = _seconds(row, "prefill_all", "prefill_s", where)
    if not prefill:
        raise InputError(f"{where} has no prefill time.", why="Nothing was measured.", hint=_HINT)
    return RunTimes(prefill_s=prefill, total_s=_seconds(row, "total_all", "total_s", where))


def _seconds(row: dict[str, Any], key: str, single: str, where: str) -> tuple[float, ...]:
    values = row.get(key)
    if values is None:
        values = [row[single]] if row.get(single) is not None else []
    if not isinstance(values, list) or not all(_is_time(value) for value in values):
        raise InputError(
            f"{where}: {key} is {values!r}.",
            why="It must be a list of times in seconds, each above zero.",
            hint=_HINT,
        )
    return tuple(sorted(float(value) for value in values))


def _is_time(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value > 0
    )
