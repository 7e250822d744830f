"""What matrices of bandwidths show: the slow device, the slow group, the slow arm (L3, M3)."""

from collections.abc import Iterator
from statistics import median

from linkbound.doctor.groups import fast_groups, slow_groups
from linkbound.doctor.identity import kinds, maps_of
from linkbound.doctor.rules_budget import exceeded
from linkbound.doctor.types import Facts, RateMatrix, Switch
from linkbound.doctor.vocabulary import healthy, listed, seen, suspected
from linkbound.evidence.types import Finding
from linkbound.links.log_path import path_of
from linkbound.links.log_types import LogPath
from linkbound.links.types import NcclTestsRun, Operation
from linkbound.topology.types import PathKind
from linkbound.units import format_rate

_CLEARLY = 0.9
"""Ten percent: more than the spread of these tools between two runs."""
_ALIKE = 1.05
_LARGE_BYTES = 16 * 1024**2
_NEAREST = (PathKind.PIX, PathKind.PXB, PathKind.PHB, PathKind.NODE, PathKind.SYS)
_NO_PCIE_BYTES_PER_S = 128e9
"""Raw rate of Gen6 x16, one way: a rate above it is of no PCIe link."""
_X16_BYTES_PER_S = (("Gen3", 15.754e9), ("Gen4", 31.508e9), ("Gen5", 63.015e9))
_NORMAL = (0.75, 0.92)
_HOST = (Operation.HOST_TO_DEVICE, Operation.DEVICE_TO_HOST)


def _transfers(facts: Facts) -> Iterator[RateMatrix]:
    """Matrices that peer access can have shaped, one way and both ways."""
    for matrix in facts.matrices:
        if matrix.switch is not Switch.DISABLED and len(matrix.gpus) > 1:
            yield matrix


def _refused(facts: Facts, matrix: RateMatrix) -> set[tuple[str, str]]:
    """Pairs of the matrix's own file that are staged whatever its title says."""
    return {
        (one.src, one.dst)
        for source, one in facts.access
        if source == matrix.source and not one.granted
    }


def slower_than_staging(facts: Facts) -> Iterator[Finding]:
    """Enabled clearly below disabled for the same pairs of one test."""
    for on in facts.matrices:
        refused = _refused(facts, on)
        for off in facts.matrices if on.switch is Switch.ENABLED else ():
            alike = (off.source, off.both_ways) == (on.source, on.both_ways)
            if off.switch is not Switch.DISABLED or not alike:
                continue
            cells = off.cells
            ratios = {
                pair: rate / cells[pair]
                for pair, rate in on.cells.items()
                if pair in cells and pair not in refused
            }
            slow = [pair for pair, ratio in ratios.items() if ratio < _CLEARLY]
            if slow and median(ratios.values()) < _CLEARLY:
                worst = min(slow, key=lambda pair: ratios[pair])
                text = (
                    f"{len(slow)} of {len(ratios)} pairs are slower with peer access; "
                    f"{worst[0]}->{worst[1]} {format_rate(on.cells[worst])} against "
                    f"{format_rate(cells[worst])} staged ({on.source})."
                )
                yield seen("p2p-slower-than-staging", text)
                break


def slower_collectives(facts: Facts) -> Iterator[Finding]:
    """The same collective on the same ranks, its channels direct in one run, staged in another."""
    arms = {log.source: path_of(log).path for log in facts.logs}
    direct = [run for run in facts.runs if arms.get(run.source) is LogPath.DIRECT]
    staged = [run for run in facts.runs if arms.get(run.source) is LogPath.STAGED]
    for on in direct:
        for off in staged:
            alike = on.collective == off.collective and on.devices == off.devices
            rates, others = _large(on), _large(off)
            ratios = [rates[size] / others[size] for size in rates.keys() & others.keys()]
            if alike and on.devices and ratios and median(ratios) < _CLEARLY:
                share = 100 * median(ratios)
                text = f"{on.collective}: {share:.0f} % of the staged rate over {len(ratios)} sizes"
                yield seen("p2p-slower-than-staging", f"{text} ({on.source}, {off.source}).")


