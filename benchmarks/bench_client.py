"""What the load client adds: 128 streams of 100 tokens a second, and how far it goes beyond.

Run as `python benchmarks/bench_client.py`, on a quiet machine: client and mock server share its
cores. Ends with exit code 1 where 128 streams are not followed within the bounds.
"""

import os
import sys

from linkbound.serve.client_limit import (
    ADDED_TTFT_LIMIT_S,
    GAP_S,
    STREAMS,
    TOKENS,
    measure_client_limit,
)
from linkbound.serve.load_types import ClientLimit

REQUIRED_STREAMS = 128


def report(limit: ClientLimit) -> list[str]:
    """A line a step, then whether the requirement is met."""
    lines = [
        f"{1 / GAP_S:.0f} tokens/s a stream, {TOKENS} tokens, {os.cpu_count()} cores for both",
        "streams  chunks/s  added TTFT p50 ms  gap p99 ms  lost",
    ]
    lines += [
        f"{step.streams:7}  {step.chunks_per_s:8,.0f}  {step.added_ttft_p50_s * 1e3:17.2f}"
        f"  {step.gap_p99_s * 1e3:10.2f}  {step.lost_chunks:4}"
        for step in limit.steps
    ]
    word = "met" if meets(limit) else "missed"
    lines.append(
        f"{REQUIRED_STREAMS} streams with at most {ADDED_TTFT_LIMIT_S * 1e3:.0f} ms added and no "
        f"chunk lost: {word}"
    )
    return lines


def meets(limit: ClientLimit) -> bool:
    """Whether the required number of streams was followed."""
    return limit.streams >= REQUIRED_STREAMS


def main() -> int:
    """Measure and print; 0 where the requirement is met."""
    limit = measure_client_limit(STREAMS)
    print("\n".join(report(limit)))
    return 0 if meets(limit) else 1


if __name__ == "__main__":
    sys.exit(main())
