"""Edits made behind the program's back show; ids survive a merge."""

import sqlite3
import zlib
from pathlib import Path

import pytest

from linkbound.errors import StudyError
from linkbound.evidence.merge import merge
from linkbound.evidence.study import Study
from linkbound.evidence.types import Failed, Level, Measured, Reason, Record, Samples, Severity


def record(number: int, **changes: object) -> Record:
    fields: dict[str, object] = {
        "kind": "links.curve",
        "subject": {"number": number},
        "outcome": Measured(values={"time_s": 0.5 + number}),
        "method": "test",
        "samples": Samples(columns=("time_s",), rows=((0.25,), (0.75,))),
    }
    return Record(**(fields | changes))  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Five records; the third rests on the second and a blob."""
    path = tmp_path / "five.linkbound"
    with Study.create(path) as study:
        blob = study.add_blob(b"log")
        study.append_many([record(0), record(1)])
        study.append(record(2, parents=(record(1).id,), blobs=(blob,)))
        study.append_many([record(3), record(4)])
        assert study.verify() == []
    return path


def edited(path: Path, *statements: str) -> list[str]:
    """Codes of the findings after `statements`, run without our guards (which are put back)."""
    shell = sqlite3.connect(path, isolation_level=None)
    guards = shell.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, _ in guards:
        shell.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        assert shell.execute(statement).rowcount != 0, statement
    for _, sql in guards:
        shell.execute(sql)
    shell.close()
    with Study.open(path) as study:
        findings = study.verify()
    for finding in findings:
        assert finding.level is Level.SEEN
        assert finding.severity is Severity.ERROR
        assert finding.why
        assert finding.remedy
    return [finding.code for finding in findings]


CONTENT = "UPDATE records SET content = replace(content, '2.5', '2.4') WHERE seq = 3"


@pytest.mark.parametrize(
    ("statements", "codes"),
    [
        ((CONTENT,), ["record-edited"]),
        (("UPDATE records SET content = '' WHERE seq = 1",), ["record-edited"]),
        (("UPDATE records SET content = x'ff00fe' WHERE seq = 1",), ["record-edited"]),
        (("UPDATE records SET content = 17 WHERE seq = 1",), ["record-edited"]),
        (
            (
                'UPDATE records SET content = replace(content, \'"values":{"time_s":0.5}\', '
                '\'"values":{"time_s":1e999}\') WHERE seq = 1',
            ),
            ["record-edited"],
        ),
        (("UPDATE records SET kind = 'other' WHERE seq = 2",), ["record-edited"]),
        (("UPDATE records SET chain = 'x' WHERE seq = 2",), ["chain-broken", "chain-broken"]),
        (("UPDATE samples SET cells = '[0.26]' WHERE record = 4 AND row = 0",), ["record-edited"]),
        (("DELETE FROM samples WHERE record = 5 AND row = 1",), ["record-edited"]),
        (("INSERT INTO samples VALUES (5, 2, '[0.5]')",), ["record-edited"]),
        (("INSERT INTO samples VALUES (77, 0, '[0.5]')",), ["samples-orphaned"]),
        (("UPDATE blobs SET data = x'00'",), ["blob-edited"]),
        (("UPDATE blobs SET size_bytes = -1",), ["blob-edited"]),
        (("UPDATE blobs SET size_bytes = 'many', data = 'text'",), ["blob-edited"]),
        (("DELETE FROM blobs",), ["blob-missing"]),
        (
            ("DELETE FROM samples WHERE record = 5", "DELETE FROM records WHERE seq = 5"),
            ["record-removed"],
        ),
        (
            ("DELETE FROM samples WHERE record = 2", "DELETE FROM records WHERE seq = 2"),
            ["record-removed", "chain-broken", "parent-missing"],
        ),
        (
            (
                "UPDATE records SET seq = 9 WHERE seq = 4",
                "UPDATE samples SET record = 9 WHERE record = 4",
                "UPDATE records SET seq = 4 WHERE seq = 5",
                "UPDATE samples SET record = 4 WHERE record = 5",
                "UPDATE records SET seq = 5 WHERE seq = 9",
                "UPDATE samples SET record = 5 WHERE record = 9",
            ),
            ["chain-broken", "chain-broken"],
        ),
        (("CREATE TABLE extra (x)",), ["study-foreign-objects"]),
        (("DROP INDEX records_by_kind",), ["study-guards-changed"]),
    ],
)
def test_an_edit_shows(path: Path, statements: tuple[str, ...], codes: list[str]) -> None:
    assert edited(path, *statements) == codes


def test_dropped_guards_show(path: Path) -> None:
    shell = sqlite3.connect(path)
    shell.execute("DROP TRIGGER records_keep_update")
    shell.close()
    with Study.open(path) as study:
        (finding,) = study.verify()
    assert finding.code == "study-guards-changed"
    assert "records_keep_update" in finding.seen


def test_an_edited_record_cannot_be_read(path: Path) -> None:
    edited(path, CONTENT, "UPDATE blobs SET data = x'00'")
    with Study.open(path) as study:
        (found,) = [one for one in study.verify() if one.code == "record-edited"]
        with pytest.raises(StudyError, match="not what it was"):
            study.get(found.record_ids[0])
        with pytest.raises(StudyError, match="not what it was"):
            list(study.records())
        assert study.get(record(0).id) == record(0)


def test_a_blob_that_unpacks_to_more_than_it_says_is_refused(path: Path) -> None:
    bomb = zlib.compress(b"\0" * 50_000_000).hex()
    assert edited(path, f"UPDATE blobs SET data = x'{bomb}'") == ["blob-edited"]


def test_a_damaged_page_is_a_finding_or_one_error(path: Path) -> None:
    data = bytearray(path.read_bytes())
    codes = set()
    for start in range(4096, len(data), 4096):
        broken = data[:start] + b"\xa5" * 2048 + data[start + 2048 :]
        path.write_bytes(broken)
        try:
            with Study.open(path) as study:
                codes |= {finding.code for finding in study.verify()}
        except StudyError as error:
            codes |= {"refused" if "damaged" in error.seen else error.seen}
    assert codes == {"study-damaged", "refused"}


def test_merge_keeps_ids_and_blobs(path: Path, tmp_path: Path) -> None:
    with Study.open(path) as one, Study.create(tmp_path / "two.linkbound") as two:
        log = one.add_blob(b"last words")
        failed = Failed(reason=Reason(code="hang", text="no answer in 20 s"), log=log)
        one.append(record(9, outcome=failed))
        two.append_many([record(7), record(3)])
        new = merge(one, two)
        ids = [each.id for each in one.records()]
        assert new == [each for each in ids if each != record(3).id]
        assert all(two.get(each) == one.get(each) for each in ids)
        assert two.blob(log) == b"last words"
        assert two.verify() == []
        assert two.counts() == (7, 2)
        assert merge(one, two) == []
        assert two.counts() == (7, 2)
        assert merge(two, two) == []


def test_merge_takes_nothing_from_an_edited_study(path: Path, tmp_path: Path) -> None:
    edited(path, CONTENT)
    with Study.open(path) as one, Study.create(tmp_path / "two.linkbound") as two:
        with pytest.raises(StudyError, match="not what it was"):
            merge(one, two)
        assert two.counts()[0] == 0
