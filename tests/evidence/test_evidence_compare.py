"""Two studies: like machines are compared, unlike ones are refused by the name of the key."""

from pathlib import Path

import pytest

from linkbound.errors import StudyError
from linkbound.evidence.compare import Difference, StudyComparison, compare_studies, outcome_word
from linkbound.evidence.study import Study
from linkbound.evidence.types import (
    Derived,
    Failed,
    Fingerprint,
    Measured,
    Outcome,
    Predicted,
    Reason,
    Record,
    Samples,
    Skipped,
    Stated,
    canonical_json,
)

PAIR = {"gpus": "2 x H200", "links": "NV18"}


def machine(identity: dict[str, str], **condition: str) -> Record:
    fingerprint = Fingerprint(identity=identity, condition=condition)
    return Record(
        kind="topology.machine",
        outcome=Derived(values={"machine": {}, "fingerprint": fingerprint}),
        method="merge",
        machine=fingerprint.id,
    )


def curve(outcome: Outcome, arm: str = "p2p", **changes: object) -> Record:
    fields: dict[str, object] = {
        "kind": "links.curve",
        "subject": {"arm": arm},
        "outcome": outcome,
        "method": "nccl-tests",
    }
    return Record(**(fields | changes))  # type: ignore[arg-type]


def compared(tmp_path: Path, in_a: list[Record], in_b: list[Record]) -> StudyComparison:
    with (
        Study.open_or_create(tmp_path / "a.linkbound") as a,
        Study.open_or_create(tmp_path / "b.linkbound") as b,
    ):
        a.append_many(in_a)
        b.append_many(in_b)
        return compare_studies(a, b)


def test_conditions_and_numbers_that_differ(tmp_path: Path) -> None:
    first = curve(
        Measured(values={"latency_s": 2e-5, "rates": [{"bytes_per_s": 4e11}], "same": 7}),
        samples=Samples(columns=("time_s", "note"), rows=((1.0, "x"), (3.0, None), (8.0, "y"))),
    )
    second = curve(
        Measured(values={"latency_s": 3e-5, "rates": [{"bytes_per_s": 1e11}], "same": 7}),
        samples=Samples(columns=("time_s", "note"), rows=((6.0, "x"),)),
    )
    found = compared(
        tmp_path,
        [machine(PAIR, driver="580.95", nccl="2.27.3"), first],
        [machine(PAIR, driver="590.10", nccl="2.27.3", bios="1.2"), second],
    )
    assert found.machines == (Fingerprint(identity=PAIR).id,)
    assert found.conditions == (
        Difference(name="driver", a="580.95", b="590.10"),
        Difference(name="bios", a=None, b="1.2"),
    )
    (one,) = found.records
    assert (one.a, one.b) == (first.id, second.id)
    assert [(each.name, each.a, each.b) for each in one.differences] == [
        ("latency_s", 2e-5, 3e-5),
        ("rates[0].bytes_per_s", 4e11, 1e11),
        ("samples.time_s (median)", 3.0, 6.0),
    ]
    assert [each.ratio for each in one.differences] == pytest.approx([1.5, 0.25, 2.0])
    assert found.not_compared == ()


def test_ids_of_records_are_no_values(tmp_path: Path) -> None:
    runs = [curve(Measured(values={"t": at}), arm) for at, arm in ((1, "on"), (2, "on"))]
    rests = [curve(Measured(values={"ids": [one.id], "n": 1}), "both") for one in runs]
    found = compared(
        tmp_path, [machine(PAIR), runs[0], rests[0]], [machine(PAIR), *runs[1:], rests[1]]
    )
    assert [[each.name for each in one.differences] for one in found.records] == [["t"], []]
    other = [curve(Measured(values={"sha256": digit * 64}), "file") for digit in "ab"]
    kept = compared(tmp_path, [other[0]], [other[1]])
    assert [each.name for each in kept.records[-1].differences] == ["sha256"]


def test_unlike_machines_are_refused_by_key(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="links: NV18 against PHB") as caught:
        compared(tmp_path, [machine(PAIR)], [machine(PAIR | {"links": "PHB"}, driver="1")])
    assert "gpus" not in caught.value.seen


def test_an_identity_key_that_one_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="uuid: not said against GPU-1"):
        compared(tmp_path, [machine(PAIR)], [machine(PAIR | {"uuid": "GPU-1"})])


def test_a_study_without_a_machine_is_not_compared_with_one_that_has(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"a\.linkbound has no record of kind topology\.machine"):
        compared(tmp_path, [], [machine(PAIR)])


def test_a_machine_record_without_fingerprint_is_one_error(tmp_path: Path) -> None:
    broken = Record(kind="topology.machine", outcome=Derived(values={}), method="merge")
    with pytest.raises(StudyError, match="has no fingerprint"):
        compared(tmp_path, [broken], [broken])


def test_no_machine_at_all(tmp_path: Path) -> None:
    found = compared(tmp_path, [curve(Stated(values={"x": 0}))], [curve(Stated(values={"x": 4}))])
    assert found.machines == ()
    assert found.records[0].differences == (Difference(name="x", a=0, b=4, ratio=None),)


def test_latest_record_of_a_subject_counts(tmp_path: Path) -> None:
    old, new = curve(Measured(values={"x": 1})), curve(Measured(values={"x": 2}))
    found = compared(tmp_path, [old, new], [new])
    assert found.records[0].a == new.id
    assert found.records[0].differences == ()


def test_other_method_versions_and_lone_records_are_named(tmp_path: Path) -> None:
    one = curve(Measured(values={"x": 1}))
    later = curve(Measured(values={"x": 1}), method_version=2)
    lone = curve(Measured(values={"x": 1}), arm="staged")
    elsewhere = curve(Measured(values={"x": 1}), machine="ffff")
    found = compared(tmp_path, [one, lone], [later, elsewhere])
    assert found.records == ()
    assert [(each.study, each.record_id, each.reason) for each in found.not_compared] == [
        ("a", one.id, "method version 1 against 2"),
        ("a", lone.id, "only in this study"),
        ("b", later.id, "method version 2 against 1"),
        ("b", elsewhere.id, "only in this study"),
    ]


def test_a_number_against_a_reason(tmp_path: Path) -> None:
    skipped = Skipped(reason=Reason(code="no-gpu", text="no GPU here"))
    found = compared(tmp_path, [curve(Measured(values={"x": True}))], [curve(skipped)])
    assert found.records[0].differences == (
        Difference(name="x", a=True, b=None),
        Difference(name="outcome", a=None, b="skipped: no GPU here"),
    )


@pytest.mark.parametrize(("a", "b"), [(5e-324, 1e308), (1, 10**400), (10**400, 1.5)], ids=range(3))
def test_a_ratio_that_no_float_holds_is_absent(
    tmp_path: Path, a: float | int, b: float | int
) -> None:
    found = compared(
        tmp_path, [curve(Measured(values={"x": a}))], [curve(Measured(values={"x": b}))]
    )
    (difference,) = found.records[0].differences
    assert difference.ratio is None
    canonical_json(found)


def test_outcomes_in_words() -> None:
    reason = Reason(code="hang", text="no answer within 20 s")
    assert outcome_word(Measured(values={})) == "measured"
    assert outcome_word(Stated(values={})) == "stated"
    assert outcome_word(Derived(values={})) == "derived"
    assert outcome_word(Failed(reason=reason)) == "failed: no answer within 20 s"
    predicted = Predicted(value=0.0123456, low=0.01, high=0.02, basis="curve")
    assert outcome_word(predicted) == "predicted ~0.01235 (0.01-0.02)"
