"""Links of this host's GPUs; on a pair of H200 against values recorded on such a machine."""

import json
import subprocess
import sys
from typing import Any

import pytest

from linkbound.links.live.request import job_environment
from linkbound.topology.probe import probe_machine

pytestmark = pytest.mark.gpu(2)
# nvbandwidth 0.8 on a pair of H200 (tests/machines/h200-pair), GB/s one way.
RECORDED = {
    "ce_push": 396.4,
    "ce_pull": 394.0,
    "sm_write": 370.0,
    "sm_read": 376.0,
    "h2d": 55.5,
    "d2h": 55.3,
}
RECORDED_BOTH_WAYS = 783.5
RECORDED_CHASE_S = 828e-9
SHARE = 0.99


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """One default sweep of the first pair, as a user runs it."""
    path = tmp_path_factory.mktemp("links") / "live.linkbound"
    argv = ("links", "--pairs", "0-1", "--busy-ok", "--json", "-C", str(path))
    done = subprocess.run(
        [sys.executable, "-m", "linkbound.cli", *argv],
        capture_output=True,
        env=job_environment(),
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    found: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    return found


def timed(rows: list[dict[str, Any]], **wanted: object) -> list[dict[str, Any]]:
    return [
        row
        for row in rows
        if row["samples_s"] and all(row[key] == value for key, value in wanted.items())
    ]


def need_h200() -> None:
    models = {gpu.model for gpu in probe_machine().gpus}
    if models != {"NVIDIA H200"}:
        pytest.skip(f"the recorded values are of NVIDIA H200, this host has {models}")


def test_no_word_arrives_wrong(rows: list[dict[str, Any]]) -> None:
    checked = [row for row in rows if row["wrong"] is not None]
    assert len(checked) > 50
    assert [row for row in checked if row["wrong"]] == []


@pytest.mark.parametrize("method", list(RECORDED))
def test_sustained_rates_reach_those_recorded(rows: list[dict[str, Any]], method: str) -> None:
    need_h200()
    found = timed(rows, method=method, direction="one_way", concurrency="alone", pieces=1)
    sustained = [row["bytes_per_s"] / 1e9 for row in found if row["calls"] > 1]
    assert len(sustained) == 2
    assert min(sustained) >= SHARE * RECORDED[method]


def test_both_ways_reach_the_recorded_total(rows: list[dict[str, Any]]) -> None:
    need_h200()
    found = timed(rows, method="ce_push", direction="both_ways")
    assert max(row["bytes_per_s"] / 1e9 for row in found) >= SHARE * RECORDED_BOTH_WAYS


def test_a_remote_load_takes_what_was_recorded(rows: list[dict[str, Any]]) -> None:
    need_h200()
    for row in timed(rows, method="pointer chase, 128 B stride"):
        assert row["time_s"]["median"] == pytest.approx(RECORDED_CHASE_S, rel=0.03)


def test_our_staging_keeps_nine_tenths_of_the_slower_leg(rows: list[dict[str, Any]]) -> None:
    legs = [
        row["bytes_per_s"]
        for method in ("h2d", "d2h")
        for row in timed(rows, method=method, direction="one_way", concurrency="alone")
        if row["calls"] > 1
    ]
    staged = [row for row in timed(rows, method="pinned", direction="one_way") if row["calls"] == 1]
    largest = [row for row in staged if row["size_bytes"] == 256 * 1024**2]
    assert largest
    assert min(row["bytes_per_s"] for row in largest) >= 0.9 * min(legs)


def test_counters_show_the_path_of_each_arm(rows: list[dict[str, Any]]) -> None:
    found = [row for row in rows if any("nvlink_tx" in name for name in row["counters"])]
    if not found:
        pytest.skip("NVLink's byte counters do not answer here")
    for row in found:
        moved, grown = int(row["facts"]["moved_bytes"]), row["counters"]
        nvlink = grown[f"{row['src']} nvlink_tx_bytes"]
        if row["arm"] == "p2p":
            assert nvlink == pytest.approx(moved, rel=0.01)
        else:
            assert nvlink < 0.01 * moved
            assert grown[f"{row['src']} pcie_tx_bytes"] > 0.9 * moved


def test_busy_work_lasts_as_long_as_the_copies_beside_it(rows: list[dict[str, Any]]) -> None:
    beside = [row for row in rows if "work" in row["concurrency"]]
    assert {row["reason"] and row["reason"]["code"] for row in beside} == {None}
    assert all(row["retained_share"] > 0.1 for row in beside)
