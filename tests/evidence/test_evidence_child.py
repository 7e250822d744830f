"""The child runner: ends, limits, groups, output, environment."""

import io
import os
import sys
import time
from pathlib import Path

import pytest

from linkbound.errors import UsageError
from linkbound.evidence import child
from linkbound.evidence.child import MULTICAST_GUARDS, child_environment, run

GUARDS = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
}


@pytest.fixture
def env() -> dict[str, str]:
    return {"PATH": os.environ["PATH"]}


def gone(pid: int) -> bool:
    """Not running any more; a zombie that nobody reaps here counts as gone."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_exit_code_and_both_streams(env: dict[str, str], tmp_path: Path) -> None:
    result = run(["sh", "-c", "pwd; echo err >&2; exit 3"], env=env, limit_s=30, cwd=tmp_path)
    assert (result.exit_code, result.ended_by, result.timed_out) == (3, None, False)
    assert result.stdout == f"{tmp_path}\n".encode()
    assert result.stderr == b"err\n"
    assert result.argv[0] == "sh"
    assert 0 < result.duration_s < 30
    assert not result.ok
    assert run(["true"], env=env, limit_s=30).ok


def test_a_crash_is_a_signal_name(env: dict[str, str]) -> None:
    result = run(["sh", "-c", "kill -SEGV $$"], env=env, limit_s=30)
    assert (result.exit_code, result.ended_by, result.ok) == (None, "SIGSEGV", False)


def test_the_limit_ends_child_and_grandchildren(env: dict[str, str]) -> None:
    script = "trap 'echo asked; exit 5' TERM; sleep 300 & echo $!; wait"
    result = run(["sh", "-c", script], env=env, limit_s=0.4)
    assert result.timed_out
    assert result.exit_code == 5
    pid, asked = result.stdout.split()
    assert asked == b"asked"
    assert gone(int(pid))


def test_who_ignores_term_is_killed(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "GRACE_S", 0.2)
    script = "trap '' TERM; (trap '' TERM; sleep 300) & echo $!; sleep 300; sleep 300"
    result = run(["sh", "-c", script], env=env, limit_s=0.4)
    assert (result.timed_out, result.ended_by, result.exit_code) == (True, "SIGKILL", None)
    assert not result.stuck
    assert gone(int(result.stdout))


def test_grandchildren_do_not_outlive_a_child_that_ended(env: dict[str, str]) -> None:
    result = run(["sh", "-c", "sleep 300 & echo $!"], env=env, limit_s=30)
    assert (result.exit_code, result.timed_out) == (0, False)
    assert gone(int(result.stdout))


def test_own_session_and_nothing_to_read(env: dict[str, str]) -> None:
    script = "import os, sys; print(os.getsid(0) == os.getpid(), sys.stdin.read() == '')"
    assert run([sys.executable, "-c", script], env=env, limit_s=30).stdout == b"True True\n"


def test_a_flood_is_capped_in_the_middle_and_said(env: dict[str, str]) -> None:
    script = (
        "import sys; sys.stdout.write('first' + 'x' * 3_000_000 + 'last'); print(file=sys.stderr)"
    )
    result = run([sys.executable, "-c", script], env=env, limit_s=60, output_limit_bytes=1001)
    assert result.exit_code == 0
    assert result.stdout_dropped_bytes == 3_000_009 - 1001
    assert result.stderr_dropped_bytes == 0
    assert result.stdout.startswith(b"first" + b"x" * 495 + b"\n[linkbound left out 2999008 bytes")
    assert result.stdout.endswith(b"x" * 497 + b"last")


def test_what_cannot_start_is_one_error(env: dict[str, str], tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("no program")
    for program in ("no-such-program", str(plain), str(tmp_path)):
        with pytest.raises(UsageError, match="cannot be started") as caught:
            run([program], env=env, limit_s=1)
        assert program in caught.value.seen
    with pytest.raises(UsageError, match="none"):
        run(["true"], env=env, limit_s=1, cwd=tmp_path / "none")


def test_an_interrupt_ends_the_group(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"

    def interrupted(*_: object) -> bool:
        monkeypatch.undo()
        while not pid_file.exists() or not pid_file.read_text().endswith("\n"):
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(child._Output, "read_until_end", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(["sh", "-c", f"echo $$ > '{pid_file}'; sleep 300"], env=env, limit_s=30)
    assert gone(int(pid_file.read_text()))


def test_output_is_passed_on_whole_until_its_reader_goes(env: dict[str, str]) -> None:
    script = "import sys; sys.stdout.write('x' * 300_000); sys.stderr.write('e')"
    out, errors = io.BytesIO(), io.BytesIO()
    argv = [sys.executable, "-c", script]
    result = run(argv, env=env, limit_s=60, output_limit_bytes=10, pass_to=(out, errors))
    assert (len(out.getvalue()), errors.getvalue()) == (300_000, b"e")
    assert result.stdout_dropped_bytes == 300_000 - 10
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb", buffering=0) as gone_away:
        result = run(argv, env=env, limit_s=60, pass_to=(gone_away, errors))
    assert (result.ok, len(result.stdout)) == (True, 300_000)


def test_an_interrupt_may_be_a_result(env: dict[str, str]) -> None:
    script = "import os, signal, time; os.kill(os.getppid(), signal.SIGINT); time.sleep(300)"
    result = run([sys.executable, "-c", script], env=env, limit_s=60, interrupt_ends=True)
    assert (result.interrupted, result.ended_by, result.timed_out) == (True, "SIGTERM", False)
    assert not result.ok


def test_another_interrupt_ends_it_at_once_and_keeps_the_result(env: dict[str, str]) -> None:
    script = (
        "import os, signal, time\n"
        "def again(*_):\n"
        "    print('asked to end', flush=True)\n"
        "    os.kill(os.getppid(), signal.SIGINT)\n"
        "signal.signal(signal.SIGTERM, again)\n"
        "os.kill(os.getppid(), signal.SIGINT)\n"
        "while True: time.sleep(300)"
    )
    result = run([sys.executable, "-c", script], env=env, limit_s=60, interrupt_ends=True)
    assert (result.interrupted, result.ended_by) == (True, "SIGKILL")
    assert result.stdout == b"asked to end\n"
    with pytest.raises(KeyboardInterrupt):
        run([sys.executable, "-c", script], env=env, limit_s=60)


def test_environment_is_complete_and_changed_only_as_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "environ", {"PATH": "/bin", "NCCL_DEBUG": "INFO", "HOME": "/h"})
    changed = child_environment({"NCCL_P2P_DISABLE": "1"}, drop=("NCCL_DEBUG", "ABSENT"))
    assert changed == {"PATH": "/bin", "HOME": "/h", "NCCL_P2P_DISABLE": "1"}


@pytest.mark.parametrize("name", MULTICAST_GUARDS)
def test_a_guard_that_is_set_reaches_every_child(
    name: str, monkeypatch: pytest.MonkeyPatch, env: dict[str, str]
) -> None:
    for guard in MULTICAST_GUARDS:
        monkeypatch.delenv(guard, raising=False)
    monkeypatch.setenv(name, GUARDS[name])
    changed = child_environment({name: "2"}, drop=(name, "HOME"))
    assert changed[name] == GUARDS[name]
    assert "HOME" not in changed
    # Also where a caller built an environment of its own.
    result = run(["sh", "-c", f"echo ${name}"], env=env, limit_s=30)
    assert result.stdout == f"{GUARDS[name]}\n".encode()


def test_a_guard_that_is_not_set_is_not_invented(monkeypatch: pytest.MonkeyPatch) -> None:
    for guard in MULTICAST_GUARDS:
        monkeypatch.delenv(guard, raising=False)
    assert not set(MULTICAST_GUARDS) & set(child_environment({}))
    assert child_environment({"NCCL_NVLS_ENABLE": "0"})["NCCL_NVLS_ENABLE"] == "0"


def test_a_guard_that_stands_open_here_does_not_open_children(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str]
) -> None:
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "1")
    changed = child_environment({"NCCL_NVLS_ENABLE": "0"})
    assert changed["NCCL_NVLS_ENABLE"] == "0"
    result = run(["sh", "-c", "echo $NCCL_NVLS_ENABLE"], env={**env, **changed}, limit_s=30)
    assert result.stdout == b"0\n"
