"""The frozen sets of the documentation are what they were, and each is named there."""

from pathlib import Path

import pytest

from linkbound.errors import InputError
from linkbound.predict.frozen import parse_frozen

FOLDER = Path(__file__).parents[2] / "docs" / "frozen"
FILES = sorted(FOLDER.glob("*.json"))


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


def test_there_are_sets() -> None:
    assert FILES
