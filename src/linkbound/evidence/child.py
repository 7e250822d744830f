"""A program run as a child: own session, whole environment, hard time limit (L6, DESIGN 1 and 2).

A hang, a crash and a flood of output are results. Only a program that cannot start raises.
"""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from linkbound.errors import UsageError
from linkbound.values import Value

MULTICAST_GUARDS = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
}
"""Variables that keep NVLink multicast off at these values: closed here, closed in every child."""
OUTPUT_LIMIT_BYTES = 16 * 1024**2
"""Kept of each stream: the first and the last half; a verbose NCCL log of 8 ranks is below it."""
GRACE_S = 2.0
"""From TERM to KILL: an engine frees its GPUs well within it."""
REAP_S = 5.0
"""From KILL to giving up: a process stuck in a driver call cannot be killed at all."""
_POLL_S = 0.02
_CHUNK_BYTES = 65536


class ChildResult(Value, frozen=True, kw_only=True):
    """How a child ended and what it printed."""

    argv: tuple[str, ...]
    exit_code: int | None
    """None where a signal ended it, or where it is stuck."""
    ended_by: str | None
    """Name of the signal that ended it."""
    stdout: bytes
    stderr: bytes
    stdout_dropped_bytes: int
    stderr_dropped_bytes: int
    """Bytes left out of the middle of a stream past the cap; a line in it says so."""
    duration_s: float
    timed_out: bool
    stuck: bool
    """Still there after KILL: its GPU is not to be used again in this run."""
    interrupted: bool = False
    """The user ended it (Ctrl-C)."""

    @property
    def ok(self) -> bool:
        """Ended by itself, in time, with exit code 0."""
        return self.exit_code == 0 and not self.timed_out and not self.interrupted


def child_environment(overrides: Mapping[str, str], drop: Sequence[str] = ()) -> dict[str, str]:
    """This process's environment without `drop`, with `overrides`; guards stay as they are here."""
    kept = {name: value for name, value in os.environ.items() if name not in drop}
    return {**kept, **overrides, **_guards()}


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    limit_s: float,
    cwd: Path | None = None,
    output_limit_bytes: int = OUTPUT_LIMIT_BYTES,
    pass_to: tuple[IO[bytes], IO[bytes]] | None = None,
    interrupt_ends: bool = False,
) -> ChildResult:
    """Run a program to its end or for `limit_s` seconds; then TERM, and KILL, its whole group.

    `env` is the complete environment, but for the multicast guards set here, which are added.
    What the child left running in its group is killed too; a process that made a session of its
    own is out of reach. `pass_to` also gets stdout and stderr as they come. Where `interrupt_ends`,
    Ctrl-C ends the child as the limit does, another one at once, and is a result; else
    KeyboardInterrupt goes on.
    """
    started, in_time, interrupted = time.monotonic(), True, False
    process = _start(argv, {**env, **_guards()}, cwd)
    output = _Output(process, output_limit_bytes, pass_to or (None, None))
    try:
        try:
            in_time = output.read_until_end(started + limit_s)
        except KeyboardInterrupt:
            if not interrupt_ends:
                raise
            interrupted = True
        if interrupted or not in_time:
            os.killpg(process.pid, signal.SIGTERM)
            output.read_until_end(time.monotonic() + GRACE_S)
    except KeyboardInterrupt:
        # While it is being ended: it is not waited for.
        if not interrupt_ends:
            raise
        interrupted = True
    finally:
        # Also when the user interrupts. The child is not reaped yet, so the group is still its own.
        os.killpg(process.pid, signal.SIGKILL)
        ended = output.read_until_end(time.monotonic() + REAP_S)
        code = process.wait() if ended else None
        output.drain()
    return ChildResult(
        argv=tuple(argv),
        exit_code=code if code is not None and code >= 0 else None,
        ended_by=signal.Signals(-code).name if code is not None and code < 0 else None,
        stdout=output.stdout.kept(),
        stderr=output.stderr.kept(),
        stdout_dropped_bytes=output.stdout.dropped_bytes,
        stderr_dropped_bytes=output.stderr.dropped_bytes,
        duration_s=time.monotonic() - started,
        timed_out=not in_time,
        stuck=code is None,
        interrupted=interrupted,
    )


def _guards() -> dict[str, str]:
    return {
        name: closed for name, closed in MULTICAST_GUARDS.items() if os.environ.get(name) == closed
    }


def _start(
    argv: Sequence[str], env: Mapping[str, str], cwd: Path | None
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            argv,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise UsageError(
            f"'{argv[0]}' cannot be started: {error.strerror} ({error.filename}).",
            why="Nothing was run.",
            hint="Install it, or give its full path.",
        ) from error


class _Stream:
    """The first and the last half of what came, up to a limit in bytes; all of it is passed on."""

    def __init__(self, limit_bytes: int, pass_to: IO[bytes] | None) -> None:
        self._pass_to = pass_to
        self._head_limit = limit_bytes // 2
        self._tail_limit = limit_bytes - self._head_limit
        self._head = bytearray()
        self._tail = bytearray()
        self.dropped_bytes = 0

    def add(self, chunk: bytes) -> None:
        room = self._head_limit - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        surplus = len(self._tail) - self._tail_limit
        if surplus > 0:
            self.dropped_bytes += surplus
            del self._tail[:surplus]
        # Last: a user who interrupts at what is seen finds it kept.
        self._pass_on(chunk)

    def _pass_on(self, chunk: bytes) -> None:
        if self._pass_to is None:
            return
        try:
            self._pass_to.write(chunk)
            self._pass_to.flush()
        except OSError:
            # Whoever read it went away: the child runs on, and its output is still kept.
            self._pass_to = None

    def kept(self) -> bytes:
        said = b""
        if self.dropped_bytes:
            said = b"\n[linkbound left out %d bytes here]\n" % self.dropped_bytes
        return bytes(self._head) + said + bytes(self._tail)


class _Output:
    """Both streams of a running child, read as they come so that it never waits for us."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        limit_bytes: int,
        pass_to: tuple[IO[bytes] | None, IO[bytes] | None],
    ) -> None:
        self._pid = process.pid
        self.stdout = _Stream(limit_bytes, pass_to[0])
        self.stderr = _Stream(limit_bytes, pass_to[1])
        self._selector = selectors.DefaultSelector()
        for pipe, stream in ((process.stdout, self.stdout), (process.stderr, self.stderr)):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, stream)

    def read_until_end(self, deadline_s: float) -> bool:
        """Read until the child ended (True) or the monotonic clock reached `deadline_s`."""
        while not self._ended():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            self._read(min(left_s, _POLL_S))
        return True

    def drain(self) -> None:
        """Take what is still in the pipes, without waiting for whoever else holds them."""
        while self._read(0):
            pass
        for key in list(self._selector.get_map().values()):
            self._close(key)
        self._selector.close()

    def _ended(self) -> bool:
        # WNOWAIT leaves the zombie: its process group keeps its number until we are done with it.
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._pid, options) is not None

    def _read(self, wait_s: float) -> bool:
        events = self._selector.select(wait_s)
        for key, _ in events:
            chunk = os.read(key.fd, _CHUNK_BYTES)
            if chunk:
                key.data.add(chunk)
            else:
                self._close(key)
        return bool(events)

    def _close(self, key: selectors.SelectorKey) -> None:
        pipe: IO[bytes] = key.fileobj  # type: ignore[assignment]
        self._selector.unregister(pipe)
        pipe.close()
