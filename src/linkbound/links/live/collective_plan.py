"""Which jobs a sweep of collectives takes, in which order, and what each costs about (L4).

Arms follow each other family by family, so that drift of the machine does not look like an arm.
"""

from collections.abc import Iterable, Sequence
from itertools import product

from msgspec import structs

from linkbound.links.live.collective_types import CollectiveJob, Family, Placement, Processes
from linkbound.links.types import Arm, Launch, Operation
from linkbound.topology.types import Gpu, Machine

OPERATIONS = (
    Operation.ALL_REDUCE,
    Operation.ALL_GATHER,
    Operation.REDUCE_SCATTER,
    Operation.ALL_TO_ALL,
    Operation.SEND_RECV,
    Operation.BROADCAST,
)
NET_MOST_BYTES = 16 * 1024**2
"""Above, time over sockets grows with the size alone, to half a second a call at 1 GiB."""
_CONTROL_SIZES = 3


def plan_collectives(
    machine: Machine,
    groups: Sequence[Sequence[str]],
    arms: Iterable[Arm],
    sizes_bytes: Sequence[int],
    launches: Sequence[Launch] = (Launch.EAGER, Launch.GRAPH),
    *,
    operations: Sequence[Operation] = OPERATIONS,
    families: Sequence[Family] = (Family.NCCL, Family.OWN),
    control: bool = True,
    work: bool = False,
) -> tuple[CollectiveJob, ...]:
    """Jobs for each group of GPU labels.

    `control` adds NCCL in one process at a few sizes, where that changes the path; `work` adds
    NCCL's and our own all-reduces at a few sizes while arithmetic keeps the GPUs busy. torch's
    family runs only where it is named. `p2p` and `nccl` open the same paths to NCCL: they are one
    job, of arm `p2p`.
    """
    wanted = dict.fromkeys(Arm.P2P if arm is Arm.NCCL else arm for arm in arms)
    jobs = []
    for group, family, arm in product(groups, families, wanted):
        if family is Family.NCCL or arm is Arm.P2P:
            jobs += _jobs(machine, group, family, arm, sizes_bytes, launches, operations)
    if control and Family.NCCL in families:
        few = control_sizes(sizes_bytes)
        for group, arm in product(groups, (arm for arm in wanted if arm is not Arm.NET)):
            jobs += _jobs(
                machine,
                group,
                Family.NCCL,
                arm,
                few,
                launches,
                [each for each in operations if each is Operation.ALL_REDUCE],
                Processes.ONE_FOR_ALL,
            )
    if work:
        jobs += [
            structs.replace(
                job,
                operations=(Operation.ALL_REDUCE,),
                placements=(Placement.OUT_OF_PLACE,),
                sizes_bytes=control_sizes(job.sizes_bytes),
                work=True,
            )
            for job in jobs
            if Operation.ALL_REDUCE in job.operations and job.processes is Processes.ONE_A_GPU
            if job.family is not Family.TORCH and job.arm is not Arm.NET
        ]
    return tuple(jobs)


def control_sizes(sizes_bytes: Sequence[int]) -> tuple[int, ...]:
    """The smallest, the middle and the largest size."""
    ordered = sorted(set(sizes_bytes))
    steps = range(_CONTROL_SIZES)
    last = len(ordered) - 1
    return tuple(dict.fromkeys(ordered[step * last // (_CONTROL_SIZES - 1)] for step in steps))


def device_name(gpu: Gpu) -> str:
    """How a child finds the GPU: by bus id, else by the number in its label."""
    return gpu.bus_id or gpu.label.removeprefix("GPU")


def _jobs(
    machine: Machine,
    group: Sequence[str],
    family: Family,
    arm: Arm,
    sizes_bytes: Sequence[int],
    launches: Sequence[Launch],
    operations: Sequence[Operation],
    processes: Processes = Processes.ONE_A_GPU,
) -> list[CollectiveJob]:
    """The job, or none where nothing is left of its sizes or operations."""
    gpus = [machine.gpu(name) for name in group]
    done = operations if family is Family.NCCL else (Operation.ALL_REDUCE,)
    sizes = [size for size in sizes_bytes if arm is not Arm.NET or size <= NET_MOST_BYTES]
    if not sizes or not done:
        return []
    job = CollectiveJob(
        family=family,
        group=tuple(gpu.label for gpu in gpus),
        devices=tuple(device_name(gpu) for gpu in gpus),
        uuids=tuple(gpu.uuid for gpu in gpus),
        arm=arm,
        processes=processes,
        operations=tuple(done),
        sizes_bytes=tuple(sizes),
        launches=tuple(launches),
        placements=tuple(Placement) if family is Family.NCCL else (Placement.OUT_OF_PLACE,),
    )
    return [job]
