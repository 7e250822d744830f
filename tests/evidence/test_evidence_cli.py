"""The verbs show, compare and check: what they print and how they end."""

import json
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner

from linkbound.cli import check, compare, show
from linkbound.errors import LinkboundError, StudyError, UsageError
from linkbound.evidence.study import Study
from linkbound.evidence.types import (
    Derived,
    Failed,
    Fingerprint,
    Measured,
    Predicted,
    Reason,
    Record,
    Samples,
    Skipped,
)

SOURCE = Record(
    kind="topology.source",
    subject={"file": "topo.txt"},
    outcome=Measured(values={"text": "GPU0\u001b[31m"}),
    method="nvidia-smi topo -m",
)
MACHINE = Record(
    kind="topology.machine",
    outcome=Derived(
        values={
            "machine": {},
            "fingerprint": Fingerprint(identity={"gpus": "2 x H200"}, condition={"driver": "1"}),
        }
    ),
    method="merge",
    parents=(SOURCE.id,),
)
CURVE = Record(
    kind="links.curve",
    subject={"arm": "p2p", "ranks": [0, 1]},
    outcome=Measured(values={"latency_s": 2e-5}),
    method="nccl-tests",
    method_version=3,
    machine="9f2c",
    command=("all_reduce_perf", "-g", "2", "a b"),
    environment={"NCCL_NVLS_ENABLE": "0"},
    started="2026-01-02T03:04:05+00:00",
    duration_s=1.5,
    parents=(MACHINE.id, SOURCE.id),
    samples=Samples(columns=("time_s", "note"), rows=tuple((float(n), None) for n in range(1, 31))),
)
STEP = Record(
    kind="predict.step",
    outcome=Predicted(value=0.0123, low=0.01, high=0.02, basis="curve x crossings"),
    method="price",
    parents=(CURVE.id, MACHINE.id),
)
SKIPPED = Record(
    kind="links.copy",
    outcome=Skipped(reason=Reason(code="no-gpu", text="no GPU here")),
    method="copy",
)


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "one.linkbound"
    with Study.create(path) as opened:
        opened.append_many([SOURCE, MACHINE, CURVE, STEP, SKIPPED])
        log = opened.add_blob(b"first\nlast words \x1b[2J\xff\n")
        opened.append(
            Record(
                kind="links.copy",
                subject={"pair": "0-1"},
                outcome=Failed(reason=Reason(code="hang", text="no answer"), log=log),
                method="copy",
                blobs=(log,),
            )
        )
    return path


def output(command: object, *arguments: str | Path) -> str:
    result = CliRunner().invoke(
        command,  # type: ignore[arg-type]
        [str(one) for one in arguments],
        catch_exceptions=False,
    )
    assert result.exit_code == 0, result.output
    return result.output


def error_of(command: object, *arguments: str | Path) -> tuple[LinkboundError, str]:
    result = CliRunner().invoke(command, [str(one) for one in arguments])  # type: ignore[arg-type]
    assert isinstance(result.exception, LinkboundError)
    return result.exception, result.output


@pytest.mark.usefixtures("study")
def test_show_lists_every_record() -> None:
    lines = output(show.command).splitlines()
    assert lines[0].split() == ["id", "kind", "outcome", "subject"]
    assert len(lines) == 7
    assert lines[1] == (
        f"{SOURCE.id[:12]}  topology.source   measured                       file=topo.txt"
    )
    assert lines[3].endswith("arm=p2p, ranks=[0, 1]")
    assert "predicted ~0.0123 (0.01-0.02)" in lines[4]
    assert "skipped: no GPU here" in lines[5]
    assert "failed: no answer" in lines[6]


def test_a_long_reason_does_not_push_the_subjects_away(tmp_path: Path) -> None:
    path = tmp_path / "long.linkbound"
    words = "the driver said no in very many words " * 4
    with Study.create(path) as opened:
        failed = Failed(reason=Reason(code="no", text=words))
        record_id = opened.append(
            Record(kind="links.curve", subject={"arm": "p2p"}, outcome=failed, method="m")
        )
    lines = output(show.command, "-C", str(path)).splitlines()
    assert lines[1].endswith("...  arm=p2p")
    assert len(lines[1]) < 100
    assert words.strip() in output(show.command, "-C", str(path), record_id[:12])


def test_show_a_kind_or_a_layer(study: Path) -> None:
    assert len(output(show.command, "-C", study, "links.copy").splitlines()) == 3
    assert len(output(show.command, "links").splitlines()) == 4
    error, _ = error_of(show.command, "link")
    assert "no records of kind 'link'" in error.seen
    assert "links.curve" in error.why


