"""Outputs of link tools and libraries as facts: logs, tables, matrices (P3, L6, M3)."""

import re
from typing import Any

from linkbound.doctor.types import Message, NvbandwidthDevices, Place, RateMatrix, Switch
from linkbound.errors import InputError
from linkbound.links import (
    LinkEvidence,
    NcclLog,
    Operation,
    PairRate,
    PeerAccess,
    parse_nccl_log,
    read_links,
)
from linkbound.links.parse_nvbandwidth import parse_nvbandwidth

Part = tuple[str, str, tuple[Any, ...]]
UNUSED = "unused"
"""The part of a file that is understood and of which no rule makes use."""
_BETWEEN_GPUS = (Operation.COPY, Operation.COPY_BOTH_WAYS)
_TO_PEERS = re.compile(r"^(?:device_to_device|all_to_one|one_to_all|bidirectional_device)")
_TITLE = re.compile(r"^P2P Connectivity Matrix", re.MULTILINE)
_CONNECTED = re.compile(r"^\s*(\d{1,3})((?:\s+[01]){1,64})\s*$")
_GAP_NOTE = re.compile(r"left out as cut|above the first title|row not readable|was cut after")
_SIZE_NOTE = re.compile(r"columns, but \d+ devices listed|more rows than devices")


def read_link_facts(name: str, data: bytes, text: str) -> list[Part]:
    """What a file about links holds; empty parts where it is none."""
    access = _connectivity(text)
    try:
        evidence = read_links(data, name)
        logs = evidence.logs or _logs(text, name)
    except InputError:
        return [("p2pBandwidthLatencyTest", "access", tuple((name, one) for one in access))]
    matrices, others = _matrices(evidence)
    granted = evidence.access or access
    return [
        (evidence.kind, UNUSED, evidence.curves[:1] or evidence.notes[:1]),
        ("NCCL log", "logs", logs),
        (evidence.kind, "runs", evidence.runs),
        (evidence.kind, "matrices", matrices),
        (evidence.kind, "rates", tuple((name, rate) for rate in others)),
        (evidence.kind, "latencies", tuple((name, one) for one in evidence.latencies)),
        (evidence.kind, "access", tuple((name, one) for one in granted)),
        (evidence.kind, "nvbandwidth", _devices(evidence, text, name)),
        (evidence.kind, "gaps", _notes(evidence, _GAP_NOTE, "gap")),
        (evidence.kind, "contradictions", _notes(evidence, _SIZE_NOTE, "size")),
    ]


def _logs(text: str, name: str) -> tuple[NcclLog, ...]:
    """The log that stands below or around another tool's output."""
    if "NCCL INFO " not in text and "NCCL WARN " not in text:
        return ()
    return (parse_nccl_log(text, name),)


def _connectivity(text: str) -> tuple[PeerAccess, ...]:
    """The matrix of 0 and 1, for outputs whose lines `CAN Access Peer` were not posted."""
    title = _TITLE.search(text)
    if title is None:
        return ()
    found = []
    for line in text[title.end() :].splitlines()[1:]:
        row = _CONNECTED.match(line)
        if row:
            for column, cell in enumerate(row[2].split()):
                if column != int(row[1]):
                    src, dst = f"GPU{row[1]}", f"GPU{column}"
                    found.append(PeerAccess(src=src, dst=dst, granted=cell == "1"))
        elif found or line.strip().startswith(("Uni", "Bi", "P2P")):
            break
    return tuple(found)


def _matrices(evidence: LinkEvidence) -> tuple[tuple[RateMatrix, ...], list[PairRate]]:
    """Rates between GPUs by method, and all others."""
    groups: dict[str, list[PairRate]] = {}
    others = []
    for rate in evidence.pair_rates:
        between = rate.operation in _BETWEEN_GPUS and rate.concurrency == "alone"
        if between and "others" not in (rate.src, rate.dst):
            groups.setdefault(rate.method, []).append(rate)
        else:
            others.append(rate)
    matrices = tuple(
        RateMatrix(
            source=evidence.source,
            name=method,
            switch=_switch(method),
            both_ways=rates[0].operation is Operation.COPY_BOTH_WAYS,
            rates=tuple(rates),
        )
        for method, rates in groups.items()
    )
    return matrices, others


def _switch(method: str) -> Switch:
    """nvbandwidth copies between GPUs only where peer access is granted."""
    if "P2P=Enabled" in method or method.startswith("nvbandwidth"):
        return Switch.ENABLED
    return Switch.DISABLED if "P2P=Disabled" in method else Switch.UNKNOWN


def _devices(evidence: LinkEvidence, text: str, name: str) -> tuple[NvbandwidthDevices, ...]:
    """How many GPUs nvbandwidth listed, and which tests between them it waived."""
    if evidence.kind != "nvbandwidth":
        return ()
    run = parse_nvbandwidth(text, name)
    waived = tuple(
        dict.fromkeys(
            one.test
            for one in evidence.waived
            if one.status.lower() == "waived" and _TO_PEERS.match(one.test)
        )
    )
    widest = max((len(row) for test in run.tests for row in test.matrix[:1]), default=0)
    return (NvbandwidthDevices(source=name, count=len(run.devices) or widest, waived=waived),)


def _notes(evidence: LinkEvidence, pattern: re.Pattern[str], kind: str) -> tuple[Message, ...]:
    place = Place(source=evidence.source)
    return tuple(
        Message(place=place, kind=kind, text=note)
        for note in dict.fromkeys(evidence.notes)
        if pattern.search(note)
    )
