"""The header of a GGUF file: its keys, and the name, shape and type of every tensor (S3).

Version 2 and 3, little endian. Tensor data is never read; counts are not believed before bytes.
"""

import struct
from collections.abc import Mapping
from typing import BinaryIO

from linkbound.errors import InputError
from linkbound.values import Value

HEADER_LIMIT_BYTES = 64 * 1024 * 1024
"""Tokenisers make headers of some 10 MB; one that large is damaged or hostile."""
TENSOR_LIMIT = 200_000
KEPT_ARRAY = 65_536
"""Longer arrays are tokenisers: their length is kept, their content is not."""
_CHUNK_BYTES = 1 << 20

# Value type: struct code. 8 is a string, 9 an array.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
_SCALARS[12] = "d"
_STRING, _ARRAY = 8, 9
_LENGTH = struct.Struct("<Q")

# Type id: name, bytes of a block, elements of a block.
TENSOR_TYPES: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 4, 1),
    1: ("F16", 2, 1),
    2: ("Q4_0", 18, 32),
    3: ("Q4_1", 20, 32),
    6: ("Q5_0", 22, 32),
    7: ("Q5_1", 24, 32),
    8: ("Q8_0", 34, 32),
    10: ("Q2_K", 84, 256),
    11: ("Q3_K", 110, 256),
    12: ("Q4_K", 144, 256),
    13: ("Q5_K", 176, 256),
    14: ("Q6_K", 210, 256),
    15: ("Q8_K", 292, 256),
    16: ("IQ2_XXS", 66, 256),
    17: ("IQ2_XS", 74, 256),
    18: ("IQ3_XXS", 98, 256),
    19: ("IQ1_S", 50, 256),
    20: ("IQ4_NL", 18, 32),
    21: ("IQ3_S", 110, 256),
    22: ("IQ2_S", 82, 256),
    23: ("IQ4_XS", 136, 256),
    29: ("IQ1_M", 56, 256),
    30: ("BF16", 2, 1),
    34: ("TQ1_0", 54, 256),
    35: ("TQ2_0", 66, 256),
    39: ("MXFP4", 17, 32),
    40: ("NVFP4", 36, 64),
    41: ("Q1_0", 18, 128),
    42: ("Q2_0", 18, 64),
}


class Tensor(Value, frozen=True, kw_only=True):
    """One tensor as the header lists it; dimensions run fastest first."""

    name: str
    dimensions: tuple[int, ...]
    bits: float

    @property
    def elements(self) -> int:
        product = 1
        for length in self.dimensions:
            product *= length
        return product


class LongArray(Value, frozen=True, kw_only=True):
    """An array whose content was passed over."""

    length: int


class Header(Value, frozen=True, kw_only=True):
    """Keys and tensors of one file."""

    source: str
    keys: Mapping[str, object]
    tensors: tuple[Tensor, ...]


def read_header(stream: BinaryIO, source: str) -> Header:
    """The header of one GGUF file; raises InputError for anything that is none."""
    cursor = _Cursor(stream, source)
    if cursor.take(4) != b"GGUF":
        raise damaged(source, "it does not start with GGUF")
    version = cursor.number("I")
    if version not in (2, 3):
        raise damaged(source, f"its version is {version}, not 2 or 3 in little endian")
    tensors, keys = cursor.number("Q"), cursor.number("Q")
    if tensors > TENSOR_LIMIT or keys > TENSOR_LIMIT:
        raise damaged(source, f"it claims {tensors:,} tensors and {keys:,} keys")
    table = dict(_key(cursor) for _ in range(keys))
    listed = tuple(_tensor(cursor) for _ in range(tensors))
    return Header(source=source, keys=table, tensors=listed)


def damaged(source: str, seen: str) -> InputError:
    """The error for a file that is not the GGUF file it was taken for."""
    return InputError(
        f"{source} is not a whole GGUF file: {seen}.",
        why="Its sizes are taken from its header.",
        hint="Fetch the file again.",
    )


