"""The frozen sets of the documentation are what they were, and each is named there."""

from pathlib import Path

import pytest

from linkbound.predict.frozen import parse_frozen, render_frozen

FOLDER = Path(__file__).parents[2] / "docs" / "frozen"
FILES = sorted(FOLDER.glob("*.json"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_set_is_what_was_frozen(file: Path) -> None:
    frozen = parse_frozen(file.read_bytes(), file.name)
    assert render_frozen(frozen).encode() == file.read_bytes()
    assert frozen.content.predictions or frozen.content.loads
    assert f"`{file.name}`" in (FOLDER / "README.md").read_text()


def test_there_are_sets() -> None:
    assert FILES
