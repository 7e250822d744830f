"""`linkbound run --plan FILE -- COMMAND`: a command where and as a plan says (D4)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from linkbound.cli.options import HELP
from linkbound.errors import NothingToMeasure, UsageError

if TYPE_CHECKING:
    from linkbound.study.plan_files import PlacedGpu, PlacedServer, PlanFile


@click.command("run", context_settings=HELP)
@click.option(
    "--plan",
    "path",
    required=True,
    type=click.Path(path_type=Path),
    help="A plan that `search --plan` wrote.",
)
@click.option("--replica", type=click.IntRange(0), help="Which of its servers, from 0.")
@click.option(
    "--ordinals",
    is_flag=True,
    help="Name GPUs by number: SGLang, and vLLM in some versions, read no UUIDs.",
)
@click.option("--no-cores", is_flag=True, help="Leave processors as they are.")
@click.option("--no-memory", is_flag=True, help="Leave memory as it is.")
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    path: Path,
    replica: int | None,
    ordinals: bool,
    no_cores: bool,
    no_memory: bool,
    argv: tuple[str, ...],
) -> int:
    """Run COMMAND on the GPUs, processors and memory of a plan, with the environment of its arm.

    Write -- before it. It runs in a process group of its own; its exit status is this one's. What
    the plan's engine would be started with is in the file.
    """
    from linkbound.serve.placed import bind_cores, bind_memory, run_placed
    from linkbound.study.plan_files import read_plan

    server = _server(read_plan(path), replica)
    environment = {**server.environment, **_devices(server.gpus, ordinals)}
    words = [f"CUDA_VISIBLE_DEVICES={environment['CUDA_VISIBLE_DEVICES']}"]
    if server.cores and not no_cores:
        bound = bind_cores(server.cores)
        words.append(f"{len(bound)} processors of {','.join(server.cores)}")
    if server.memory_nodes and not no_memory:
        nodes = ",".join(map(str, server.memory_nodes))
        failed = bind_memory(server.memory_nodes)
        words.append(
            f"memory of node {nodes}"
            if failed is None
            else f"memory NOT bound to node {nodes} ({failed})"
        )
    click.echo(f"linkbound run: {'; '.join(words)}", err=True)
    return run_placed(argv, environment, server.drop)


def _server(plan: "PlanFile", replica: int | None) -> "PlacedServer":
    """The server that was asked for. Raises UsageError where it must be named, or is not there."""
    count = len(plan.servers)
    if replica is None and count > 1:
        raise UsageError(
            f"The plan has {count} servers, and --replica names none.",
            why="Each runs on GPUs of its own.",
            hint=f"Run it {count} times, with --replica 0 to {count - 1}.",
        )
    number = replica or 0
    if number >= count:
        raise UsageError(
            f"--replica {number}: the plan has {count} servers.",
            why="They count from 0.",
            hint=f"Take one from 0 to {count - 1}.",
        )
    return plan.servers[number]


def _devices(gpus: Sequence["PlacedGpu"], ordinals: bool) -> Mapping[str, str]:
    """The GPUs of this host that the plan names, in its order.

    By UUID: numbers change with what is plugged in. Raises UsageError for one that is not here.
    """
    from linkbound.topology.probe import probe_machine

    host = probe_machine().gpus
    if not host:
        raise NothingToMeasure(
            "This host shows no GPU.",
            why="The plan names some.",
            hint="Run it on the machine that it was made for.",
        )
    known = {str(gpu.uuid): number for number, gpu in enumerate(host) if gpu.uuid is not None}
    for one in gpus:
        if str(one.uuid) not in known:
            raise UsageError(
                f"{one.label} of the plan ({one.uuid or 'its UUID is not known'}) is not here.",
                why="Another GPU would run in its place.",
                hint="Make the plan of this machine: linkbound search MODEL --plan FILE.",
            )
    if not ordinals:
        return {"CUDA_VISIBLE_DEVICES": ",".join(str(one.uuid) for one in gpus)}
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(str(known[str(one.uuid)]) for one in gpus),
    }
