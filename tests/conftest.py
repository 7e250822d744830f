"""Settings of the whole suite: no time limits in hypothesis, reasons for what cannot run here."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import HealthCheck, settings

from linkbound.evidence.study import Study
from linkbound.study.sources import Sources, read_recorded
from linkbound.study.stages import prepare
from linkbound.topology.probe import probe_machine

# Shared and slow runners: how long one example takes says nothing about the code.
settings.register_profile(
    "linkbound", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("linkbound")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip `gpu(n)` and `browser` tests where there is nothing to run them on, and say so."""
    wanted = item.get_closest_marker("gpu")
    if wanted is not None:
        needed = wanted.args[0] if wanted.args else 1
        found = len(probe_machine().gpus)
        if found < needed:
            pytest.skip(f"needs {needed} GPUs, this host has {found}")
    if item.get_closest_marker("browser") is not None and not any(map(shutil.which, BROWSERS)):
        pytest.skip(f"needs one of {', '.join(BROWSERS)} on PATH")


def _prepared(name: str, folder: Path) -> Iterator[Study]:
    with Study.create(folder / f"{name}.linkbound") as study:
        prepare(study, read_recorded(name))
        yield study


def without_engine_reduce() -> Sources:
    """The recorded H200 pair as it was before its engine's own all-reduce was timed."""
    sources = read_recorded("h200-pair")
    files = tuple(one for one in sources.files if one.name != "engine-reduce.jsonl")
    assert len(files) == len(sources.files) - 1
    return msgspec.structs.replace(sources, files=files)


@pytest.fixture(scope="session")
def h200_study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Study]:
    """The recorded H200 pair with its curves, runs and constants. Read only."""
    yield from _prepared("h200-pair", tmp_path_factory.mktemp("h200"))


@pytest.fixture(scope="session")
def desktop_study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Study]:
    """The recorded desktop with two RTX 5060 Ti on PCIe. Read only."""
    yield from _prepared("5060ti-pair", tmp_path_factory.mktemp("5060ti"))


class Studied(NamedTuple):
    """A finished study: its folder, its file, its page, and what the command said."""

    folder: Path
    path: Path
    page: Path
    out: str
    err: str

    def copy(self, folder: Path) -> Path:
        """A copy of the study file that a test may change."""
        return Path(shutil.copy(self.path, folder / self.path.name))


@pytest.fixture(scope="session")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Studied:
    """`linkbound study llama-3.1-8b` for 1, 8 and 32 sequences, as a user runs it. Read only."""
    folder = tmp_path_factory.mktemp("studied")
    words = "study llama-3.1-8b --prompt 1024 --output 65 --concurrency 1,8,32"
    done = subprocess.run(
        [sys.executable, "-m", "linkbound.cli", *words.split()],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    path = folder / "llama-3.1-8b-on-h200-pair.linkbound"
    return Studied(folder, path, path.with_suffix(".html"), done.stdout, done.stderr)
