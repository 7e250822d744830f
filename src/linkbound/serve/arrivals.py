"""When each request is due, and which tokens it holds: all of it drawn from one seed (P2).

The raw draw is kept: nothing is stretched so that the last arrival lands on a round time.
"""

import json
import math
import random
from collections.abc import Iterator

from linkbound.errors import InputError
from linkbound.serve.load_types import Arrival, Cell, TraceEntry

_MAX_ENTRIES = 1_000_000
_MAX_TRACE_BYTES = 256 * 1024 * 1024
_HINT = "Each line needs timestamp (milliseconds), input_length and output_length."


def due_times_s(cell: Cell) -> tuple[float, ...]:
    """Seconds after the start at which each request is due; empty in a closed loop."""
    match cell.arrival:
        case Arrival.CLOSED:
            return ()
        case Arrival.TRACE:
            return tuple(entry.at_s for entry in cell.entries[: cell.requests])
        case Arrival.POISSON | Arrival.GAMMA:
            return tuple(_draw(cell))


def _draw(cell: Cell) -> Iterator[float]:
    assert cell.rate_per_s is not None
    # A stream of its own, so that another prompt length keeps the same arrivals.
    source = random.Random(f"arrivals {cell.seed}")
    shape = 1.0 if cell.arrival is Arrival.POISSON else cell.burstiness
    at_s = 0.0
    for _ in range(cell.requests):
        at_s += source.gammavariate(shape, 1.0 / (cell.rate_per_s * shape))
        yield at_s


def lengths_of(cell: Cell, index: int) -> tuple[int, int]:
    """Prompt and output tokens of request `index`."""
    if cell.arrival is Arrival.TRACE:
        entry = cell.entries[index % len(cell.entries)]
        return entry.prompt_tokens, entry.output_tokens
    return cell.prompt_tokens, cell.output_tokens


def prompt_ids(cell: Cell, index: int, *, warm_up: bool = False) -> list[int]:
    """The token ids of a prompt, exactly as many as asked; no two requests begin alike."""
    low, high = cell.vocabulary
    kind = "warm-up" if warm_up else "prompt"
    source = random.Random(f"{kind} {cell.seed} {cell.repeat} {index}")
    return source.choices(range(low, high), k=lengths_of(cell, index)[0])


def parse_trace(data: bytes, source: str) -> tuple[TraceEntry, ...]:
    """A trace of JSON lines, the first arrival at 0 s. Raises InputError naming the line.

    Times are at least 0 and in order: a step back is a torn or joined file, or another clock.
    """
    if len(data) > _MAX_TRACE_BYTES:
        raise InputError(
            f"{source} is {len(data):,} bytes.", why="No trace of requests is so long.", hint=_HINT
        )
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{source} is not UTF-8 text (byte {error.start}).",
            why="A trace is JSON lines.",
            hint=_HINT,
        ) from None
    entries: list[TraceEntry] = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            after_s = entries[-1].at_s if entries else 0.0
            entries.append(_entry(line, after_s, f"{source}, line {number}"))
    if not entries or len(entries) > _MAX_ENTRIES:
        raise InputError(
            f"{source} holds {len(entries):,} requests.",
            why=f"A trace has from one to {_MAX_ENTRIES:,}.",
            hint=_HINT,
        )
    first_s = entries[0].at_s
    return tuple(
        TraceEntry(
            at_s=entry.at_s - first_s,
            prompt_tokens=entry.prompt_tokens,
            output_tokens=entry.output_tokens,
        )
        for entry in entries
    )


def _entry(line: str, after_s: float, where: str) -> TraceEntry:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise InputError(f"{where} is no JSON object.", why="Fields are read by name.", hint=_HINT)
    at_ms = row.get("timestamp")
    if not isinstance(at_ms, int | float) or isinstance(at_ms, bool) or not _bounded(at_ms):
        raise InputError(
            f"{where}: timestamp is {str(at_ms)[:40]!r}.",
            why="It must be a time in milliseconds.",
            hint=_HINT,
        )
    if at_ms < 0:
        raise InputError(
            f"{where}: timestamp is {at_ms}, below 0.",
            why="Arrivals are counted from the start of the trace.",
            hint="Take the time of its first request off all of them.",
        )
    if at_ms / 1e3 < after_s:
        raise InputError(
            f"{where}: timestamp {at_ms} comes after {after_s * 1e3:g}.",
            why="Arrivals are in order; a step back is a joined file or another clock.",
            hint="Sort the lines by timestamp, if it is one clock.",
        )
    return TraceEntry(
        at_s=at_ms / 1e3,
        prompt_tokens=_length(row, "input_length", where),
        output_tokens=_length(row, "output_length", where),
    )


def _bounded(value: float) -> bool:
    return -1e18 < value < 1e18 and math.isfinite(value)


def _length(row: dict[str, object], key: str, where: str) -> int:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10**7:
        raise InputError(
            f"{where}: {key} is {str(value)[:40]!r}.",
            why="It must be a number of tokens from 1 to 10,000,000.",
            hint=_HINT,
        )
    return value
