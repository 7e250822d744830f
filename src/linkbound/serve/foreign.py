"""Runs that other load generators measured, brought to our definitions (P2).

What a tool did not record is None: a mean of its own under the same name is not taken for it.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from linkbound.errors import InputError
from linkbound.serve.latency import Spread, spread
from linkbound.values import Value

MAX_FILE_BYTES = 512 * 1024 * 1024
_HINT = (
    "Give the file of `vllm bench serve --save-result --save-detailed`, guidellm's JSON report, "
    "or aiperf's profile_export.jsonl."
)


class ForeignRequest(Value, frozen=True, kw_only=True):
    """One request as another tool saw it; times in seconds."""

    failed: bool
    dispatch_lag_s: float | None = None
    """From when it was due to when it was sent."""
    ttft_from_send_s: float | None = None
    tpot_s: float | None = None
    """(last token - first token) / (tokens - 1)."""
    e2e_from_send_s: float | None = None
    chunk_gaps_s: tuple[float, ...] = ()
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None

    @property
    def ttft_from_schedule_s(self) -> float | None:
        """None where the tool does not say when the request was due."""
        if self.ttft_from_send_s is None or self.dispatch_lag_s is None:
            return None
        return self.dispatch_lag_s + self.ttft_from_send_s


class ForeignRun(Value, frozen=True, kw_only=True):
    """One run of another tool."""

    tool: str
    source: str
    name: str
    """What tells it from others in the same file; its strategy or rate."""
    requests: tuple[ForeignRequest, ...]

    @property
    def failed(self) -> int:
        return sum(request.failed for request in self.requests)

    def spread_of(self, figure: str) -> Spread:
        """Percentiles over answered requests of a field or property of a request, by name."""
        values = [getattr(one, figure) for one in self.requests if not one.failed]
        return spread([value for value in values if value is not None])

    @property
    def chunk_gap_s(self) -> Spread:
        return spread([gap for one in self.requests for gap in one.chunk_gaps_s])


def read_text(data: bytes, source: str) -> str:
    """The file as text. Raises InputError for one that is too long or not UTF-8."""
    if len(data) > MAX_FILE_BYTES:
        raise InputError(
            f"{source} is {len(data):,} bytes.", why="Results are read whole.", hint=_HINT
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{source} is not UTF-8 text (byte {error.start}).", why="It is JSON.", hint=_HINT
        ) from None


def read_object(text: str, source: str) -> dict[str, Any]:
    """A JSON object. Raises InputError for anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InputError(f"{source} is no JSON object.", why="Its fields are named.", hint=_HINT)
    return value


def not_this(source: str, missing: str) -> InputError:
    """The error for a file that lacks what makes it a result."""
    return InputError(
        f"{source} has no {missing}.", why="Requests are read one by one.", hint=_HINT
    )


def seconds(value: object, scale: float = 1.0) -> float | None:
    """A time of at least zero, times `scale`; None for what is no time."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not math.isfinite(value) or not 0 <= value < 1e15:
        return None
    return float(value) * scale


def count(value: object) -> int | None:
    """A whole number of at least zero, also where it is written 12.0; None for anything else."""
    found = seconds(value)
    return int(found) if found is not None and found == int(found) else None


def per_token_s(span_s: float | None, tokens: int | None) -> float | None:
    """A span from the first to the last token over the tokens after the first."""
    return None if span_s is None or tokens is None or tokens < 2 else span_s / (tokens - 1)


def times(values: object, scale: float = 1.0) -> tuple[float, ...]:
    """The times in a list; what is none is left out."""
    found = [seconds(one, scale) for one in values] if isinstance(values, list) else []
    return tuple(one for one in found if one is not None)


def mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def items(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else []


def require_requests(requests: Iterable[ForeignRequest], source: str) -> tuple[ForeignRequest, ...]:
    """The requests. Raises InputError where there is none."""
    found = tuple(requests)
    if not found:
        raise not_this(source, "request")
    return found
