"""Parquet files: read back by a reader of the tests, and by pyarrow where it is installed."""

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkbound.report.parquet import parquet_bytes
from parquet_reader import read

I64 = st.integers(-(2**63), 2**63 - 1)


ROWS = st.lists(
    st.tuples(st.text(max_size=9), I64, st.floats(allow_nan=False)), min_size=1, max_size=40
)


@given(ROWS, st.integers(0, 20))
def test_what_is_written_is_read(rows: list[tuple[str, int, float]], more: int) -> None:
    columns: dict[str, Any] = {f"c{number}": [number] * len(rows) for number in range(more)}
    names, numbers, floats = (list(column) for column in zip(*rows, strict=True))
    columns |= {"name": names, "number": numbers, "float": floats}
    data = parquet_bytes(columns)
    assert read(data) == columns
    assert parquet_bytes(columns) == data


def test_no_rows_and_rows_of_unlike_lengths_are_refused() -> None:
    for columns in ({}, {"a": []}, {"a": [1], "b": [1, 2]}):
        with pytest.raises(ValueError, match="are no table"):
            parquet_bytes(columns)


def test_another_reader_agrees() -> None:
    pyarrow = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    columns = {"t": ["a", "bé", ""], "n": [1, -2, 2**60], "f": [0.5, -1e300, 3.0]}
    columns |= {f"c{number}": [7, 8, 9] for number in range(17)}
    assert pyarrow.read_table(io.BytesIO(parquet_bytes(columns))).to_pydict() == columns
