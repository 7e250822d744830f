"""`rocm-smi --showtopo`: hops are a class, PCIE is no place in the tree."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkbound.errors import InputError
from linkbound.topology.parse_rocm_smi import parse_rocm_smi
from linkbound.topology.types import Capability, PathKind, PeerStatus

CASE = Path(__file__).parents[1] / "cases" / "072-rocmsmi108-4gpu-pcie-hops3"


def test_four_gpus_on_pcie() -> None:
    machine = parse_rocm_smi((CASE / "rocm-smi-showtopo.txt").read_text(), "topo.txt")
    assert [gpu.label for gpu in machine.gpus] == ["GPU0", "GPU1", "GPU2", "GPU3"]
    assert len(machine.pairs) == 12
    for path in machine.pairs:
        assert (path.hops, path.kind, path.nvlink_count) == (3, None, None)
    assert machine.gpus[0].facts["Weight to GPU1"] == "52"
    assert machine.gpus[3].facts["Link Type to GPU0"] == "PCIE"
    assert all(gpu.numa_node is None and gpu.nvlinks == () for gpu in machine.gpus)


def test_cut_numa_section_and_meaning_of_hops_are_noted() -> None:
    notes = parse_rocm_smi((CASE / "rocm-smi-showtopo.txt").read_text(), "topo.txt").notes
    assert any("`Numa Nodes` is empty" in note for note in notes)
    assert any("not a number of links" in note for note in notes)


XGMI = """\
============================ Hops between two GPUs =============================
       GPU0         GPU1
GPU0   0            1
GPU1   1            0
========================== Link Type between two GPUs ==========================
       GPU0         GPU1
GPU0   0            XGMI
GPU1   XGMI         0
================== Link accessibility between two GPUs ==================
       GPU0         GPU1
GPU0   True         False
GPU1   True         True
================================== Numa Nodes ==================================
GPU[0]          : (Topology) Numa Node: 3
GPU[0]          : (Topology) Numa Affinity: 3
GPU[1]          : (Topology) Numa Node: -1
GPU[1]          : (Topology) Numa Affinity: -1
"""


def test_xgmi_access_and_numa_nodes() -> None:
    machine = parse_rocm_smi(XGMI, "x")
    path = machine.path("GPU0", "GPU1")
    assert (path.kind, path.hops, path.label) == (PathKind.XGMI, 1, "XGMI")
    assert path.status == {Capability.ACCESS: PeerStatus.DENIED}
    assert machine.path("GPU1", "GPU0").status == {Capability.ACCESS: PeerStatus.OK}
    assert [gpu.numa_node for gpu in machine.gpus] == [3, None]
    assert [gpu.facts["numa_node"] for gpu in machine.gpus] == ["3", "-1"]
    assert [node.index for node in machine.numa_nodes] == [3]
    assert any("GPU1 has NUMA node -1" in note for note in machine.notes)


@pytest.mark.parametrize(
    "text", ["", "\x00", "hello", "GPU0 GPU1\nGPU0 X SYS\n", "== Numa Nodes ==\n", "====\n"]
)
def test_other_text_is_one_clear_error(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_rocm_smi(text, "some.txt")
    assert "some.txt" in caught.value.seen
    assert caught.value.why
    assert caught.value.hint


@given(cut=st.integers(0, 1308), junk=st.text(max_size=30))
@settings(max_examples=150, deadline=None)
def test_damaged_output_raises_only_our_error(cut: int, junk: str) -> None:
    text = (CASE / "rocm-smi-showtopo.txt").read_text()
    for damaged in (text[:cut], text[:cut] + junk + text[cut:], XGMI.replace("1", junk)):
        try:
            parse_rocm_smi(damaged, "x")
        except InputError:
            continue
