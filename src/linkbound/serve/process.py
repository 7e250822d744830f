"""A server process: started without a shell, in its own group, on loopback; always ended (P2)."""

import http.client
import itertools
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from linkbound.errors import UsageError
from linkbound.evidence.child import GRACE_S, REAP_S, child_environment
from linkbound.evidence.types import Reason
from linkbound.values import Value

LOOPBACK = "127.0.0.1"
_DEALT_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_FIRST_DEALT = 32_768
_FIRST_PORT = 12_000
_BLOCK = 8
"""Ports from one server's to the next one's: vLLM's own is in between."""
# From anywhere on: another run on this host begins elsewhere.
_NUMBERS = itertools.count(secrets.randbelow(2**16))
POLL_S = 0.05
_PROBE_LIMIT_S = 5.0
_LAST_WORDS = 2000
_TELLING = (
    *("NCCL_", "CUDA_", "NVSHMEM_", "TORCH_", "PYTORCH_", "OMP_", "HF_HUB_", "GGML_", "LLAMA_"),
    *("VLLM_", "SGLANG_", "TRTLLM_", "TLLM_"),
)


class Launch(Value, frozen=True, kw_only=True):
    """A command with what it changes in this process's environment."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = {}
    drop: tuple[str, ...] = ()
    """Inherited variables that would decide what the arm decides."""
    files: Mapping[str, str] = {}
    """Path and text of files that the command reads; written before it starts."""

    def told_environment(self) -> dict[str, str]:
        """What of it can change the engine's behaviour, inherited or set: for the record."""
        whole = self.whole_environment()
        return {name: whole[name] for name in sorted(whole) if name.startswith(_TELLING)}

    def whole_environment(self) -> dict[str, str]:
        """Everything that the child sees, multicast guards of this process included."""
        return child_environment(self.environment, self.drop)


def free_port() -> int:
    """A port of loopback that is free, and that no other start of this process was given.

    An engine binds it only after its imports. So it is none of those that the kernel deals out
    meanwhile, and the ones after it are left to the same engine.
    """
    ports = range(_FIRST_PORT, _first_dealt_port() - _BLOCK, _BLOCK)
    for number in itertools.islice(_NUMBERS, len(ports)):
        port = ports[number % len(ports)]
        if _is_free(port):
            return port
    raise UsageError(
        f"No port from {ports[0]} to {ports[-1]} is free.",
        why="Every server needs one.",
        hint="End servers that are left over from earlier runs.",
    )


def _first_dealt_port() -> int:
    """Of those that the kernel gives to whoever asks for any; Linux's default where it is odd."""
    try:
        first = int(_DEALT_PORTS.read_text().split()[0])
    except OSError:
        first = _USUAL_FIRST_DEALT
    return first if first > 2 * _FIRST_PORT else _USUAL_FIRST_DEALT


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def ask(port: int, path: str, limit_s: float = _PROBE_LIMIT_S) -> tuple[int, bytes] | None:
    """Status and body of a GET on loopback; None where there is no answer."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=limit_s)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


class ServerProcess:
    """A running server. Use it in a `with` block: leaving it ends the whole group."""

    def __init__(self, launch: Launch, *, port: int, health: str, log: Path) -> None:
        self.launch = launch
        self.port = port
        self.log = log
        self._health = health
        for path, text in launch.files.items():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(text, encoding="utf-8")
        self._began = time.monotonic()
        self._process = _start(launch.argv, launch.whole_environment(), log)
        self.settled_s: float | None = None
        """Seconds from its start until it was ready, or never to be; None: neither is known yet."""
        self.refusal: Reason | None = None
        """Why it will never be ready."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def death(self, within_s: float = 0.0) -> Reason | None:
        """How the server ended; None where it runs on for `within_s` seconds."""
        try:
            code = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return None
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        return Reason(code="server-died", text=f"The server ended by itself ({how}). {self.last}")

    @property
    def last(self) -> str:
        """Its last words."""
        with self.log.open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - _LAST_WORDS))
            text = log.read().decode("utf-8", errors="replace").strip()
        lines = text.replace("\r", "\n").splitlines()
        return f"Its last words: {lines[-1][:300]}" if lines else "It said nothing."

    def wait_ready(self, limit_s: float) -> Reason | None:
        """Wait until its health answers 200; a reason where it died or took too long."""
        while not self.settled(limit_s):
            time.sleep(POLL_S)
        return self.refusal

    def settled(self, limit_s: float) -> bool:
        """Whether it is ready or never will be, `limit_s` after its start at the latest."""
        if self.settled_s is not None:
            return True
        left_s = self._began + limit_s - time.monotonic()
        answer = ask(self.port, self._health, min(_PROBE_LIMIT_S, max(POLL_S, left_s)))
        waited_s = time.monotonic() - self._began
        is_ready = answer is not None and answer[0] == 200
        # Another program's health on this port is not ours.
        self.refusal = self.death()
        if self.refusal is None and not is_ready and waited_s >= limit_s:
            self.refusal = Reason(
                code="server-not-ready",
                text=f"The server was not ready after {limit_s:g} s. {self.last}",
            )
        if is_ready or self.refusal is not None:
            self.settled_s = waited_s
        return self.settled_s is not None

    def is_healthy(self) -> bool:
        """Whether it runs and its health answers 200 now."""
        answer = None if self.death() else ask(self.port, self._health)
        return answer is not None and answer[0] == 200

    def stop(self) -> None:
        """TERM, then KILL, to the whole group. Raises no error where it is gone already."""
        # Not reaped before the group is gone: its number must stay ours while we signal it.
        try:
            self._signal(signal.SIGTERM)
            self._await_end(GRACE_S)
        finally:
            # Also where the user does not wait for the grace.
            self._signal(signal.SIGKILL)
            self._await_end(REAP_S)
            self._process.poll()

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            os.killpg(self._process.pid, number)

    def _await_end(self, limit_s: float) -> None:
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        deadline = time.monotonic() + limit_s
        while self._process.returncode is None and time.monotonic() < deadline:
            if os.waitid(os.P_PID, self._process.pid, options) is not None:
                return
            time.sleep(POLL_S)


def _start(
    argv: Sequence[str], environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    try:
        with log.open("ab") as output:
            return subprocess.Popen(
                argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise UsageError(
            f"'{argv[0]}' cannot be started: {error.strerror} ({error.filename}).",
            why="No server, no load.",
            hint="Install the engine, or name its program with --program.",
        ) from error
