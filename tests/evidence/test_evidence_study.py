"""The study file: what goes in comes out, nothing changes in place, bad files give one error."""

import contextlib
import hashlib
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from linkbound.errors import StudyError
from linkbound.evidence.study import Study
from linkbound.evidence.types import (
    Failed,
    Measured,
    Predicted,
    Reason,
    Record,
    Samples,
    Stated,
)


def record(number: int = 0, **changes: object) -> Record:
    fields: dict[str, object] = {
        "kind": "links.curve",
        "subject": {"number": number},
        "outcome": Measured(values={"time_s": 1e-05 * (number + 1)}),
        "method": "nccl-tests all_reduce_perf",
    }
    return Record(**(fields | changes))  # type: ignore[arg-type]


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Study]:
    with Study.create(tmp_path / "one.linkbound") as opened:
        yield opened


def test_a_record_comes_back_equal_with_its_id(study: Study) -> None:
    blob = study.add_blob(b"raw output\n" * 100)
    parent = study.append(record(0))
    written = record(
        1,
        machine="9f2c",
        command=("all_reduce_perf", "-g", "2"),
        environment={"NCCL_P2P_DISABLE": "1"},
        started="2026-01-02T03:04:05+00:00",
        duration_s=2.5,
        parents=(parent,),
        blobs=(blob,),
        samples=Samples(
            columns=("size_bytes", "time_s", "note"),
            rows=((8, 0.1, "é\u0000\u2028"), (16, -0.0, None), (2**70, 5e-324, "")),
        ),
    )
    record_id = study.append(written)
    assert study.get(record_id) == written
    assert record_id == written.id
    assert study.get(record_id[:8]) == written
    assert study.blob(blob) == b"raw output\n" * 100
    assert blob == hashlib.sha256(b"raw output\n" * 100).hexdigest()
    assert study.verify() == []
    assert study.counts() == (2, 1)


def test_an_integer_in_a_float_field_keeps_its_id(study: Study) -> None:
    written = record(duration_s=3, outcome=Predicted(value=2, low=1, high=3, basis="curve"))
    assert study.append(written) == written.id
    assert study.get(written.id).id == written.id
    assert study.get(written.id).duration_s == 3.0


def test_equal_content_is_kept_once(study: Study) -> None:
    first = study.append(record(5))
    assert study.append(record(5)) == first
    assert study.append_many([record(5), record(6), record(6)])[0] == first
    assert study.add_blob(b"x") == study.add_blob(b"x")
    assert study.counts() == (2, 1)


def test_find_filters_by_kind_and_subject_in_append_order(study: Study) -> None:
    for number in (3, 1, 2):
        study.append(record(number, subject={"number": number, "group": ("GPU0", "GPU1")}))
    study.append(record(1, kind="serve.run"))
    assert [one.subject["number"] for one in study.find("links.curve")] == [3, 1, 2]
    assert [one.kind for one in study.find(number=1)] == ["links.curve", "serve.run"]
    assert len(study.find("links.curve", group=("GPU0", "GPU1"), number=2)) == 1
    assert len(study.find(group=None)) == 1
    assert study.find("no.such") == []


def test_records_reads_past_one_page_in_order(study: Study) -> None:
    ids = study.append_many(record(number) for number in range(450))
    assert [one.id for one in study.records()] == ids


def test_append_many_is_all_or_none(study: Study) -> None:
    with pytest.raises(StudyError, match="names record ffff"):
        study.append_many([record(0), record(1, parents=("f" * 64,))])
    assert study.counts() == (0, 0)
    child = record(1, parents=(record(0).id,))
    assert study.append_many([record(0), child]) == [record(0).id, child.id]


@pytest.mark.parametrize(
    "changes",
    [
        {"parents": ("0" * 64,)},
        {"blobs": ("0" * 64,)},
        {"outcome": Failed(reason=Reason(code="hang", text="no answer"), log="0" * 64)},
    ],
)
def test_named_evidence_must_exist(study: Study, changes: dict[str, object]) -> None:
    with pytest.raises(StudyError, match="000000"):
        study.append(record(**changes))  # type: ignore[arg-type]
    assert study.counts() == (0, 0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_no_number_that_json_lacks(study: Study, bad: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        study.append(record(outcome=Stated(values={"deep": [{"x": bad}]})))
    assert study.append(record(1)) == record(1).id


def test_rows_must_have_a_cell_for_each_column() -> None:
    with pytest.raises(ValueError, match="row 1 has 1 cells for 2 columns"):
        Samples(columns=("a", "b"), rows=((1, 2), (1,)))


def test_unknown_short_and_ambiguous_ids(study: Study) -> None:
    study.append(record())
    for asked, message in (
        ("0" * 64, "has no record"),
        ("abc", "too short"),
        ("zzzzzzzz", "has no record"),
    ):
        with pytest.raises(StudyError, match=message):
            study.get(asked)
    with pytest.raises(StudyError, match="has no blob"):
        study.blob("0" * 64)
    assert not study.has(record().id[:10])
    assert study.has(record().id)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE records SET kind = 'other'",
        "UPDATE records SET chain = chain",
        "DELETE FROM records",
        "INSERT OR REPLACE INTO records SELECT * FROM records",
        "INSERT OR IGNORE INTO records SELECT * FROM records",
        "REPLACE INTO records (id, kind, content, chain) SELECT id, kind, '{}', '' FROM records",
        "INSERT INTO records SELECT * FROM records WHERE 1 ON CONFLICT DO UPDATE SET kind = 'x'",
        "UPDATE samples SET cells = '[1]'",
        "DELETE FROM samples",
        "INSERT OR REPLACE INTO samples SELECT record, row, '[9]' FROM samples",
        "INSERT INTO samples SELECT seq, 99, '[9]' FROM records",
        "UPDATE blobs SET data = x'00'",
        "DELETE FROM blobs",
        "INSERT OR REPLACE INTO blobs SELECT id, 0, x'00' FROM blobs",
        "INSERT OR REPLACE INTO blobs (rowid, id, size_bytes, data) VALUES (1, 'z', 0, x'00')",
    ],
)
def test_tables_are_append_only_in_any_sqlite_shell(study: Study, statement: str) -> None:
    study.add_blob(b"log")
    study.append(record(samples=Samples(columns=("a",), rows=((1,),))))
    shell = sqlite3.connect(study.path)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        shell.execute(statement)
    shell.close()
    assert study.verify() == []


