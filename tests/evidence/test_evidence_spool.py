"""Spools: whole records come in, torn and lost lines are findings."""

import base64
import contextlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from linkbound.errors import StudyError
from linkbound.evidence.spool import Spool, ingest
from linkbound.evidence.study import Study
from linkbound.evidence.types import Measured, Record, Samples


def record(number: int, parents: tuple[str, ...] = ()) -> Record:
    return Record(
        kind="links.copy",
        subject={"rank": number},
        outcome=Measured(values={"time_s": number + 0.5}),
        method="test",
        duration_s=number,
        parents=parents,
        samples=Samples(columns=("time_s",), rows=((0.1,), (0.2,))),
    )


@pytest.fixture
def spooled(tmp_path: Path) -> Path:
    path = tmp_path / "rank0.jsonl"
    with Spool(path) as spool:
        first = spool.append(record(0))
        assert first == record(0).id
        spool.append(record(1, parents=(first,)))
        spool.append(record(2))
    return path


def test_every_record_comes_in_once(spooled: Path, tmp_path: Path) -> None:
    with Study.create(tmp_path / "one.linkbound") as study:
        found = ingest(spooled, study)
        assert found.findings == ()
        assert found.record_ids == (
            record(0).id,
            record(1, parents=(record(0).id,)).id,
            record(2).id,
        )
        assert ingest(spooled, study).record_ids == found.record_ids
        assert study.counts() == (3, 0)
        assert study.verify() == []


def test_a_torn_last_line_is_a_finding(spooled: Path, tmp_path: Path) -> None:
    lines = spooled.read_bytes().splitlines(keepends=True)
    spooled.write_bytes(b"".join(lines[:2]) + lines[2][:50])
    with Study.create(tmp_path / "one.linkbound") as study:
        found = ingest(spooled, study)
        assert len(found.record_ids) == 2
        assert [one.code for one in found.findings] == ["spool-line-unreadable", "spool-unfinished"]
        assert f"{spooled}, line 3," in found.findings[0].seen


def test_a_lost_line_is_a_finding(spooled: Path, tmp_path: Path) -> None:
    lines = spooled.read_bytes().splitlines(keepends=True)
    spooled.write_bytes(b"".join(lines[1:]))
    with Study.create(tmp_path / "one.linkbound") as study:
        found = ingest(spooled, study)
        assert found.record_ids == (record(2).id,)
        assert [one.code for one in found.findings] == ["spool-line-unreadable", "spool-unfinished"]
        assert "names records that are not in the study" in found.findings[0].seen


def test_a_changed_number_is_a_finding(spooled: Path, tmp_path: Path) -> None:
    spooled.write_bytes(spooled.read_bytes().replace(b'"time_s":2.5', b'"time_s":2.6'))
    with Study.create(tmp_path / "one.linkbound") as study:
        found = ingest(spooled, study)
        assert len(found.record_ids) == 2
        assert "not what it was" in found.findings[0].seen


def test_a_child_that_fails_leaves_no_last_line(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    with contextlib.suppress(RuntimeError), Spool(path) as spool:
        spool.append(record(0))
        raise RuntimeError
    with Study.create(tmp_path / "one.linkbound") as study:
        found = ingest(path, study)
    assert found.record_ids == (record(0).id,)
    assert [one.code for one in found.findings] == ["spool-unfinished"]


def test_a_spool_that_is_not_there(tmp_path: Path) -> None:
    study = Study.create(tmp_path / "one.linkbound")
    with study, pytest.raises(StudyError, match=r"none\.jsonl cannot be read"):
        ingest(tmp_path / "none.jsonl", study)


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(noise=st.binary(max_size=120), at=st.integers(min_value=0, max_value=900))
def test_noise_anywhere_is_a_finding(spooled: Path, tmp_path: Path, noise: bytes, at: int) -> None:
    data = spooled.read_bytes()
    broken = tmp_path / f"{base64.b16encode(noise).decode()[:40]}.jsonl"
    broken.write_bytes(data[:at] + noise + data[at:])
    with Study.open_or_create(tmp_path / "noise.linkbound") as study:
        found = ingest(broken, study)
        assert len(found.record_ids) == 3 or found.findings


@pytest.mark.parametrize("line", [b"[]", b"{}", b"\xff\xfe", b"[" * 100_000, b'{"record":{}}', b""])
def test_hostile_lines(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "rank0.jsonl"
    path.write_bytes(line + b"\n")
    with Study.create(tmp_path / "one.linkbound") as study:
        found = ingest(path, study)
        assert found.record_ids == ()
        assert found.findings[0].code == "spool-line-unreadable"
        assert study.counts() == (0, 0)
