"""Simulated loads as a frozen set (E3)."""

from linkbound.evidence.study import Study
from linkbound.predict.frozen import Frozen
from linkbound.predict.load_points import LoadPrediction
from linkbound.predict.simulate import Simulation
from linkbound.predict.simulate.score import comparable
from linkbound.serve.batch_records import model_label
from linkbound.serve.contenders import Contender
from linkbound.study.freezing import frozen_set
from linkbound.study.simulating import Asked, simulate_all


def freeze_loads(study: Study, machine: str, model: str, asked: Asked) -> Frozen:
    """Every contender in every cell. The study must hold the machine, its constants and the model.

    A measured cell meets its prediction only with the same seed: `asked` has those of `serve`.
    """
    found = simulate_all(study, machine, model, asked)
    return frozen_set(
        study,
        machine,
        loads=tuple(_prediction(model, asked, one) for shown in found for one in shown.simulations),
        left_out=[one for shown in found for one in shown.skipped],
        also=asked.host.record_ids,
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
