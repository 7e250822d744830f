"""One device and one set of processors, however a tool writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkbound.topology.identifiers import (
    MAX_CPUS,
    cpus_of_list,
    cpus_of_mask,
    list_of_cpus,
    normal_bus_id,
    same_cpus,
)


@pytest.mark.parametrize("text", ["00000000:01:00.0", "0000:01:00.0", "01:00.0", "1:0.0", "1000"])
def test_spellings_of_one_bus_id(text: str) -> None:
    assert normal_bus_id(text) == "0000:01:00.0"


@pytest.mark.parametrize(
    ("text", "bus_id"),
    [
        ("0001:00:00.0", "0001:00:00.0"),
        ("00010000:C1:00.0", "10000:c1:00.0"),
        ("100000", "0001:00:00.0"),
        ("4e000", "0000:4e:00.0"),
        ("fffffff:ff:ff.0", "fffffff:ff:ff.0"),
        ("GPU0", None),
        ("", None),
        ("0000:01:00.9", None),
    ],
)
def test_bus_id(text: str, bus_id: str | None) -> None:
    assert normal_bus_id(text) == bus_id


@given(st.frozensets(st.integers(0, MAX_CPUS - 1), min_size=1, max_size=40))
def test_lists_and_masks_agree(cpus: frozenset[int]) -> None:
    assert cpus_of_list(list_of_cpus(cpus)) == cpus
    mask = f"{sum(1 << cpu for cpu in cpus):x}"
    assert cpus_of_mask(mask) == cpus


def test_masks() -> None:
    mask = cpus_of_mask("00000000,000000ff,ffffffff,ffff0000,00000000,00ffffff,ffffffff")
    assert mask is not None
    assert list_of_cpus(mask) == "0-55,112-167"
    assert cpus_of_mask("none") is None
    assert cpus_of_mask("f" * 10_000) is None


@pytest.mark.parametrize("text", ["", "24-47,", "5-1", "0-99999", "a"])
def test_no_list(text: str) -> None:
    assert cpus_of_list(text) is None


def test_same_processors() -> None:
    assert same_cpus("0-3,8", "8,0-1,2-3")
    assert not same_cpus("0-3", "0-4")
