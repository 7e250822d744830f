"""The child of a job of collectives: starts its ranks and passes on what they say (L4, L6).

The ranks stay in this process's group, so that the end of the job is theirs too. The first fault,
or the first rank that ends early, ends the job: its peers would wait for it for ever.
"""

import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from linkbound.links.live.collective_exchange import Message
from linkbound.links.live.collective_rank import Part
from linkbound.links.live.collective_types import CollectiveJob, Processes
from linkbound.links.live.jobs import Lines, read_job

RANK = (sys.executable, "-m", "linkbound.links.live.collective_rank")
REAP_S = 10.0
"""From a rank's end of output to its end: NCCL's threads and the context take a moment."""


class _Ranks:
    """The processes of a job, and the lines that they say, in the order of their coming."""

    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        self.said: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for command in commands
        ]
        self._listeners = [
            threading.Thread(target=self._listen, args=(number,), daemon=True)
            for number in range(len(commands))
        ]
        for listener in self._listeners:
            listener.start()

    def __len__(self) -> int:
        return len(self._processes)

    def tell(self, number: int, data: bytes) -> None:
        """Give a rank a line; one that has gone will be heard to have."""
        pipe = self._processes[number].stdin
        assert pipe is not None
        try:
            pipe.write(data + b"\n")
            pipe.flush()
        except BrokenPipeError:
            return

    def how_ended(self, number: int) -> str:
        """In words, how a rank that closed its output ended."""
        try:
            code = self._processes[number].wait(REAP_S)
        except subprocess.TimeoutExpired:
            return "closed its output and did not end"
        return f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"

    def end(self, grace_s: float) -> None:
        """Wait `grace_s` seconds for all ranks to end, then kill those that have not.

        One that even a kill does not end is left to whoever ends this process's group.
        """
        for process in self._processes:
            try:
                process.wait(grace_s)
            except subprocess.TimeoutExpired:
                process.kill()
        for process, listener in zip(self._processes, self._listeners, strict=True):
            listener.join(REAP_S)
            with suppress(BrokenPipeError, subprocess.TimeoutExpired):
                process.communicate(timeout=REAP_S)

    def _listen(self, number: int) -> None:
        pipe = self._processes[number].stdout
        assert pipe is not None
        for line in pipe:
            self.said.put((number, line))
        self.said.put((number, b""))


def relay(commands: Sequence[Sequence[str]], parts: Sequence[bytes], lines: Lines) -> bool:
    """Run the ranks to their end; whether all said that they were done."""
    ranks = _Ranks(commands)
    fault: str | None = "interrupted"
    try:
        for number, part in enumerate(parts):
            ranks.tell(number, part)
        fault = _converse(ranks, lines)
    finally:
        ranks.end(0.0 if fault else REAP_S)
    if fault is not None:
        lines.fault(fault)
    return fault is None


def _converse(ranks: _Ranks, lines: Lines) -> str | None:
    """Pass on what the ranks say until all are done (None), or the first fault."""
    given: dict[int, object] = {}
    done: set[int] = set()
    while len(done) < len(ranks):
        number, line = ranks.said.get()
        message = _read(line)
        if message is None and number in done:
            continue
        if message is None:
            what = "said something that is no message" if line else ranks.how_ended(number)
            return f"process {number} of {len(ranks)} {what}"
        if message.fault is not None:
            return f"process {number} of {len(ranks)}: {message.fault}"
        if message.give is not None:
            given[number] = message.give[0]
            _answer(ranks, given)
        if message.done:
            done.add(number)
        _pass_on(message, lines)
    return None


def _answer(ranks: _Ranks, given: dict[int, object]) -> None:
    """Give all what all have given, once the last has."""
    if len(given) == len(ranks):
        values = msgspec.json.encode([given[number] for number in range(len(ranks))])
        given.clear()
        for number in range(len(ranks)):
            ranks.tell(number, values)


def parts_of(job: CollectiveJob) -> tuple[Part, ...]:
    """What each process does: one rank, or all of them."""
    everyone = tuple(range(len(job.group)))
    shares = (
        [everyone] if job.processes is Processes.ONE_FOR_ALL else [(each,) for each in everyone]
    )
    return tuple(Part(job=job, process=number, ranks=ranks) for number, ranks in enumerate(shares))


def _pass_on(message: Message, lines: Lines) -> None:
    if message.begin is not None:
        lines.begin(message.begin)
    if message.row is not None:
        lines.row(message.row)


def _read(line: bytes) -> Message | None:
    try:
        return msgspec.json.decode(line, type=Message)
    except msgspec.MsgspecError:
        return None


def main(arguments: list[str]) -> int:
    """Run the job of the first file; its rows go to the second."""
    job, lines = read_job(arguments, CollectiveJob)
    lines.begin(f"the start of {len(job.group)} ranks over {job.family}")
    parts = parts_of(job)
    if not relay([RANK] * len(parts), [msgspec.json.encode(part) for part in parts], lines):
        return 1
    lines.done()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
