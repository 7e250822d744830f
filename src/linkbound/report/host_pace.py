"""The host's pace in words and as JSON: only where it was fitted to measured loads (E3)."""

from collections.abc import Iterator
from typing import Any

import msgspec

from linkbound.predict.simulate import HostPace
from linkbound.units import format_significant


def host_pace_lines(host: HostPace) -> Iterator[str]:
    """One line what it is, and one for each cell that says nothing of it."""
    if not host.cells:
        return
    value, low, high = map(format_significant, (host.value, host.low, host.high))
    cells = "1 measured cell" if len(host.cells) == 1 else f"{len(host.cells)} measured cells"
    yield (
        f"The host launches in ~{value} ({low}-{high}) of the time that the constants say, from "
        f"{cells}."
    )
    if host.elsewhere is not None:
        yield f"They were measured on machine {host.elsewhere}, which is not the one simulated."
    for one in host.left_out:
        yield f"Not used for it: {one}"


def host_pace_document(host: HostPace) -> dict[str, Any]:
    """`host_pace` with what it rests on; nothing where it was not fitted."""
    return {"host_pace": msgspec.to_builtins(host)} if host.cells else {}
