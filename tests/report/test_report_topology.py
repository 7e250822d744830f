"""A machine as text and as a picture: everything known is shown, nothing unknown is invented."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from msgspec import structs

from linkbound.report.topology_fabric import Fabric, fabrics
from linkbound.report.topology_svg import render_topology_svg
from linkbound.report.topology_text import WIDTH, render_topology_text
from linkbound.topology import Gpu, Machine, Pair, PairPath, PathKind, merge, read_machine

TESTS = Path(__file__).parents[1]
SVG = "{http://www.w3.org/2000/svg}"


def read(*patterns: str) -> Machine:
    files = [next(TESTS.glob(pattern)) for pattern in patterns]
    return merge([read_machine(file.read_bytes(), file.name) for file in files])


PAIR = ("machines/h200-pair/topo-m.txt", "machines/h200-pair/nccl-topo.xml")
MACHINES = [
    PAIR,
    ("machines/h200-pair/topo-m.txt", "machines/h200-pair/smi-q.txt"),
    ("cases/013-*/topo-m.txt", "cases/013-*/topo-p2p.txt", "cases/013-*/p2p-test.txt"),
    ("cases/021-*/H100-topology.xml",),
    ("cases/022-*/topo_8p_940.xml",),
    ("cases/036-*/topo-m.txt",),
    ("cases/038-*/topo-m.txt",),
    ("cases/039-*/topo-m.txt",),
    ("cases/088-*/topo-m.txt",),
    ("machines/hwloc/nvidiaDGX2.xml",),
    ("cases/019-*/ncv4-graph.xml",),
]


def test_text_of_the_recorded_pair() -> None:
    assert render_topology_text(read(*PAIR)) == (
        "Machine: 2 GPUs, 1 NUMA node\n"
        "From: topo-m.txt, nccl-topo.xml\n"
        "cpu_vendor: GenuineIntel\n"
        "arch: x86_64\n"
        "cpu_family_model: 6/207\n"
        "\n"
        "GPU   model      bus id        PCIe max  NVLinks  NUMA\n"
        "GPU0  10de:2335  0000:00:06.0  32 GT/s   18       0\n"
        "GPU1  10de:2335  0000:00:07.0  32 GT/s   18       0\n"
        "Unknown for every GPU: memory, PCIe now.\n"
        "\n"
        "Tree\n"
        "  CPU of unknown NUMA node\n"
        "  |- GPU0  0000:00:06.0\n"
        "  |- GPU1  0000:00:07.0\n"
        "  `- eth0\n"
        "\n"
        "Links, GPU(row) -> GPU(column) and NIC\n"
        "      GPU0  GPU1  CPU affinity  NUMA\n"
        "GPU0  X     NV18  0-31          0\n"
        "GPU1  NV18  X     0-31          0\n"
        "\n"
        "Legend\n"
        "  NV#   # NVLinks, direct or through NVSwitch\n"
        "\n"
        "Sources disagree (the first source's value is used)\n"
        "  NUMA node of GPU0: topo-m.txt says 0; nccl-topo.xml says -1 (unknown)\n"
        "  NUMA node of GPU1: topo-m.txt says 0; nccl-topo.xml says -1 (unknown)\n"
        "\n"
        "Notes\n"
        "  The file gives '-1' as NUMA node of a CPU: the node is unknown, and what hangs below"
        " may be on\n"
        "      several.\n"
        "  eth0 is no PCI function here: which GPU it is near to is unknown.\n"
    )


def test_peers_and_contradictions_are_in_the_text() -> None:
    text = render_topology_text(read(*MACHINES[2]))
    assert "read, says the driver\n      GPU0  GPU1  GPU2\nGPU0  X     OK    OK\n" in text
    assert "peer access, says the CUDA runtime\n" in text
    assert "GPU0  X       denied  denied\n" in text
    assert "denied  refused without a reason" in text
    assert "peer access GPU0 -> GPU1: topo-p2p.txt says driver says read OK" in text


def test_unknown_is_a_word() -> None:
    text = render_topology_text(read("cases/090-*/topo-m.txt"))
    assert "GPU3  unknown  unknown  unknown  X        unknown" in text
    assert "N/A" not in text
    assert "None" not in text
    assert "The matrix is incomplete: no row for GPU3" in text


@pytest.mark.parametrize("patterns", MACHINES)
def test_text_fits_the_page(patterns: tuple[str, ...]) -> None:
    machine = read(*patterns)
    text = render_topology_text(machine)
    assert max(len(line) for line in text.splitlines()) <= WIDTH
    assert text.endswith("\n")
    for gpu in machine.gpus:
        assert gpu.label in text


@pytest.mark.parametrize("patterns", MACHINES)
def test_picture_is_whole_and_inside_its_frame(patterns: tuple[str, ...]) -> None:
    machine = read(*patterns)
    text = render_topology_svg(machine)
    root = ElementTree.fromstring(text)
    width, height = (int(root.get(name, "")) for name in ("width", "height"))
    assert root.get("viewBox") == f"0 0 {width} {height}"
    assert width <= 2400
    assert root.find(f"{SVG}title") is not None
    for rect in root.iter(f"{SVG}rect"):
        x, y, w, h = (int(rect.get(name, "0")) for name in ("x", "y", "width", "height"))
        assert 0 <= x <= x + w <= width
        assert 0 <= y <= y + h <= height
    words = [element.text for element in root.iter(f"{SVG}text")]
    for gpu in machine.gpus:
        assert gpu.label in words
    for path in machine.pairs:
        assert path.label is None or path.label in words


@pytest.mark.parametrize("patterns", MACHINES)
def test_no_box_covers_another(patterns: tuple[str, ...]) -> None:
    root = ElementTree.fromstring(render_topology_svg(read(*patterns)))
    boxes = [
        tuple(int(rect.get(name, "")) for name in ("x", "y", "width", "height"))
        for rect in root.iter(f"{SVG}rect")
        if (rect.get("class") or "").startswith("box")
    ]
    for at, (x, y, w, h) in enumerate(boxes):
        for other_x, other_y, other_w, other_h in boxes[at + 1 :]:
            apart_x = x + w <= other_x or other_x + other_w <= x
            apart_y = y + h <= other_y or other_y + other_h <= y
            assert apart_x or apart_y


@pytest.mark.parametrize("patterns", MACHINES)
def test_text_stays_in_its_box(patterns: tuple[str, ...]) -> None:
    root = ElementTree.fromstring(render_topology_svg(read(*patterns)))
    for group in root.iter(f"{SVG}g"):
        rect = group.find(f"{SVG}rect")
        if rect is None:
            continue
        for text in group.iter(f"{SVG}text"):
            assert len(text.text or "") * 7 <= int(rect.get("width", "")) + 8


def test_picture_asks_nothing_of_the_network() -> None:
    text = render_topology_svg(read(*MACHINES[3]))
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"href|<script|<image|url\(|@import|<foreignObject", text)
    assert "prefers-color-scheme:dark" in text
    assert "currentColor" in text


def test_data_is_escaped() -> None:
    evil = "</title><script>alert('&')</script>"
    machine = Machine(
        sources=(evil,), gpus=(Gpu(key=evil, label="GPU0", model=evil), Gpu(key="b", label=evil))
    )
    text = render_topology_svg(machine)
    root = ElementTree.fromstring(text)
    assert "<script" not in text
    assert evil in (root.findtext(f"{SVG}title") or "")


def test_nvswitch_is_one_bar_and_a_cube_mesh_is_lines() -> None:
    h100 = read("cases/021-*/H100-topology.xml")
    assert [(len(one.gpus), one.text) for one in fabrics(h100)] == [(8, "NV18 between every two")]
    cube = fabrics(read("cases/036-*/topo-m.txt"))
    assert len(cube) == 16
    assert {one.text for one in cube} == {"NV1", "NV2"}
    assert fabrics(read("cases/088-*/topo-m.txt")) == ()


def test_links_that_differ_by_direction_say_both() -> None:
    gpus = (Gpu(key="a", label="GPU0"), Gpu(key="b", label="GPU1"))
    there = PairPath(pair=Pair(src="a", dst="b"), kind=PathKind.NVLINK, nvlink_count=4)
    machine = Machine(sources=("x",), gpus=gpus, pairs=(there,))
    assert fabrics(machine) == (Fabric(gpus=("a", "b"), text="NV4 / ?"),)
    back = structs.replace(there, pair=Pair(src="b", dst="a"))
    both = structs.replace(machine, pairs=(there, back))
    assert fabrics(both) == (Fabric(gpus=("a", "b"), text="NV4"),)


def test_no_gpu() -> None:
    machine = Machine(sources=("nowhere",), notes=("No driver.",))
    assert render_topology_text(machine) == (
        "Machine: 0 GPUs, NUMA nodes unknown\nFrom: nowhere\n\nNotes\n  No driver.\n"
    )
    assert ElementTree.fromstring(render_topology_svg(machine)).get("role") == "img"