class _Cursor:
    """Reads forward through a header, a chunk at a time, and stops at its end or limit."""

    def __init__(self, stream: BinaryIO, source: str):
        self.source = source
        self._stream = stream
        self._buffer = b""
        self._at = 0
        self._seen = 0

    def take(self, length: int) -> bytes:
        if self._at + length > len(self._buffer):
            self._fill(length)
        piece = self._buffer[self._at : self._at + length]
        self._at += length
        return piece

    def number(self, code: str) -> int:
        (value,) = struct.unpack("<" + code, self.take(struct.calcsize(code)))
        return int(value)

    def string(self) -> str:
        raw = self.take(self._length())
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise damaged(self.source, f"a name in it is no text: {raw[:20]!r}") from None

    def skip_strings(self, count: int) -> None:
        """Pass over an array of strings: hundreds of thousands in a tokeniser, so by offsets."""
        buffer, at, length_at = self._buffer, self._at, _LENGTH.unpack_from
        for _ in range(count):  # ends by itself: each string takes eight bytes at least
            if at + 8 <= len(buffer):
                end = at + 8 + length_at(buffer, at)[0]
                if end <= len(buffer):
                    at = end
                    continue
            self._at = at
            self.take(self._length())
            buffer, at = self._buffer, self._at
        self._at = at

    def _length(self) -> int:
        length = self.number("Q")
        if length > HEADER_LIMIT_BYTES:
            raise damaged(self.source, f"a text in it would be {length:,} bytes long")
        return length

    def _fill(self, length: int) -> None:
        kept = self._buffer[self._at :]
        more = self._stream.read(max(length, _CHUNK_BYTES))
        self._seen += len(more)
        if self._seen > HEADER_LIMIT_BYTES:
            raise damaged(self.source, f"its header is longer than {HEADER_LIMIT_BYTES:,} bytes")
        self._buffer, self._at = kept + more, 0
        if len(self._buffer) < length:
            raise damaged(self.source, f"it ends after {self._seen:,} bytes, inside its header")


def _key(cursor: _Cursor) -> tuple[str, object]:
    name = cursor.string()
    return name, _value(cursor, cursor.number("I"))


def _value(cursor: _Cursor, kind: int) -> object:
    if kind == _STRING:
        return cursor.string()
    if kind == _ARRAY:
        return _array(cursor)
    code = _SCALARS.get(kind)
    if code is None:
        raise damaged(cursor.source, f"it has a value of the unknown type {kind}")
    return struct.unpack("<" + code, cursor.take(struct.calcsize("<" + code)))[0]


def _array(cursor: _Cursor) -> object:
    kind, length = cursor.number("I"), cursor.number("Q")
    if kind == _STRING:
        cursor.skip_strings(length)
        return LongArray(length=length)
    code = _SCALARS.get(kind)
    if code is None:
        raise damaged(cursor.source, f"it has an array of the unknown type {kind}")
    size = length * struct.calcsize("<" + code)
    if size > HEADER_LIMIT_BYTES:
        raise damaged(cursor.source, f"an array in it would have {length:,} entries")
    raw = cursor.take(size)
    if length > KEPT_ARRAY:
        return LongArray(length=length)
    return struct.unpack(f"<{length}{code}", raw)


def _tensor(cursor: _Cursor) -> Tensor:
    name = cursor.string()
    count = cursor.number("I")
    if not 1 <= count <= 8:
        raise damaged(cursor.source, f"tensor {ascii(name)[:60]} has {count} dimensions")
    dimensions = tuple(cursor.number("Q") for _ in range(count))
    kind = cursor.number("I")
    cursor.number("Q")  # where its data starts
    if any(not 0 < length < 1 << 40 for length in dimensions):
        raise damaged(cursor.source, f"tensor {ascii(name)[:60]} is {dimensions} large")
    stored = TENSOR_TYPES.get(kind)
    if stored is None:
        raise InputError(
            f"Tensor {ascii(name)[:60]} of {cursor.source} has the unknown type {kind}.",
            why="How many bytes it takes is not known.",
            hint="Give the config.json of the model, or a file in another quantisation.",
        )
    _, size, elements = stored
    return Tensor(name=name, dimensions=dimensions, bits=size * 8 / elements)