def test_file_settings(study: Study) -> None:
    shell = sqlite3.connect(study.path)
    assert shell.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert shell.execute("PRAGMA application_id").fetchone() == (0x4C4B4244,)
    assert shell.execute("PRAGMA user_version").fetchone() == (1,)
    shell.close()
    # 2 is FULL: every commit is on the disk before append returns.
    assert study._connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_create_never_overwrites_and_open_or_create_keeps(tmp_path: Path) -> None:
    path = tmp_path / "odd name?#%.linkbound"
    with Study.open_or_create(path) as study:
        study.append(record())
    with pytest.raises(StudyError, match="already exists"):
        Study.create(path)
    with Study.open_or_create(path) as study:
        assert study.has(record().id)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_create_in_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="cannot be created"):
        Study.create(tmp_path / "none" / "x.linkbound")


def foreign(path: Path) -> None:
    with sqlite3.connect(path) as shell:
        shell.execute("CREATE TABLE records (seq INTEGER PRIMARY KEY)")
    shell.close()


def newer(path: Path) -> None:
    Study.create(path).close()
    shell = sqlite3.connect(path)
    shell.execute("PRAGMA user_version = 2")
    shell.close()


def truncated(path: Path) -> None:
    with Study.create(path) as study:
        study.append_many(record(number) for number in range(200))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def header_only(path: Path) -> None:
    Study.create(path).close()
    path.write_bytes(path.read_bytes()[:100])


def scrambled(path: Path) -> None:
    Study.create(path).close()
    data = path.read_bytes()
    path.write_bytes(data[:100] + b"\xff" * (len(data) - 100))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda _: None, "does not exist"),
        (lambda path: path.mkdir(), "is a folder or a device"),
        (lambda path: os.mkfifo(path), "is a folder or a device"),
        (lambda path: path.write_bytes(b""), "empty"),
        (lambda path: path.write_text("model: x\n" * 100), "not an SQLite file"),
        (foreign, "of another program"),
        (newer, "format 2"),
        (truncated, "damaged or cut short"),
        (header_only, "is not a study|damaged"),
        (scrambled, "is not a study|damaged"),
    ],
)
def test_what_is_no_study_gives_one_error(tmp_path: Path, make: object, message: str) -> None:
    path = tmp_path / "bad.linkbound"
    make(path)  # type: ignore[operator]
    with pytest.raises(StudyError, match=message) as caught:
        Study.open(path)
    assert str(path) in caught.value.seen
    assert caught.value.why
    assert caught.value.hint


def test_a_locked_study_says_so(study: Study) -> None:
    shell = sqlite3.connect(study.path, isolation_level=None)
    shell.execute("BEGIN IMMEDIATE")
    with Study.open(study.path, wait_s=0.05) as other:
        with pytest.raises(StudyError, match="locked by another process"):
            other.append(record())
        shell.execute("ROLLBACK")
        assert other.append(record()) == record().id
    shell.close()


@contextlib.contextmanager
def not_root() -> Iterator[None]:
    """Root may write anything, so become somebody else for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(("mode", "message"), [(0o444, "is read-only"), (0o000, "cannot be read")])
def test_a_file_that_may_not_be_written(mode: int, message: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "one.linkbound"
        Study.create(path).close()
        os.chmod(folder, 0o777)
        path.chmod(mode)
        with not_root(), pytest.raises(StudyError, match=message), Study.open(path) as study:
            study.append(record())
        assert os.listdir(folder) == [path.name]


def test_a_folder_that_may_not_be_written() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "one.linkbound"
        with Study.create(path) as study:
            study.append(record())
        os.chmod(folder, 0o555)
        with not_root(), Study.open(path) as study:
            assert study.get(record().id) == record()
            assert study.verify() == []
            with pytest.raises(StudyError, match="is read-only"):
                study.append(record(1))
        assert os.listdir(folder) == [path.name]
        with not_root(), pytest.raises(StudyError, match="cannot be created"):
            Study.create(Path(folder) / "two.linkbound")
