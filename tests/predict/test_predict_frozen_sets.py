"""The frozen sets of the documentation are what they were, and each is named there."""

import json
from pathlib import Path

import pytest

from linkbound.errors import InputError
from linkbound.evidence.types import Provenance
from linkbound.predict.calibration import Constant
from linkbound.predict.frozen import parse_frozen

FOLDER = Path(__file__).parents[2] / "docs" / "frozen"
FILES = sorted(FOLDER.glob("*.json"))
OLDEST = ("llama-3.1-8b", "qwen3-32b", "qwen3-30b-a3b")
"""Frozen with ten constants."""


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_set_is_what_was_frozen(file: Path) -> None:
    # Its hash covers the content as it was written, also where later versions know more fields.
    frozen = parse_frozen(file.read_bytes(), file.name)
    assert frozen.content.predictions or frozen.content.loads
    assert f"| `{file.name}` | `{frozen.id[:12]}` |" in (FOLDER / "README.md").read_text()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_edit_of_a_set_shows(file: Path) -> None:
    text = file.read_text()
    edited = text.replace('"batch": 1,', '"batch": 2,', 1).replace('"seed": 1', '"seed": 2', 1)
    assert edited != text
    with pytest.raises(InputError, match="is not what was frozen"):
        parse_frozen(edited.encode(), file.name)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_constants_that_a_set_did_not_know_are_priors(file: Path) -> None:
    """Sets that are older than a constant are read; they say of it what nobody had measured."""
    written = json.loads(file.read_text())["content"]["calibration"]
    found = parse_frozen(file.read_bytes(), file.name).content.calibration
    later = {"host_mixture_s", "host_step_s", "rest_gain"} - set(written)
    assert later or file.stem not in OLDEST
    for name in later:
        constant: Constant = getattr(found, name)
        assert constant.provenance is Provenance.PRIOR
        assert constant.basis.startswith("prior: ")
    for name in set(written) & {"stream_bytes_per_s", "host_layer_s"}:
        assert getattr(found, name).value == written[name]["estimate"]["value"]


def test_there_are_sets() -> None:
    assert FILES
