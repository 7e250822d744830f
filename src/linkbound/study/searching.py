"""A search over the machine of a study, unlike GPUs included, kept as a record (D1, D4)."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from linkbound.errors import InputError
from linkbound.evidence.study import Study
from linkbound.evidence.types import Derived, Record
from linkbound.model.types import Load
from linkbound.predict.calibration import Calibration
from linkbound.predict.defaults import carried, device_facts
from linkbound.predict.steptime import Engine
from linkbound.predict.types import Plan
from linkbound.search import Found, Objective, Search, answer
from linkbound.search.contrast import control, worst
from linkbound.serve import VLLM
from linkbound.serve.load_types import Slo
from linkbound.splits.modules import modules_of
from linkbound.splits.tree import Tree
from linkbound.study.calibrating import first_usable
from linkbound.study.predicting import book_of, put_curve_records
from linkbound.study.reading import (
    MachineRead,
    read_access,
    read_calibration,
    read_machine_record,
    read_rates,
    read_shape,
)
from linkbound.topology.types import Gpu


class Searched(NamedTuple):
    """An answer, and the search that it is from."""

    found: Found
    search: Search


def search_machine(
    study: Study,
    machine: str,
    model: str,
    loads: Iterable[Load],
    objective: Objective,
    slo: Slo | None = None,
) -> tuple[Searched, ...]:
    """The best plans of a machine for a model, an answer a load; each is kept.

    The study holds the machine, its links, its constants and the model. Raises InputError where of
    no GPU both memory and speed are known.
    """
    held = read_machine_record(study, machine)
    model_record, shape = read_shape(study, model)
    known, others, left_out = _constants(study, held)
    rates = read_rates(study, machine)
    tree = Tree(
        modules_of(held.machine, left_out, read_access(study, machine), rates),
        len(held.machine.gpus),
    )
    found = []
    for load in loads:
        engine = Engine(shape, book_of(study, machine), VLLM, known, others=others)
        search = Search(engine, tree, load, slo)
        put_curve_records(study, engine.book, held)
        one = answer(search, objective, left_out)
        curves = (record for choice in one.front for record in choice.forecast.curve_ids)
        parents = (held.record_id, model_record.id, *known.record_ids, *curves)
        study.append(_record(held, model, one, tuple(dict.fromkeys(parents))))
        found.append(Searched(one, search))
    return tuple(found)


def _constants(
    study: Study, held: MachineRead
) -> tuple[Calibration, Mapping[str, Calibration], Mapping[str, str]]:
    """Constants of the GPUs, of other models among them, and GPUs of which too little is known."""
    record, kept = read_calibration(study, held.name)
    known = msgspec.structs.replace(kept, record_ids=(record.id,))
    rates = read_rates(study, held.name)
    first = first_usable(study, held)
    facts = device_facts(first, rates)
    others: dict[str, Calibration] = {}
    left_out: dict[str, str] = {}
    for gpu in held.machine.gpus:
        model = gpu.model or ""
        if gpu.memory_bytes is None:
            left_out[gpu.label] = _unknown(gpu, "no source says how much memory it has")
        elif model not in (first.model, *others):
            try:
                others[model] = carried(known, facts, device_facts(gpu, rates))
            except InputError:
                left_out[gpu.label] = _unknown(gpu, "how fast it computes is not known here")
    if len(left_out) == len(held.machine.gpus):
        raise InputError(
            f"No GPU of {held.name} can be planned for. {' '.join(left_out.values())}",
            why="A plan needs to know what fits and how long it takes.",
            hint="Add a file that says it (nvidia-smi -q).",
        )
    return known, others, left_out


def _unknown(gpu: Gpu, what: str) -> str:
    return f"{gpu.label} is {gpu.model or 'a GPU of unknown model'}: {what}."


def _record(held: MachineRead, model: str, found: Found, parents: tuple[str, ...]) -> Record:
    return Record(
        kind="search.load",
        subject={
            "machine": held.name,
            "model": model,
            "objective": found.objective.value,
            **msgspec.to_builtins(found.load),
        },
        outcome=Derived(values={"found": msgspec.to_builtins(found)}),
        method="linkbound.search.answer",
        machine=held.fingerprint.id,
        parents=parents,
    )


def contrasts(searched: Searched) -> Mapping[str, Plan]:
    """The best plan, the same in the machine's order, and the worst placement of it, by role."""
    best, search = searched.found.best, searched.search
    option = search.best(searched.found.objective)
    if best is None or option is None:
        return {}
    found = {"best": best.plan, "control": control(best.plan, search.costs.machine)}
    bad = worst(search, option, best.plan)
    return found if bad is None else {**found, "worst": bad}
