"""A plan as a file: GPUs by identity, what is near them, what the arm opens and closes (D4)."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from linkbound.errors import InputError
from linkbound.links.types import Arm
from linkbound.model.types import Load
from linkbound.predict.types import Plan
from linkbound.splits.types import Placement
from linkbound.study.commands import Server, servers
from linkbound.topology.identifiers import cpus_of_list
from linkbound.topology.types import Machine
from linkbound.values import Value

SCHEMA, VERSION = "linkbound.plan", 1
MOST_BYTES = 4 * 1024**2
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DEVICES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


class PlacedGpu(Value, frozen=True, kw_only=True):
    """One GPU of a server: `uuid` says which it is on any day, the label which it was."""

    label: str
    uuid: str | None


class PlacedServer(Value, frozen=True, kw_only=True):
    """What one server of a plan runs on and with."""

    gpus: tuple[PlacedGpu, ...]
    """In rank order."""
    cores: tuple[str, ...]
    """Lists of the processors near its GPUs; empty where they are not known of every one."""
    memory_nodes: tuple[int, ...]
    """NUMA nodes of its memory; empty where they are not known of every GPU."""
    environment: Mapping[str, str]
    """What the arm and the engine set; devices apart."""
    drop: tuple[str, ...]
    """Inherited variables that would decide what the arm decides."""
    command: tuple[str, ...]
    """What starts the engine so; another command may run instead."""


class PlanFile(Value, frozen=True, kw_only=True):
    """A plan of a machine, ready to be run."""

    schema: str = SCHEMA
    version: int = VERSION
    machine: str
    model: str
    engine: str
    split: str
    arm: Arm | None
    limit: int
    """Sequences at once in a server."""
    role: str
    """`best`, or what it is there to be compared with."""
    why: str
    servers: tuple[PlacedServer, ...]


def plan_file(
    machine: Machine,
    plan: Plan,
    load: Load,
    *,
    name: str,
    model: str,
    engine: str,
    limit: int,
    role: str,
    why: str,
    longest: int | None = None,
) -> PlanFile:
    """The plan as a file of the machine called `name`. Raises UsageError as `servers` does."""
    found = servers(machine, plan, engine, load, limit=limit, longest=longest)
    return PlanFile(
        machine=name,
        model=model,
        engine=engine,
        split=plan.split.name,
        arm=plan.arm,
        limit=limit,
        role=role,
        why=why,
        servers=tuple(_placed(machine, one, plan.placement) for one in found),
    )


def _placed(machine: Machine, server: Server, placement: Placement) -> PlacedServer:
    """With the processors and nodes of the plan's own placement, near or not."""
    keys = server.placement.gpus
    gpus = [machine.gpu(key) for key in keys]
    cores = [placement.cores.get(key) for key in keys]
    nodes = [placement.numa_nodes.get(key) for key in keys]
    environment = server.launch.environment.items()
    return PlacedServer(
        gpus=tuple(PlacedGpu(label=gpu.label, uuid=gpu.uuid) for gpu in gpus),
        cores=() if None in cores else tuple(dict.fromkeys(one for one in cores if one)),
        memory_nodes=()
        if None in nodes
        else tuple(dict.fromkeys(one for one in nodes if one is not None)),
        environment={name: value for name, value in environment if name not in _DEVICES},
        drop=server.launch.drop,
        command=server.launch.argv,
    )


def write_plan(file: PlanFile) -> str:
    """The file's text."""
    return msgspec.json.format(msgspec.json.encode(file), indent=1).decode() + "\n"


def read_plan(path: Path) -> PlanFile:
    """A plan from a file. Raises InputError where it is none."""
    try:
        data = path.read_bytes()[: MOST_BYTES + 1]
    except OSError as error:
        raise _no_plan(path, f"cannot be read: {error.strerror}") from None
    if len(data) > MOST_BYTES:
        raise _no_plan(path, "is larger than any plan")
    try:
        found = msgspec.json.decode(data, type=PlanFile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _no_plan(path, f"is no plan: {error}") from None
    if (found.schema, found.version) != (SCHEMA, VERSION):
        raise _no_plan(path, f"is {found.schema} {found.version}, not {SCHEMA} {VERSION}")
    problem = "names no server" if not found.servers else _problem(found.servers)
    if problem is not None:
        raise _no_plan(path, problem)
    return found


def _problem(servers: Iterable[PlacedServer]) -> str | None:
    """What no command could run with; None where all can."""
    for number, server in enumerate(servers):
        uuids = [gpu.uuid for gpu in server.gpus if gpu.uuid is not None]
        if not server.gpus:
            return f"names no GPU for server {number}"
        if len(set(uuids)) < len(uuids):
            return f"names a GPU twice for server {number}"
        for name, value in server.environment.items():
            if not _VARIABLE.fullmatch(name) or "\0" in value:
                return f"sets a variable for server {number} that no process can have: {name!r}"
        for one in server.cores:
            if cpus_of_list(one) is None:
                return f"names processors for server {number} that are no list: {one!r}"
    return None


def _no_plan(path: Path, what: str) -> InputError:
    return InputError(
        f"{path} {what}.",
        why="It should say which GPUs, processors and variables a command gets.",
        hint="Write one: linkbound search MODEL --plan FILE.",
    )
