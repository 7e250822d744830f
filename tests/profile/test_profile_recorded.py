"""What docs/profile.md says of the second profile of a pair of H200, from its records."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from linkbound.evidence.types import Record

FILE = Path(__file__).with_name("recorded") / "h200-pair-2.jsonl"
DENSE, MIXTURE = "llama-3.1-8b", "qwen3-30b-a3b"
LONG = 8192


def records(kind: str, model: str) -> list[Record]:
    found = (
        msgspec.json.decode(line, type=Record) for line in FILE.read_bytes().splitlines() if line
    )
    return [one for one in found if one.kind == kind and one.subject["model"] == model]


def steps(model: str) -> Iterator[tuple[dict[str, Any], float]]:
    """Points of splits at prompts of 1,024 tokens, with the share that is unexplained."""
    for record in records("profile.parts", model):
        values = record.outcome.values  # type: ignore[union-attr]
        long = LONG in (values["tokens"], values["context"])
        if values["alone"] is None and values["delay"] is None and not long:
            parts, instrument_s = values["parts"], values["instrument_s"]
            rest_s = values["step_s"] - (parts["step_s"] - instrument_s)
            assert rest_s == pytest.approx(values["unexplained_s"], abs=1e-9)
            yield values, rest_s / values["step_s"]


@pytest.mark.parametrize(("model", "rows", "within"), [(DENSE, 21, 19), (MIXTURE, 35, 34)])
def test_nearly_every_step_is_explained_within_3_percent(
    model: str, rows: int, within: int
) -> None:
    found = list(steps(model))
    assert len(found) == rows
    assert sum(abs(share) <= 0.03 for _, share in found) == within
    for values, share in found:
        parts = values["parts"]
        names = ("compute", "communication", "waiting", "unmatched", "host_copy", "gap")
        assert sum(parts[f"{name}_s"] for name in names) == pytest.approx(parts["step_s"], rel=1e-6)
        # Launched by the host in a burst of one prompt, or in another part of the power's cycle.
        eager = values["eager_because"] is not None and values["batch"] == 1
        assert abs(share) <= 0.011 or eager or (values["batch"], values["phase"]) == (32, "prefill")


@pytest.mark.parametrize("model", [DENSE, MIXTURE])
def test_the_profiler_never_makes_a_decode_step_shorter(model: str) -> None:
    found = [values for values, _ in steps(model) if values["phase"] == "decode"]
    assert found
    assert all(0 < values["instrument_s"] < 0.06 * values["step_s"] for values in found)


def test_a_dense_shard_and_its_calls_are_the_split_within_5_percent() -> None:
    found = [one.outcome.values for one in records("profile.check", DENSE)]  # type: ignore[union-attr]
    assert len(found) == 6
    for one in found:
        assert (one["shard_s"] + one["calls_s"]) / one["measured_s"] == pytest.approx(1, abs=0.05)


def test_stages_do_not_need_the_direct_link() -> None:
    times: dict[tuple[str, int], dict[str, float]] = {}
    for values, _ in steps(MIXTURE):
        if values["split"] == "pp2":
            point = times.setdefault((values["phase"], values["batch"]), {})
            point[values["arm"]] = values["step_s"]
    assert len(times) == 7
    assert all(one["p2p"] == pytest.approx(one["staged"], rel=0.01) for one in times.values())
