"""Every error has its exit code; a message is what was seen, why it matters, what to do."""

import inspect

import msgspec
import pytest

from linkbound import errors
from linkbound.errors import InputError, LinkboundError, ModelRefused
from linkbound.values import Value

CODES = {
    "LinkboundError": 1,
    "UsageError": 2,
    "InputError": 2,
    "ModelRefused": 2,
    "MissingExtra": 2,
    "NothingToMeasure": 3,
    "CorruptionFound": 4,
    "StudyError": 1,
    "TimeLimit": 124,
    "Interrupted": 130,
}


def test_exit_codes() -> None:
    found = {
        name: kind.exit_code
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, LinkboundError)
    }
    assert found == CODES


def test_the_tree_in_the_docstring_is_complete() -> None:
    assert errors.__doc__ is not None
    for name, code in CODES.items():
        line = next(one for one in errors.__doc__.splitlines() if one.split()[:1] and name in one)
        assert f" {code} " in line


def test_a_message_has_three_parts() -> None:
    error = InputError("topo.txt is empty.", why="It names no GPU.", hint="Give another file.")
    assert str(error) == "topo.txt is empty. It names no GPU. Give another file."
    assert str(InputError("topo.txt is empty.")) == "topo.txt is empty."
    assert ModelRefused("odd key", keys=("window",)).keys == ("window",)


class Example(Value, frozen=True, kw_only=True):
    size_bytes: int


def test_values_are_frozen_strict_and_read_back() -> None:
    value = Example(size_bytes=3)
    with pytest.raises(AttributeError):
        value.size_bytes = 4  # type: ignore[misc]
    assert msgspec.convert(msgspec.to_builtins(value), Example) == value
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"size_bytes": 3, "other": 1}, Example)
