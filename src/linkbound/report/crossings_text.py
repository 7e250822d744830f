"""What each split sends, as text: a row a crossing and phase (S2)."""

from collections.abc import Sequence

from linkbound.model.types import ModelShape
from linkbound.report.model_text import render_head
from linkbound.report.table import Row, render_table
from linkbound.splits.listing import Listing
from linkbound.topology.types import Machine

_HEADER = (
    "split", "phase", "kind", "operation", "ranks", "bytes a call", "calls a step", "bytes a token",
)  # fmt: skip


def render_crossings(
    shape: ModelShape, title: str, machine: Machine, listings: Sequence[Listing]
) -> str:
    """The answer as text, a row a crossing."""
    rows = [row for listing in listings for row in _rows(listing)]
    lines = [*render_head(shape, title, machine), "", *render_table(_HEADER, rows, left=5), ""]
    lines += [
        f"{listing.split.name}: {listing.problem.text}"
        for listing in listings
        if listing.problem is not None
    ]
    lines += [
        "Bytes: payload of one rank, as nccl-tests counts it; a token is one of a replica.",
        "A send is listed for the first tensor rank; replicas do the same at the same time.",
    ]
    return "\n".join(lines) + "\n"


def _rows(listing: Listing) -> list[Row]:
    name = listing.split.name
    if not listing.crossings:
        word = "nothing crosses" if listing.problem is None else "not possible"
        return [(name, "-", word, "-", "-", "-", "-", "-")]
    return [
        (
            name,
            one.phase.value,
            one.kind.value,
            one.operation.value,
            ",".join(str(rank) for rank in one.ranks),
            f"{one.size_bytes:,}",
            f"{one.count:,}",
            f"{one.size_bytes * one.count / step.tokens:,.0f}",
        )
        for step, one in listing.crossings
    ]
