"""`nvidia-smi nvlink`: rates, inactive links, capabilities, far ends."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkbound.errors import InputError
from linkbound.topology.parse_nvlink import parse_nvlink_status
from linkbound.topology.types import Machine, NvLink

TESTS = Path(__file__).parents[1]
H200 = TESTS / "machines" / "h200-pair"
CASE = TESTS / "cases" / "029-azhpcdiag73-v100-two-nvlinks-inactive"


def read(path: Path) -> Machine:
    return parse_nvlink_status(path.read_text(), path.name)


def test_h200_pair_has_eighteen_active_links_a_gpu() -> None:
    machine = read(H200 / "nvlink-status.txt")
    assert [gpu.uuid for gpu in machine.gpus] == [
        "GPU-00000000-0000-0000-0000-000000000001",
        "GPU-00000000-0000-0000-0000-000000000002",
    ]
    for gpu in machine.gpus:
        assert [link.index for link in gpu.nvlinks] == list(range(18))
        assert all(link.active for link in gpu.nvlinks)
        assert {link.bytes_per_s for link in gpu.nvlinks} == {26.562e9}
    assert machine.gpus[0].model == "NVIDIA H200"


def test_inactive_links_of_one_gpu_stay_in_the_list() -> None:
    (gpu,) = read(CASE / "nvlink.txt").gpus
    # The excerpt's UUID is a placeholder of zeros: the label is all that identifies the GPU.
    assert (gpu.key, gpu.label, gpu.uuid) == ("GPU3", "GPU3", None)
    assert [link.index for link in gpu.nvlinks if link.active is False] == [3, 5]
    assert gpu.nvlinks[0] == NvLink(index=0, active=True, bytes_per_s=25.781e9)
    assert gpu.nvlinks[3] == NvLink(index=3, active=False)


def test_eight_gpus_with_the_same_placeholder_uuid_stay_eight() -> None:
    machine = read(CASE / "nvlink-healthy-8xa100.txt")
    assert [gpu.label for gpu in machine.gpus] == [f"GPU{index}" for index in range(8)]
    for gpu in machine.gpus:
        assert len(gpu.nvlinks) == 12
        assert sum(link.bytes_per_s or 0 for link in gpu.nvlinks) == 12 * 25e9


def test_capabilities_are_facts_and_say_nothing_on_activity() -> None:
    machine = read(H200 / "nvlink-caps.txt")
    for gpu in machine.gpus:
        assert len(gpu.nvlinks) == 18
        assert all(link.active is None for link in gpu.nvlinks)
        assert gpu.facts == {
            "P2P is supported": "true",
            "Access to system memory supported": "true",
            "P2P atomics supported": "true",
            "System memory atomics supported": "true",
            "SLI is supported": "true",
            "Link is supported": "true",
        }


def test_status_and_capabilities_in_one_file_are_one_machine() -> None:
    text = (H200 / "nvlink-status.txt").read_text() + (H200 / "nvlink-caps.txt").read_text()
    machine = parse_nvlink_status(text, "both.txt")
    assert len(machine.gpus) == 2
    assert all(link.active for gpu in machine.gpus for link in gpu.nvlinks)
    assert machine.gpus[1].facts["P2P is supported"] == "true"


def test_a_capability_that_some_links_lack_names_them() -> None:
    text = (
        "GPU 0: X (UUID: GPU-12345678-0000-0000-0000-000000000000)\n"
        "  Link 0, P2P is supported: true\n"
        "  Link 1, P2P is supported: false\n"
        "  Link 2, P2P is supported: false\n"
    )
    (gpu,) = parse_nvlink_status(text, "x").gpus
    assert gpu.facts == {"P2P is supported": "true, but false on links 1, 2"}


def test_far_ends_are_bus_ids() -> None:
    text = (
        "GPU 0: X\n  Link 0: 00000004:05:00.0\n  Link 1: Remote Device 00000000:C4:00.0: Link 7\n"
    )
    (gpu,) = parse_nvlink_status(text, "x").gpus
    assert [link.remote for link in gpu.nvlinks] == ["0004:05:00.0", "0000:c4:00.0"]


def test_far_ends_that_a_guest_cannot_see_are_unknown() -> None:
    text = "GPU 0: NVIDIA H200\n\t Link 0: Remote Device FFFFFFFF:FF:FF.0: Link 0\n"
    (gpu,) = parse_nvlink_status(text, "x").gpus
    assert gpu.nvlinks == (NvLink(index=0),)


def test_a_gpu_without_nvlink_is_noted() -> None:
    text = "GPU 0: L4\n\t NVML: Unable to retrieve NVLink information as all links are inActive\n"
    machine = parse_nvlink_status(text, "x")
    assert machine.gpus[0].nvlinks == ()
    assert "GPU0 has no active NVLink" in machine.notes[0]


@pytest.mark.parametrize("text", ["", "\x00", "hello", " Link 0: 25 GB/s\n", "GPU0 GPU1", "{}"])
def test_other_text_is_one_clear_error(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_nvlink_status(text, "some.txt")
    assert "some.txt" in caught.value.seen
    assert caught.value.why
    assert caught.value.hint


@given(st.text(alphabet="GPU Link:0123456789.,<>inactve/Bs(UD-)\n\t", max_size=200) | st.text())
@settings(max_examples=200, deadline=None)
def test_any_text_raises_only_our_error(text: str) -> None:
    for candidate in (text, "GPU 0: X\n" + text, "GPU 0: X\n Link 0: " + text):
        try:
            parse_nvlink_status(candidate, "x")
        except InputError:
            continue
