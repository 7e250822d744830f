"""Small traces in the form of torch's profiler, written for the tests."""

import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkbound.errors import InputError
from linkbound.profile.decompose import decompose
from linkbound.profile.kineto import classify, parse_kineto
from linkbound.profile.types import KernelClass

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def _kernel(name: str, ts: float, dur: float, link: int, cat: str = "kernel", **args: Any) -> Any:
    stated = {"device": 0, "stream": 7, "correlation": link, **args}
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": stated}


def _host(cat: str, name: str, ts: float, dur: float, link: int | None = None) -> Any:
    args = {} if link is None else {"correlation": link}
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args}


def _trace(*events: Any, rank: int | None = None) -> bytes:
    document: dict[str, Any] = {"traceEvents": [{"ph": "M", "name": "process_name"}, *events]}
    if rank is not None:
        document["distributedInfo"] = {"rank": rank, "backend": "nccl"}
    return json.dumps(document).encode()


def _two_steps(rank: int, late_us: float) -> bytes:
    """Each step: one product, an all-reduce that ends at 100, a gap of 10."""
    events = []
    for step in range(2):
        base, link = 1000.0 + 150 * step, 10 * step
        events += [
            _host("user_annotation", f"linkbound step {step}", base - 500, 60),
            _host("cuda_runtime", "cudaGraphLaunch", base - 490, 5, link),
            _kernel("nvjet_hsh_256x128", base, 40 + late_us, link),
            _kernel(NCCL, base + 40 + late_us, 60 - late_us, link),
            _kernel("_add_rms_norm", base + 110, 20, link),
        ]
    return _trace(*events, rank=rank)


def test_two_ranks_of_a_graph() -> None:
    timelines = [
        timeline
        for rank, late_us in ((0, 0.0), (1, 25.0))
        for timeline in parse_kineto(_two_steps(rank, late_us), f"rank{rank}.json")
    ]
    assert [one.rank for one in timelines] == [0, 1]
    assert [step.name for step in timelines[0].steps] == ["linkbound step 0", "linkbound step 1"]
    rows = decompose(timelines)
    assert len(rows) == 4
    first, late = rows[0].parts, rows[1].parts
    # The first step reaches to the next one's first kernel: 150 us, of which 30 are empty.
    assert first.step_s == pytest.approx(150e-6)
    assert first.compute_s == pytest.approx(60e-6)
    assert first.communication_s == pytest.approx(35e-6)
    assert first.waiting_s == pytest.approx(25e-6)
    assert first.gap_s == pytest.approx(30e-6)
    assert late.compute_s == pytest.approx(85e-6)
    assert late.communication_s == pytest.approx(35e-6)
    assert late.waiting_s == pytest.approx(0, abs=1e-12)
    # The last one ends with its last kernel.
    assert rows[2].parts.step_s == pytest.approx(130e-6)


@pytest.mark.parametrize(
    ("name", "kernel", "operation"),
    [
        (NCCL, KernelClass.NCCL, "all_reduce"),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t(x)", KernelClass.NCCL, "all_gather"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage)", KernelClass.NCCL, "send_recv"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", KernelClass.NCCL, "reduce_scatter"),
        ("void vllm::cross_device_reduce_1stage<__half, 2>", KernelClass.CUSTOM, "all_reduce"),
        ("void one_shot_all_reduce_kernel<c10::BFloat16>", KernelClass.CUSTOM, "all_reduce"),
        ("two_shot_all_reduce_kernel_inplace", KernelClass.CUSTOM, "all_reduce"),
        ("all_reduce_2shot_pull_kernel", KernelClass.CUSTOM, "all_reduce"),
        ("Memcpy PtoP (Device -> Device)", KernelClass.PEER_COPY, "send_recv"),
        ("Memcpy DtoH (Device -> Pinned)", KernelClass.HOST_COPY, None),
        ("Memcpy DtoD (Device -> Device)", KernelClass.COMPUTE, None),
        ("Memset (Device)", KernelClass.COMPUTE, None),
        ("void at::native::reduce_kernel<512, 1>", KernelClass.COMPUTE, None),
        ("flash_fwd_splitkv_kernel", KernelClass.COMPUTE, None),
    ],
)
def test_kernel_classes(name: str, kernel: KernelClass, operation: str | None) -> None:
    assert classify(name) == (kernel, operation)


