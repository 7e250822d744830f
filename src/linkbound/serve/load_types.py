"""What is sent and what came back: one cell of load, and the life of each request (P2).

Times are seconds of one clock, which starts with the cell's schedule; warm-up requests have an
earlier clock of their own.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from linkbound.evidence.types import Reason
from linkbound.values import Value


class Arrival(StrEnum):
    """How requests come."""

    POISSON = "poisson"
    GAMMA = "gamma"
    """Gaps are gamma distributed: `burstiness` 1 is Poisson, below 1 comes in bursts."""
    TRACE = "trace"
    """At recorded times, with recorded lengths."""
    CLOSED = "closed"
    """So many at once; the next is sent when one ends."""


class TraceEntry(Value, frozen=True, kw_only=True):
    """One request of a recorded trace."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


class Cell(Value, frozen=True, kw_only=True):
    """One point of a sweep: what is sent, how often, drawn from one seed."""

    arrival: Arrival
    requests: int
    prompt_tokens: int
    output_tokens: int
    seed: int
    rate_per_s: float | None = None
    """Mean rate of arrivals; None in a closed loop and a trace."""
    repeat: int = 0
    """Draws other prompts than the repeats before, and the same arrivals."""
    burstiness: float = 1.0
    """Shape of the gamma distribution of gaps."""
    concurrency: int | None = None
    """Requests at once in a closed loop."""
    entries: tuple[TraceEntry, ...] = ()
    vocabulary: tuple[int, int] = (100, 512)
    """Prompt tokens are drawn from [low, high): ids that any vocabulary has."""
    warm_up: int = 2
    """Requests before the clock starts, of the same lengths; kept, not counted."""
    limit_s: float = 300.0
    """After this a request counts as failed."""

    def __post_init__(self) -> None:
        open_loop = self.arrival in (Arrival.POISSON, Arrival.GAMMA)
        if open_loop != (self.rate_per_s is not None):
            raise ValueError(f"{self.arrival} arrivals with rate {self.rate_per_s}")
        if (self.arrival is Arrival.CLOSED) != (self.concurrency is not None):
            raise ValueError(f"{self.arrival} arrivals with concurrency {self.concurrency}")
        if (self.arrival is Arrival.TRACE) != bool(self.entries):
            raise ValueError(f"{self.arrival} arrivals with {len(self.entries)} trace entries")
        positive = {
            "requests": self.requests,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "burstiness": self.burstiness,
            "limit_s": self.limit_s,
            "rate_per_s": self.rate_per_s,
            "concurrency": self.concurrency,
        }
        for name, value in positive.items():
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be above 0, not {value}")

    @property
    def name(self) -> str:
        """`4/s poisson`, `32 at once`, `trace of 500`."""
        if self.arrival is Arrival.CLOSED:
            return f"{self.concurrency} at once"
        if self.arrival is Arrival.TRACE:
            return f"trace of {self.requests}"
        return f"{self.rate_per_s:g}/s {self.arrival}"


class Target(Value, frozen=True, kw_only=True):
    """Where to send, and how this engine wants to be asked."""

    urls: tuple[str, ...]
    """One base address a replica, without a trailing slash."""
    model: str
    extra: Mapping[str, Any] = {}
    """Fields of the request that hold the output's length and keep the cache out."""
    chat: bool = False
    """Engines without completions of token ids are asked by chat, with words."""


class Chunk(Value, frozen=True, kw_only=True, array_like=True):
    """One event of a stream that belongs to the answer: tokens, or the word that it is over."""

    at_s: float
    read: int
    """Number of the network read it came in: events of one read have one time."""
    size_bytes: int
    has_token: bool
    """Text, or the ids of tokens that are no text of their own."""
    tokens: int | None = None
    """How many, where the engine gives their ids."""


class Request(Value, frozen=True, kw_only=True):
    """The life of one request; None for what never happened."""

    index: int
    target: str
    """Address it was sent to: replicas have one each."""
    warm_up: bool
    prompt_tokens: int
    output_tokens: int
    """Lengths asked for."""
    scheduled_s: float
    sent_s: float | None = None
    connected_s: float | None = None
    headers_s: float | None = None
    chunks: tuple[Chunk, ...] = ()
    end_s: float | None = None
    """When the stream was over, or the failure was seen."""
    finish: str | None = None
    status: int | None = None
    used_prompt_tokens: int | None = None
    used_output_tokens: int | None = None
    cached_tokens: int | None = None
    """Counts by the server's own `usage`."""
    error: Reason | None = None

    @property
    def ok(self) -> bool:
        """Answered to the end, in time."""
        return self.error is None


class Slo(Value, frozen=True, kw_only=True):
    """What a request must keep to count as good, in seconds; None is no demand."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None


class ClientStep(Value, frozen=True, kw_only=True):
    """How the client did against a server that paces its tokens exactly."""

    streams: int
    chunks_per_s: float
    """Pace of all streams together, as the server keeps it."""
    added_ttft_p50_s: float
    gap_p99_s: float
    gap_asked_s: float
    lost_chunks: int
    kept_up: bool


class ClientLimit(Value, frozen=True, kw_only=True):
    """What this client can follow on this host; runs above it measure the client."""

    chunks_per_s: float
    streams: int
    steps: tuple[ClientStep, ...]