@pytest.mark.usefixtures("study")
def test_show_one_record_with_all_that_it_rests_on() -> None:
    text = output(show.command, CURVE.id[:10])
    for line in (
        f"record    {CURVE.id}",
        "method    nccl-tests, version 3",
        "machine   9f2c",
        "command   all_reduce_perf -g 2 'a b'",
        "duration  1.50 s",
        '    "latency_s": 2e-05',
        "  NCCL_NVLS_ENABLE=0",
        "samples  30 rows",
        "  time_s  30  15.5    3.9   27.1  0.567962",
        "  note    0   none    none  none  none",
        "  1.0     not measured",
        "  and 10 rows more: --json has all of them",
    ):
        assert line in text.splitlines(), line
    tree = text[text.index("rests on") :].splitlines()
    assert tree == [
        "rests on",
        f"  {MACHINE.id[:12]}  topology.machine",
        f"    {SOURCE.id[:12]}  topology.source  file=topo.txt",
        f"  {SOURCE.id[:12]}  topology.source  file=topo.txt",
    ]
    tree = output(show.command, STEP.id).splitlines()
    assert tree[-1] == f"  {MACHINE.id[:12]}  topology.machine  (see above)"
    assert "basis  curve x crossings" in tree


def test_show_lets_no_control_character_through(study: Path) -> None:
    assert "\x1b" not in output(show.command, SOURCE.id)
    with Study.open(study) as opened:
        (failed,) = opened.find("links.copy", pair="0-1")
    text = output(show.command, failed.id)
    assert "log      last words \\u001b[2J\ufffd" in text.splitlines()
    assert "\x1b" not in text


@pytest.mark.usefixtures("study")
def test_show_json() -> None:
    document = json.loads(output(show.command, "--json"))
    assert (document["schema"], document["version"]) == ("linkbound.records", 1)
    assert len(document["records"]) == 6
    skipped = document["records"][4]
    assert skipped["outcome"] == "skipped"
    assert skipped["reason"] == {"code": "no-gpu", "text": "no GPU here"}
    document = json.loads(output(show.command, CURVE.id, "--json"))
    assert document["schema"] == "linkbound.record"
    assert len(document["record"]["samples"]["rows"]) == 30
    assert [one["id"] for one in document["rests_on"]] == [MACHINE.id, SOURCE.id]


def test_the_only_study_here_is_the_default(study: Path) -> None:
    assert "6 records" in output(check.command)
    Study.create(study.with_name("two.linkbound")).close()
    error, _ = error_of(show.command)
    assert isinstance(error, UsageError)
    assert "one.linkbound, two.linkbound" in error.seen
    for path in study.parent.glob("*.linkbound"):
        path.unlink()
    error, _ = error_of(show.command)
    assert isinstance(error, UsageError)
    assert "-C" in error.hint


def test_check_healthy(study: Path) -> None:
    assert output(check.command, study) == f"{study}: healthy, 6 records, 1 blobs.\n"
    document = json.loads(output(check.command, study, "--json"))
    assert document["healthy"] is True
    assert (document["records"], document["blobs"], document["findings"]) == (6, 1, [])


def test_check_prints_findings_and_fails(study: Path) -> None:
    shell = sqlite3.connect(study)
    shell.execute("DROP TRIGGER records_keep_update")
    shell.execute("UPDATE records SET content = replace(content, '2e-05', '1e-05')")
    shell.commit()
    shell.close()
    error, text = error_of(check.command, study)
    assert isinstance(error, StudyError)
    assert error.exit_code == 1
    assert "2 findings" in error.seen
    assert text.startswith("study-guards-changed: ")
    assert f"record-edited: Record {CURVE.id[:12]} (number 3, links.curve)" in text
    _, text = error_of(check.command, study, "--json")
    document = json.loads(text)
    assert [one["code"] for one in document["findings"]] == [
        "study-guards-changed",
        "record-edited",
    ]


def test_compare_prints_what_differs(study: Path) -> None:
    other = study.with_name("two.linkbound")
    fingerprint = Fingerprint(identity={"gpus": "2 x H200"}, condition={"driver": "2"})
    with Study.create(other) as opened:
        opened.append_many(
            [
                Record(
                    kind="topology.machine",
                    outcome=Derived(values={"machine": {}, "fingerprint": fingerprint}),
                    method="merge",
                ),
                Record(
                    kind=CURVE.kind,
                    subject=CURVE.subject,
                    outcome=Measured(values={"latency_s": 3e-5}),
                    method=CURVE.method,
                    method_version=CURVE.method_version,
                    machine=CURVE.machine,
                    samples=CURVE.samples,
                ),
            ]
        )
    lines = output(compare.command, study, other).splitlines()
    assert "Machine conditions that differ:" in lines
    assert "  driver  1  2  -" in lines
    assert "  latency_s  2e-05  3e-05  1.5" in lines
    assert "1 records differ, 0 say the same." in lines
    assert sum(line.startswith("Not compared: ") for line in lines) == 4
    document = json.loads(output(compare.command, study, other, "--json"))
    assert document["schema"] == "linkbound.compare"
    assert document["records"][0]["differences"][0]["ratio"] == pytest.approx(1.5)


def test_compare_with_itself(study: Path) -> None:
    text = output(compare.command, study, study)
    assert "Same machine, no condition differs." in text
    assert "0 records differ, 5 say the same." in text
