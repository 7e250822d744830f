"""Rows of `linkbound links` from a file of JSON lines: how a recording keeps them (L1, L4).

Each line is a LinkRow; fields with their defaults may be left out.
"""

import msgspec

from linkbound.errors import InputError
from linkbound.links.curves import COLLECTIVES
from linkbound.links.live.collective_records import as_single_call
from linkbound.links.live.records import Kept, curves_of, latencies_of, rates_of
from linkbound.links.live.rows import LinkRow
from linkbound.links.types import Curve, PairLatency, PairRate

MOST_ROWS = 100_000


def parse_rows(text: str, source: str) -> tuple[LinkRow, ...]:
    """All rows in order. Raises InputError naming the line."""
    rows: list[LinkRow] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        if len(rows) >= MOST_ROWS:
            raise _bad(
                f"{source} has more than {MOST_ROWS:,} rows", "No sweep of a host has so many."
            )
        try:
            rows.append(msgspec.json.decode(line.encode(), type=LinkRow))
        except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError) as error:
            raise _bad(f"{source}, line {number}: {error}", "It is no row.") from None
        if not rows[-1].group or any(not 0 < one < 1e6 for one in rows[-1].samples_s):
            raise _bad(f"{source}, line {number}: no group, or a time below zero", "It is no row.")
    if not rows:
        raise _bad(f"{source} holds no row", "It has no line.")
    return tuple(rows)


def _bad(seen: str, why: str) -> InputError:
    return InputError(
        f"{seen}.",
        why=why,
        hint="Give the rows that `linkbound links` wrote, one JSON object a line.",
    )


def evidence_of(
    rows: tuple[LinkRow, ...], source: str
) -> tuple[tuple[Curve, ...], tuple[PairRate, ...], tuple[PairLatency, ...]]:
    """Curves, sustained rates and latencies of the rows, as a live sweep makes them."""
    kept = [Kept(row=row, record_id="") for row in rows]
    kept = [as_single_call(one) if one.row.operation in COLLECTIVES else one for one in kept]
    curves = tuple(
        msgspec.structs.replace(curve, source=source, record_ids=()) for curve in curves_of(kept)
    )
    rates = tuple(rate for _, rate in rates_of(kept))
    return curves, rates, tuple(latency for _, latency in latencies_of(kept))
