"""What this client can follow on this host, measured on a server of our own (P2).

Client and mock server share the cores, as client and engine will: the limit is on the safe side.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from linkbound.errors import UsageError
from linkbound.evidence.stats import median, quantile
from linkbound.evidence.types import Reason
from linkbound.serve.latency import (
    LATE_DISPATCH_S,
    LoadSummary,
    chunk_gaps_s,
    dispatch_lag_s,
    ttft_from_send_s,
)
from linkbound.serve.load import run_cell
from linkbound.serve.load_types import (
    Arrival,
    Cell,
    ClientLimit,
    ClientStep,
    Request,
    Target,
    TraceEntry,
)
from linkbound.serve.process import Launch, ServerProcess, free_port

STREAMS = (8, 32, 128, 256)
"""Streams at once of the steps; the first that is not followed ends the measurement."""
GAP_S = 0.01
"""Pace of a stream: 100 tokens a second."""
TOKENS = 64
ROUNDS = 2
"""Requests of a stream: one while the others join, one among all of them."""
TRIES = 2
ADDED_TTFT_LIMIT_S = 0.010
GAP_P99_LIMIT = 2.0
"""Times the gap asked for: beyond it tokens come in heaps."""
LAG_SHARES = {100: 0.99, 10: 0.9, 0: 0.5}
"""By how many requests: at which share the schedule is to be kept; one request lies beyond it."""
AMPLE = 2.0
"""Times the tokens a second that a cell asks for: a client that follows so many is not measured
further. A short draw comes faster than its rate, and a stream has an event more than tokens."""
_START_LIMIT_S = 20.0


def measure_client_limit(
    streams: Sequence[int] = STREAMS, enough_chunks_per_s: float | None = None
) -> ClientLimit:
    """The most chunks a second that this client followed in time; stops where it is enough.

    Takes some two seconds a step. Raises UsageError where not even the first step was followed.
    """
    port = free_port()
    launch = Launch(
        argv=(
            sys.executable,
            *("-m", "linkbound.serve.mock_server", "--port", str(port), "--gap-s", str(GAP_S)),
        )
    )
    steps: list[ClientStep] = []
    with tempfile.TemporaryDirectory(prefix="linkbound-mock-") as folder:
        log = Path(folder) / "mock.log"
        with ServerProcess(launch, port=port, health="/health", log=log) as server:
            if reason := server.wait_ready(_START_LIMIT_S):
                raise UsageError(
                    reason.text,
                    why="Without it, nothing says what the client itself adds.",
                    hint="Run again; if it stays, measure with another client and import it.",
                )
            for count in streams:
                steps.append(_step(server.url, count))
                if not steps[-1].kept_up or _covers(steps[-1], enough_chunks_per_s):
                    break
    return limit_of(steps)


def _covers(step: ClientStep, enough_chunks_per_s: float | None) -> bool:
    return enough_chunks_per_s is not None and step.chunks_per_s >= enough_chunks_per_s


def limit_of(steps: Sequence[ClientStep]) -> ClientLimit:
    """The last step that was followed. Raises UsageError where none was."""
    kept = [step for step in steps if step.kept_up]
    if not kept:
        raise UsageError(
            f"This client cannot follow {steps[0].streams} streams here "
            f"(it adds {steps[0].added_ttft_p50_s * 1e3:.1f} ms to the first token).",
            why="Every figure would be the client's, not the engine's.",
            hint="Free some cores, or send the load from another host with --url.",
        )
    return ClientLimit(
        chunks_per_s=kept[-1].chunks_per_s, streams=kept[-1].streams, steps=tuple(steps)
    )


def _step(url: str, streams: int) -> ClientStep:
    """The first try that is followed, else the last: a passing disturbance is no limit."""
    target = Target(urls=(url,), model="mock")
    for number in range(TRIES):
        requests = run_cell(target, _staggered(streams, seed=number))
        step = client_step([one for one in requests if not one.warm_up], streams)
        if step.kept_up:
            break
    return step


def _staggered(streams: int, seed: int) -> Cell:
    """Starts spread evenly: so many streams are open at a time, none waits for a crowd's start."""
    spacing_s = TOKENS * GAP_S / streams
    entries = tuple(
        TraceEntry(at_s=index * spacing_s, prompt_tokens=16, output_tokens=TOKENS)
        for index in range(ROUNDS * streams)
    )
    return Cell(
        arrival=Arrival.TRACE,
        requests=len(entries),
        entries=entries,
        prompt_tokens=16,
        output_tokens=TOKENS,
        seed=seed,
        warm_up=1,
        limit_s=60.0,
    )


def client_step(requests: Sequence[Request], streams: int) -> ClientStep:
    """How a step went: all of it is the client's doing, the server being exact."""
    # A request that failed lost all its chunks; its first token never came.
    added = [value for one in requests if (value := ttft_from_send_s(one)) is not None]
    gaps = [gap for one in requests for gap in chunk_gaps_s(one)]
    lost = sum(TOKENS - sum(chunk.has_token for chunk in one.chunks) for one in requests)
    added_s, gap_s = median(added), quantile(gaps, 0.99)
    kept_up = (
        added_s is not None
        and gap_s is not None
        and lost == 0
        and added_s <= ADDED_TTFT_LIMIT_S
        and gap_s <= GAP_P99_LIMIT * GAP_S
    )
    return ClientStep(
        streams=streams,
        chunks_per_s=streams / GAP_S,
        added_ttft_p50_s=added_s if added_s is not None else float(_START_LIMIT_S),
        gap_p99_s=gap_s if gap_s is not None else float(_START_LIMIT_S),
        gap_asked_s=GAP_S,
        lost_chunks=lost,
        kept_up=kept_up,
    )


def asks_too_much(cell: Cell, limit: ClientLimit) -> Reason | None:
    """Why a cell is refused before it runs: its tokens come faster than the client follows."""
    if cell.rate_per_s is None:
        return None
    asked = cell.rate_per_s * cell.output_tokens
    return None if asked <= limit.chunks_per_s else _beyond(f"{asked:,.0f} tokens/s", limit)


def was_client_bound(
    summary: LoadSummary, requests: Sequence[Request], limit: ClientLimit
) -> Reason | None:
    """Why a cell's figures are the client's: refused after it ran."""
    if summary.chunks_per_s > limit.chunks_per_s:
        return _beyond(f"{summary.chunks_per_s:,.0f} chunks/s", limit)
    lags = [dispatch_lag_s(one) for one in requests if not one.warm_up]
    known = [lag for lag in lags if lag is not None]
    lag_s = quantile(known, next(share for n, share in LAG_SHARES.items() if len(known) >= n))
    if lag_s is not None and lag_s > LATE_DISPATCH_S:
        return Reason(
            code="client-late",
            text=f"Requests were sent {lag_s * 1e3:.0f} ms after they were due "
            f"(limit {LATE_DISPATCH_S * 1e3:.0f} ms): the client did not keep its schedule.",
        )
    return None


def _beyond(what: str, limit: ClientLimit) -> Reason:
    return Reason(
        code="client-bound",
        text=f"{what} is more than this client follows here ({limit.chunks_per_s:,.0f} chunks/s "
        "on a mock server): the figures would be the client's.",
    )
