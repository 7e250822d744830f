"""Findings that live sweeps left in a study: of the report, of verdicts, of the exit code (L6)."""

from typing import Any

import msgspec

from linkbound.errors import CorruptionFound
from linkbound.evidence.study import Study
from linkbound.evidence.types import Finding, Record
from linkbound.verdict.distrust import FAULT_ARMS


def read_findings(study: Study, machine: str) -> tuple[Finding, ...]:
    """Findings of this machine's links, each with its record."""
    return tuple(
        msgspec.convert({**_without_machine(record), "record_ids": (record.id,)}, Finding)
        for record in study.find("links.finding", machine=machine)
    )


def _without_machine(record: Record) -> dict[str, Any]:
    return {name: value for name, value in record.subject.items() if name != "machine"}


def refuse_faults(study: Study, machine: str) -> None:
    """Raises CorruptionFound where wrong bytes or a hang were seen; all is written before."""
    codes = dict.fromkeys(
        one.code for one in read_findings(study, machine) if one.code in FAULT_ARMS
    )
    if codes:
        raise CorruptionFound(
            f"Found on the links of {machine}: {', '.join(codes)}.",
            why="A model that is split over them would compute with wrong numbers, or wait.",
            hint="The findings in the report say what to do.",
        )
