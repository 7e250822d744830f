"""Predictions lead back to every curve that priced them, and curves to what they are made of."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from conftest import without_engine_reduce
from linkbound.evidence.study import Study
from linkbound.evidence.types import Predicted, Record
from linkbound.links import Arm, Operation
from linkbound.model.types import Load
from linkbound.study.predicting import book_of
from linkbound.study.sources import Sources, read_recorded
from linkbound.study.stages import request, run_stages

PAIR = ("GPU0", "GPU1")


def predicted(folder: Path, sources: Sources, loads: Iterable[Load]) -> Study:
    """A study of a recorded machine with these loads."""
    study = Study.create(folder / "made.linkbound")
    run_stages(study, request("llama-3.1-8b", sources, tuple(loads)), lambda *_: None)
    return study


def curves_of(study: Study, record: Record) -> list[Record]:
    parents = [study.get(one) for one in record.parents]
    return [one for one in parents if one.kind in ("links.curve", "predict.curve")]


def test_a_published_curve_is_a_record_of_its_own(tmp_path: Path) -> None:
    load = Load(prompt_tokens=512, output_tokens=9, concurrency=1)
    with predicted(tmp_path, without_engine_reduce(), [load]) as study:
        (call,) = study.find("predict.call", split="tp2", arm="p2p")
        (prior,) = [one for one in curves_of(study, call) if one.kind == "predict.curve"]
        assert prior.parents == ()
        assert prior.subject["method"] == "published table"


def test_a_call_names_the_curves_of_its_middle_chunks(tmp_path: Path) -> None:
    """9,000 tokens: a chunk of 8,192 over NCCL, one of 808 over the engine's own kernel."""
    load = Load(prompt_tokens=9000, output_tokens=1, concurrency=1)
    with predicted(tmp_path, read_recorded("h200-pair"), [load]) as study:
        (call,) = study.find("predict.call", split="tp2", arm="p2p")
        assert isinstance(call.outcome, Predicted)
        found = curves_of(study, call)
        assert {one.subject["implementation"] for one in found} == {"engine", "nccl"}
        book = book_of(study, "h200-pair")
        large = book.curve(Operation.ALL_REDUCE, PAIR, Arm.P2P, 8192 * 4096 * 2)
        assert large is not None
        assert set(large.record_ids) < {one.id for one in found}
        (own,) = [one for one in found if one.subject["implementation"] == "engine"]
        assert own.kind == "links.curve"
        assert own.subject["method"].endswith("vLLM 0.24.0 CustomAllreduce")
        (shown,) = study.find("predict.map", split="tp2", arm="p2p")
        assert {one.id for one in curves_of(study, shown)} == {one.id for one in found}
        kinds = [study.get(one).kind for one in shown.parents]
        assert kinds.count("splits.fit") == 2


@pytest.mark.parametrize("arm", ["p2p", "staged"])
def test_a_roofline_names_the_copies_it_is_made_of(tmp_path: Path, arm: str) -> None:
    load = Load(prompt_tokens=512, output_tokens=9, concurrency=1)
    with predicted(tmp_path, read_recorded("5060ti-pair"), [load]) as study:
        found = study.find("predict.curve", machine="5060ti-pair", arm=arm)
        assert found
        for record in found:
            kinds = {study.get(one).kind for one in record.parents}
            assert kinds == {"links.rates", "links.latencies"}
            machines = {study.get(one).subject["machine"] for one in record.parents}
            assert machines == {"5060ti-pair"}
