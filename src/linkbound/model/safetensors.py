"""Stored bytes from safetensors headers, to hold the arithmetic of a configuration against (S3).

A header is a u64 length and JSON: name to dtype, shape and offsets. Tensor data is not read.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec

from linkbound.errors import InputError
from linkbound.model.files import read_text
from linkbound.model.keys import load_json, shorten
from linkbound.model.types import ModelShape
from linkbound.values import Value

HEADER_LIMIT_BYTES = 100 * 1000 * 1000
"""The format's own limit."""
GAP_LIMIT = 0.005
"""Above half a percent the difference is worth a sentence: scales and buffers stay below it."""
INDEX = "model.safetensors.index.json"


class StoredTensor(Value, frozen=True, kw_only=True):
    """One tensor of a file."""

    dtype: str
    shape: tuple[int, ...]
    size_bytes: int


def read_header(stream: BinaryIO, source: str) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file, from its first bytes."""
    start = stream.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or not 2 <= length <= HEADER_LIMIT_BYTES:
        raise _damaged(source, f"its header would be {length:,} bytes long")
    raw = stream.read(length)
    if len(raw) < length:
        raise _damaged(source, f"it ends after {len(raw):,} of {length:,} bytes of header")
    try:
        header = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError):
        raise _damaged(source, "its header is not JSON") from None
    if not isinstance(header, dict):
        raise _damaged(source, "its header is not a JSON object")
    return {
        name: _tensor(name, entry, source)
        for name, entry in header.items()
        if name != "__metadata__"
    }


def _tensor(name: str, entry: object, source: str) -> StoredTensor:
    if isinstance(entry, dict):
        dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
        numbers = (
            [*shape, *offsets] if isinstance(shape, list) and isinstance(offsets, list) else []
        )
        if (
            isinstance(dtype, str)
            and isinstance(offsets, list)
            and len(offsets) == 2
            and len(numbers) >= 2
            and all(type(number) is int and 0 <= number < 1 << 63 for number in numbers)
            and offsets[0] <= offsets[1]
        ):
            size = offsets[1] - offsets[0]
            return StoredTensor(dtype=dtype, shape=tuple(shape or ()), size_bytes=size)
    raise _damaged(source, f"tensor {shorten(name)} is described as {shorten(entry)}")


def stored_bytes(directory: Path) -> tuple[int, str] | None:
    """Bytes of all tensors in a model's directory and where that is from; None without any.

    Headers are exact; the index's total_size stands in where shards are missing.
    """
    files = sorted(directory.glob("*.safetensors"))
    index = directory / INDEX
    listed = _index(index) if index.is_file() else None
    names = set() if listed is None else set(_shards(listed, str(index)))
    if files and names <= {file.name for file in files}:
        kept = [file for file in files if not names or file.name in names]
        return sum(map(_file_bytes, kept)), f"{len(kept)} safetensors headers"
    if listed is None:
        return None
    metadata = listed.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, float) and total.is_integer():
        total = int(total)
    if type(total) is not int or not 0 < total < 1 << 63:
        raise _damaged(str(index), f"its total_size is {shorten(total)}")
    return total, f"total_size of {INDEX}"


def _index(path: Path) -> Mapping[str, object]:
    return load_json(read_text(path), str(path))


def _shards(listed: Mapping[str, object], source: str) -> list[str]:
    shards = listed.get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise _damaged(source, f"its weight_map is {shorten(shards)}")
    return sorted(set(shards.values()))


def _file_bytes(path: Path) -> int:
    with path.open("rb") as stream:
        return sum(tensor.size_bytes for tensor in read_header(stream, str(path)).values())


def check_against_headers(shape: ModelShape, stored: int, source: str) -> ModelShape:
    """The shape, with a sentence where stored bytes and its arithmetic differ by over 0.5 %."""
    difference = (stored - shape.weight_bytes) / shape.weight_bytes
    if abs(difference) <= GAP_LIMIT:
        return shape
    sentence = (
        f"{source} say {stored:,} bytes, {difference:+.1%} against the {shape.weight_bytes:,.0f} "
        "computed from the configuration."
    )
    return msgspec.structs.replace(shape, gaps=(*shape.gaps, sentence))


def _damaged(source: str, seen: str) -> InputError:
    return InputError(
        f"{source} is not a whole safetensors file: {seen}.",
        why="The stored size of the weights is taken from its header.",
        hint="Fetch the file again, or give the config.json alone.",
    )
