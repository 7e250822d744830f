"""The command line as a whole: help, docs, imports, pipes, errors, and whose figures are shown."""

import importlib
import importlib.util
import json
import os
import pkgutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

import linkbound
from conftest import Studied
from linkbound.cli.main import ENDINGS, VERBS, run
from linkbound.cli.main import linkbound as group
from linkbound.study import stages

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "src/linkbound/recorded/h200-pair/vllm-0.24.0/runs.jsonl"
HEAVY = ("msgspec", "rich", "numpy", "sqlite3", "pynvml", "linkbound.evidence", "linkbound.model")


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command with its words, those of groups included."""
    context = click.Context(group)
    todo = [(verb, group.get_command(context, verb)) for verb in VERBS]
    while todo:
        name, command = todo.pop()
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            todo += [(f"{name} {word}", inner) for word, inner in command.commands.items()]


def spawned(*words: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "linkbound.cli", *words],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("verb", list(VERBS))
def test_every_verb_has_help(verb: str, capsys: Any) -> None:
    assert run([verb, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Usage: linkbound {verb}")
    assert run([verb, "-h"]) == 0
    assert capsys.readouterr().out == out


def test_every_flag_says_what_it_does_and_every_command_too() -> None:
    for name, command in commands():
        assert (command.help or "").strip(), name
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                text = parameter.help or ""
                assert text.endswith((".", ")")), f"{name} {parameter.opts}: {text!r}"


def cli_docs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cli_docs", ROOT / "scripts" / "cli_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_docs_of_the_commands_are_current() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    assert page == cli_docs().render(), "run python scripts/cli_docs.py"
    for name, command in commands():
        assert f"## linkbound {name}\n" in page
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert all(one in page for one in parameter.opts)


def test_help_of_the_program_lists_the_verbs(capsys: Any) -> None:
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    for verb, (_, text) in VERBS.items():
        assert f"  {verb} " in out
        assert text.split(":")[0].split()[0] in out
    assert run(["--version"]) == 0
    assert linkbound.__version__ in capsys.readouterr().out


def test_help_imports_no_layer() -> None:
    code = (
        "import sys, json\n"
        "from linkbound.cli.main import run\n"
        "run(['--help'])\n"
        "print(json.dumps(sorted(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert [one for one in loaded if one.startswith(HEAVY)] == []
    assert {one for one in loaded if one.startswith("linkbound")} == {
        "linkbound",
        "linkbound.cli",
        "linkbound.cli.main",
        "linkbound.cli.options",
        "linkbound.errors",
    }


def test_public_names_resolve() -> None:
    names = ["linkbound"]
    names += [
        one.name for one in pkgutil.walk_packages(linkbound.__path__, "linkbound.") if one.ispkg
    ]
    counted = 0
    for name in names:
        module = importlib.import_module(name)
        listed = list(getattr(module, "__all__", ()))
        assert len(set(listed)) == len(listed), name
        for public in listed:
            assert getattr(module, public) is not None, f"{name}.{public}"
        counted += len(listed)
    assert counted > 150


@pytest.mark.parametrize("extra", [{}, {"NO_COLOR": "1"}, {"FORCE_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_control_characters_in_a_pipe(
    extra: dict[str, str], studied: Studied, tmp_path: Path
) -> None:
    studied.copy(tmp_path)
    done = spawned("verdict", folder=tmp_path, **extra)
    assert done.returncode == 0, done.stderr
    text = done.stdout + done.stderr
    assert [one for one in text if not (one.isprintable() or one == "\n")] == []


@pytest.mark.parametrize("words", [["--help"], ["report"], ["show", "--json"]], ids=" ".join)
def test_a_reader_that_leaves_is_no_error(
    words: list[str], studied: Studied, tmp_path: Path
) -> None:
    studied.copy(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-m", "linkbound.cli", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 0


ERRORS = {
    "no verb of this name": (["stduy"], "No such command 'stduy'"),
    "unknown model": (["study", "llama-9"], "There is no model 'llama-9'."),
    "unknown machine": (
        ["study", "llama-3.1-8b", "--machine", "dgx"],
        "There is no recorded machine 'dgx'.",
    ),
    "machine with a name too long": (
        ["study", "llama-3.1-8b", "--machine", "a" * 300],
        "cannot be read: File name too long.",
    ),
    "override without a value": (
        ["study", "llama-3.1-8b", "--override", "window"],
        "--override 'window' has no key and value.",
    ),
    "concurrency in words": (
        ["study", "llama-3.1-8b", "--concurrency", "one"],
        "--concurrency 'one' is not a list of counts.",
    ),
    "concurrency of none": (
        ["predict", "llama-3.1-8b", "--concurrency", "0"],
        "--concurrency '0' is not a list of counts.",
    ),
    "too much at once": (
        ["study", "llama-3.1-8b", "--concurrency", "1,1000000"],
        "--concurrency '1,1000000' is not a list of counts.",
    ),
    "prompt of none": (["study", "llama-3.1-8b", "--prompt", "0"], "0 is not in the range"),
    "gain out of range": (
        ["study", "llama-3.1-8b", "--min-gain", "nan"],
        "--min-gain nan is out of range.",
    ),
    "stage of no name": (["study", "llama-3.1-8b", "--until", "all"], "'all' is not one of"),
    "study named like its page": (
        ["study", "llama-3.1-8b", "-C", "a.html"],
        "-C 'a.html' is no name for a study.",
    ),
    "predict without anything": (
        ["predict"],
        "predict needs one of MODEL, --points RUNS.jsonl and --score FILE",
    ),
    "predict with both": (
        ["predict", "llama-3.1-8b", "--score", "runs.jsonl"],
        "predict needs one of MODEL, --points RUNS.jsonl and --score FILE",
    ),
    "no study here": (["verdict"], "No study is here."),
    "report without an ending": (["report", "-o", "page"], "No study is here."),
}


@pytest.mark.parametrize("case", list(ERRORS))
def test_one_clear_error_and_exit_code_2(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    words, message = ERRORS[case]
    assert run(words) == 2
    found = capsys.readouterr()
    assert found.out == ""
    lines = [line for line in found.err.splitlines() if not line.startswith("No GPU here")]
    assert message in " ".join(lines)
    assert "Traceback" not in found.err
    assert sum("linkbound: " in line or "Error: " in line for line in lines) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_does_not_exist(tmp_path: Path, capsys: Any) -> None:
    words = ["study", "llama-3.1-8b", "--machine", "h200-pair", "-q"]
    assert run([*words, "-C", str(tmp_path / "no" / "a.linkbound")]) == 1
    assert "cannot be created (No such file or directory)" in capsys.readouterr().err


def test_a_page_that_cannot_be_written(
    studied: Studied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    path = studied.copy(tmp_path)
    path.with_suffix(".html").mkdir()
    load = ["--prompt", "1024", "--output", "65", "--concurrency", "1,8,32"]
    words = ["study", "llama-3.1-8b", "--machine", "h200-pair", "-q", *load]
    assert run(words) == 2
    assert "h200-pair.html cannot be written: Is a directory." in capsys.readouterr().err
    assert run(["report", "-C", str(path), "-o", "no/page.html"]) == 2
    assert "no/page.html cannot be written" in capsys.readouterr().err


def _interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_an_interrupt_before_any_record_keeps_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(stages, "read_model", _interrupt)
    assert run(["study", "llama-3.1-8b", "--machine", "h200-pair"]) == 130
    assert "linkbound: Stopped. Nothing was recorded.\n" in capsys.readouterr().err


def test_an_interrupted_study_names_what_it_keeps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stages, "predict_all", _interrupt)
    words = ["llama-3.1-8b", "--machine", "h200-pair"]
    assert run(["study", *words, "-C", "a.linkbound"]) == 130
    kept = "linkbound: Stopped. a.linkbound keeps what was measured; run again.\n"
    assert kept in capsys.readouterr().err
    assert run(["show", "-C", "a.linkbound"]) == 0


def test_an_interrupt_without_a_study_keeps_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stages, "append_calibration", _interrupt)
    words = ["llama-3.1-8b", "--machine", "h200-pair"]
    for verb in ("search", "predict"):
        assert run([verb, *words]) == 130
        said = "Stopped. Nothing is kept: no study was named with -C."
        assert said in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []
        assert run([verb, *words, "-C", f"{verb}.linkbound"]) == 130
        assert f"{verb}.linkbound keeps what was measured" in capsys.readouterr().err
        (tmp_path / f"{verb}.linkbound").unlink()


def test_an_interrupt_while_modules_are_read_is_no_traceback() -> None:
    code = (
        "import sys\n"
        "class Stop:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'click': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Stop())\n"
        "from linkbound.cli.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr == "linkbound: Stopped. Nothing was recorded.\n"


@pytest.mark.parametrize("number", ENDINGS)
def test_what_asks_to_end_is_heard_as_an_interrupt_once(number: signal.Signals) -> None:
    """`timeout` sends it twice. A child in a session of its own is ended too."""
    child = "import os, time; print(os.getpid(), flush=True); time.sleep(300)"
    words = ["-m", "linkbound.cli", "trace", "--", sys.executable, "-c", child]
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True) as ours:
        assert ours.stdout is not None
        pid = int(ours.stdout.readline())
        ours.send_signal(number)
        ours.send_signal(number)
        assert ours.stdout.readline() == "path: unknown\n"
        assert ours.wait(30) == 130
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_what_is_ignored_stays_ignored() -> None:
    code = (
        "import signal, sys\n"
        "from linkbound.cli import main\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "main.run = lambda: signal.getsignal(signal.SIGHUP) is signal.SIG_IGN and 7\n"
        "main.main()\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 7


def test_several_studies_are_named_as_the_verb_takes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.linkbound", "b.linkbound"):
        Path(name).write_bytes(b"")
    assert run(["check"]) == 2
    assert "Name it: linkbound check FILE.linkbound, or" in capsys.readouterr().err
    assert run(["verdict"]) == 2
    assert "Name it: -C FILE.linkbound, or" in capsys.readouterr().err


def test_a_study_of_a_machine_without_memory_names_what_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    matrix = files("linkbound") / "recorded" / "5060ti-pair" / "topo-m.txt"
    Path("topo-m.txt").write_text(matrix.read_text(), encoding="utf-8")
    assert run(["study", "llama-3.1-8b", "--machine", "topo-m.txt", "-q"]) == 2
    said = capsys.readouterr().err
    assert "Put a file that does (nvidia-smi -q) beside it, in one folder." in said
    assert "`linkbound fit` also takes it stated: --gpus 2x24GiB." in said
