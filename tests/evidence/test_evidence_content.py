"""Records as text: what is written is read back; of foreign text only our error comes."""

import contextlib
import json
from pathlib import Path

import jsonschema
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import linkbound.evidence
from linkbound.errors import InputError
from linkbound.evidence.content import from_stored, read_json, record_with_id, to_stored
from linkbound.evidence.schema import record_schema_text
from linkbound.evidence.types import (
    Derived,
    Failed,
    Measured,
    Outcome,
    Predicted,
    Reason,
    Record,
    Samples,
    Skipped,
    Stated,
)

# Records are deep: on a busy machine drawing them is slow, and that is no fault of the code.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
SCHEMA = jsonschema.Draft202012Validator(json.loads(record_schema_text()))

text = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
number = st.floats(allow_nan=False, allow_infinity=False)
whole = st.integers(min_value=-(2**70), max_value=2**70)
leaf = st.none() | st.booleans() | whole | number | text
tree = st.recursive(
    leaf, lambda inner: st.lists(inner) | st.dictionaries(text, inner), max_leaves=8
)
values = st.dictionaries(text, tree, max_size=4)
reason = st.builds(Reason, code=text, text=text)
outcome: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Measured, values=values),
    st.builds(Stated, values=values),
    st.builds(Derived, values=values),
    st.builds(Predicted, value=number, low=number, high=number, basis=text, values=values),
    st.builds(Skipped, reason=reason),
    st.builds(Failed, reason=reason, log=st.none() | text),
)
cell = st.none() | whole | number | text
samples = st.integers(min_value=0, max_value=3).flatmap(
    lambda width: st.builds(
        Samples,
        columns=st.tuples(*[text] * width),
        rows=st.lists(st.tuples(*[cell] * width), max_size=4).map(tuple),
    )
)
records = st.builds(
    Record,
    kind=text,
    subject=values,
    outcome=outcome,
    method=text,
    method_version=st.integers(min_value=0, max_value=9),
    machine=st.none() | text,
    command=st.lists(text, max_size=3).map(tuple),
    environment=st.dictionaries(text, text, max_size=3),
    started=st.none() | text,
    duration_s=st.none() | number | st.integers(min_value=0, max_value=9),
    parents=st.lists(text, max_size=2).map(tuple),
    samples=st.none() | samples,
    blobs=st.lists(text, max_size=2).map(tuple),
)


@settings(UNHURRIED, max_examples=50)
@given(records)
def test_written_and_read_back(record: Record) -> None:
    stored = to_stored(record)
    back = from_stored(stored.id, stored.content, stored.rows, "test")
    assert stored.id == record.id == back.id
    assert to_stored(back) == stored


@settings(UNHURRIED, max_examples=50)
@given(records)
def test_the_published_schema_describes_every_record(record: Record) -> None:
    assert SCHEMA.is_valid(json.loads(msgspec.json.encode(record)))


def test_the_published_schema_refuses_other_fields() -> None:
    plain = {"kind": "a.b", "outcome": {"outcome": "stated", "values": {}}, "method": "m"}
    assert SCHEMA.is_valid(plain)
    assert not SCHEMA.is_valid(plain | {"later": 1})
    assert not SCHEMA.is_valid(plain | {"outcome": {"outcome": "guessed", "values": {}}})


def test_the_published_schema_is_the_code() -> None:
    published = Path(linkbound.evidence.__file__).with_name("record.schema.json")
    assert published.read_text() == record_schema_text(), "docs/evidence.md says how to write it"


@settings(UNHURRIED, max_examples=60)
@given(records, st.data())
def test_any_other_text_is_refused(record: Record, data: st.DataObject) -> None:
    stored = to_stored(record)
    at = data.draw(st.integers(min_value=0, max_value=len(stored.content)))
    put = data.draw(st.text(max_size=3) | st.sampled_from(["1e999", "NaN", "{", "\ud800"]))
    cut = data.draw(st.integers(min_value=0, max_value=4))
    content = stored.content[:at] + put + stored.content[at + cut :]
    with contextlib.suppress(InputError):
        assert from_stored(stored.id, content, stored.rows, "test").id == stored.id


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_bytes_that_are_no_record(noise: bytes) -> None:
    with pytest.raises(InputError):
        record_with_id("0" * 64, read_json(noise, "noise"), "noise")


@pytest.mark.parametrize(
    "hostile",
    [
        "",
        "NaN",
        "[" * 100_000,
        '{"a":' * 100_000,
        "9" * 10_000,
        '{"kind": 1}',
        '"\ud800"',
        "\ufeff{}",
        "null\0",
    ],
    ids=range(9),
)
def test_hostile_text(hostile: str) -> None:
    with pytest.raises(InputError):
        record_with_id("0" * 64, read_json(hostile, "it"), "it")


def test_a_field_of_a_newer_version_is_said() -> None:
    stored = to_stored(Record(kind="a.b", outcome=Stated(values={}), method="m"))
    content = stored.content.replace("{", '{"later":1,', 1)
    with pytest.raises(InputError, match="later") as caught:
        from_stored(stored.id, content, (), "it")
    assert "newer linkbound" in caught.value.hint


def test_rows_without_columns() -> None:
    stored = to_stored(Record(kind="a.b", outcome=Stated(values={}), method="m"))
    with pytest.raises(InputError, match="1 rows of samples"):
        from_stored(stored.id, stored.content, ("[1]",), "it")
