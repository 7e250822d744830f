"""`linkbound links` from end to end on a CUDA that is not there: text, JSON, records, codes."""

import json
from pathlib import Path
from typing import Any

import fake_cuda
import msgspec
import pytest
from msgspec import structs

from linkbound.cli import links as verb
from linkbound.cli import main
from linkbound.errors import MissingExtra
from linkbound.evidence.study import Study
from linkbound.evidence.types import Failed, Measured
from linkbound.links.live import cuda, request, state
from linkbound.links.live.matrices import Footnotes, align, gigabytes_per_s, render_links
from linkbound.links.live.rows import LinkRow
from linkbound.study.reading import (
    read_curves,
    read_fit,
    read_latencies,
    read_machine_record,
    read_rates,
)
from linkbound.topology.types import Gpu, Machine

FOLDER = str(Path(__file__).parent)
QUICK = ["links", "--quick", "--methods", "ce_push,sm_read,pinned,h2d"]


def machine(count: int = 2) -> Machine:
    gpus = tuple(
        Gpu(key=fake_cuda.uuid_of(n), label=f"GPU{n}", uuid=fake_cuda.uuid_of(n), vendor="NVIDIA")
        for n in range(count)
    )
    return Machine(sources=("fake",), gpus=gpus)


@pytest.fixture(autouse=True)
def fake_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This verb, a machine of two GPUs, and children that open the fake."""
    whole = request.to_jobs

    def fake_jobs(*arguments: Any) -> Any:
        names = {"driver": "fake_cuda:open_fake", "state": "fake_cuda:open_fake_state"}
        return tuple(structs.replace(job, **names) for job in whole(*arguments))

    monkeypatch.setitem(main.VERBS, "links", ("linkbound.cli.links", "Measure."))
    monkeypatch.setattr(request, "to_jobs", fake_jobs)
    monkeypatch.setattr(verb, "probed", machine)
    monkeypatch.setattr(cuda, "require_gpu_extra", lambda: None)
    monkeypatch.setattr(state, "open_state", lambda *_name: fake_cuda.FakeState())
    monkeypatch.setenv("PYTHONPATH", FOLDER)
    monkeypatch.setenv("FAKE_CUDA_FAULT", "")
    monkeypatch.chdir(tmp_path)


def test_a_quick_run_prints_matrices_and_fills_the_study(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "x.linkbound"
    assert main.run([*QUICK, "-C", str(path)]) == 0
    out, err = capsys.readouterr()
    assert "GPU(row) -> GPU(column), ce_push, P2P on, 64 MiB, median GB/s  (n=" in out
    assert "GPU0      -  99.26" in out
    assert "flag ping-pong, half a lap" in out
    assert "\x1b" not in out + err
    assert "rows in" in err
    with Study.open(path) as study:
        assert study.verify() == []
        curves = read_curves(study, "this-host")
        rates = read_rates(study, "this-host")
        latencies = read_latencies(study, "this-host")
        assert read_machine_record(study, "this-host").machine == machine()
        for curve in curves:
            assert read_fit(study, curve)
        cells = study.find("links.cell")
    push = next(
        one
        for one in curves
        if one.key.method == "linkbound links ce_push" and one.key.group[0] == "GPU0"
    )
    assert [point.size_bytes for point in push.points] == [4096, 1024**2, 64 * 1024**2]
    assert push.points[0].time_s == pytest.approx(
        fake_cuda.DIRECT_LATENCY_S + 4096 / fake_cuda.DIRECT_BYTES_PER_S, rel=1e-6
    )
    assert all(point.wrong == 0 and (point.n or 0) >= 3 for point in push.points)
    sustained = [rate for rate in rates if rate.method == "linkbound links ce_push"]
    assert {(one.src, one.dst) for one in sustained} == {("GPU0", "GPU1"), ("GPU1", "GPU0")}
    assert {one.method for one in latencies} >= {"linkbound links pointer chase, 128 B stride"}
    timed = [cell for cell in cells if cell.samples is not None and cell.samples.rows]
    assert all(isinstance(cell.outcome, Measured) for cell in timed)
    assert all(cell.environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID" for cell in timed)


def test_json_is_one_document_with_samples_and_record_ids(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "x.linkbound"
    assert main.run(["links", "--quick", "--methods", "sm_write", "--json", "-C", str(path)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["version"]) == ("linkbound.links", 1)
    with Study.open(path) as study:
        for row in document["rows"]:
            assert study.has(row["record_ids"][0])
            assert (row["time_s"] is None) == (row["samples_s"] == [])
    assert document["findings"] == []


@pytest.mark.parametrize("fault", ["wrong@copy_peer on 0: 0>1", "error@copy_peer on 0: 0>1"])
def test_faults_end_with_code_4_after_all_else_was_written(
    fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("FAKE_CUDA_FAULT", fault)
    path = tmp_path / "x.linkbound"
    assert main.run(["links", "--quick", "--methods", "ce_push", "-C", str(path)]) == 4
    out, err = capsys.readouterr()
    code = "p2p-corruption" if fault.startswith("wrong") else "transfer-error"
    assert f"linkbound: Found: {code}." in err
    assert ("corrupt[1]" if fault.startswith("wrong") else "crash[1]") in out
    with Study.open(path) as study:
        (finding,) = study.find("links.finding")
        other = study.find("links.cell", method="ce_push", group=["GPU1", "GPU0"])
    assert isinstance(finding.outcome, Failed)
    assert finding.subject["code"] == code
    assert any(cell.samples and cell.samples.rows for cell in other)


def test_a_host_without_gpus_says_so_and_exits_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(verb, "probed", lambda: Machine(sources=(), notes=("No driver answers.",)))
    assert main.run(["links"]) == 3
    assert "No GPU was found on this host. No driver answers." in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_busy_gpus_are_refused_or_flagged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("FAKE_BUSY_GPU", fake_cuda.uuid_of(1))
    arguments = ["links", "--quick", "--methods", "ce_push"]
    assert main.run(arguments) == 2
    assert "GPU1 (processes 4242)" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert main.run([*arguments, "--busy-ok"]) == 0
    assert "flagged busy" in capsys.readouterr().out


def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> None:
        raise MissingExtra("cuda-bindings is not installed.", hint="pip install 'linkbound[gpu]'")

    monkeypatch.setattr(cuda, "require_gpu_extra", missing)
    assert main.run(["links"]) == 2
    assert "linkbound[gpu]" in capsys.readouterr().err


def test_without_the_bindings_the_extra_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(cuda, "_installed", lambda _module: False)
    with pytest.raises(MissingExtra, match=r"linkbound\[gpu\]"):
        cuda.require_gpu_extra()


def test_a_dry_run_lists_cells_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main.run([*QUICK, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "p2p: GPU0 -> GPU1, ce_push, curve, 4 KiB" in out
    assert "cells in 2 children" in out
    assert list(tmp_path.iterdir()) == []


def test_methods_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["links", "-l"]) == 0
    out = capsys.readouterr().out
    assert "sm_read      P2P on     kernel on the destination loads from the source" in out
    assert "own    our one-shot and two-shot kernels over mapped peer memory" in out


def test_the_list_as_json_on_a_host_without_gpus(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "probed", lambda: machine(0))
    assert main.run(["links", "-l", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "linkbound.links.list"
    assert {one["name"]: one["path"] for one in document["copies"]}["h2d"] == "host link"
    assert "0 GPUs are here" in document["copies_skipped"]
    assert document["collectives"][0]["name"] == "nccl"
    assert main.run(["links", "-l"]) == 0
    assert "All would be skipped: 0 GPUs are here" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        ["--pairs", "foo"],
        ["--pairs", "0-0"],
        ["-f", "0"],
        ["-b", "-5"],
        ["-b", "4", "-e", "2"],
        ["--methods", "nope"],
        ["--only", "collectives", "--methods", "ce_push"],
        ["-l", "--methods", "nope"],
        ["-l", "--methods", "ce_push"],
        ["-l", "--dry-run"],
    ],
)
def test_wrong_options_are_said_before_a_missing_gpu(
    options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "probed", lambda: machine(0))
    assert main.run(["links", *options]) == 2
    assert main.run(["links"]) == 3


def test_a_family_without_its_package_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert main.run(["links", "-l"]) == 0
    assert "torch  skipped: torch is not installed" in capsys.readouterr().out


@pytest.mark.parametrize(
    "option", [["--pairs", "0-7"], ["--methods", "x"], ["-b", "1G", "-e", "4"]]
)
def test_what_does_not_exist_is_a_usage_error(option: list[str]) -> None:
    assert main.run(["links", *option]) == 2


def row(**fields: object) -> LinkRow:
    plain = {
        "operation": "copy",
        "implementation": "sm",
        "method": "sm_read",
        "group": ["GPU0", "GPU1"],
        "size_bytes": 10**9,
        "arm": "p2p",
    }
    return msgspec.convert({**plain, **fields}, LinkRow)


def test_a_matrix_shows_words_where_there_is_no_figure() -> None:
    reason = {"code": "hang", "text": "No sign of life."}
    text = render_links(
        [row(reason=reason), row(group=["GPU1", "GPU0"], samples_s=[0.1])], ["GPU0", "GPU1"]
    )
    assert "GPU0      -  hang[1]" in text
    assert "GPU1  10.00        -" in text
    assert text.endswith("[1] No sign of life.\n")


def test_a_pair_that_failed_at_one_size_shows_no_speed_of_another() -> None:
    reason = {"code": "corrupt", "text": "Wrong."}
    rows = [row(samples_s=[0.1]), row(size_bytes=4, reason=reason, wrong=1)]
    assert "corrupt[1]" in render_links(rows, ["GPU0", "GPU1"])


def test_footnotes_are_numbered_once_a_sentence() -> None:
    notes = Footnotes()
    first = notes.cell(row(reason={"code": "hang", "text": "a"}))
    second = notes.cell(row(reason={"code": "denied", "text": "b"}))
    again = notes.cell(row(reason={"code": "hang", "text": "a"}))
    assert (first, second, again) == ("hang[1]", "denied[2]", "hang[1]")
    assert notes.lines == ["[1] a", "[2] b"]


def test_rates_have_two_decimals_below_100() -> None:
    assert gigabytes_per_s(49.8e9) == "49.80"
    assert gigabytes_per_s(396.4e9) == "396.4"
    assert gigabytes_per_s(99.999e9) == "100.0"


def test_tables_align_words_left_and_numbers_right() -> None:
    assert align([("a", "bb"), ("ccc", "d")]) == "a    bb\nccc   d"


def test_a_slot_is_shown_as_it_was_under_load() -> None:
    host = {"operation": "host_to_device", "method": "h2d", "implementation": "pinned"}
    proof = {
        "method": "driver_push",
        "implementation": "driver",
        "arm": "staged",
        "facts": {"GPU0 pcie_generation": "4", "GPU0 pcie_width": "8"},
        "reason": {"code": "counters-only", "text": "Counters were read; nothing was timed."},
    }
    # Without traffic on PCIe the driver shows an idle link, which says nothing.
    idle = {**proof, "arm": "p2p", "facts": {"GPU0 pcie_generation": "1", "GPU0 pcie_width": "16"}}
    rows = [
        row(**host, group=["host", "GPU0"], samples_s=[0.05]),
        row(**host, group=["host", "GPU1"], samples_s=[0.05]),
        row(**proof),
        row(**idle),
    ]
    lines = render_links(rows, ["GPU0", "GPU1"]).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("host links"))
    assert lines[at].endswith("slot under load")
    assert lines[at + 1].endswith("Gen4 x8")
    assert lines[at + 2].endswith("not read")
