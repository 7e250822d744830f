"""Every `nvidia-smi topo -m` that people posted gives the machine that it shows."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkbound.errors import InputError
from linkbound.topology.parse_topo_matrix import parse_topo_matrix
from linkbound.topology.types import Machine, PathKind

TESTS = Path(__file__).parents[1]
CASES = TESTS / "cases"
H200 = TESTS / "machines" / "h200-pair"


def read(case: str, name: str = "topo-m.txt") -> Machine:
    (folder,) = CASES.glob(f"{case}-*")
    return parse_topo_matrix((folder / name).read_text(), name)


@pytest.mark.parametrize(
    ("case", "name", "gpus", "nics", "labels", "numa"),
    [
        ("002", "topo-m.txt", 4, 0, {"PXB": 2, "PIX": 2, "SYS": 8}, [0, 0, 1, 1]),
        ("011", "topo-m.txt", 8, 0, {"NV4": 8, "NODE": 16, "SYS": 32}, [0] * 4 + [1] * 4),
        ("013", "topo-m.txt", 3, 0, {"PHB": 6}, [0, 0, 0]),
        ("016", "topo-m.txt", 8, 0, {"PIX": 8, "NODE": 16, "SYS": 32}, [0] * 4 + [1] * 4),
        ("018", "topo-m-4gpu-node.txt", 4, 0, {"NODE": 12}, [None] * 4),
        ("018", "topo-m-8gpu-dualcpu.txt", 8, 0, {"PHB": 24, "SYS": 32}, [None] * 8),
        ("018", "topo-m-8gpu-switches.txt", 8, 0, {"PIX": 24, "PHB": 32}, [None] * 8),
        ("032", "topo-m.txt", 4, 4, {"NV4": 12}, [None] * 4),
        ("036", "topo-m.txt", 8, 2, {"NV2": 16, "NV1": 16, "SYS": 24}, [None] * 8),
        ("038", "topo-m.txt", 16, 10, {"NV6": 60}, [None] * 16),
        ("039", "topo-m.txt", 8, 18, {"NV18": 28}, [0] * 4 + [None] * 4),
        ("040", "topo-m.txt", 8, 10, {"SYS": 42}, [0] * 4 + [1, 1, None, None]),
        ("051", "topo-m.txt", 8, 0, {"PIX": 4, "NODE": 8, "SYS": 16}, [0] * 4 + [None] * 4),
        ("063", "topo-m.txt", 2, 0, {"PHB": 2}, [0, 0]),
        ("088", "topo-m.txt", 8, 4, {"SYS": 56}, [3, 2, 1, 0, 7, 6, 5, 4]),
        ("090", "topo-m.txt", 8, 1, {"SYS": 21}, [0] * 3 + [None] * 5),
    ],
)
def test_posted_matrix(
    case: str, name: str, gpus: int, nics: int, labels: dict[str, int], numa: list[int | None]
) -> None:
    machine = read(case, name)
    assert [gpu.label for gpu in machine.gpus] == [f"GPU{at}" for at in range(gpus)]
    assert len(machine.devices) == nics
    assert Counter(path.label for path in machine.pairs) == labels
    assert [gpu.numa_node for gpu in machine.gpus] == numa


def test_colours_change_nothing() -> None:
    raw = parse_topo_matrix((H200 / "topo-m.raw.txt").read_text(), "a")
    assert raw == parse_topo_matrix((H200 / "topo-m.txt").read_text(), "a")
    assert raw.path("GPU0", "GPU1").label == "NV18"
    assert raw.path("GPU0", "GPU1").nvlink_count == 18
    assert [gpu.cpu_affinity for gpu in raw.gpus] == ["0-31", "0-31"]
    assert raw.gpus[0].facts == {}


def test_lost_tabs_change_nothing() -> None:
    text = (H200 / "topo-m.txt").read_text()
    assert parse_topo_matrix(text.replace("\t", "   "), "a") == parse_topo_matrix(text, "a")


def test_missing_rows_are_named_and_not_mirrored() -> None:
    machine = read("051")
    assert machine.notes == ("The matrix is incomplete: no row for GPU4, GPU5, GPU6, GPU7.",)
    assert machine.path("GPU0", "GPU4").label == "SYS"
    assert machine.path("GPU4", "GPU0").label is None


def test_row_that_is_cut_keeps_what_is_there() -> None:
    text = "\tGPU0\tGPU1\tGPU2\nGPU0\t X \tPIX\tSYS\nGPU1\tPIX\t X "
    machine = parse_topo_matrix(text, "a")
    assert machine.path("GPU1", "GPU0").kind is PathKind.PIX
    assert machine.path("GPU1", "GPU2").kind is None
    assert machine.notes == (
        "The matrix is incomplete: no row for GPU2.",
        "Row GPU1 is cut off after 2 of 3 devices: nothing on GPU2.",
    )


def test_nic_legend_and_distances() -> None:
    machine = read("032")
    assert [device.facts["name"] for device in machine.devices] == [
        "mlx5_0",
        "mlx5_1",
        "mlx5_2",
        "mlx5_3",
    ]
    near = {(path.gpu, path.nic): path.kind.value for path in machine.nic_paths}
    assert near["GPU2", "NIC2"] == "PXB"
    assert near["GPU2", "NIC1"] == "SYS"
    assert machine.gpus[0].facts["numa_affinity"] == "0-1"


def test_nic_row_fills_a_missing_gpu_row() -> None:
    text = "GPU0 GPU1 NIC0\nGPU0 X SYS PIX\nNIC0 PIX SYS X\n"
    near = {(p.gpu, p.nic): p.kind.value for p in parse_topo_matrix(text, "a").nic_paths}
    assert near == {("GPU0", "NIC0"): "PIX", ("GPU1", "NIC0"): "SYS"}


def test_nps4_host_has_eight_nodes_with_their_processors() -> None:
    nodes = read("088").numa_nodes
    assert [node.index for node in nodes] == list(range(8))
    assert nodes[0].cpus == "0-7,64-71"
    assert nodes[7].cpus == "56-63,120-127"


def test_cut_affinity_is_unknown_and_kept_as_printed() -> None:
    machine = read("036")
    assert machine.gpu("GPU7").cpu_affinity is None
    assert machine.gpu("GPU7").facts["cpu_affinity"] == "24-47,"
    assert machine.gpu("GPU6").cpu_affinity == "24-47,72-95"


def test_empty_affinity_between_tabs() -> None:
    text = (
        "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
        "GPU0\t X \tPHB\t\t0\t\tN/A\nGPU1\tPHB\t X \t\t\t\t4\n"
    )
    machine = parse_topo_matrix(text, "a")
    assert [gpu.cpu_affinity for gpu in machine.gpus] == [None, None]
    assert [gpu.numa_node for gpu in machine.gpus] == [0, None]
    assert machine.gpus[1].facts == {"gpu_numa_id": "4"}


def test_old_words() -> None:
    text = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tSOC\t0-5\nGPU1\tSOC\t X \t6-11\n"
    machine = parse_topo_matrix(text, "a")
    assert machine.path("GPU0", "GPU1").kind is PathKind.SYS
    assert machine.gpus[1].cpu_affinity == "6-11"


def test_prose_around_a_matrix() -> None:
    text = "Model X is slow:\nGPU0 GPU1\nGPU0 X PIX\nGPU1 PIX X\nPIX is what I expect.\n"
    assert len(parse_topo_matrix(text, "a").pairs) == 2


def test_rows_without_heading() -> None:
    machine = parse_topo_matrix("GPU0 X NV4\nGPU1 NV4 X\n", "a")
    assert machine.path("GPU1", "GPU0").label == "NV4"
    with pytest.raises(InputError, match="without its heading"):
        parse_topo_matrix("GPU0 X NV4 PIX\nGPU1 NV4 X PIX\n", "a")


def test_asymmetric_matrix_stays_asymmetric() -> None:
    machine = parse_topo_matrix("GPU0 GPU1\nGPU0 X PIX\nGPU1 SYS X\n", "a")
    assert machine.path("GPU0", "GPU1").label == "PIX"
    assert machine.path("GPU1", "GPU0").label == "SYS"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("", "no matrix of GPUs found"),
        ("GPU0 GPU1\nGPU0 X PIX SYS\n", "3 cells in row GPU0 under 2 devices"),
        ("GPU0 GPU1\nGPU0 PIX X\n", "X not under its own device"),
        ("GPU0 GPU1\nGPU0 X PIX\nGPU0 X PIX\n", "a device twice"),
        ("GPU0 GPU1\nGPU0 X PIX\nGPU7 X PIX\n", "a row 'GPU7'"),
        (" ".join(f"GPU{at}" for at in range(300)) + "\nGPU0 X\n", "more than 256 devices"),
        ("GPU0 X\n" * 300, "more than 256 devices"),
    ],
)
def test_unreadable_matrix(text: str, seen: str) -> None:
    with pytest.raises(InputError, match=seen) as error:
        parse_topo_matrix(text, "posted.txt")
    assert str(error.value).startswith("posted.txt: ")
    assert error.value.hint


WORDS = st.sampled_from(
    [
        "GPU0",
        "GPU1",
        "NIC0",
        "X",
        "PIX",
        "NV4",
        "SYS",
        "N/A",
        "0-3",
        "\t",
        "\n",
        " ",
        "CPU Affinity",
    ]
)


@given(st.one_of(st.text(), st.lists(WORDS, max_size=40).map(" ".join)))
def test_only_our_error(text: str) -> None:
    try:
        machine = parse_topo_matrix(text, "a")
    except InputError:
        return
    assert machine.gpus


@given(st.integers(0, 1274))
def test_cut_anywhere(length: int) -> None:
    text = (CASES / "039-deepep145-h100-18nics" / "topo-m.txt").read_text()[:length]
    whole = {path.pair: path.label for path in read("039").pairs}
    try:
        machine = parse_topo_matrix(text, "a")
    except InputError:
        return
    # A cut inside a word (NV1 of NV18) cannot be told; all cells before it are right.
    assert all(whole[path.pair] == path.label for path in machine.pairs[:-1])


def test_a_matrix_without_gpus_is_refused() -> None:
    with pytest.raises(InputError, match="names no GPU, only NIC0"):
        parse_topo_matrix("NIC0 X", "a")
