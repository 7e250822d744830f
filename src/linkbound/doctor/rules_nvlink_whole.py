"""NVLink between all GPUs, some, or islands of them; only pairs that are shown count (M1, M3)."""

from collections.abc import Iterator
from itertools import combinations

from linkbound.doctor.rules_nvlink import link_counts
from linkbound.doctor.types import Facts
from linkbound.doctor.vocabulary import healthy, listed, seen
from linkbound.evidence.types import Finding
from linkbound.links.log_types import NcclLog
from linkbound.topology.types import Machine, PathKind

_CUBE_MESH_GPUS, _CUBE_MESH_NEIGHBOURS = 8, 4


def wholeness(facts: Facts) -> Iterator[Finding]:
    """Whether NVLink joins all GPUs of a map, or islands of them."""
    for machine in facts.machines:
        neighbours = _neighbours(machine)
        if not any(neighbours.values()) or len(machine.gpus) < 2:
            continue
        islands = _components(neighbours)
        where = machine.sources[0]
        if len(islands) > 1 and _all_pairs_known(machine):
            names = {gpu.key: gpu.label for gpu in machine.gpus}
            groups = listed("{" + ", ".join(sorted(names[k] for k in one)) + "}" for one in islands)
            yield seen("nvlink-islands", f"NVLink joins {groups} only ({where}).")
        elif len(islands) == 1:
            yield from _whole(machine, neighbours)


def _neighbours(machine: Machine) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {gpu.key: set() for gpu in machine.gpus}
    for path in machine.pairs:
        if path.kind is PathKind.NVLINK:
            found[path.pair.src].add(path.pair.dst)
            found[path.pair.dst].add(path.pair.src)
    return found


def _components(neighbours: dict[str, set[str]]) -> list[set[str]]:
    left, found = set(neighbours), []
    for start in neighbours:
        if start not in left:
            continue
        group, edge = {start}, [start]
        while edge:
            new = neighbours[edge.pop()] - group
            group |= new
            edge.extend(new)
        left -= group
        found.append(group)
    return found


def _all_pairs_known(machine: Machine) -> bool:
    """Whether each pair is printed in at least one direction: a cut table hides links."""
    return len(_printed(machine)) == _pairs_among(len(machine.gpus))


def _printed(machine: Machine) -> set[frozenset[str]]:
    return {frozenset((path.pair.src, path.pair.dst)) for path in machine.pairs if path.kind}


def _pairs_among(gpus: int) -> int:
    return gpus * (gpus - 1) // 2


def _whole(machine: Machine, neighbours: dict[str, set[str]]) -> Iterator[Finding]:
    """All printed pairs linked, or a known mesh: only what is printed is called linked."""
    where, gpus = machine.sources[0], len(machine.gpus)
    printed = [path for path in machine.pairs if path.kind]
    labels = {path.label for path in printed}
    if all(path.kind is PathKind.NVLINK for path in printed):
        shown = len(_printed(machine))
        text = f"{gpus} GPUs, {listed(sorted(label for label in labels if label))} between all"
        yield _joined(f"{text} {shown} printed pairs ({where}).", shown, gpus)
        return
    totals = {sum(of.values()) for of in link_counts(machine).values()}
    mesh = {len(of) for of in neighbours.values()} == {_CUBE_MESH_NEIGHBOURS}
    if gpus == _CUBE_MESH_GPUS and mesh and len(totals) == 1:
        linked = sum(len(of) for of in neighbours.values()) // 2
        yield healthy(
            "nvlink-whole",
            f"{gpus} GPUs, the cube mesh of four neighbours and {totals.pop()} links each: "
            f"{linked} of {_pairs_among(gpus)} pairs are linked ({where}).",
            why="No link is down, and NVLink joins each GPU to four of the other seven: only "
            "groups whose pairs are all linked have the direct link.",
            remedy=f"Choose groups inside {_quads(machine, neighbours)}.",
        )


def _quads(machine: Machine, neighbours: dict[str, set[str]]) -> str:
    """The groups of four whose pairs are all linked: {GPU0, GPU1, GPU2, GPU3}, ..."""
    names = {gpu.key: gpu.label for gpu in machine.gpus}
    found = [
        "{" + ", ".join(names[key] for key in four) + "}"
        for four in combinations(neighbours, 4)
        if all(dst in neighbours[src] for src, dst in combinations(four, 2))
    ]
    return listed(found) if found else "linked pairs"


def _joined(text: str, pairs: int, gpus: int) -> Finding:
    """NVLink between `pairs` pairs of these GPUs and none without: whole where that is all."""
    missing = _pairs_among(gpus) - pairs
    if not missing:
        return healthy("nvlink-whole", text)
    return healthy(
        "nvlink-whole",
        text,
        why=f"NVLink joins every pair that is shown; of {missing} other pairs nothing is known.",
        remedy="Give the whole output to know of the rest.",
    )


def graph_whole(facts: Facts) -> Iterator[Finding]:
    """NCCL's own graph lines: all its paths between GPUs are NVLink, or those of islands."""
    for log in facts.logs:
        neighbours: dict[str, set[str]] = {path.dst: set() for path in log.paths}
        for path in log.paths:
            neighbours.setdefault(path.src, set()).update(
                {path.dst} if path.type in ("NVL", "NVB") else ()
            )
        islands = _components(neighbours) if any(neighbours.values()) else []
        if len(islands) > 1 and {path.src for path in log.paths} == neighbours.keys():
            groups = listed("{" + ", ".join(sorted(one)) + "}" for one in islands)
            yield seen("nvlink-islands", f"NVL paths join {groups} only ({log.source}).")
        if log.paths and all(path.type in ("NVL", "NVB") for path in log.paths):
            yield _graph_joined(log)


def _graph_joined(log: NcclLog) -> Finding:
    """All printed paths go over NVLink; NVB is one by way of another GPU."""
    gpus = {path.src for path in log.paths} | {path.dst for path in log.paths}
    through = {frozenset((path.src, path.dst)) for path in log.paths if path.type == "NVB"}
    pairs = {frozenset((path.src, path.dst)) for path in log.paths}
    text = f"All {len(log.paths)} paths among {len(gpus)} GPUs are NVL ({log.source})."
    if not through:
        return _joined(text, len(pairs), len(gpus))
    return healthy(
        "nvlink-whole",
        f"All {len(log.paths)} paths among {len(gpus)} GPUs are NVLink, those of {len(through)} "
        f"pairs by way of another GPU (NVB, {log.source}).",
        why="NVLink reaches every pair that is shown, but pairs of type NVB have no direct link.",
        remedy="Choose groups whose pairs are all NVL.",
    )
