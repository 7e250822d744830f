"""The servers of one contender, one a replica: started together, ready together, ended always."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from linkbound.errors import UsageError
from linkbound.evidence.types import Reason
from linkbound.serve.contenders import Contender, ServeRun
from linkbound.serve.engines import ENGINES
from linkbound.serve.engines.types import ServerPlan
from linkbound.serve.load_types import Target
from linkbound.serve.process import POLL_S, Launch, ServerProcess, free_port
from linkbound.splits.types import Split

DYING_S = 0.5


class Servers:
    """Use it in a `with` block; `start` starts them, and nothing is left behind."""

    def __init__(self, run: ServeRun, contender: Contender, folder: Path) -> None:
        self._run = run
        self._engine = ENGINES[run.engine]
        self._contender = contender
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self.processes: list[ServerProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def end(self) -> None:
        """End all that runs; what it wrote can still be read."""
        self._stack.close()

    def start(self) -> None:
        """Start all. Raises UsageError where the engine cannot run such a plan."""
        if not self._engine.starts:
            return
        assert self._engine.launch is not None
        for plan in self.plans():
            process = ServerProcess(
                self._engine.launch(plan),
                port=plan.port,
                health=self._engine.health,
                log=Path(plan.folder) / "server.log",
            )
            self.processes.append(self._stack.enter_context(process))

    def wait_ready(self) -> Reason | None:
        """Wait for all; a reason where one died or was not ready in time."""
        while not self.settled():
            time.sleep(POLL_S)
        return next((process.refusal for process in self._refused()), None)

    def settled(self) -> bool:
        """Whether all are ready, or one never will be; asks those that are neither yet."""
        found = [process.settled(self._run.ready_limit_s) for process in self.processes]
        return all(found) or bool(self._refused())

    def settled_s(self) -> float:
        """Seconds until the slowest was ready, or until one was never to be."""
        decisive = self._refused() or self.processes
        return max((process.settled_s or 0.0 for process in decisive), default=0.0)

    def _refused(self) -> list[ServerProcess]:
        return [process for process in self.processes if process.refusal is not None]

    def plans(self) -> Sequence[ServerPlan]:
        """One plan a replica, each with its share of the devices. Raises UsageError."""
        split = self._contender.split
        devices = self._run.devices
        if self._contender.twin_of is not None:
            # On the last GPU: where all engines stand side by side, the first has one more already.
            devices = devices[-1:]
        shares = device_shares(split, devices)
        plans = []
        for number, share in enumerate(shares):
            folder = self._folder / f"replica-{number}"
            folder.mkdir(parents=True, exist_ok=True)
            plans.append(
                ServerPlan(
                    model=self._run.model,
                    split=msgspec.structs.replace(split, replicas=1),
                    arm=self._contender.arm,
                    devices=share,
                    port=free_port(),
                    folder=str(folder),
                    context_tokens=self._run.context_tokens,
                    sequences=self._run.sequences,
                    dummy_weights=self._run.dummy_weights,
                    program=self._run.program,
                    extra=self._run.extra,
                    allow_multicast=self._run.allow_multicast,
                    shard_of=self._contender.twin_of,
                    cache_bytes=self._run.cache_of(self._contender),
                )
            )
        return plans

    def target(self) -> Target:
        """Where the load goes."""
        urls = tuple(one.url for one in self.processes) or self._run.urls
        return Target(
            urls=urls,
            model=self._engine.model_name or self._run.model,
            extra=self._engine.extra,
            chat=self._engine.chat,
        )

    def trouble(self, dying_s: float = DYING_S) -> Reason | None:
        """How a server died or fell silent; None while all answer.

        A process that dies refuses connections before its end can be seen: `dying_s` after.
        """
        for process in self.processes:
            if death := process.death():
                return death
            if not process.is_healthy():
                return process.death(dying_s) or Reason(
                    code="server-silent",
                    text=f"The server runs but its health no longer answers. {process.last}",
                )
        return None

    def launches(self) -> tuple[Launch, ...]:
        return tuple(process.launch for process in self.processes)

    def logs(self) -> Mapping[str, bytes]:
        """Name and content of everything that the servers and NCCL wrote so far."""
        return {
            str(path.relative_to(self._folder)): path.read_bytes()
            for path in sorted(self._folder.glob("replica-*/*.log"))
        }


def device_shares(split: Split, devices: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The devices of each replica, in rank order. Raises UsageError where they are too few."""
    if not devices:
        return ((),) * split.replicas
    each = split.tp * split.pp
    if split.gpus > len(devices):
        raise UsageError(
            f"'{split.name}' needs {split.gpus} GPUs, {len(devices)} were named "
            f"({','.join(map(str, devices))}).",
            why="A rank needs a GPU of its own.",
            hint="Name more with --gpus 0,1, or ask for a smaller split.",
        )
    return tuple(devices[start : start + each] for start in range(0, split.gpus, each))
