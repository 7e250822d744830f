"""On a host with two GPUs: the CUDA driver of the child counts the plan's GPUs in its order."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from linkbound.links import Arm
from linkbound.model.types import Load
from linkbound.predict.types import Plan
from linkbound.splits.place import placement_of
from linkbound.splits.types import Split
from linkbound.study.plan_files import plan_file, write_plan
from linkbound.topology.identifiers import cpus_of_list
from linkbound.topology.probe import probe_machine

pytestmark = pytest.mark.gpu(2)
TELL = (
    "import json, os; from linkbound.links.live.cuda import open_cuda; "
    "print(json.dumps({'uuids': [one.uuid for one in open_cuda().devices()], "
    "'cpus': sorted(os.sched_getaffinity(0))}))"
)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("named", ["uuids", "ordinals"])
def test_the_driver_counts_the_plan_s_gpus_in_its_order(
    order: tuple[int, int], named: str, tmp_path: Path
) -> None:
    machine = probe_machine()
    gpus = [machine.gpus[number] for number in order]
    plan = Plan(split=Split(tp=2), placement=placement_of(gpus), arm=Arm.P2P)
    load = Load(prompt_tokens=128, output_tokens=8, concurrency=1)
    text = write_plan(
        plan_file(
            machine,
            plan,
            load,
            name="this host",
            model="MODEL",
            engine="vllm",
            limit=1,
            role="best",
            why="a test",
        )
    )
    (tmp_path / "plan.json").write_text(text)
    words = ["run", "--plan", str(tmp_path / "plan.json")]
    words += ["--ordinals"] if named == "ordinals" else []
    done = subprocess.run(
        [sys.executable, "-m", "linkbound.cli", *words, "--", sys.executable, "-c", TELL],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    assert told["uuids"] == [gpu.uuid for gpu in gpus]
    near = [cpus_of_list(gpu.cpu_affinity or "") for gpu in gpus]
    if None not in near:
        wanted = frozenset[int]().union(*(one or () for one in near))
        assert set(told["cpus"]) == wanted & os.sched_getaffinity(0)
