"""What is measured: pairs, methods, sizes, cells, and the sets of a wired machine (L1, L3)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkbound.errors import NothingToMeasure, UsageError
from linkbound.links.live.cell import Cell, CellKind, condemnation
from linkbound.links.live.contention import contention_sets, disjoint_pairs, gpus_below
from linkbound.links.live.plan import (
    KV_BYTES,
    KV_PIECE_BYTES,
    Scope,
    both_ways,
    peer_cells,
    size_range,
    staged_cells,
)
from linkbound.links.live.progress import Progress, expected_s
from linkbound.links.live.request import (
    Asked,
    asked_sizes,
    job_environment,
    measurable,
    numa_nodes,
    recorded_environment,
    refuse_busy,
    to_jobs,
    to_methods,
    to_pairs,
    to_scope,
)
from linkbound.links.live.tasks import PEER_METHODS, Method, chunk_bytes
from linkbound.links.types import Arm
from linkbound.topology.types import Device, DeviceKind, Gpu, Machine, NumaNode

LABELS = tuple(f"GPU{n}" for n in range(8))
MIB = 1024**2


def eight_gpus() -> Machine:
    """Two sockets, a host bridge each with two switches, two GPUs under each switch."""
    devices, gpus = [], []
    for socket in range(2):
        devices.append(Device(key=f"s{socket}", kind=DeviceKind.SOCKET, label=f"CPU{socket}"))
        devices.append(
            Device(
                key=f"b{socket}",
                kind=DeviceKind.HOST_BRIDGE,
                label=f"bridge{socket}",
                parent=f"s{socket}",
            )
        )
        for switch in range(2):
            key = f"w{socket}{switch}"
            devices.append(
                Device(key=key, kind=DeviceKind.SWITCH_PORT, label=key, parent=f"b{socket}")
            )
            for _ in range(2):
                number = len(gpus)
                gpus.append(
                    Gpu(
                        key=f"u{number}",
                        label=f"GPU{number}",
                        uuid=f"GPU-u{number}",
                        vendor="NVIDIA",
                        parent=key,
                    )
                )
    nodes = tuple(NumaNode(index=n, cpus=f"{4 * n}-{4 * n + 3}") for n in range(2))
    return Machine(sources=("tree",), gpus=tuple(gpus), devices=tuple(devices), numa_nodes=nodes)


def sets() -> dict[str, frozenset[tuple[str, str, str]]]:
    return {one.name: frozenset(one.members) for one in contention_sets(eight_gpus(), LABELS)}


def ends(name: str) -> set[tuple[str, str]]:
    return {(src.removeprefix("GPU"), dst.removeprefix("GPU")) for src, dst, _ in sets()[name]}


def test_gpus_are_found_below_every_device_of_the_tree() -> None:
    below = gpus_below(eight_gpus(), LABELS)
    assert below["w00"] == ("GPU0", "GPU1")
    assert below["b0"] == ("GPU0", "GPU1", "GPU2", "GPU3")
    assert below["s1"] == ("GPU4", "GPU5", "GPU6", "GPU7")


def test_sets_of_a_tree_follow_its_switches_bridges_and_sockets() -> None:
    assert ends("all pairs under switch w00") == {("0", "1"), ("1", "0")}
    assert len(ends("all pairs under host bridge bridge1")) == 12
    assert all(
        int(src) >= 4 and int(dst) >= 4 for src, dst in ends("all pairs under host bridge bridge1")
    )
    assert ends("one way across sockets") == {("0", "4"), ("1", "5"), ("2", "6"), ("3", "7")}
    assert len(ends("both ways across sockets")) == 8


def test_a_socket_with_one_bridge_is_not_listed_twice() -> None:
    assert "all pairs under socket CPU0" not in sets()


def test_fan_in_and_fan_out_have_one_end_in_common() -> None:
    assert ends("fan-in to GPU2") == {(str(n), "2") for n in range(8) if n != 2}
    assert ends("fan-out from GPU2") == {("2", str(n)) for n in range(8) if n != 2}


def test_whole_machine_sets() -> None:
    assert len(ends("all to all")) == 56
    assert ends("disjoint pairs") == {("0", "1"), ("2", "3"), ("4", "5"), ("6", "7")}
    assert ends("ring shift by 1") == {(str(n), str((n + 1) % 8)) for n in range(8)}
    assert ends("host to all GPUs") == {("host", str(n)) for n in range(8)}
    assert ends("GPU0 -> GPU1 with host to both") == {("0", "1"), ("host", "0"), ("host", "1")}


def test_sets_are_distinct_and_have_several_members() -> None:
    found = list(sets().values())
    assert len(found) == len(set(found))
    assert all(len(one) > 1 for one in found)


def test_host_sets_need_no_peer_access() -> None:
    named = {one.name: one.through_host for one in contention_sets(eight_gpus(), LABELS)}
    assert named["host to all GPUs"]
    assert named["all to host under switch w01"]
    assert not named["GPU0 -> GPU1 with host to both"]


@given(st.integers(1, 12))
def test_disjoint_pairs_share_no_gpu(count: int) -> None:
    pairs = disjoint_pairs([f"GPU{n}" for n in range(count)])
    used = [label for pair in pairs for label in pair]
    assert len(used) == len(set(used)) == count // 2 * 2


def test_sizes_go_up_by_the_factor() -> None:
    assert size_range(16, 1024**3, 4)[:3] == (16, 64, 256)
    assert size_range(16, 1024**3, 4)[-1] == 1024**3
    assert len(size_range(16, 1024**3, 4)) == 14
    assert size_range(5, 30, 2) == (4, 8, 20)


@given(st.integers(4, 10**6), st.integers(4, 10**9), st.integers(2, 10))
def test_sizes_are_whole_words_in_order(begin: int, end: int, factor: int) -> None:
    sizes = size_range(begin, end, factor)
    assert all(size % 4 == 0 for size in sizes)
    assert list(sizes) == sorted(set(sizes))


def test_pairs_are_ordered_and_both_ways_unless_an_arrow_says_one() -> None:
    assert to_pairs("0-1", LABELS) == (("GPU0", "GPU1"), ("GPU1", "GPU0"))
    assert to_pairs("3>2", LABELS) == (("GPU3", "GPU2"),)
    assert len(to_pairs(None, LABELS)) == 56


@pytest.mark.parametrize("text", ["0", "0-0", "0-9", "x-1", "", "0-1-2", "0-1,"])
def test_what_is_no_pair_is_refused_with_the_word(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        to_pairs(text, LABELS)
    assert "--pairs" in str(caught.value)


@given(st.text(max_size=20))
def test_any_text_gives_pairs_or_a_usage_error(text: str) -> None:
    try:
        assert all(src != dst for src, dst in to_pairs(text, LABELS))
    except UsageError:
        return


def test_a_factor_alone_spans_all_sizes() -> None:
    assert asked_sizes(Asked()) == ()
    assert asked_sizes(Asked(factor=1024)) == (4, 4096, 4 * 1024**2)


def test_methods_are_named_or_refused() -> None:
    assert to_methods(Asked(methods="sm_read, pinned")) == (Method.SM_READ, Method.PINNED)
    with pytest.raises(UsageError, match="nvlink"):
        to_methods(Asked(methods="nvlink"))


@pytest.mark.parametrize("sizes", [("1G", "4", 4), ("2", "1K", 4), ("4", "32G", 4), ("4", "1K", 1)])
def test_sizes_out_of_range_are_refused(sizes: tuple[str, str, int]) -> None:
    begin, end, factor = sizes
    with pytest.raises(UsageError, match="Sizes from"):
        to_scope(Asked(begin=begin, end=end, factor=factor), eight_gpus(), LABELS)


def test_pairs_both_of_whose_orders_were_asked_for_are_measured_both_ways_once() -> None:
    assert both_ways((("a", "b"), ("b", "a"), ("a", "c"))) == (("a", "b"),)


SCOPE = Scope(
    pairs=(("GPU0", "GPU1"), ("GPU1", "GPU0")),
    methods=tuple(Method),
    sizes=(4, 4096),
    nodes=(0, 1),
)


def test_checks_of_every_pair_stand_before_every_speed() -> None:
    kinds = [cell.kind for cell in peer_cells(SCOPE, ())]
    checks = len(PEER_METHODS) * len(SCOPE.pairs)
    assert kinds[:checks] == [CellKind.VERIFY] * checks
    assert CellKind.VERIFY not in kinds[checks:]


def test_every_size_that_is_timed_is_checked() -> None:
    cells = peer_cells(SCOPE, ())
    checked = {(one.src, one.dst, one.method): one.sizes for one in cells if one.sizes}
    for cell in cells:
        if cell.kind in (CellKind.CURVE, CellKind.RATE):
            assert cell.size_bytes in checked[cell.src, cell.dst, cell.method]


def test_buffers_of_ours_are_measured_on_every_node_and_the_drivers_once() -> None:
    cells = [one for one in staged_cells(SCOPE, ()) if one.kind is CellKind.RATE]
    nodes = {method: {one.node for one in cells if one.method is method} for method in Method}
    assert nodes[Method.PINNED] == nodes[Method.PAGEABLE] == nodes[Method.H2D] == {0, 1}
    assert nodes[Method.DRIVER_PUSH] == {None}


def test_quick_has_no_sets_no_pieces_and_no_proofs() -> None:
    quick = Scope(pairs=SCOPE.pairs, methods=tuple(Method), sizes=(4096,), quick=True)
    kinds = {cell.kind for cell in (*peer_cells(quick, ()), *staged_cells(quick, ()))}
    assert not kinds & {CellKind.SET, CellKind.PIECES, CellKind.WORK, CellKind.PROOF}


def test_methods_that_were_not_asked_for_are_in_no_cell() -> None:
    scope = Scope(pairs=SCOPE.pairs, methods=(Method.CE_PUSH,), sizes=(4096,))
    assert {cell.method for cell in peer_cells(scope, ()) if cell.method} == {Method.CE_PUSH}
    assert staged_cells(scope, ()) == ()


def test_same_bytes_in_1_to_4096_pieces_and_a_kv_cache_of_64_blocks_and_32_layers() -> None:
    cells = [one for one in peer_cells(SCOPE, ()) if one.kind is CellKind.PIECES]
    plain = {one.pieces for one in cells if not one.name}
    kv = {(one.pieces, one.size_bytes) for one in cells if one.name == "kv"}
    assert plain == {1, 16, 256, 4096}
    assert kv == {(1, KV_BYTES), (2048, KV_BYTES)}
    assert KV_PIECE_BYTES == 65536


def test_a_direct_fault_condemns_the_pair_and_a_staged_one_its_method() -> None:
    direct = Cell(kind=CellKind.CURVE, src="a", dst="b", method=Method.SM_READ, size_bytes=4)
    assert condemnation("a", "b", Method.CE_PUSH) in direct.condemned_by
    staged = Cell(kind=CellKind.CURVE, src="a", dst="b", method=Method.PINNED, size_bytes=4)
    assert staged.condemned_by == {"a>b pinned"}
    both = Cell(kind=CellKind.BOTH_WAYS, src="a", dst="b", method=Method.PINNED, size_bytes=4)
    assert both.condemned_by == {"a>b pinned", "b>a pinned"}


def test_chunks_of_staging_are_a_sixteenth_within_limits() -> None:
    assert chunk_bytes(4096) == 512 * 1024
    assert chunk_bytes(64 * MIB) == 4 * MIB
    assert chunk_bytes(1024 * MIB) == 8 * MIB


def test_jobs_are_one_an_arm_with_the_processors_of_each_node() -> None:
    machine = eight_gpus()
    asked = Asked(pairs="0-1")
    jobs = to_jobs(machine, machine.gpus, to_scope(asked, machine, LABELS), asked)
    assert [job.arm for job in jobs] == [Arm.P2P, Arm.STAGED]
    assert [gpu.uuid for gpu in jobs[0].gpus] == ["GPU-u0", "GPU-u1"]
    assert jobs[0].node_cpus == {0: (0, 1, 2, 3), 1: (4, 5, 6, 7)}
    assert not any(cell.kind is CellKind.SET for job in jobs for cell in job.cells)


def test_nodes_without_processors_are_left_out() -> None:
    bare = Machine(sources=(), numa_nodes=(NumaNode(index=1),))
    assert numa_nodes(bare, frozenset({0})) == (None,)
    assert numa_nodes(eight_gpus(), frozenset(range(8))) == (0, 1)
    # A process that is held on one node cannot place pages on the other by touching them.
    assert numa_nodes(eight_gpus(), frozenset({4, 5})) == (1,)


def test_hosts_without_a_pair_have_nothing_to_measure() -> None:
    with pytest.raises(NothingToMeasure) as caught:
        measurable(Machine(sources=("x",), notes=("No driver.",)))
    assert caught.value.exit_code == 3
    assert "No driver." in str(caught.value)
    one = Machine(sources=("x",), gpus=eight_gpus().gpus[:1])
    with pytest.raises(NothingToMeasure, match="1 NVIDIA GPU"):
        measurable(one)


def test_amd_gpus_are_mapped_and_not_measured() -> None:
    amd = tuple(Gpu(key=f"a{n}", label=f"GPU{n}", uuid=f"{n}", vendor="AMD") for n in range(2))
    with pytest.raises(NothingToMeasure, match="2 of other vendors"):
        measurable(Machine(sources=("x",), gpus=amd))


def test_mig_is_named() -> None:
    sliced = tuple(
        Gpu(key=f"m{n}", label=f"GPU{n}", uuid=f"{n}", vendor="NVIDIA", mig=True) for n in range(2)
    )
    with pytest.raises(NothingToMeasure, match="MIG is on"):
        measurable(Machine(sources=("x",), gpus=sliced))


def test_multicast_is_off_in_every_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_NVLS_ENABLE", raising=False)
    monkeypatch.setenv("SECRET_TOKEN", "x")
    environment = job_environment()
    assert environment["NCCL_NVLS_ENABLE"] == "0"
    assert environment["TORCH_SYMM_MEM_DISABLE_MULTICAST"] == "1"
    assert environment["NVSHMEM_DISABLE_NVLS"] == "1"
    assert environment["VLLM_ALLREDUCE_USE_SYMM_MEM"] == "0"
    assert "SECRET_TOKEN" not in recorded_environment(environment)


class Busy:
    def others(self, uuid: str) -> tuple[int, ...]:
        return (77,) if uuid == "GPU-u1" else ()


def test_busy_gpus_are_refused_with_the_processes() -> None:
    with pytest.raises(UsageError, match=r"GPU1 \(processes 77\)"):
        refuse_busy(eight_gpus().gpus, Busy())  # type: ignore[arg-type]
    refuse_busy(eight_gpus().gpus[2:], Busy())  # type: ignore[arg-type]


def test_progress_scales_what_is_left_by_the_pace_so_far() -> None:
    cells = peer_cells(SCOPE, ())[:4]
    progress = Progress(cells, 0)
    whole_s = sum(map(expected_s, cells))
    assert progress.expected_s == pytest.approx(whole_s)
    for cell in cells[:3]:
        progress.begin(cell)
    done_s = sum(map(expected_s, cells[:2]))
    assert progress.left_s(done_s * 2) == pytest.approx(2 * (whole_s - done_s))
    assert (progress.done, progress.total) == (3, 4)


def test_sets_with_host_traffic_need_the_host_methods_too() -> None:
    found = contention_sets(eight_gpus(), LABELS)
    scope = Scope(pairs=SCOPE.pairs, methods=(Method.CE_PUSH,), sizes=(4096,))
    cells = [cell for cell in peer_cells(scope, found) if cell.kind is CellKind.SET]
    assert cells
    assert {one.method for cell in cells for one in cell.members} == {Method.CE_PUSH}


def test_a_quick_matrix_leaves_out_what_no_plan_waits_for() -> None:
    quick = to_methods(Asked(quick=True))
    assert set(Method) - set(quick) == {Method.PAGEABLE, Method.DRIVER_PULL}
    assert to_methods(Asked()) == tuple(Method)
    assert to_methods(Asked(quick=True, methods="pageable")) == (Method.PAGEABLE,)
