"""CUDA's answers about peers: asked in a child, merged with NVML's, never mirrored."""

import json
import sys
from typing import Any

import pytest
from msgspec import structs

from linkbound.report.topology_text import render_topology_text
from linkbound.topology import cuda_child
from linkbound.topology.cuda_peers import probe_cuda
from linkbound.topology.merge import merge
from linkbound.topology.types import (
    Capability,
    Gpu,
    Machine,
    NvLink,
    Pair,
    PairPath,
    PathKind,
    PeerStatus,
)

BUS_IDS = {0: "0000:41:00.0", 1: "0000:61:00.0"}


def child(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", text)


def answering(**changes: Any) -> tuple[str, ...]:
    """A child whose 0 -> 1 is granted and whose 1 -> 0 is not."""
    pairs = [
        {"src": 0, "dst": 1, "access": 1, "native_atomics": 1, "performance_rank": 0},
        {"src": 1, "dst": 0, "access": 0, "native_atomics": 0, "performance_rank": 1, **changes},
    ]
    return child(f"print({json.dumps(json.dumps({'bus_ids': BUS_IDS, 'pairs': pairs}))})")


def nvml() -> Machine:
    gpus = tuple(
        Gpu(key=f"GPU-{at}", label=f"GPU{at}", uuid=f"GPU-{at}", bus_id=bus)
        for at, bus in BUS_IDS.items()
    )
    status = {Capability.READ: PeerStatus.OK}
    return Machine(
        sources=("NVML",),
        gpus=gpus,
        pairs=tuple(
            PairPath(pair=Pair(src=a.key, dst=b.key), kind=PathKind.NODE, status=status)
            for a in gpus
            for b in gpus
            if a is not b
        ),
    )


def test_each_direction_keeps_its_own_answer() -> None:
    machine = merge((nvml(), probe_cuda(answering())))
    there, back = machine.path("GPU0", "GPU1"), machine.path("GPU1", "GPU0")
    assert there.status[Capability.ACCESS] is PeerStatus.OK
    assert back.status[Capability.ACCESS] is PeerStatus.DENIED
    assert there.status[Capability.NATIVE_ATOMICS] is PeerStatus.OK
    assert back.status[Capability.NATIVE_ATOMICS] is PeerStatus.DENIED
    assert (there.performance_rank, back.performance_rank) == (0, 1)
    assert there.kind is PathKind.NODE
    assert [one.what for one in machine.contradictions] == ["peer access GPU1 -> GPU0"]


def test_the_text_shows_both_directions_and_the_ranks() -> None:
    text = render_topology_text(merge((nvml(), probe_cuda(answering()))))
    peers = text.split("peer access, says the CUDA runtime\n")[1].split("\n\n")[0]
    assert [line.split() for line in peers.splitlines()] == [
        ["GPU0", "GPU1"],
        ["GPU0", "X", "OK"],
        ["GPU1", "denied", "X"],
    ]
    ranks = text.split("lower is faster\n")[1].split("\n\n")[0]
    assert [line.split()[1:] for line in ranks.splitlines()[1:]] == [["X", "0"], ["1", "X"]]


def test_what_cuda_gave_an_error_for_is_absent() -> None:
    machine = probe_cuda(answering(access=None, native_atomics=None, performance_rank=None))
    back = machine.path("GPU1", "GPU0")
    assert back.status == {}
    assert back.performance_rank is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import sys; sys.exit('cuInit gave code 803')", "cuInit gave code 803"),
        ("import os; os.abort()", "SIGABRT"),
        ("print('nonsense')", "its answer is no answer"),
        ("print('{\"bus_ids\": {}}')", "its answer is no answer"),
    ],
)
def test_a_child_that_fails_leaves_a_note(text: str, reason: str) -> None:
    machine = probe_cuda(child(text))
    assert machine.pairs == ()
    assert reason in machine.notes[0]
    assert "are unknown" in machine.notes[0]
    whole = merge((nvml(), machine))
    assert whole.path("GPU0", "GPU1").performance_rank is None
    assert whole.notes == machine.notes


class FakeCuda:
    """cuda.h through ctypes: answers go into what `byref` points to."""

    def cuInit(self, _flags: int) -> int:  # noqa: N802
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = 2
        return 0

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:  # noqa: N802
        device._obj.value = ordinal + 100
        return 0

    def cuDeviceGetPCIBusId(self, text: Any, _length: int, device: int) -> int:  # noqa: N802
        text.value = BUS_IDS[device - 100].encode()
        return 0

    def cuDeviceGetP2PAttribute(self, value: Any, attribute: int, src: int, dst: int) -> int:  # noqa: N802
        assert {src, dst} == {100, 101}
        if attribute == 3 and src == 101:
            return 1
        value._obj.value = {1: src - 100, 2: 1, 3: 1}[attribute]
        return 0


def test_the_child_asks_every_ordered_pair(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cuda_child.ctypes, "CDLL", lambda _name: FakeCuda())
    assert cuda_child.main() == 0
    assert json.loads(capsys.readouterr().out) == {
        "bus_ids": {"0": "0000:41:00.0", "1": "0000:61:00.0"},
        "pairs": [
            {"src": 0, "dst": 1, "performance_rank": 0, "access": 1, "native_atomics": 1},
            {"src": 1, "dst": 0, "performance_rank": 1, "access": 1, "native_atomics": None},
        ],
    }


def test_links_that_counted_errors_are_listed() -> None:
    links = (NvLink(index=0, errors={"replay": 0, "crc": 0}), NvLink(index=1, errors={"crc": 12}))
    machine = nvml()
    first = structs.replace(machine.gpus[0], nvlinks=links)
    text = render_topology_text(structs.replace(machine, gpus=(first, machine.gpus[1])))
    assert "GPU0 link 1: crc 12" in text
    assert "link 0:" not in text
