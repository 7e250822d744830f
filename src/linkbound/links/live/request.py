"""From a machine and what the user asked for to the jobs of a sweep, or why there are none (L1)."""

import os
import re
from collections.abc import Mapping, Sequence

from linkbound.errors import NothingToMeasure, UsageError
from linkbound.evidence.child import MULTICAST_GUARDS, child_environment
from linkbound.links.live.cell import CopyJob, JobGpu
from linkbound.links.live.contention import ContentionSet, contention_sets
from linkbound.links.live.plan import (
    DEFAULT_SIZES,
    QUICK_SIZES,
    Scope,
    peer_cells,
    size_range,
    staged_cells,
)
from linkbound.links.live.sampling import Rule
from linkbound.links.live.state import State
from linkbound.links.live.tasks import Method
from linkbound.links.types import Arm
from linkbound.topology.identifiers import cpus_of_list
from linkbound.topology.types import Gpu, Machine
from linkbound.units import parse_size_bytes
from linkbound.values import Value

LEAST_BYTES = 4
MOST_BYTES = 16 * 1024**3
DEFAULT_FACTOR = 4
QUICK_RULE = Rule(least=3, quick_s=0.01, cap_s=0.2)
"""A matrix in seconds: three equal samples are enough where each takes milliseconds."""


NOT_QUICK = (Method.DRIVER_PULL, Method.PAGEABLE)
"""Left out of a quick matrix unless named: no plan waits for them, and they take a second."""


_NUMBER = re.compile(r"[0-9]{1,6}")
_GPU = re.compile(r"\w+")


class Asked(Value, frozen=True, kw_only=True):
    """Options as the user wrote them; None and empty where not given."""

    quick: bool = False
    pairs: str | None = None
    methods: str | None = None
    begin: str | None = None
    end: str | None = None
    factor: int | None = None


def check(asked: Asked) -> None:
    """Raises UsageError for what means nothing on any machine, before one is looked at."""
    asked_sizes(asked)
    to_methods(asked)
    if asked.pairs is not None:
        _pair_words(asked.pairs)


def measurable(machine: Machine) -> tuple[Gpu, ...]:
    """The GPUs that can be measured. Raises NothingToMeasure with what stands in the way."""
    if not machine.gpus:
        raise NothingToMeasure(
            "No GPU was found on this host.",
            why=" ".join(machine.notes) or "Links are measured between GPUs.",
            hint="Read recorded measurements instead: linkbound study MODEL --machine h200-pair.",
        )
    foreign = [gpu.label for gpu in machine.gpus if gpu.vendor not in (None, "NVIDIA")]
    gpus = tuple(gpu for gpu in machine.gpus if gpu.uuid and gpu.label not in foreign)
    if len(gpus) < 2:
        seen = f"{len(gpus)} NVIDIA GPU can be measured here"
        raise NothingToMeasure(
            f"{seen}{f'; {len(foreign)} of other vendors are mapped only' if foreign else ''}.",
            why="A link has two ends.",
            hint="`linkbound topo` shows what is wired here.",
        )
    whole = tuple(gpu for gpu in gpus if not gpu.mig)
    if len(whole) < 2:
        raise NothingToMeasure(
            f"MIG is on ({', '.join(gpu.label for gpu in gpus if gpu.mig)}).",
            why="CUDA gives instances of MIG no peer access, and a process sees one of them.",
            hint="Turn MIG off on at least two GPUs.",
        )
    return whole


def to_scope(asked: Asked, machine: Machine, labels: Sequence[str]) -> Scope:
    """Pairs, methods and sizes. Raises UsageError for what does not exist here."""
    ranged = asked_sizes(asked)
    return Scope(
        pairs=to_pairs(asked.pairs, labels),
        methods=to_methods(asked),
        sizes=ranged or (QUICK_SIZES if asked.quick else DEFAULT_SIZES),
        quick=asked.quick,
        both_ways_at_all_sizes=bool(ranged),
        nodes=numa_nodes(machine, frozenset(os.sched_getaffinity(0))),
    )


