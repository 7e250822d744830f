"""Several sources of one machine as one Machine: gaps filled, disagreements kept and shown (M4).

Nothing is resolved silently: the first source's value stays and the others stand beside it.
"""

from collections.abc import Mapping, Sequence

from msgspec import structs

from linkbound.topology.identifiers import same_cpus
from linkbound.topology.merge_devices import merge_devices
from linkbound.topology.merge_gpus import group_gpus, merge_gpu
from linkbound.topology.merge_paths import merge_nic_paths, merge_pairs
from linkbound.topology.settle import Ledger
from linkbound.topology.types import Gpu, Machine, NumaNode


def merge(machines: Sequence[Machine]) -> Machine:
    """One machine from sources that are all of the same machine. Raises ValueError for none.

    GPUs meet by UUID, then by bus id, then by label; numbering is never guessed.
    """
    if not machines:
        raise ValueError("merge needs at least one machine")
    if len(machines) == 1:
        return machines[0]
    ledger = Ledger()
    _compare_counts(machines, ledger)
    devices, device_keys = merge_devices(machines, ledger)
    gpus, gpu_keys = _merge_gpus(machines, device_keys, ledger)
    return Machine(
        sources=tuple(dict.fromkeys(name for one in machines for name in one.sources)),
        gpus=gpus,
        devices=devices,
        pairs=merge_pairs(machines, gpu_keys, gpus, ledger),
        nic_paths=merge_nic_paths(machines, gpu_keys, device_keys, ledger),
        numa_nodes=_merge_numa(machines, ledger),
        host=_merge_host(machines, ledger),
        contradictions=(
            *(known for machine in machines for known in machine.contradictions),
            *ledger.contradictions,
        ),
        notes=tuple(dict.fromkeys(note for machine in machines for note in machine.notes)),
    )


def source_name(machine: Machine) -> str:
    """What a claim of this machine is signed with."""
    return ", ".join(machine.sources)


def _compare_counts(machines: Sequence[Machine], ledger: Ledger) -> None:
    """A source without any GPU (a NIC's lspci, a graph file) does not speak of their number."""
    ledger.settle(
        "number of GPUs",
        ((source_name(machine), len(machine.gpus) or None) for machine in machines),
    )


def _merge_gpus(
    machines: Sequence[Machine], device_keys: Sequence[Mapping[str, str]], ledger: Ledger
) -> tuple[tuple[Gpu, ...], list[dict[str, str]]]:
    """The GPUs, and for each machine the way from its keys to the merged ones."""
    keys: list[dict[str, str]] = [{} for _ in machines]
    gpus: dict[str, Gpu] = {}
    for group in group_gpus(machines):
        gpu = merge_gpu([(source_name(machines[at]), member) for at, member in group], ledger)
        parent = next(
            (
                device_keys[at][member.parent]
                for at, member in group
                if member.parent is not None and member.parent in device_keys[at]
            ),
            None,
        )
        labels = {known.label for known in gpus.values()}
        if gpu.label in labels:
            # Two sources number different GPUs alike: the second one goes by what it is.
            gpu = structs.replace(gpu, label=gpu.bus_id or gpu.uuid or f"{gpu.label} #2")
        key = gpu.key if gpu.key not in gpus else f"{gpu.key} #2"
        gpus[key] = structs.replace(gpu, key=key, parent=parent)
        for at, member in group:
            keys[at][member.key] = key
    return tuple(gpus.values()), keys


def _merge_numa(machines: Sequence[Machine], ledger: Ledger) -> tuple[NumaNode, ...]:
    indices = sorted({node.index for machine in machines for node in machine.numa_nodes})
    merged = []
    for index in indices:
        claims = [
            (source_name(machine), node)
            for machine in machines
            for node in machine.numa_nodes
            if node.index == index
        ]
        cpus = ledger.settle(
            f"CPUs of NUMA node {index}",
            ((source, node.cpus) for source, node in claims),
            same_cpus,
        )
        memory_bytes = ledger.settle(
            f"memory of NUMA node {index}",
            ((source, node.memory_bytes) for source, node in claims),
        )
        merged.append(NumaNode(index=index, cpus=cpus, memory_bytes=memory_bytes))
    return tuple(merged)


def _merge_host(machines: Sequence[Machine], ledger: Ledger) -> dict[str, str]:
    names = dict.fromkeys(name for machine in machines for name in machine.host)
    host = {}
    for name in names:
        claims = ((source_name(machine), machine.host.get(name)) for machine in machines)
        value = ledger.settle(f"host {name}", claims)
        if value is not None:
            host[name] = value
    return host
