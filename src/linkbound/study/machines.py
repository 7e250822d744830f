"""A machine from its files alone, for verbs that keep no study (M4)."""

import msgspec

from linkbound.errors import InputError
from linkbound.study.importing_runs import belongs_to_runs
from linkbound.study.sources import MANIFEST, SourceFile, Sources
from linkbound.topology.merge import merge
from linkbound.topology.sniff import read_machine
from linkbound.topology.types import Gpu, Machine

README = "README.md"


def load_machine(sources: Sources) -> Machine:
    """What all files show of the machine, merged. Raises InputError where none shows a GPU.

    Files that tell nothing of it are named in a note.
    """
    found = read_files(sources)
    machines = [machine for _, machine in found]
    if sources.live is not None:
        machines.insert(0, sources.live)
    check_gpus(sources, machines)
    if sources.memory_bytes:
        machines.append(stated_memory(sources, machines))
    merged = merge(machines)
    used = {file.name for file, _ in found}
    unused = [file.name for file in machine_files(sources) if file.name not in used]
    if not unused:
        return merged
    note = f"Not used, they show no topology: {', '.join(unused)}."
    return msgspec.structs.replace(merged, notes=(*merged.notes, note))


def read_files(sources: Sources) -> list[tuple[SourceFile, Machine]]:
    """Each file that tells of the machine, with what it tells."""
    found = []
    for file in machine_files(sources):
        try:
            found.append((file, read_machine(file.data, file.name)))
        except InputError:
            continue
    return found


def machine_files(sources: Sources) -> list[SourceFile]:
    """Files that may tell of the machine: not those of its engine runs, nor their README."""
    return [
        file
        for file in sources.files
        if not belongs_to_runs(file, sources.runs) and file.name.rpartition("/")[2] != README
    ]


def check_gpus(sources: Sources, machines: list[Machine]) -> None:
    """Raises InputError where no source shows a GPU."""
    if not any(machine.gpus for machine in machines):
        raise InputError(
            f"{sources.name} shows no GPU.",
            why="Nothing can be said of GPUs that are not there.",
            hint="Give nvidia-smi topo -m, nvidia-smi -q or an NCCL topology file.",
        )


def stated_memory(sources: Sources, machines: list[Machine]) -> Machine:
    """A source of its own for memory that the manifest states: nobody printed it."""
    return Machine(
        sources=(MANIFEST,),
        gpus=tuple(
            Gpu(
                key=gpu.key,
                label=gpu.label,
                bus_id=gpu.bus_id,
                memory_bytes=sources.memory_bytes.get(gpu.model or ""),
            )
            for gpu in merge(machines).gpus
        ),
    )
