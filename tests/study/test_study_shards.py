"""Shards timed alone on one GPU as the compute of predicted steps, on machines with such GPUs."""

from importlib.resources import files
from pathlib import Path

import msgspec
import pytest

from linkbound.evidence import Record, Study
from linkbound.links.types import Arm
from linkbound.model.read_model import read_model
from linkbound.model.types import Load
from linkbound.predict.points import Metric, Prediction
from linkbound.predict.reference import RUNTIME
from linkbound.predict.shards import ShardPoint
from linkbound.splits.parse_split import parse_split
from linkbound.splits.types import Phase
from linkbound.study.freezing import freeze_model
from linkbound.study.profiled_shards import read_shards
from linkbound.study.reading import read_machine_record
from linkbound.study.sources import Sources, read_recorded, read_sources
from linkbound.study.stages import request, run_machine_stages, run_stages
from recorded_profile import recorded_profile

MODEL = "llama-3.1-8b"
LOAD = Load(prompt_tokens=1024, output_tokens=256, concurrency=8)
SHARDS = tuple(one for one in recorded_profile() if one.kind == "profile.shard")
# What the recorded profile prints of tp2's shard at 8 sequences after 1,024 tokens.
SHARD_S = 2.95e-3


def steps(study: Study, sources: Sources) -> dict[tuple[str, Arm | None], Prediction]:
    """Predicted steps of the reference runtime by split and arm."""
    run_stages(study, request(MODEL, sources, (LOAD,)), lambda _stage, _held: None)
    frozen = freeze_model(study, sources, MODEL, (LOAD,))
    return {
        (f"tp{one.spec.tp} pp{one.spec.pp}", one.spec.arm): one
        for one in frozen.content.predictions
        if one.spec.engine == RUNTIME
    }


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Study.create(tmp_path / "a.linkbound")


def test_the_shard_is_the_compute_and_what_crosses_stays(study: Study) -> None:
    sources = read_recorded("h200-pair")
    without = steps(study, sources)
    study.append_many(SHARDS)
    found = steps(study, sources)
    direct, staged = found["tp2 pp1", Arm.P2P], found["tp2 pp1", Arm.STAGED]
    (record_id,) = direct.shards[Metric.DECODE_STEP]
    shard = study.get(record_id)
    assert (shard.kind, shard.subject["batch"], shard.subject["context"]) == (
        "profile.shard",
        8,
        1024,
    )
    # Arms differ by what crosses alone, with a shard as without.
    apart = {
        name: one["tp2 pp1", Arm.STAGED].estimates[Metric.DECODE_STEP].value
        - one["tp2 pp1", Arm.P2P].estimates[Metric.DECODE_STEP].value
        for name, one in (("without", without), ("with", found))
    }
    assert apart["with"] == pytest.approx(apart["without"])
    crossing = direct.estimates[Metric.DECODE_STEP].value - SHARD_S
    assert 0.3e-3 < crossing < 0.8e-3
    assert staged.shards == direct.shards
    # No chunk of eight prompts was timed, nor a stage, nor one GPU.
    assert Metric.PREFILL_STEP not in direct.shards
    assert (
        direct.estimates[Metric.PREFILL_STEP]
        == (without["tp2 pp1", Arm.P2P].estimates[Metric.PREFILL_STEP])
    )
    assert not found["tp1 pp2", Arm.P2P].shards
    assert not found["tp1 pp1", None].shards


def test_a_frozen_set_rests_on_the_shards(study: Study) -> None:
    sources = read_recorded("h200-pair")
    study.append_many(SHARDS)
    run_stages(study, request(MODEL, sources, (LOAD,)), lambda _stage, _held: None)
    content = freeze_model(study, sources, MODEL, (LOAD,)).content
    used = {one for each in content.predictions for ids in each.shards.values() for one in ids}
    assert used
    assert used <= set(content.inputs)


def slower_links(folder: Path) -> Sources:
    """The same GPUs, joined over the host: another machine."""
    recorded = files("linkbound") / "recorded" / "h200-pair"
    folder.mkdir()
    for name in ("nvidia-smi.txt", "smi-q.txt", "topo-m.txt"):
        text = (recorded / name).read_text()
        (folder / name).write_text(text.replace("NV18", "SYS"))
    return read_sources(str(folder))


def table_of(study: Study, sources: Sources, *records: Record) -> bool:
    """Whether the decode step of the recorded shard is found for a machine."""
    run_machine_stages(study, sources)
    study.append_many(records)
    table = read_shards(study, read_machine_record(study, sources.name), read_model(MODEL))
    point = ShardPoint(phase=Phase.DECODE, batch=8, tokens=1, context=1024)
    return table.find(parse_split("tp2"), point) is not None


def test_shards_of_the_same_gpus_elsewhere_count_where_the_study_knows_them(
    study: Study, tmp_path: Path
) -> None:
    other = slower_links(tmp_path / "box")
    assert not table_of(study, other, *SHARDS)
    run_machine_stages(study, read_recorded("h200-pair"))
    assert table_of(study, other)


def test_shards_of_other_gpus_do_not(study: Study) -> None:
    run_machine_stages(study, read_recorded("h200-pair"))
    assert not table_of(study, read_recorded("5060ti-pair"), *SHARDS)


def test_several_children_give_their_range(study: Study) -> None:
    sources = read_recorded("h200-pair")
    run_machine_stages(study, sources)
    first = next(one for one in SHARDS if one.subject["phase"] == "decode")
    assert first.samples is not None
    rows = tuple((rank, step, time_s * 1.04) for rank, step, time_s in first.samples.rows)  # type: ignore[operator]
    again = msgspec.structs.replace(
        first,
        subject={**first.subject, "repeat": 1},
        samples=msgspec.structs.replace(first.samples, rows=rows),
    )
    study.append_many([first, again])
    table = read_shards(study, read_machine_record(study, sources.name), read_model(MODEL))
    names = ("batch", "tokens", "context")
    point = ShardPoint(phase=Phase.DECODE, **{name: first.subject[name] for name in names})
    found = table.find(parse_split("tp2"), point)
    assert found is not None
    assert found.time.high / found.time.low == pytest.approx(1.04, rel=0.01)
    assert len(found.record_ids) == 2
    assert table.find(parse_split("pp2"), point) is None
    assert table.find(parse_split("tp4"), point) is None
