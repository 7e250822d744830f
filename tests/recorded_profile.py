"""The recorded profile of a pair of H200 as records; profile/recorded/README.md says how made."""

from functools import cache
from pathlib import Path

import msgspec

from linkbound.evidence import Record

RECORDED = Path(__file__).parent / "profile" / "recorded" / "h200-pair.jsonl"


@cache
def recorded_profile() -> tuple[Record, ...]:
    """Parts, effects, shards and checks; none has parents."""
    lines = RECORDED.read_bytes().splitlines()
    return tuple(msgspec.json.decode(line, type=Record) for line in lines)
