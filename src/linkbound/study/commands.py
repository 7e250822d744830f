"""How to run a plan with an engine: the arm, the GPUs in order, what is near them (D4).

Each replica is a server of its own, bound to the processors and memory near its GPUs; replicas that
share experts are one server. The command is the one that `serve` measures, without what only
measuring needs.
"""

import shlex
from collections.abc import Callable, Iterable

import msgspec

from linkbound.errors import UsageError
from linkbound.evidence.child import MULTICAST_GUARDS
from linkbound.model.types import Load
from linkbound.predict.types import Plan
from linkbound.serve.engines import ENGINES
from linkbound.serve.engines.types import ServerPlan
from linkbound.serve.process import Launch
from linkbound.splits.place import placement_of
from linkbound.splits.types import Placement, Split
from linkbound.topology.types import Gpu, Machine
from linkbound.values import Value

CONTEXT_MARGIN = 64
"""A prompt's template and the engine's own tokens come on top of what is asked."""
FIRST_PORT = 8000
MODEL = "MODEL"


class Server(Value, frozen=True, kw_only=True):
    """One server of a plan: its GPUs in rank order, what is near them, and what starts it."""

    placement: Placement
    launch: Launch


def launch_of(engine: str) -> Callable[[ServerPlan], Launch]:
    """What starts a server of the engine. Raises UsageError where nothing here does."""
    known = ENGINES.get(engine)
    if known is None or known.launch is None:
        starting = ", ".join(name for name, one in ENGINES.items() if one.launch is not None)
        raise UsageError(
            f"No command is known for '{engine}'.",
            why="Each engine has flags of its own.",
            hint=f"Take one of {starting}.",
        )
    return known.launch


def servers(
    machine: Machine,
    plan: Plan,
    engine: str,
    load: Load,
    *,
    limit: int,
    longest: int | None = None,
    model: str = MODEL,
) -> tuple[Server, ...]:
    """What starts the plan's servers, `limit` sequences at once in each.

    `longest` is the tokens of a sequence that the model takes: engines refuse to start with more.
    Raises UsageError where the engine cannot run the split, or has no such arm.
    """
    start = launch_of(engine)
    tokens = load.prompt_tokens + load.output_tokens + CONTEXT_MARGIN
    found = []
    for number, gpus in enumerate(_groups(machine, plan)):
        asked = ServerPlan(
            model=model,
            split=_of_one(plan.split),
            arm=plan.arm,
            devices=tuple(_ordinal(gpu, machine) for gpu in gpus),
            port=FIRST_PORT + number,
            folder=".",
            context_tokens=tokens if longest is None else min(tokens, longest),
            sequences=limit,
            extra=_sharing(plan.split, engine),
            measured=False,
        )
        launch = start(asked)
        environment = {**launch.environment, **MULTICAST_GUARDS}
        launch = msgspec.structs.replace(launch, environment=environment)
        found.append(Server(placement=placement_of(gpus), launch=launch))
    return tuple(found)


def command_lines(
    machine: Machine,
    plan: Plan,
    engine: str,
    load: Load,
    *,
    limit: int,
    longest: int | None = None,
    model: str = MODEL,
) -> tuple[str, ...]:
    """A line for a shell for each server; first what writes the files that it reads."""
    return tuple(
        line
        for one in servers(machine, plan, engine, load, limit=limit, longest=longest, model=model)
        for line in _lines(one)
    )


def _groups(machine: Machine, plan: Plan) -> Iterable[list[Gpu]]:
    split, gpus = plan.split, [machine.gpu(key) for key in plan.placement.gpus]
    size = split.gpus if split.ep > split.tp else split.tp * split.pp
    return (gpus[at : at + size] for at in range(0, len(gpus), size))


def _of_one(split: Split) -> Split:
    return split if split.ep > split.tp else msgspec.structs.replace(split, replicas=1)


def _sharing(split: Split, engine: str) -> tuple[str, ...]:
    """Flags for replicas that share experts. Raises UsageError where no adapter has them."""
    if split.ep <= split.tp:
        return ()
    if engine != "vllm":
        raise UsageError(
            f"How {engine} shares experts between replicas is not known here.",
            why="The replicas would be another plan than the one found.",
            hint="Take --engine vllm, or a split whose experts stay inside a copy.",
        )
    return ("--data-parallel-size", str(split.replicas))


def _ordinal(gpu: Gpu, machine: Machine) -> int:
    """The number in the label: as nvidia-smi counts; without one, the place in the list."""
    number = gpu.label.removeprefix("GPU")
    return int(number) if number.isdecimal() else machine.gpus.index(gpu)


def _lines(server: Server) -> Iterable[str]:
    launch = server.launch
    for path, text in launch.files.items():
        escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
        yield f"printf %b {shlex.quote(escaped)} > {shlex.quote(path)}"
    words = [f"{name}={shlex.quote(value)}" for name, value in launch.environment.items()]
    yield " ".join([*words, *binding_words(server.placement), shlex.join(launch.argv)])


def binding_words(placement: Placement) -> list[str]:
    """Memory and processors near the GPUs; nothing where they are not known of every one."""
    nodes = {placement.numa_nodes.get(key) for key in placement.gpus}
    cores = [placement.cores.get(key) for key in placement.gpus]
    found = []
    if len(nodes) == 1 and None not in nodes:
        (node,) = nodes
        found.append(f"numactl --cpunodebind={node} --membind={node}")
    if None not in cores:
        # After numactl, whose nodes may have more processors than the GPUs are near to.
        found.append(f"taskset -c {','.join(dict.fromkeys(map(str, cores)))}")
    return found
