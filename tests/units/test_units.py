"""Sizes, times and rates: what people write, and what is printed."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkbound.errors import UsageError
from linkbound.units import (
    format_capacity,
    format_rate,
    format_significant,
    format_size,
    format_time,
    parse_duration_s,
    parse_size_bytes,
)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("8", 8),
        ("8B", 8),
        ("64K", 65_536),
        ("64k", 65_536),
        ("1KB", 1_000),
        ("16MiB", 16_777_216),
        ("1.5GiB", 1_610_612_736),
        ("1GB", 1_000_000_000),
        ("2G", 2_147_483_648),
        ("3T", 3 * 1024**4),
        (" 24 GiB ", 24 * 1024**3),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size_bytes(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("20us", 2e-5), ("20µs", 2e-5), ("5 ms", 5e-3), ("2", 2.0), ("1.5s", 1.5), ("3h", 10_800.0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("text", ["", "GB", "-1", "1e3", "1 GX", "1 000", "0x10", "nan", "1,5G"])
def test_other_text_is_refused_with_itself(text: str) -> None:
    for parse in (parse_size_bytes, parse_duration_s):
        with pytest.raises(UsageError) as raised:
            parse(text)
        assert f"'{text}'" in raised.value.seen
        assert raised.value.why
        assert raised.value.hint


@given(st.text(max_size=12))
def test_only_our_error_is_raised(text: str) -> None:
    for parse in (parse_size_bytes, parse_duration_s):
        with contextlib.suppress(UsageError):
            assert parse(text) >= 0


@given(st.integers(0, 2**50))
def test_printed_sizes_are_read_back(size_bytes: int) -> None:
    assert parse_size_bytes(format_size(size_bytes).replace(",", "")) == size_bytes


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 us"),
        (4.6e-6, "4.60 us"),
        (0.000999, "999 us"),
        (0.00123456, "1.23 ms"),
        (0.2684, "268 ms"),
        (1.204, "1.20 s"),
        (1234.0, "1,230 s"),
    ],
)
def test_times(seconds: float, text: str) -> None:
    assert format_time(seconds) == text


def test_rates_and_capacities() -> None:
    assert format_rate(38.13e9) == "38.13 GB/s"
    assert format_rate(395.6e9) == "396 GB/s"
    assert format_rate(0.0) == "0.00 GB/s"
    assert format_rate(0.1e9) == "0.10 GB/s"
    assert format_rate(3.27e6) == "0.0033 GB/s"
    assert format_rate(410e3) == "0.00041 GB/s"
    assert format_capacity(150_754_820_096) == "140.40 GiB"
    assert format_size(8192) == "8 KiB"
    assert format_size(1500) == "1,500 B"
    assert format_size(0) == "0 B"


@given(st.floats(1e-9, 1e12))
def test_significant_digits_keep_the_value(value: float) -> None:
    shown = float(format_significant(value).replace(",", ""))
    assert shown == pytest.approx(value, rel=0.00501)


def test_a_size_beyond_any_memory_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'9{20}\.\.\.' is not a size"):
        parse_size_bytes("9" * 400)
