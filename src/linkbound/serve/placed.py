"""A command on chosen GPUs, processors and memory, its exit status passed through (D4).

The binding is set on this process before the command starts, which inherits it; processors and the
memory policy survive into every process that the command starts.
"""

import ctypes
import os
import platform
import signal
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

from linkbound.errors import UsageError
from linkbound.evidence.child import MULTICAST_GUARDS, child_environment
from linkbound.topology.identifiers import cpus_of_list

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MPOL_BIND = 2
# Numbers of set_mempolicy in the kernel's tables of system calls.
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_MOST_NODES = 1024


def run_placed(argv: Sequence[str], environment: Mapping[str, str], drop: Sequence[str]) -> int:
    """Run `argv` to its end in a process group of its own; its exit status, 128 + n for signal n.

    Multicast guards are set whatever the environment says. What asks this process to end is passed
    to the whole group. Raises UsageError where the command cannot start.
    """
    whole = {**child_environment(environment, drop), **MULTICAST_GUARDS}
    with _forwarding() as group:
        try:
            child = subprocess.Popen(argv, env=whole, start_new_session=True)
        except OSError as error:
            raise UsageError(
                f"'{argv[0]}' cannot be started: {error.strerror}.",
                why="Nothing was run.",
                hint="Install it, or give its full path.",
            ) from error
        group.lead(child)
        code = child.wait()
    return code if code >= 0 else 128 - code


class _Group:
    """The process group of a command, and what it is to be told before it is there."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._waiting: list[int] = []

    def lead(self, child: "subprocess.Popen[bytes]") -> None:
        self._child = child
        while self._waiting:
            self.tell(self._waiting.pop(0))

    def tell(self, number: int) -> None:
        if self._child is None:
            self._waiting.append(number)
        elif self._child.returncode is None:
            # The group is its own until it is reaped.
            os.killpg(self._child.pid, number)


@contextmanager
def _forwarding() -> Iterator[_Group]:
    """From before the command starts: a signal that comes meanwhile is passed on all the same."""
    group = _Group()

    def forward(number: int, _frame: FrameType | None) -> None:
        group.tell(number)

    before = {one: signal.signal(one, forward) for one in FORWARDED}
    try:
        yield group
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def bind_cores(lists: Collection[str]) -> frozenset[int]:
    """Keep this process, and what it starts, to the processors of these lists; those it got.

    Raises UsageError where none of them may be used here.
    """
    wanted = frozenset[int]().union(*(cpus_of_list(one) or frozenset() for one in lists))
    usable = frozenset(os.sched_getaffinity(0))
    if not wanted & usable:
        raise UsageError(
            f"None of the processors {','.join(lists)} may be used here.",
            why="The command would run elsewhere than the plan says.",
            hint="Run it where this process may use them, or leave it out: --no-cores.",
        )
    os.sched_setaffinity(0, wanted & usable)
    return wanted & usable


def bind_memory(nodes: Collection[int]) -> str | None:
    """Take new memory of this process, and of what it starts, from these NUMA nodes alone.

    Returns why that is not so, None where it is.
    """
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        return f"the system call is not known on {platform.machine()}"
    if not all(0 <= node < _MOST_NODES for node in nodes):
        return f"there is no node {max(nodes)}"
    bits = ctypes.sizeof(ctypes.c_ulong) * 8
    mask = (ctypes.c_ulong * (_MOST_NODES // bits))()
    for node in nodes:
        mask[node // bits] |= 1 << node % bits
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, _MPOL_BIND, mask, _MOST_NODES + 1) == 0:
        return None
    return os.strerror(ctypes.get_errno())