def _large(run: NcclTestsRun) -> dict[int, float]:
    """Bus bandwidth by size, from the size on where the link decides."""
    return {
        row.size_bytes: row.out_of_place.busbw_bytes_per_s
        for row in run.rows
        if row.size_bytes >= _LARGE_BYTES and row.out_of_place.busbw_bytes_per_s
    }


def one_slow_device(facts: Facts) -> Iterator[Finding]:
    """One GPU below all others with every peer, both directions."""
    for matrix in _transfers(facts):
        refused = _refused(facts, matrix)
        cells = {pair: rate for pair, rate in matrix.cells.items() if pair not in refused}
        for gpu in matrix.gpus if len(matrix.gpus) > 2 else ():
            own = [rate for pair, rate in cells.items() if gpu in pair]
            rest = [rate for pair, rate in cells.items() if gpu not in pair]
            whole = len(own) == 2 * (len(matrix.gpus) - 1)
            if not (whole and rest) or max(rest) > _ALIKE * min(rest):
                continue
            if max(own) < min(rest) / _ALIKE:
                text = (
                    f"{gpu}: {format_rate(median(own))} with each peer, "
                    f"{format_rate(median(rest))} among the others ({matrix.source})."
                )
                yield seen("one-slow-device", text)
                if median(own) < 0.6 * median(rest):
                    yield suspected("link-width-reduced", text)


def near_slower(facts: Facts) -> Iterator[Finding]:
    """Pairs of one group slower than pairs between groups: by labels, else by blocks."""
    for matrix in _transfers(facts):
        text = _near_by_label(facts, matrix)
        groups = slow_groups(matrix.cells)
        if text is None and groups and not any(maps_of(facts, matrix)):
            inside, across = _inside_and_across(matrix, groups)
            names = listed("{" + ", ".join(sorted(group)) + "}" for group in groups)
            text = f"Inside {names} {format_rate(inside)}, between them {format_rate(across)}"
        if text is None:
            continue
        yield seen("near-slower-than-far", f"{text} ({matrix.source}, {matrix.name}).")
        granted = [one.granted for source, one in facts.access if source == matrix.source]
        why = "who may access whom is not in the input"
        if not granted:
            yield suspected("p2p-not-granted", f"{text}; {why} ({matrix.source}).")
            yield suspected("acs-redirect", f"{text}; {why} ({matrix.source}).")
        elif any(granted):
            yield suspected("acs-redirect", f"{text}, with peer access ({matrix.source}).")


def _near_by_label(facts: Facts, matrix: RateMatrix) -> str | None:
    for machine in maps_of(facts, matrix):
        paths = kinds(machine)
        by_kind: dict[PathKind, list[float]] = {}
        for pair, rate in matrix.cells.items():
            if (kind := paths.get(pair)) in _NEAREST and kind is not None:
                by_kind.setdefault(kind, []).append(rate)
        order = [kind for kind in _NEAREST if kind in by_kind]
        if len(order) > 1 and order[0] in (PathKind.PIX, PathKind.PXB):
            near = median(by_kind[order[0]])
            far = max((median(by_kind[kind]), kind) for kind in order[1:])
            if near < _CLEARLY * far[0]:
                rates = f"{format_rate(near)}, {far[1]} pairs {format_rate(far[0])}"
                return f"{order[0]} pairs {rates} ({machine.sources[0]})"
    return None


def _inside_and_across(matrix: RateMatrix, groups: list[set[str]]) -> tuple[float, float]:
    inside = [
        rate
        for (src, dst), rate in matrix.cells.items()
        if any(src in group and dst in group for group in groups)
    ]
    across = [rate for rate in matrix.cells.values() if rate not in inside]
    return median(inside), median(across)


def two_groups(facts: Facts) -> Iterator[Finding]:
    """Fast groups with slower pairs between them, and no map in the input."""
    for matrix in _transfers(facts):
        groups = fast_groups(matrix.cells)
        if matrix.both_ways or not groups or any(maps_of(facts, matrix)):
            continue
        inside, across = _inside_and_across(matrix, groups)
        names = listed("{" + ", ".join(sorted(group)) + "}" for group in groups)
        text = f"{names}: {format_rate(inside)} inside, {format_rate(across)} across"
        yield suspected("cross-socket-path", f"{text} ({matrix.source}); no map in the input.")