def test_metadata_of_torch_names_group_size_and_operation() -> None:
    data = _trace(
        _kernel(
            "ncclDevKernel_SendRecv(x)",
            5.0,
            2.0,
            1,
            **{
                "Collective name": "all_to_allv",
                "Process Group Ranks": "[0, 1, 4, 5]",
                "In msg nelems": 512,
                "dtype": "BFloat16",
            },
        )
    )
    (timeline,) = parse_kineto(data, "t.json")
    (interval,) = timeline.intervals
    assert interval.operation == "all_to_all"
    assert interval.ranks == (0, 1, 4, 5)
    assert interval.size_bytes == 1024
    assert interval.start_s == pytest.approx(5e-6)
    assert [step.name for step in timeline.steps] == ["whole trace"]


def test_a_process_with_two_devices_gives_two_timelines() -> None:
    data = _trace(
        _kernel("a", 1.0, 1.0, 1),
        _kernel("Memcpy PtoP (Device -> Device)", 2.0, 3.0, 2, "gpu_memcpy", device=1),
    )
    assert [one.rank for one in parse_kineto(data, "t.json", rank=7)] == [0, 1]


def test_gzip_and_times_as_text() -> None:
    data = _trace(_kernel("a", "10", "2.5", 1))  # type: ignore[arg-type]
    (timeline,) = parse_kineto(gzip.compress(data), "t.json.gz", rank=3)
    assert timeline.rank == 3
    assert timeline.intervals[0].end_s == pytest.approx(12.5e-6)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is not JSON"),
        (b"\x1f\x8b\x08broken", "cannot be unpacked"),
        (gzip.compress(b"{}", mtime=0)[:-6], "cannot be unpacked"),
        (b"[]", "no list traceEvents"),
        (b'{"traceEvents": 3}', "no list traceEvents"),
        (b'{"traceEvents": []}', "no kernel of a GPU"),
        (b"[" * 100_000, "is not JSON"),
        (_trace(_kernel("a", 1.0, -2.0, 1)), "dur -2"),
        (_trace({**_kernel("a", 1.0, 2.0, 1), "ts": None}), "ts None"),
        (_trace(_kernel("a", 10**400, 2.0, 1)), "ts 1000"),
        ("é".encode("latin-1"), "is not JSON"),
    ],
)
def test_what_is_no_trace_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_kineto(data, "x.json")
    assert said in str(caught.value)
    assert "x.json" in str(caught.value)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
_EVENT = st.fixed_dictionaries(
    {},
    optional={
        "ph": st.sampled_from(["X", "M"]),
        "cat": st.sampled_from(["kernel", "gpu_memcpy", "cuda_runtime", "user_annotation"]),
        "name": st.sampled_from([NCCL, "linkbound step 1", "Memcpy HtoD"]) | _VALUES,
        "ts": st.integers(0, 1000) | _VALUES,
        "dur": st.integers(0, 100) | _VALUES,
        "args": st.fixed_dictionaries({"correlation": st.integers(0, 3)}) | _VALUES,
    },
)


@given(st.lists(_EVENT, max_size=8), _VALUES)
def test_any_events_are_read_or_refused(events: list[Any], info: Any) -> None:
    data = json.dumps({"traceEvents": events, "distributedInfo": info}).encode()
    try:
        timelines = parse_kineto(data, "x.json")
    except InputError:
        return
    for row in decompose(timelines):
        assert row.parts.step_s >= 0


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(InputError):
        parse_kineto(data, "x.json")
