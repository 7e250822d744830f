"""A load measured on two H200, simulated again: what the simulation meets, and what it misses.

`served_h200_pair.jsonl`: vLLM 0.24.0, tp2 p2p, two cells of 1,000 requests of one start, by
`scripts/gpu serve` on 2026-11-30, 14:32 UTC (docs/simulation.md). A header a cell, then a row a
request, seconds from the start of the schedule, rounded to 10 us; warm-up left out. No request
failed, each had 512 and 64 tokens by the server's own count.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from linkbound.cli.main import run
from linkbound.evidence.study import Study
from linkbound.evidence.types import Measured
from linkbound.serve.latency import summarise
from linkbound.serve.load_types import Chunk, Request
from linkbound.serve.records import load_record

SERVED = Path(__file__).with_name("served_h200_pair.jsonl")
POISSON, CLOSED = "30/s poisson", "64 at once"


def request_of(index: int, row: list[Any]) -> Request:
    scheduled_s, sent_s, first_s, last_s, end_s, first_tokens = row
    return Request(
        index=index,
        target="http://127.0.0.1",
        warm_up=False,
        prompt_tokens=512,
        output_tokens=64,
        scheduled_s=scheduled_s,
        sent_s=sent_s,
        chunks=(
            Chunk(at_s=first_s, read=0, size_bytes=1, has_token=True, tokens=first_tokens),
            Chunk(at_s=last_s, read=1, size_bytes=1, has_token=True),
        ),
        end_s=end_s,
        status=200,
        used_prompt_tokens=512,
        used_output_tokens=64,
    )


def cells() -> list[tuple[dict[str, Any], list[Request]]]:
    found: list[tuple[dict[str, Any], list[Request]]] = []
    for line in SERVED.read_text().splitlines():
        row = json.loads(line)
        if isinstance(row, dict):
            found.append((row["subject"], []))
        else:
            found[-1][1].append(request_of(len(found[-1][1]), row))
    return found


def keep(path: Path) -> None:
    with Study.create(path) as study:
        for subject, requests in cells():
            outcome = Measured(values=msgspec.to_builtins(summarise(requests)))
            study.append(load_record(subject, outcome, requests=requests))


def test_figures_are_those_of_the_run() -> None:
    """What `serve` printed of it, in ms from the schedule."""
    printed = {POISSON: (1810, 41.4, 102, 6.89, 14.7), CLOSED: (5170, 311, 528, 7.44, 11.3)}
    assert [subject["cell"] for subject, _ in cells()] == [POISSON, CLOSED]
    for subject, requests in cells():
        found = summarise(requests)
        assert (found.requests, found.failed, found.wrong_lengths) == (1000, 0, 0)
        shown = (
            found.output_tokens_per_s,
            *(1e3 * (found.ttft_from_schedule_s.at(share) or 0) for share in (0.5, 0.99)),
            *(1e3 * (found.tpot_s.at(share) or 0) for share in (0.5, 0.99)),
        )
        assert shown == pytest.approx(printed[subject["cell"]], rel=0.005)


def test_a_full_engine_is_simulated_within_what_is_asked(tmp_path: Path, capsys: Any) -> None:
    """64 at once: p99 within 10 % for TPOT, 20 % for TTFT. TPOT at 30/s is not: see the docs."""
    path = tmp_path / "served.linkbound"
    keep(path)
    words = ["simulate", "llama-3.1-8b", "--machine", "h200-pair", "--score", str(path), "--json"]
    assert run(words) == 0
    rows = {
        (row["cell"].split(",")[0], row["figure"]): row
        for row in json.loads(capsys.readouterr().out)["rows"]
    }
    assert rows[CLOSED, "tpot_p99_s"]["error"] < 0.10
    assert rows[CLOSED, "ttft_p99_s"]["error"] < 0.20
    assert rows[CLOSED, "output_tokens_per_s"]["error"] < 0.10
    assert rows[POISSON, "output_tokens_per_s"]["error"] < 0.10
    assert rows[POISSON, "ttft_p99_s"]["error"] < 0.20