def uniform(facts: Facts) -> Iterator[Finding]:
    """All pairs alike and faster than any PCIe link: one NVLink domain."""
    said: set[str] = set()
    for matrix in _transfers(facts):
        rates = list(matrix.cells.values())
        limit = _NO_PCIE_BYTES_PER_S * (2 if matrix.both_ways else 1)
        whole = len(rates) == len(matrix.gpus) * (len(matrix.gpus) - 1)
        alike = whole and min(rates) > limit and max(rates) < _ALIKE * min(rates)
        if alike and matrix.source not in said:
            said.add(matrix.source)
            text = f"{len(rates)} pairs, {format_rate(min(rates))} to {format_rate(max(rates))}"
            yield healthy("nvlink-whole", f"{text}, beyond any PCIe link ({matrix.source}).")


def pcie_normal(facts: Facts) -> Iterator[Finding]:
    """Rates at three quarters to nine tenths of a whole x16 link."""
    for matrix in _transfers(facts):
        if matrix.both_ways is False and not any(exceeded(facts, matrix)):
            refused = _refused(facts, matrix)
            rates = [rate for pair, rate in matrix.cells.items() if pair not in refused]
            yield from _normal(rates, "Pairs of GPUs", matrix.source)
    for source, by_gpu in _host_rates(facts).items():
        yield from _normal([rate for _, rate in by_gpu], "Host to GPU", source)


def slow_host_link(facts: Facts) -> Iterator[Finding]:
    """A GPU whose rate with the host is a fraction of the others'."""
    for source, by_gpu in _host_rates(facts).items():
        usual = median(rate for _, rate in by_gpu)
        slow = [f"{gpu} {format_rate(rate)}" for gpu, rate in by_gpu if rate < 0.6 * usual]
        if slow and len({gpu for gpu, _ in by_gpu}) > 2:
            text = f"{listed(slow)} with the host, {format_rate(usual)} as a rule ({source})."
            yield suspected("link-width-reduced", text)


def _host_rates(facts: Facts) -> dict[str, list[tuple[str, float]]]:
    """GPU and rate of each transfer between it and the host alone, by source."""
    found: dict[str, list[tuple[str, float]]] = {}
    for source, rate in facts.rates:
        if rate.concurrency == "alone" and rate.operation in _HOST:
            gpu = rate.dst if rate.operation is Operation.HOST_TO_DEVICE else rate.src
            found.setdefault(source, []).append((gpu, rate.bytes_per_s))
    return found


def _normal(rates: list[float], what: str, source: str) -> Iterator[Finding]:
    for generation, raw in _X16_BYTES_PER_S:
        low, high = _NORMAL[0] * raw, _NORMAL[1] * raw
        inside = [rate for rate in rates if low <= rate <= high]
        if inside and 3 * len(inside) >= len(rates) and max(rates) <= high:
            share = 100 * max(inside) / raw
            text = f"{what} {format_rate(max(inside))}, {share:.0f} % of {generation} x16"
            yield healthy("pcie-rate-normal", f"{text} ({source}).")


def write_collapse(facts: Facts) -> Iterator[Finding]:
    """All to one: writes far below one flow while reads hold."""
    for source in dict.fromkeys(source for source, _ in facts.rates):
        many = [rate for name, rate in facts.rates if name == source and rate.src == "others"]
        single = [
            rate.bytes_per_s
            for matrix in facts.matrices
            if matrix.source == source and not matrix.both_ways
            for rate in matrix.rates
        ]
        writes = [rate.bytes_per_s for rate in many if "write" in rate.method]
        reads = [rate.bytes_per_s for rate in many if "read" in rate.method]
        if single and writes and reads:
            one = median(single)
            if min(writes) < 0.5 * one and median(reads) > 0.7 * one:
                text = (
                    f"All to one: writes {format_rate(min(writes))}, reads "
                    f"{format_rate(median(reads))}, one flow {format_rate(one)} ({source})."
                )
                yield seen("posted-write-collapse", text)
