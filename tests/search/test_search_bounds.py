"""No plan is below the bound of its unit where computing depends on the arm.

On the desktop a tensor group of qwen3-32b computes faster staged: its bound of all arms was the
direct arm's once, 58.3 s for 4 x 8,192 + 1, and staged took 54.2 s.
"""

import pytest

from linkbound.evidence.study import Study
from linkbound.model.read_model import read_model
from linkbound.model.types import Load
from linkbound.predict.candidates import excluded_gpus
from linkbound.predict.plans import arms_of
from linkbound.search.costs import Costs
from linkbound.search.units import unit_of
from linkbound.splits.layouts import layouts
from linkbound.splits.modules import modules_of
from linkbound.splits.tree import Tree
from linkbound.splits.types import Split
from linkbound.study.predicting import engine_for
from linkbound.study.reading import read_access


@pytest.mark.parametrize("load", [(4, 8192, 1), (8, 1024, 65)])
@pytest.mark.parametrize("split", [Split(tp=2), Split(pp=2)])
def test_no_arm_of_the_desktop_is_below_the_bound_of_all(
    desktop_study: Study, split: Split, load: tuple[int, int, int]
) -> None:
    sequences, prompt, output = load
    engine = engine_for(desktop_study, "5060ti-pair", read_model("qwen3-32b"))
    machine = engine.book.machine
    access = read_access(desktop_study, "5060ti-pair")
    tree = Tree(
        modules_of(machine, tuple(excluded_gpus(machine, access)), access), len(machine.gpus)
    )
    asked = Load(prompt_tokens=prompt, output_tokens=output, concurrency=sequences)
    costs = Costs(engine, tree, asked)
    times_s = {
        arm: costs.call_s(split, layout, arm, sequences, output)
        for layout in layouts(tree, unit_of(split), tree.free)
        for arm in arms_of(split)
    }
    bound_s = costs.bound_of_all_s(split, sequences, output)
    assert 0 < bound_s <= min(times_s.values())
