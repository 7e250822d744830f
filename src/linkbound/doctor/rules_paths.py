"""What the labels of paths say: sockets, NUMA nodes, NICs (M1, M3)."""

from collections.abc import Iterator

from linkbound.doctor.identity import kinds
from linkbound.doctor.types import Facts
from linkbound.doctor.vocabulary import listed, seen, suspected
from linkbound.evidence.types import Finding
from linkbound.topology.types import Machine, PathKind

_SMALL_NODES = 2
"""A machine has two sockets as a rule: more nodes than that, one a GPU, are parts of a socket."""


def sockets(facts: Facts) -> Iterator[Finding]:
    """SYS between GPUs: another socket, or only another host bridge of one NUMA node."""
    for machine in facts.machines:
        nodes = {gpu.label: gpu.numa_node for gpu in machine.gpus}
        pairs = [pair for pair, kind in kinds(machine).items() if kind is PathKind.SYS]
        where = machine.sources[0]
        derived = any(path.derived for path in machine.pairs)
        if pairs and _one_node_a_gpu(machine):
            if not derived:
                text = f"SYS everywhere with a NUMA node of its own for each GPU ({where})"
                yield suspected("sys-within-node", f"{text}: nodes may be parts of a socket.")
            continue
        within = [pair for pair in pairs if None is not nodes[pair[0]] == nodes[pair[1]]]
        if within and not derived:
            text = f"{_pairs(within)}: SYS on one NUMA node ({where})."
            yield seen("sys-within-node", text)
        # Where SYS stands inside a node, it proves nothing of GPUs whose node is not printed.
        across = [
            pair for pair in pairs if _across(nodes[pair[0]], nodes[pair[1]], unknown=not within)
        ]
        if across:
            yield seen("cross-socket-path", f"{_pairs(across)}: SYS ({where}).")


def _across(one: int | None, other: int | None, *, unknown: bool) -> bool:
    """Whether the nodes differ; `unknown` is the answer where one is not printed."""
    return unknown if one is None or other is None else one != other


def _one_node_a_gpu(machine: Machine) -> bool:
    nodes = [gpu.numa_node for gpu in machine.gpus if gpu.numa_node is not None]
    return len(set(nodes)) == len(nodes) == len(machine.gpus) and len(nodes) > _SMALL_NODES


def _pairs(pairs: list[tuple[str, str]]) -> str:
    """Each pair once: a path label is the same in both directions."""
    return listed("-".join(sorted(pair)) for pair in pairs)


def library_paths(facts: Facts) -> Iterator[Finding]:
    """NCCL's own graph: paths of type SYS between GPUs."""
    for log in facts.logs:
        far = [path for path in log.paths if path.type == "SYS"]
        if far:
            rates = sorted({path.gb_per_s for path in far})
            pairs = listed(f"{path.src}->{path.dst}" for path in far)
            text = f"{pairs}: SYS, taken for {rates[0]:g} GB/s by NCCL ({log.source})."
            yield seen("cross-socket-path", text)


def nics(facts: Facts) -> Iterator[Finding]:
    """GPUs whose nearest NIC is on another socket, and NICs that are near to no GPU."""
    for machine in facts.machines:
        printed = [path for path in machine.nic_paths if not path.derived]
        labels = {gpu.key: gpu.label for gpu in machine.gpus}
        rows = dict.fromkeys(path.gpu for path in printed)
        far = [
            labels.get(gpu, gpu)
            for gpu in rows
            if all(path.kind is PathKind.SYS for path in printed if path.gpu == gpu)
        ]
        if far:
            text = f"The nearest NIC is SYS for {listed(far)} ({machine.sources[0]})."
            yield seen("nic-far", text)
            continue
        whole = len(rows) == len(machine.gpus)
        lonely = [
            nic
            for nic in dict.fromkeys(path.nic for path in printed)
            if all(path.kind is PathKind.SYS for path in printed if path.nic == nic)
        ]
        if whole and lonely:
            yield seen("nic-far", f"{listed(lonely)}: SYS to every GPU ({machine.sources[0]}).")
