"""What driver and runtime say of peer access, for each ordered pair."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkbound.errors import InputError
from linkbound.topology.parse_p2p_matrix import parse_p2p_matrix, parse_peer_access
from linkbound.topology.types import Capability, PeerStatus

TESTS = Path(__file__).parents[1]
CASES = TESTS / "cases"
H200 = TESTS / "machines" / "h200-pair"


@pytest.mark.parametrize(
    ("letter", "capability"),
    [("r", Capability.READ), ("w", Capability.WRITE), ("n", Capability.NVLINK)],
)
def test_capability_from_the_file_name(letter: str, capability: Capability) -> None:
    name = f"topo-p2p-{letter}.txt"
    machine = parse_p2p_matrix((H200 / name).read_text(), name)
    assert machine.path("GPU0", "GPU1").status == {capability: PeerStatus.OK}
    assert machine.path("GPU1", "GPU0").status == {capability: PeerStatus.OK}
    assert machine.path("GPU0", "GPU1").kind is None
    assert machine.notes == ()


def test_capability_that_nobody_says() -> None:
    text = (CASES / "063-club3090-1229-2x5090-gns" / "topo-p2p.txt").read_text()
    machine = parse_p2p_matrix(text, "topo-p2p.txt")
    assert [dict(path.status) for path in machine.pairs] == [
        {Capability.READ: PeerStatus.GPU_NOT_SUPPORTED}
    ] * 2
    assert machine.notes == (
        "topo-p2p.txt does not say which capability it is about; taken as read.",
    )
    given_one = parse_p2p_matrix(text, "topo-p2p.txt", Capability.ATOMICS)
    assert given_one.notes == ()
    assert given_one.pairs[0].status == {Capability.ATOMICS: PeerStatus.GPU_NOT_SUPPORTED}


@pytest.mark.parametrize(("case", "count"), [("008", 2), ("013", 6), ("062", 2)])
def test_granted(case: str, count: int) -> None:
    (file,) = CASES.glob(f"{case}-*/topo-p2p.txt")
    machine = parse_p2p_matrix(file.read_text(), file.name)
    assert Counter(path.status[Capability.READ] for path in machine.pairs) == {PeerStatus.OK: count}


def test_all_codes() -> None:
    codes = ["OK", "CNS", "GNS", "TNS", "DR", "NS", "U"]
    heading = " ".join(f"GPU{at}" for at in range(8))
    text = f"{heading}\nGPU0 X {' '.join(codes)}\n"
    machine = parse_p2p_matrix(text, "a", Capability.WRITE)
    assert [path.status[Capability.WRITE].value for path in machine.pairs] == codes


def test_runtime_answers() -> None:
    (file,) = CASES.glob("013-*/p2p-test.txt")
    machine = parse_peer_access(file.read_text(), file.name)
    assert [(gpu.label, gpu.bus_id, gpu.model) for gpu in machine.gpus] == [
        ("GPU0", "0000:04:00.0", "NVIDIA GeForce RTX 5070"),
        ("GPU1", "0000:09:00.0", "NVIDIA GeForce RTX 5060 Ti"),
        ("GPU2", "0000:0a:00.0", "NVIDIA GeForce RTX 5060 Ti"),
    ]
    granted = {
        (src, dst): machine.path(src, dst).status[Capability.ACCESS]
        for src in ("GPU0", "GPU1", "GPU2")
        for dst in ("GPU0", "GPU1", "GPU2")
        if src != dst
    }
    assert {pair for pair, status in granted.items() if status is PeerStatus.OK} == {
        ("GPU1", "GPU2"),
        ("GPU2", "GPU1"),
    }
    assert list(granted.values()).count(PeerStatus.DENIED) == 4


def test_runtime_answers_of_two_sockets() -> None:
    (file,) = CASES.glob("001-*/p2p-test.txt")
    machine = parse_peer_access(file.read_text(), file.name)
    status = Counter(path.status[Capability.ACCESS] for path in machine.pairs)
    assert status == {PeerStatus.OK: 4, PeerStatus.DENIED: 8}
    assert machine.gpu("GPU3").bus_id == "0000:83:00.0"


def test_answers_without_devices() -> None:
    machine = parse_peer_access("Device=1 CAN Access Peer Device=0\n", "a")
    assert [gpu.label for gpu in machine.gpus] == ["GPU0", "GPU1"]
    assert machine.path("GPU1", "GPU0").status == {Capability.ACCESS: PeerStatus.OK}
    assert machine.path("GPU0", "GPU1").status == {}


def test_nothing_on_peers() -> None:
    with pytest.raises(InputError, match="no line 'Device=0 CAN Access"):
        parse_peer_access("Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)\n", "a")


def test_two_devices_in_one_place() -> None:
    line = "Device: {}, A, pciBusID: 2, pciDeviceID: 0, pciDomainID:0\n"
    with pytest.raises(InputError, match="same bus id"):
        parse_peer_access(line.format(0) + line.format(1), "a")


@given(st.text())
def test_only_our_error(text: str) -> None:
    for parse in (parse_p2p_matrix, parse_peer_access):
        try:
            parse(text, "a")
        except InputError:
            continue
