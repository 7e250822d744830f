"""torch's all_reduce times below an NCCL log become a curve of the path that the log proves."""

from importlib.resources import files

import pytest

from linkbound.links import Arm, Launch, Operation, read_links


@pytest.mark.parametrize(
    ("name", "arm", "large_s"),
    [("nccl-p2p-on.log", Arm.NCCL, 3287.3e-6), ("nccl-p2p-off.log", Arm.STAGED, 37369.3e-6)],
)
def test_lines_of_the_recorded_pair(name: str, arm: Arm, large_s: float) -> None:
    data = (files("linkbound") / "recorded" / "h200-pair" / name).read_bytes()
    (curve,) = read_links(data, name).curves
    assert curve.key.operation is Operation.ALL_REDUCE
    assert curve.key.implementation == "torch_nccl"
    assert curve.key.group == ("GPU0", "GPU1")
    assert (curve.key.arm, curve.key.launch) == (arm, Launch.EAGER)
    assert [point.size_bytes for point in curve.points] == [4**n for n in (6, 8, 10, 12, 14, 15)]
    assert curve.points[-1].time_s == pytest.approx(large_s)


def test_a_log_that_names_no_gpus_gives_no_curve() -> None:
    text = b"hostA:1:1 [0] NCCL INFO NCCL version 2.28.9\nallreduce 4096 50.8us 0.1 GB/s\n"
    assert read_links(text, "cut.log").curves == ()
