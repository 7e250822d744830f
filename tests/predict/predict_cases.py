"""Engines and plans that the tests of predicting share."""

from pathlib import Path

import msgspec

from linkbound.evidence.study import Study
from linkbound.links import Arm
from linkbound.model.parse_config import parse_config
from linkbound.model.read_model import read_model
from linkbound.model.types import ModelShape
from linkbound.predict.calibration import Calibration
from linkbound.predict.forecast import plan_on
from linkbound.predict.schedule import Chunk, Step
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Plan
from linkbound.splits.types import Split
from linkbound.study.predicting import engine_for

CONFIGS = Path(__file__).parents[1] / "configs"
TP2, PP2 = Split(tp=2), Split(pp=2)


def shape_of(name: str) -> ModelShape:
    """A bundled model, or one of tests/configs by its folder."""
    folder = CONFIGS / name
    if folder.is_dir():
        return parse_config((folder / "config.json").read_text(), name)
    return read_model(name)


def engine_on(study: Study, machine: str = "h200-pair", model: str = "llama-3.1-8b") -> Engine:
    """What plans of a model are priced with on a prepared machine."""
    return engine_for(study, machine, shape_of(model))


def plan(engine: Engine, split: Split = Split(), arm: Arm | None = None) -> Plan:  # noqa: B008
    return plan_on(engine.book.machine, split, arm)


def decode(batch: int, length: int) -> Step:
    """One decode step of `batch` sequences that hold `length` tokens each."""
    return Step(chunks=(), decodes=batch, context_tokens=batch * length, sampled=batch)


def prefill(*prompts: int, cached: int = 0) -> Step:
    """One step that takes whole prompts, each after `cached` tokens."""
    chunks = tuple(Chunk(tokens=tokens, cached=cached) for tokens in prompts)
    return Step(chunks=chunks, decodes=0, context_tokens=0, sampled=len(prompts))


def changed(calibration: Calibration, **values: float) -> Calibration:
    """The calibration with other values of some constants, their intervals moved along."""
    moved = {}
    for name, value in values.items():
        constant = getattr(calibration, name)
        ratio = value / constant.value
        estimate = msgspec.structs.replace(
            constant.estimate,
            value=value,
            low=constant.estimate.low * ratio,
            high=constant.estimate.high * ratio,
        )
        moved[name] = msgspec.structs.replace(constant, estimate=estimate)
    return msgspec.structs.replace(calibration, **moved)
