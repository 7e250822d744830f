"""Any file about links: which reader takes it, encodings, and what is refused."""

import codecs
import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import linkbound
from linkbound.errors import InputError
from linkbound.links import Arm, LogPath, Operation, path_of, read_links
from linkbound.links.sniff import LARGEST_FILE_BYTES

CASES = Path(__file__).parents[1] / "cases"
RECORDED = Path(linkbound.__file__).parent / "recorded"
H200 = RECORDED / "h200-pair"
PAIR = ("GPU0", "GPU1")


def evidence(path, **known):
    return read_links(path.read_bytes(), path.name, **known)


@pytest.mark.parametrize(
    ("pattern", "kind", "number"),
    [
        ("*/*_perf.txt", "nccl-tests", 5),
        ("*/nccl-tests.txt", "nccl-tests", 1),
        ("*/nvbandwidth.txt", "nvbandwidth", 3),
        ("*/p2p-test.txt", "p2pBandwidthLatencyTest", 5),
        ("*/*nccl*.log", "NCCL log", 17),
    ],
)
def test_reader_of_every_case(pattern, kind, number):
    paths = sorted(CASES.glob(pattern))
    assert len(paths) >= number
    assert {evidence(path).kind for path in paths} == {kind}


@pytest.mark.parametrize(
    ("name", "kind", "curves"),
    [
        ("nvbandwidth.json", "nvbandwidth", 0),
        ("peer-copies.txt", "peer copies", 13),
        ("symm-allreduce.txt", "symmetric all-reduce", 3),
        ("nccl-tests/all_reduce.p2p-on.txt", "nccl-tests", 1),
        ("nccl-p2p-on.log", "NCCL log", 1),
    ],
)
def test_reader_of_the_recorded_machine(name, kind, curves):
    found = evidence(H200 / name, group=PAIR)
    assert (found.kind, len(found.curves)) == (kind, curves)


def test_group_that_nobody_knows_is_a_note():
    found = evidence(H200 / "symm-allreduce.txt")
    assert found.curves == ()
    assert found.notes[-1].endswith("the GPUs are not in the file: name them")


@pytest.mark.parametrize(
    ("name", "arm"), [("all_reduce.p2p-on.txt", Arm.NCCL), ("all_reduce.p2p-off.txt", Arm.STAGED)]
)
def test_arm_from_the_file_name_is_said(name, arm):
    found = evidence(H200 / "nccl-tests" / name)
    assert found.curves[0].key.arm is arm
    assert found.notes[0] == f"arm {arm} taken from the file name, not proven by a log"


def test_arm_of_the_caller_wins():
    found = evidence(H200 / "nccl-tests" / "all_reduce.p2p-on.txt", arm=Arm.NET)
    assert found.curves[0].key.arm is Arm.NET
    assert found.notes == ()


def test_arm_from_the_log_in_the_same_file():
    table = (H200 / "nccl-tests" / "all_reduce.p2p-on.txt").read_text()
    log = (H200 / "nccl-p2p-off.log").read_text()
    found = read_links((log + table).encode(), "all_reduce.p2p-on.txt")
    assert found.kind == "nccl-tests"
    assert found.curves[0].key.arm is Arm.STAGED
    assert path_of(found.logs[0]).path is LogPath.STAGED


def test_arm_that_nothing_says_is_unknown():
    data = (H200 / "nccl-tests" / "sendrecv.p2p-on.txt").read_bytes()
    found = read_links(data, "table.txt")
    assert found.curves[0].key.arm is None
    assert found.curves[0].key.operation is Operation.SEND_RECV


@pytest.mark.parametrize(
    "encode",
    [
        lambda text: text.encode(),
        lambda text: codecs.BOM_UTF8 + text.encode(),
        lambda text: codecs.BOM_UTF16_LE + text.encode("utf-16-le"),
        lambda text: codecs.BOM_UTF16_BE + text.encode("utf-16-be"),
        lambda text: text.encode() + b"# caf\xe9\n",
        lambda text: text.replace("\n", "\r\n").encode(),
    ],
)
def test_encodings(encode):
    text = (H200 / "nccl-tests" / "all_reduce.p2p-on.txt").read_text()
    found = read_links(encode(text), "all_reduce.p2p-on.txt")
    assert len(found.curves[0].points) == 11


@pytest.mark.parametrize(
    ("data", "seen"),
    [
        (b"", "x: the file is empty."),
        (b" \n\t ", "x: the file is empty."),
        (b"\x7fELF\x00\x00\x01", "x: the file is binary."),
        (bytes(100), "x: the file is binary."),
        (b"hello", "x: this is none of the files about links that are understood."),
        (b'{"a": 1}', "x: this is none of the files about links that are understood."),
        (bytes(LARGEST_FILE_BYTES + 1), "x: it has more than 67,108,864 bytes."),
    ],
)
def test_refused(data, seen):
    with pytest.raises(InputError) as caught:
        read_links(data, "x")
    assert caught.value.seen == seen
    assert "nccl-tests tables, NCCL and RCCL logs" in caught.value.why
    assert caught.value.hint


def test_matrix_without_title_is_refused():
    with pytest.raises(InputError):
        evidence(next(CASES.glob("016*/p2p-acs-off-bidir.txt")))


def test_log_that_says_nothing_is_refused():
    with pytest.raises(InputError):
        evidence(next(CASES.glob("062*/boot.log")))


@given(st.binary(max_size=300))
def test_only_our_error(data):
    with contextlib.suppress(InputError):
        read_links(data, "x")


@given(st.data())
def test_damaged_files_raise_only_our_error(data):
    name = data.draw(st.sampled_from(["nvbandwidth.json", "peer-copies.txt", "symm-allreduce.txt"]))
    content = bytearray((H200 / name).read_bytes()[:4000])
    for _ in range(data.draw(st.integers(0, 5))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(1, 255))
    end = data.draw(st.integers(0, len(content)))
    with contextlib.suppress(InputError):
        read_links(bytes(content[:end]), name, group=PAIR)
