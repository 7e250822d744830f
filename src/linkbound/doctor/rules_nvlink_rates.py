"""Whether a measured plateau is what the NVLinks of its group can give (L2, M3)."""

from collections.abc import Iterator

from linkbound.doctor.identity import identity, may_be_same
from linkbound.doctor.parts import model_of, raw_link_rate
from linkbound.doctor.types import Facts
from linkbound.doctor.vocabulary import healthy
from linkbound.evidence.types import Finding
from linkbound.links.types import NcclTestsRun
from linkbound.topology.types import Machine, PathKind
from linkbound.units import format_rate

_PLATEAU_FROM_BYTES = 64 * 1024**2
_NORMAL = (0.70, 0.95)


def nvlink_normal(facts: Facts) -> Iterator[Finding]:
    """70 to 95 % of links x raw rate, for runs whose group has one number of links."""
    for run in facts.runs:
        plateau = _plateau(run)
        for machine in facts.machines if plateau else ():
            same = may_be_same(identity(facts, run.source), identity(facts, machine.sources[0]))
            links = _links(machine, len(run.devices)) if same else None
            rate = _rate_of_link(facts, run, machine)
            if plateau is None or links is None or rate is None:
                continue
            share = plateau / (links * rate)
            if _NORMAL[0] <= share <= _NORMAL[1]:
                text = (
                    f"{format_rate(plateau)} ({run.source}) of {links} links x "
                    f"{format_rate(rate)} ({machine.sources[0]}): {100 * share:.0f} %."
                )
                yield healthy("nvlink-rate-normal", text)
                break


def _plateau(run: NcclTestsRun) -> float | None:
    """The best bus bandwidth at large sizes; None where there are none, or one rank."""
    rates = [
        timing.busbw_bytes_per_s
        for row in run.rows
        if row.size_bytes >= _PLATEAU_FROM_BYTES
        for timing in (row.out_of_place, row.in_place)
        if timing is not None
    ]
    return max(rates, default=None) if len(run.devices) > 1 else None


def _links(machine: Machine, ranks: int) -> int | None:
    """NVLinks that one rank has for the run; None where they differ or the group is unclear.

    Two ranks use the links of their pair. With more, only behind a switch does the printed number
    say what a rank has.
    """
    counts = {path.nvlink_count for path in machine.pairs if path.kind is PathKind.NVLINK}
    whole = all(path.kind is PathKind.NVLINK for path in machine.pairs) and bool(machine.pairs)
    if not whole or len(counts) != 1:
        return None
    count = counts.pop()
    mesh = count is not None and count * (len(machine.gpus) - 1) <= _most_links(machine)
    return count if ranks == 2 or not mesh else None


def _most_links(machine: Machine) -> int:
    """More links than this no GPU has: a table above it is of a switch."""
    return max((len(gpu.nvlinks) for gpu in machine.gpus), default=0) or 18


def _rate_of_link(facts: Facts, run: NcclTestsRun, machine: Machine) -> float | None:
    """What the devices report, else the raw rate of the part that is named."""
    printed = [
        link.bytes_per_s
        for one in (machine, *facts.machines)
        if may_be_same(identity(facts, run.source), identity(facts, one.sources[0]))
        for gpu in one.gpus
        for link in gpu.nvlinks
        if link.bytes_per_s
    ]
    if printed:
        return min(printed)
    names = [device.name for device in run.devices]
    names += [name for gpu in machine.gpus if (name := model_of(gpu))]
    rates = {raw_link_rate(name) for name in names} - {None}
    return rates.pop() if len(rates) == 1 else None
