"""The right reader is found by content; what is no topology gives one error that says so."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkbound.errors import InputError
from linkbound.topology.sniff import MAX_FILE_BYTES, READERS, read_machine

TESTS = Path(__file__).parents[1]
H200 = TESTS / "machines" / "h200-pair"
FILES = {
    "machines/h200-pair/nccl-topo.xml": "parse_nccl_xml.parse_nccl_xml",
    "machines/h200-pair/nccl-graph-p2p-on.xml": "parse_nccl_xml.parse_nccl_xml",
    "machines/h200-pair/topo-m.raw.txt": "parse_topo_matrix.parse_topo_matrix",
    "machines/h200-pair/topo-p2p-n.txt": "parse_p2p_matrix.parse_p2p_matrix",
    "machines/h200-pair/smi-q.txt": "parse_smi_q.parse_smi_q",
    "machines/h200-pair/nvidia-smi.txt": "parse_smi_table.parse_smi_table",
    "machines/h200-pair/nvlink-status.txt": "parse_nvlink.parse_nvlink_status",
    "machines/h200-pair/nvlink-caps.txt": "parse_nvlink.parse_nvlink_status",
    "machines/h200-pair/sysfs.json": "parse_sysfs.parse_sysfs_json",
    "machines/hwloc/nvidiaDGX2.xml": "parse_hwloc.parse_hwloc_xml",
    "cases/001-*/p2p-test.txt": "parse_p2p_matrix.parse_peer_access",
    "cases/022-*/topo_3p_pcie.xml": "parse_nccl_xml.parse_nccl_xml",
    "cases/023-*/lspci-vv.txt": "parse_lspci.parse_lspci",
    "cases/046-*/topo.xml-fragment.txt": "parse_nccl_xml.parse_nccl_xml",
    "cases/063-*/lspci-tv.txt": "parse_lspci.parse_lspci",
    "cases/072-*/rocm-smi-showtopo.txt": "parse_rocm_smi.parse_rocm_smi",
    "cases/090-*/topo-m.txt": "parse_topo_matrix.parse_topo_matrix",
}


@pytest.mark.parametrize(("pattern", "parser"), FILES.items())
def test_reader_by_content(pattern: str, parser: str) -> None:
    (file,) = TESTS.glob(pattern)
    text = file.read_text()
    first = next(reader for reader in READERS if reader.matches(text))
    assert first.parser == parser
    assert read_machine(file.read_bytes(), file.name).sources == (file.name,)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_encodings(encoding: str) -> None:
    text = (H200 / "topo-m.txt").read_text()
    machine = read_machine(text.encode(encoding), "topo-m.txt")
    assert machine.path("GPU0", "GPU1").label == "NV18"
    assert machine.notes == ()


def test_latin_1_is_said() -> None:
    data = b"# caf\xe9\n" + (H200 / "topo-m.txt").read_bytes()
    machine = read_machine(data, "topo-m.txt")
    assert machine.notes == ("topo-m.txt is not UTF-8: read as Latin-1; names may be garbled.",)


@pytest.mark.parametrize(
    ("data", "seen"),
    [
        (b"", "x: the file is empty."),
        (b" \n", "x: the file is empty."),
        (b"\x7fELF\x00\x01", "x: binary content (byte 0x00 at character 4)."),
        (b"\xff\xfea", "x: not the utf-16 that its first bytes announce (truncated data)."),
        (b" " * (MAX_FILE_BYTES + 1), "x: more than 8,388,608 bytes."),
        (b"hello\n", "x: not a file that tells how a machine is wired."),
        (b"{}", "x: not a file that tells how a machine is wired."),
        (b"<html><body/></html>", "x: not a file that tells how a machine is wired."),
    ],
)
def test_one_clear_error(data: bytes, seen: str) -> None:
    with pytest.raises(InputError) as error:
        read_machine(data, "x")
    assert error.value.seen == seen
    assert error.value.why
    assert error.value.hint


def test_unknown_content_lists_what_is_understood() -> None:
    with pytest.raises(InputError) as error:
        read_machine(b"hello", "x")
    assert all(reader.name in error.value.why for reader in READERS)


def test_labels_are_worked_out_of_a_tree() -> None:
    (file,) = TESTS.glob("machines/hwloc/96em64t-4n4d3ca2co-pci.xml")
    machine = read_machine(file.read_bytes(), file.name)
    assert all(path.derived for path in machine.pairs)


SEEDS = [path.read_bytes() for path in sorted(H200.glob("*")) if path.suffix in (".txt", ".xml")]


@given(
    st.sampled_from(SEEDS), st.integers(0, 60_000), st.binary(max_size=8), st.integers(0, 60_000)
)
def test_damaged_files_give_a_machine_or_our_error(
    data: bytes, cut: int, junk: bytes, at: int
) -> None:
    damaged = (data[:at] + junk + data[at:])[:cut]
    try:
        read_machine(damaged, "damaged")
    except InputError:
        return


@given(st.binary())
def test_any_bytes(data: bytes) -> None:
    try:
        read_machine(data, "any")
    except InputError:
        return
