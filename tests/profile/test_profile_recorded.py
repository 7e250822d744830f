"""What docs/profile.md says of the second profile of a pair of H200, from its records."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from linkbound.evidence.stats import median
from linkbound.evidence.study import Study
from linkbound.evidence.types import Record
from linkbound.model.read_model import read_model
from linkbound.profile.shards import middle_step_s, shard_checks

FOLDER = Path(__file__).with_name("recorded")
DERIVED, RUNS = FOLDER / "h200-pair-2.jsonl", FOLDER / "h200-pair-2-runs.jsonl"
DENSE, MIXTURE = "llama-3.1-8b", "qwen3-30b-a3b"
LONG = 8192


def decoded(path: Path) -> list[Record]:
    return [msgspec.json.decode(line, type=Record) for line in path.read_bytes().splitlines()]


def records(kind: str, model: str) -> list[Record]:
    found = decoded(DERIVED)
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


def run_of(split: str, arm: str | None, phase: str, batch: int) -> Record:
    """The dense model's only run of a point."""
    wanted = {"split": split, "arm": arm, "phase": phase, "batch": batch}
    (found,) = (
        one
        for one in decoded(RUNS)
        if one.kind == "profile.run" and wanted.items() <= one.subject.items()
    )
    return found


def under_profiler_s(run: Record) -> list[float]:
    """Steps under the profiler, each of its slowest rank."""
    ranks = run.outcome.values["under_profiler_s"]  # type: ignore[union-attr]
    return [max(times) for times in zip(*ranks, strict=True)]


def test_dense_steps_and_the_instrument_come_from_the_times_of_every_step() -> None:
    shares = {}
    for values, _ in steps(DENSE):
        point = values["split"], values["arm"], values["phase"], values["batch"]
        run = run_of(*point)
        step_s, under_s = middle_step_s([run]), median(under_profiler_s(run))
        assert under_s is not None
        assert step_s == pytest.approx(values["step_s"])
        assert under_s - step_s == pytest.approx(values["instrument_s"])
        shares[point] = (step_s - values["parts"]["step_s"] + under_s - step_s) / step_s
    beyond = {point: share for point, share in shares.items() if abs(share) > 0.03}
    assert beyond == {
        ("one GPU", None, "prefill", 32): pytest.approx(-0.045, abs=0.0005),
        ("tp2", "staged", "prefill", 1): pytest.approx(0.258, abs=0.0005),
    }


def test_dense_shards_are_put_together_again_from_their_steps(tmp_path: Path) -> None:
    with Study.create(tmp_path / "dense.linkbound") as study:
        study.append_many(decoded(RUNS))
        (machine,) = {one.machine for one in study.records()}
        found = shard_checks(study, read_model(DENSE), machine)
    ratios = {(one.arm, one.point.phase.value, one.point.batch): one.ratio for one in found}
    known = {
        (one.subject["arm"], one.subject["phase"], one.subject["batch"]): one.outcome.values[
            "ratio"
        ]  # type: ignore[union-attr]
        for one in records("profile.check", DENSE)
    }
    assert ratios == pytest.approx(known)
    direct = [ratio for (arm, *_), ratio in ratios.items() if arm == "p2p"]
    assert len(direct) == 5
    assert all(abs(ratio - 1) < 0.05 for ratio in direct)


def test_the_host_launches_a_staged_prompt_at_two_paces() -> None:
    run = run_of("tp2", "staged", "prefill", 1)
    under_s = under_profiler_s(run)
    assert all(0.040 < one < 0.045 for one in under_s[:6])
    assert all(one < 0.033 for one in under_s[-3:])
    assert run.samples is not None
    assert all(0.0323 < time_s < 0.0327 for _, _, time_s in run.samples.rows)  # type: ignore[operator]


@pytest.mark.parametrize(("model", "split"), [(DENSE, "tp2"), (MIXTURE, "tp2 ep2")])
def test_a_shard_of_one_sequence_has_shorter_gaps_than_its_split(model: str, split: str) -> None:
    gaps_s = {
        (values["alone"], values["arm"]): values["parts"]["gap_s"]
        for record in records("profile.parts", model)
        for values in [record.outcome.values]  # type: ignore[union-attr]
        if (values["split"], values["phase"], values["batch"]) == (split, "decode", 1)
    }
    # Less than a quarter: graphs of nearly as many kernels, at two paces.
    assert gaps_s[0, None] < 0.25 * gaps_s[None, "p2p"]
