"""A listing that is far longer than any machine's is refused before it is read."""

import pytest

from linkbound.errors import InputError
from linkbound.topology.parse_lspci import parse_lspci
from linkbound.topology.parse_nvlink import parse_nvlink_status
from linkbound.topology.parse_rocm_smi import parse_rocm_smi
from linkbound.topology.parse_smi_q import parse_smi_q
from linkbound.topology.parse_smi_table import parse_smi_table

READERS = (parse_lspci, parse_nvlink_status, parse_rocm_smi, parse_smi_q, parse_smi_table)


@pytest.mark.parametrize("parse", READERS)
def test_hundred_megabytes_are_refused(parse) -> None:
    with pytest.raises(InputError, match="100,000,000 characters") as caught:
        parse("a b\n" * 25_000_000, "huge.txt")
    assert "huge.txt" in caught.value.seen
