"""Every public case: what has to be printed is, at its level, and nothing that is banned."""

import json
from pathlib import Path
from typing import Any

import pytest

from linkbound.doctor import Diagnosis, Symptom, diagnose, vocabulary
from linkbound.evidence.types import Level

CASES = Path(__file__).parents[1] / "cases"
EXPECTED: dict[str, Any] = json.loads((CASES / "expected.json").read_text(encoding="utf-8"))
WITH_INPUTS = sorted(case for case, entry in EXPECTED.items() if entry["inputs"])


def diagnosis_of(case: str) -> Diagnosis:
    entry = EXPECTED[case]
    folder = next(CASES.glob(f"{case}-*"))
    inputs = [(name, (folder / name).read_bytes()) for name in entry["inputs"]]
    symptom = None if entry["symptom"] is None else Symptom(entry["symptom"])
    return diagnose(inputs, symptom)


@pytest.mark.parametrize("case", WITH_INPUTS)
def test_a_case_prints_what_it_must_and_nothing_that_is_banned(case: str) -> None:
    entry = EXPECTED[case]
    found = {(finding.code, finding.level.value) for finding in diagnosis_of(case).findings}
    codes = {code for code, _ in found}
    seen = {code for code, level in found if level == Level.SEEN}
    assert {(must["code"], must["level"]) for must in entry["must"]} <= found
    assert not codes & set(entry["must_not"])
    assert not seen & set(entry["must_not_seen"])


@pytest.mark.parametrize("case", WITH_INPUTS)
def test_a_case_prints_nothing_beyond_what_it_must_or_may(case: str) -> None:
    entry = EXPECTED[case]
    allowed = {must["code"] for must in entry["must"]} | set(entry["may"])
    assert {finding.code for finding in diagnosis_of(case).findings} <= allowed


@pytest.mark.parametrize("case", WITH_INPUTS)
def test_every_input_of_a_case_is_read(case: str) -> None:
    diagnosis = diagnosis_of(case)
    assert diagnosis.unread == ()
    assert [read.name for read in diagnosis.read] == EXPECTED[case]["inputs"]


@pytest.mark.parametrize("case", WITH_INPUTS)
def test_a_finding_names_its_file_and_what_to_do(case: str) -> None:
    for finding in diagnosis_of(case).findings:
        assert finding.why
        assert finding.remedy
        if finding.level is not Level.SUSPECTED:
            assert any(name in finding.seen for name in EXPECTED[case]["inputs"])


@pytest.mark.parametrize(("case", "said"), [("036", "16 of 28 pairs"), ("038", "54 printed pairs")])
def test_pairs_without_a_link_or_not_shown_are_not_called_linked(case: str, said: str) -> None:
    whole = [one for one in diagnosis_of(case).findings if one.code == "nvlink-whole"]
    assert len(whole) == 1
    assert said in whole[0].seen
    assert "any group" not in whole[0].why
    assert "Nothing to do" not in whole[0].remedy


PASTED = ("013", "018", "021", "063", "051")


@pytest.mark.parametrize("case", PASTED)
def test_outputs_below_each_other_in_one_file_give_the_same(case: str) -> None:
    entry = EXPECTED[case]
    folder = next(CASES.glob(f"{case}-*"))
    pasted = b"\n\n".join((folder / name).read_bytes() for name in entry["inputs"])
    symptom = None if entry["symptom"] is None else Symptom(entry["symptom"])
    findings = diagnose([("pasted.txt", pasted)], symptom).findings
    found = {(finding.code, finding.level.value) for finding in findings}
    assert {(must["code"], must["level"]) for must in entry["must"]} <= found
    assert not {code for code, _ in found} & set(entry["must_not"])


def test_all_codes_of_the_collection_are_in_the_vocabulary() -> None:
    used = {
        code
        for entry in EXPECTED.values()
        for code in (
            *(must["code"] for must in entry["must"]),
            *entry["may"],
            *entry["must_not"],
            *entry["must_not_seen"],
        )
    }
    assert used <= vocabulary().keys()


def test_the_vocabulary_is_the_one_of_the_collection() -> None:
    text = (CASES / "FINDINGS.md").read_text(encoding="utf-8")
    listed = [line.split("`")[1] for line in text.splitlines() if line.startswith("- `")]
    assert list(vocabulary()) == listed
