"""NCCL and RCCL logs: the path of every recorded log, old wordings, torn lines, why it is off."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import linkbound
from linkbound.errors import InputError
from linkbound.links import LogPath, OffBecause, TransportKind, parse_nccl_log, path_of

CASES = Path(__file__).parents[1] / "cases"
RECORDED = Path(linkbound.__file__).parent / "recorded"
VLLM = "h200-pair/vllm-0.24.0/logs/"
HEAD = "h:1:1 [0] NCCL INFO "


def case(name):
    path = next(CASES.glob(name))
    return parse_nccl_log(path.read_text(), path.name)


def recorded(name):
    return parse_nccl_log((RECORDED / name).read_text(), name)


def lines(*texts):
    return parse_nccl_log("".join(f"{HEAD}{text}\n" for text in texts), "x.log")


@pytest.mark.parametrize(
    ("name", "path", "because"),
    [
        ("004*/nccl-p2p-disabled.log", LogPath.UNKNOWN, OffBecause.SETTING),
        ("004*/nccl-p2p-hang.log", LogPath.DIRECT, None),
        ("013*/nccl-p2p-off.log", LogPath.STAGED, OffBecause.SETTING),
        ("013*/nccl-p2p-on.log", LogPath.DIRECT, None),
        ("032*/nccl.log", LogPath.DIRECT, None),
        ("042*/nccl.log", LogPath.STAGED, None),
        ("043*/nccl-2.2x.log", LogPath.UNKNOWN, None),
        ("043*/nccl-2.5-style.log", LogPath.STAGED, None),
        ("043*/nccl-2.9.6.log", LogPath.UNKNOWN, None),
        ("045*/nccl.log", LogPath.UNKNOWN, None),
        ("048*/nccl.log", LogPath.MIXED, OffBecause.DRIVER),
        ("049*/nccl.log", LogPath.UNKNOWN, None),
        ("051*/nccl.log", LogPath.DIRECT, None),
        ("053*/nccl.log", LogPath.UNKNOWN, None),
        ("073*/nccl.log", LogPath.UNKNOWN, None),
        ("079*/nccl.log", LogPath.DIRECT, None),
        ("089*/nccl-p2p-disabled.log", LogPath.UNKNOWN, OffBecause.SETTING),
    ],
)
def test_path_of_every_case(name, path, because):
    found = path_of(case(name))
    assert (found.path, found.off_because) == (path, because)
    assert found.why.endswith(".")


@pytest.mark.parametrize(
    ("name", "path", "channels", "detail"),
    [
        ("h200-pair/nccl-p2p-on.log", LogPath.DIRECT, 24, "CUMEM"),
        ("h200-pair/nccl-p2p-off.log", LogPath.STAGED, 4, "direct/direct"),
        ("5060ti-pair/nccl-p2p-on.log", LogPath.DIRECT, 2, "CUMEM"),
        ("5060ti-pair/nccl-p2p-off.log", LogPath.STAGED, 2, "direct/direct"),
        (VLLM + "llama8b_tp2.nccl.rank0.log", LogPath.DIRECT, 24, "CUMEM"),
        (VLLM + "llama8b_tp2.nccl.rank1.log", LogPath.DIRECT, 24, "CUMEM"),
        (VLLM + "llama8b_tp2_nccl.nccl.rank0.log", LogPath.DIRECT, 24, "CUMEM"),
        (VLLM + "llama8b_tp2_nccl.nccl.rank1.log", LogPath.DIRECT, 24, "CUMEM"),
        (VLLM + "llama8b_tp2_off.nccl.rank0.log", LogPath.STAGED, 4, "direct/direct"),
        (VLLM + "llama8b_tp2_off.nccl.rank1.log", LogPath.STAGED, 4, "direct/direct"),
    ],
)
def test_path_of_every_recorded_log(name, path, channels, detail):
    log = recorded(name)
    found = path_of(log)
    assert found.path is path
    assert len(found.pairs) == 2
    assert {(pair.channels, pair.detail) for pair in found.pairs} == {(channels, detail)}
    assert log.version == "2.28.9"
    assert not log.nvls_available


def test_communicators_of_the_recorded_pair():
    log = recorded("h200-pair/nccl-p2p-off.log")
    first = log.communicators[0]
    assert (first.rank, first.ranks, first.cuda_device, first.nvml_device) == (0, 2, 0, 0)
    assert (first.bus_id, first.comm_id) == ("60", "0x92e219628a0c7753")
    assert (first.nodes, first.complete) == (1, True)
    assert {pair.comm_id for pair in log.transports} == {"0x92e219628a0c7753"}
    assert log.settings["NCCL_P2P_DISABLE"] == "1"
    assert log.settings["NCCL_NVLS_ENABLE"] == "0"
    assert log.rings == ((0, 1),)
    assert [(c.collective, c.nvls, c.p2p, c.p2p_per_peer) for c in log.channels] == [(4, 0, 4, 2)]
    assert [(p.pattern, p.channels, p.intra_gb_per_s, p.intra_type) for p in log.patterns] == [
        (4, 2, 20.0, "PHB"),
        (1, 2, 40.0, "PHB"),
    ]
    assert {(p.src, p.dst, p.gb_per_s, p.type) for p in log.paths} == {
        ("60", "70", 48.0, "PHB"),
        ("70", "60", 48.0, "PHB"),
    }
    assert log.notes == ()


def test_two_communicators_of_one_process_stay_apart():
    log = recorded(VLLM + "llama8b_tp2.nccl.rank0.log")
    assert {pair.comm_id for pair in log.transports} == {
        "0x74ef65f51643d14c",
        "0xef039df8aac4d803",
    }
    assert "no channel line of rank 1: their direction is not shown" in log.notes


def test_driver_grant_is_in_both_arms_and_proves_nothing():
    on, off = recorded("h200-pair/nccl-p2p-on.log"), recorded("h200-pair/nccl-p2p-off.log")
    assert [kind.all_cuda for kind in on.p2p_types + off.p2p_types] == [True, True]
    assert [kind.all_direct for kind in on.p2p_types + off.p2p_types] == [True, False]


def test_line_cut_by_another_process_is_counted_not_fatal():
    log = case("013*/nccl-p2p-on.log")
    assert log.torn_lines == 1
    assert "1 communicators did not finish their initialisation" in log.notes


def test_two_messages_in_one_line():
    text = (
        "a:1:1 [0] NCCL INFO NVLS multicast support is not available on da:2:2 [1] NCCL INFO "
        "Channel 00/0 : 1[2] -> 0[1] via P2P/IPC/read\n"
    )
    log = parse_nccl_log(text, "x")
    assert log.torn_lines == 1
    (pair,) = log.transports
    assert (pair.src_rank, pair.src_device, pair.detail) == (1, "2", "IPC/read")


@pytest.mark.parametrize(
    ("via", "kind", "detail"),
    [
        ("P2P/direct pointer", TransportKind.P2P, "direct pointer"),
        ("P2P/direct pointer/read", TransportKind.P2P, "direct pointer/read"),
        ("P2P/IPC/read/CE", TransportKind.P2P, "IPC/read/CE"),
        ("P2P/CUMEM", TransportKind.P2P, "CUMEM"),
        ("P2P/MNNVL", TransportKind.P2P, "MNNVL"),
        ("P2P/indirect/3[3]", TransportKind.P2P, "indirect/3[3]"),
        ("P2P/IPC comm 0x55d0 nRanks 02", TransportKind.P2P, "IPC"),
        ("SHM/direct/direct", TransportKind.SHM, "direct/direct"),
        ("SHM/direct", TransportKind.SHM, "direct"),
        ("SHM/CE/direct", TransportKind.SHM, "CE/direct"),
        ("direct shared memory", TransportKind.SHM, "direct"),
        ("NET/IB/1(3)/GDRDMA(PCI)/Shared", TransportKind.NET, "IB/1(3)/GDRDMA(PCI)/Shared"),
        ("NET/Socket/0", TransportKind.NET, "Socket/0"),
        ("COLLNET/X", TransportKind.OTHER, "COLLNET/X"),
    ],
)
def test_transports(via, kind, detail):
    (pair,) = lines(f"Channel 03/0 : 0[1a000] -> 1[1b000] via {via}").transports
    assert (pair.kind, pair.detail, pair.channels) == (kind, detail, 1)
    assert pair.gdr == (None if kind is not TransportKind.NET else "GDRDMA" in detail)
    assert pair.copy_engine == ("CE" in detail)


def test_send_and_receive_of_one_channel_are_one():
    log = lines(
        "Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0",
        "Channel 00/0 : 0[0] -> 1[1] [receive] via NET/Socket/0",
        "Channel 01/0 : 0[0] -> 1[1] [send] via NET/Socket/0",
    )
    assert [pair.channels for pair in log.transports] == [2]
    assert path_of(log).path is LogPath.NET


def test_oldest_wording():
    (pair,) = lines("Ring 00 : 2[3d000] -> 3[3e000] via direct shared memory").transports
    assert (pair.src_device, pair.dst_device) == ("3d000", "3e000")


def test_off_by_policy_names_the_remedy():
    log = lines(
        "Check P2P Type isAllDirectP2p 0 directMode 0 isAllCudaP2p 1",
        "Channel 00 : 0[0] -> 1[1] via SHM/direct/direct",
    )
    found = path_of(log)
    assert found.off_because is OffBecause.POLICY
    assert "NCCL_P2P_LEVEL=SYS" in found.why


def test_off_by_the_driver():
    log = lines(
        "Check P2P Type isAllDirectP2p 0 directMode 0 isAllCudaP2p 0",
        "Channel 00 : 0[0] -> 1[1] via SHM/direct/direct",
    )
    assert path_of(log).off_because is OffBecause.DRIVER


@pytest.mark.parametrize("kind", ["intraNodeP2pSupport", "isAllDirectP2p"])
def test_p2p_type_before_the_driver_field(kind):
    (found,) = lines(f"Check P2P Type {kind} 1 directMode 0").p2p_types
    assert (found.all_direct, found.direct_mode, found.all_cuda) == (True, False, None)


@pytest.mark.parametrize(
    ("setting", "because"),
    [
        ("NCCL_P2P_DISABLE set by environment to 1", OffBecause.SETTING),
        ("NCCL_P2P_DISABLE set by environment to 0", None),
        ("NCCL_P2P_LEVEL set by environment to LOC", OffBecause.SETTING),
        ("NCCL_P2P_LEVEL set by environment to 0.", OffBecause.SETTING),
        ("NCCL_P2P_LEVEL set by environment to SYS", None),
    ],
)
def test_only_some_settings_close_peer_to_peer(setting, because):
    log = lines(setting, "Channel 00 : 0[0] -> 1[1] via SHM/direct")
    assert path_of(log).off_because is because


def test_a_direct_path_is_not_off_whatever_was_set():
    log = lines("NCCL_P2P_LEVEL set by environment to LOC", "Channel 00 : 0 -> 1 via P2P/IPC")
    assert path_of(log).off_because is None


def test_processes_that_differ_in_a_setting():
    log = lines(
        "NCCL_P2P_DISABLE set by environment to 1", "NCCL_P2P_DISABLE set by environment to 0"
    )
    assert "NCCL_P2P_DISABLE is 1 in one process and 0 in another" in log.notes


@pytest.mark.parametrize(
    ("texts", "available"),
    [
        (["NVLS multicast support is available on dev 0"], True),
        (["NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)"], True),
        (["NVLS multicast support is not available on dev 0"], False),
        (
            [
                "NVLS multicast support is available on dev 0",
                "NVLS multicast support is not available on dev 1",
            ],
            True,
        ),
        (["something else"], None),
    ],
)
def test_multicast(texts, available):
    assert lines(*texts).nvls_available is available


def test_warnings_and_refusals():
    old = case("043*/nccl-2.9.6.log")
    assert old.warnings[0].text == "Call to posix_fallocate failed : No space left on device"
    assert case("048*/nccl.log").refusals[0].count == 2
    wsl = case("045*/nccl.log")
    assert wsl.warnings[1].text.startswith("Could not find real path of /sys/class/pci_bus")


def test_rccl():
    log = case("073*/nccl.log")
    assert (log.library, log.version) == ("rccl", "2.22.3-HEAD:271856d")
    assert log.warnings[0].text.startswith('Missing "iommu=pt" from kernel command line')


def test_log_without_prefixes():
    log = case("042*/nccl.log")
    assert log.version is None
    assert log.communicators[0].bus_id == "89000"
    assert log.communicators[0].nvml_device is None
    assert log.channels[0].nvls is None


def test_graph_lines_with_system_id():
    paths = case("053*/nccl.log").paths
    assert len(paths) == 28
    found = {(path.src, path.dst): (path.gb_per_s, path.type) for path in paths}
    assert found["ce000", "cf000"] == (24.0, "PHB")
    assert found["ce000", "4e000"] == (10.0, "SYS")


def test_split_communicator():
    log = lines(
        "ncclCommSplit comm 0x5 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 70 parent 0x4 "
        "splitCount 1 color 0 key 1 - Init COMPLETE"
    )
    (comm,) = log.communicators
    assert (comm.parent, comm.comm_id, comm.ranks, comm.complete) == ("0x4", None, 2, True)


@pytest.mark.parametrize("text", ["", "hello", "vLLM is using nccl==...\n(nothing further)\n"])
def test_no_log(text):
    with pytest.raises(InputError, match=r"boot.log: no line of NCCL or RCCL"):
        parse_nccl_log(text, "boot.log")


@given(
    st.text(max_size=200), st.sampled_from(["", "Channel 00/0 : ", "Check P2P Type ", "comm 0x"])
)
def test_only_our_error(text, head):
    path_of(parse_nccl_log(f"{HEAD}{head}{text}\n{text}", "x"))
    with contextlib.suppress(InputError):
        parse_nccl_log(text, "x")


@given(st.data())
def test_cut_anywhere(data):
    text = (RECORDED / "5060ti-pair" / "nccl-p2p-on.log").read_text()
    end = data.draw(st.integers(60, len(text)))
    assert path_of(parse_nccl_log(text[:end], "x")).path in (LogPath.DIRECT, LogPath.UNKNOWN)
