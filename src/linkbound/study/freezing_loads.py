"""Simulated loads as a frozen set, cells drawn as `serve` will draw them (E3)."""

import msgspec

from linkbound.evidence.study import Study
from linkbound.predict.frozen import Frozen
from linkbound.predict.load_points import LoadPrediction
from linkbound.predict.simulate import Simulation
from linkbound.predict.simulate.score import comparable
from linkbound.serve.batch_records import model_label
from linkbound.serve.contenders import Contender, reseeded
from linkbound.study.freezing import frozen_set
from linkbound.study.simulating import Asked, simulate_all


def freeze_loads(study: Study, machine: str, model: str, asked: Asked) -> Frozen:
    """Every contender in every cell. The study must hold the machine, its constants and the model.

    Cells get the seeds that `serve` gives them in the same order, so that both meet one draw.
    """
    cells = tuple(reseeded(cell, number, 0) for number, cell in enumerate(asked.cells))
    found = simulate_all(study, machine, model, msgspec.structs.replace(asked, cells=cells))
    return frozen_set(
        study,
        machine,
        loads=tuple(_prediction(model, asked, one) for shown in found for one in shown.simulations),
        left_out=[one for shown in found for one in shown.skipped],
    )


def _prediction(model: str, asked: Asked, one: Simulation) -> LoadPrediction:
    scenario = one.scenario
    return LoadPrediction(
        engine=asked.engine,
        model=model_label(model),
        contender=Contender(split=scenario.plan.split, arm=scenario.plan.arm).name,
        cell=scenario.cell,
        sequences=scenario.rules.max_sequences,
        figures=comparable(one),
        overloaded=one.overloaded,
    )
