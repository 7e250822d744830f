"""Bytes on the wire: payload by operation, protocol by NCCL's own words or by size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkbound.links.collectives import OPERATIONS, bus_factor
from linkbound.links.log_types import NcclChoice, NcclProtocol
from linkbound.links.parse_nccl_log import parse_nccl_log
from linkbound.links.types import Operation
from linkbound.links.wire import nccl_factor, payload_bytes

KIB, MIB = 1024, 1024**2
HEAD = "h:1:1 [0] NCCL INFO "


@pytest.mark.parametrize(
    ("name", "ranks"), [(name, ranks) for name in OPERATIONS for ranks in (2, 3, 8)]
)
def test_payload_is_what_busbw_counts(name, ranks):
    # busbw is what one rank sends over the time; of a broadcast, a reduce and a send, what passes
    # one link of the chain or pair.
    operation = OPERATIONS[name]
    links = {
        Operation.BROADCAST: ranks - 1,
        Operation.REDUCE: ranks - 1,
        Operation.SEND_RECV: 1,
    }.get(operation, ranks)
    expected = bus_factor(name, ranks) * 1000 * links
    assert payload_bytes(operation, ranks, 1000) == pytest.approx(expected)


def test_a_copy_is_no_collective():
    with pytest.raises(ValueError, match="no collective"):
        payload_bytes(Operation.COPY, 2, 1)


@pytest.mark.parametrize(
    ("operation", "size", "direct", "low", "high"),
    [
        (Operation.ALL_REDUCE, 8 * KIB, True, 2.0, 2.0),
        (Operation.ALL_REDUCE, MIB, True, 1.0, 2.0),
        (Operation.ALL_REDUCE, 8 * MIB, True, 1.0, 128 / 120),
        (Operation.ALL_REDUCE, 8 * MIB, False, 1.0, 1.0),
        (Operation.ALL_REDUCE, 64 * MIB, True, 1.0, 1.0),
        (Operation.SEND_RECV, 16 * KIB, True, 2.0, 2.0),
        (Operation.SEND_RECV, 64 * KIB, True, 1.0, 2.0),
        (Operation.SEND_RECV, MIB, True, 1.0, 1.0),
    ],
)
def test_protocol_by_size(operation, size, direct, low, high):
    found = nccl_factor(operation, size, direct=direct)
    assert (found.low, found.high) == (low, high)
    assert found.why.startswith("assumed by size")


@given(st.integers(1, 1 << 32), st.integers(1, 1 << 32), st.booleans())
def test_a_larger_message_never_has_a_larger_factor(one, other, direct):
    small, large = sorted((one, other))
    for operation in (Operation.ALL_REDUCE, Operation.SEND_RECV):
        below = nccl_factor(operation, small, direct=direct)
        above = nccl_factor(operation, large, direct=direct)
        assert (above.low, above.high) <= (below.low, below.high)


def choice(size, protocol, operation=Operation.ALL_REDUCE):
    return NcclChoice(
        operation=operation, size_bytes=size, algorithm="RING", protocol=protocol, calls=1
    )


def test_the_log_decides_where_it_speaks_of_the_size():
    choices = [choice(8192, NcclProtocol.LL), choice(MIB, NcclProtocol.LL)]
    choices.append(choice(8 * MIB, NcclProtocol.LL128))

    def factor(size, operation=Operation.ALL_REDUCE):
        found = nccl_factor(operation, size, direct=True, choices=choices)
        return found.low, found.high

    assert factor(8 * MIB) == (128 / 120, 128 / 120)
    # Between two sizes with one protocol it is this one; between two protocols nobody knows.
    assert factor(512 * KIB) == (2.0, 2.0)
    assert factor(2 * MIB) == (1.0, 2.0)
    # Of a gather the log gives another size than the crossing has.
    assert factor(MIB, Operation.ALL_GATHER) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("line", "operation", "size", "algorithm", "protocol"),
    [
        # 2.24 and later, 2.23, and up to 2.22 (formats: src/enqueue.cc of these tags).
        (
            "AllReduce: 8192 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..7}",
            Operation.ALL_REDUCE,
            8192,
            "RING",
            NcclProtocol.LL,
        ),
        (
            "AllGather: 67108864 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15} comm 0x1",
            Operation.ALL_GATHER,
            67108864,
            "NVLS",
            NcclProtocol.SIMPLE,
        ),
        (
            "ReduceScatter: 4096 Bytes -> Algo 1 proto 1 time 9.5",
            Operation.REDUCE_SCATTER,
            4096,
            "RING",
            NcclProtocol.LL128,
        ),
        ("262144 Bytes -> Algo 0 proto 2 time 54.7", None, 262144, "TREE", NcclProtocol.SIMPLE),
        ("262144 Bytes -> Algo 99 proto 7 time 54.7", None, 262144, "99", None),
    ],
)
def test_every_wording_of_the_choice(line, operation, size, algorithm, protocol):
    log = parse_nccl_log(f"{HEAD}{line}\n{HEAD}{line}\n", "x")
    assert log.choices == (
        NcclChoice(
            operation=operation,
            size_bytes=size,
            algorithm=algorithm,
            protocol=protocol,
            calls=2,
        ),
    )


def test_words_that_are_no_choice():
    text = f"{HEAD}Dance: 1 Bytes -> Algo RING proto LL\n{HEAD}1 Bytes -> Algo RING\n"
    assert parse_nccl_log(text, "x").choices == ()