def to_pairs(text: str | None, labels: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Ordered pairs of `0-1,2-3` (both ways each) or `0>1` (one way); all where none is given."""
    if text is None:
        return tuple((src, dst) for src in labels for dst in labels if src != dst)
    pairs: list[tuple[str, str]] = []
    for src, dst, one_way in _pair_words(text):
        ends = _label(src, labels), _label(dst, labels)
        pairs.append(ends)
        if not one_way:
            pairs.append((ends[1], ends[0]))
    return tuple(dict.fromkeys(pairs))


def _pair_words(text: str) -> list[tuple[str, str, bool]]:
    """Two different names, and whether one way is meant, of each word."""
    found = []
    for word in text.split(","):
        one_way = ">" in word
        ends = [_name(end) for end in word.split(">" if one_way else "-")]
        if len(ends) != 2 or ends[0] == ends[1] or not all(map(_GPU.fullmatch, ends)):
            raise UsageError(
                f"--pairs '{word}' is no pair.",
                why="A pair is two different GPUs.",
                hint="Write 0-1 for both ways, 0>1 for one way; several with commas.",
            )
        found.append((ends[0], ends[1], one_way))
    return found


def _name(text: str) -> str:
    name = text.strip()
    return f"GPU{int(name)}" if _NUMBER.fullmatch(name) else name


def _label(label: str, labels: Sequence[str]) -> str:
    if label not in labels:
        raise UsageError(
            f"--pairs names '{label}'.",
            why=f"GPUs here are {', '.join(labels)}.",
            hint="Use their numbers, as `linkbound topo` shows them.",
        )
    return label


def to_methods(asked: Asked) -> tuple[Method, ...]:
    """Methods by name, or all; of a quick matrix those that it takes."""
    if asked.methods is None:
        return tuple(one for one in Method if not (asked.quick and one in NOT_QUICK))
    names = [name.strip() for name in asked.methods.split(",")]
    unknown = [name for name in names if name not in tuple(Method)]
    if unknown:
        raise UsageError(
            f"--methods: '{unknown[0]}' is no method.",
            why=f"Methods are {', '.join(Method)}.",
            hint="List them with linkbound links -l.",
        )
    return tuple(Method(name) for name in dict.fromkeys(names))


def asked_sizes(asked: Asked) -> tuple[int, ...]:
    """Sizes of -b, -e and -f; empty where none was given. Raises UsageError."""
    if asked.begin is None and asked.end is None and asked.factor is None:
        return ()
    begin = parse_size_bytes(asked.begin) if asked.begin is not None else LEAST_BYTES
    end = parse_size_bytes(asked.end) if asked.end is not None else 1024**3
    factor = DEFAULT_FACTOR if asked.factor is None else asked.factor
    if not LEAST_BYTES <= begin <= end <= MOST_BYTES or factor < 2:
        raise UsageError(
            f"Sizes from {begin:,} to {end:,} bytes by a factor of {factor}.",
            why=f"They go up from {LEAST_BYTES} bytes to at most 16 GiB, by a factor of 2 or more.",
            hint="Write -b 4 -e 1G -f 4.",
        )
    return size_range(begin, end, factor)


def numa_nodes(machine: Machine, usable: frozenset[int]) -> tuple[int | None, ...]:
    """Nodes on whose processors this process may run, for host buffers; None where none is known.

    A node without such a processor cannot be chosen by first touch.
    """
    nodes = tuple(
        node.index
        for node in machine.numa_nodes
        if usable & (cpus_of_list(node.cpus or "") or frozenset())
    )
    return nodes or (None,)


def to_jobs(
    machine: Machine, gpus: Sequence[Gpu], scope: Scope, asked: Asked
) -> tuple[CopyJob, ...]:
    """One job an arm: peer access is granted in one child and never in the other."""
    used = {label for pair in scope.pairs for label in pair}
    kept = [gpu for gpu in gpus if gpu.label in used]
    sets: tuple[ContentionSet, ...] = contention_sets(machine, [gpu.label for gpu in kept])
    if asked.pairs is not None:
        sets = ()
    named = tuple(JobGpu(label=gpu.label, uuid=gpu.uuid or "") for gpu in kept)
    node_cpus = {
        node.index: tuple(sorted(cpus_of_list(node.cpus or "") or ()))
        for node in machine.numa_nodes
    }
    rule = QUICK_RULE if asked.quick else Rule()
    cells = {Arm.P2P: peer_cells(scope, sets), Arm.STAGED: staged_cells(scope, sets)}
    return tuple(
        CopyJob(arm=arm, gpus=named, cells=found, rule=rule, node_cpus=node_cpus)
        for arm, found in cells.items()
        if found
    )


def job_environment() -> dict[str, str]:
    """Everything of this process, with CUDA numbering GPUs as the driver's tools do.

    NVLink multicast stays off whatever the libraries would choose.
    """
    return child_environment({**MULTICAST_GUARDS, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})


def recorded_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that can change what is measured; others may hold private things."""
    prefixes = ("CUDA_", "NCCL_", "NVSHMEM_", "TORCH_SYMM_MEM_", "VLLM_ALLREDUCE_")
    return {name: value for name, value in environment.items() if name.startswith(prefixes)}


def refuse_busy(gpus: Sequence[Gpu], state: State) -> None:
    """Raises UsageError where a process computes on one of the GPUs."""
    busy = {gpu.label: state.others(gpu.uuid or "") for gpu in gpus}
    named = [
        f"{label} (processes {', '.join(map(str, pids))})" for label, pids in busy.items() if pids
    ]
    if named:
        raise UsageError(
            f"Busy: {'; '.join(named)}.",
            why="Measurements beside other work say little about the link, and disturb that work.",
            hint="Wait or stop them, or measure all the same with --busy-ok: rows are flagged.",
        )
