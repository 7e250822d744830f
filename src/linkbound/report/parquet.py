"""A table as a Parquet file: required columns of text, whole numbers and floats, nothing packed.

Written by hand after the format's specification (github.com/apache/parquet-format): a few hundred
rows need neither a library of 50 MB nor compression. Data pages are version 1, PLAIN; the footer is
Thrift's compact protocol.
"""

import struct
from collections.abc import Mapping, Sequence

_MAGIC = b"PAR1"
_INT64, _DOUBLE, _BYTE_ARRAY = 2, 5, 6
_REQUIRED, _UTF8, _PLAIN, _RLE, _DATA_PAGE, _UNCOMPRESSED = 0, 0, 0, 3, 0, 0
_VERSION = 1
# Thrift's compact protocol: types of fields and of list elements.
_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12

Column = Sequence[str] | Sequence[int] | Sequence[float]


def parquet_bytes(columns: Mapping[str, Column]) -> bytes:
    """One row group with the columns in their order; all are of one length and one type each.

    Raises ValueError where lengths differ or a column is empty.
    """
    lengths = {len(values) for values in columns.values()}
    if len(lengths) != 1 or lengths == {0}:
        raise ValueError(f"columns of {sorted(lengths)} rows are no table")
    rows = lengths.pop()
    body, chunks = bytearray(_MAGIC), []
    for name, values in columns.items():
        kind, data = _plain(values)
        header = _page_header(len(data), rows)
        chunks.append(_chunk(name, kind, len(body), len(header) + len(data), rows))
        body += header + data
    footer = _footer(columns, chunks, rows, len(body) - len(_MAGIC))
    return bytes(body) + footer + struct.pack("<I", len(footer)) + _MAGIC


def _plain(values: Column) -> tuple[int, bytes]:
    """The type of a column and its values, one after the other."""
    first = values[0]
    if isinstance(first, str):
        parts = (str(value).encode() for value in values)
        return _BYTE_ARRAY, b"".join(struct.pack("<I", len(one)) + one for one in parts)
    if isinstance(first, int):
        return _INT64, struct.pack(f"<{len(values)}q", *values)
    return _DOUBLE, struct.pack(f"<{len(values)}d", *values)


def _page_header(size: int, rows: int) -> bytes:
    page = _fields(
        {
            1: _i32(rows),
            2: _i32(_PLAIN),
            # Of required columns there are no levels, whatever their encoding is called.
            3: _i32(_RLE),
            4: _i32(_RLE),
        }
    )
    return _fields({1: _i32(_DATA_PAGE), 2: _i32(size), 3: _i32(size), 5: (_STRUCT, page)})


def _chunk(name: str, kind: int, offset: int, size: int, rows: int) -> bytes:
    about = _fields(
        {
            1: _i32(kind),
            2: _list(_I32, [_zigzag(_PLAIN)]),
            3: _list(_BINARY, [_text(name)]),
            4: _i32(_UNCOMPRESSED),
            5: _i64(rows),
            6: _i64(size),
            7: _i64(size),
            9: _i64(offset),
        }
    )
    return _fields({2: _i64(offset), 3: (_STRUCT, about)})


def _footer(columns: Mapping[str, Column], chunks: list[bytes], rows: int, size: int) -> bytes:
    root = _fields({4: (_BINARY, _text("schema")), 5: _i32(len(columns))})
    schema = [root, *(_element(name, values) for name, values in columns.items())]
    group = _fields({1: _list(_STRUCT, chunks), 2: _i64(size), 3: _i64(rows)})
    return _fields(
        {
            1: _i32(_VERSION),
            2: _list(_STRUCT, schema),
            3: _i64(rows),
            4: _list(_STRUCT, [group]),
            6: (_BINARY, _text("linkbound")),
        }
    )


def _element(name: str, values: Column) -> bytes:
    kind, _ = _plain(values[:1])
    fields = {1: _i32(kind), 3: _i32(_REQUIRED), 4: (_BINARY, _text(name))}
    if kind == _BYTE_ARRAY:
        fields[6] = _i32(_UTF8)
    return _fields(fields)


def _fields(fields: Mapping[int, tuple[int, bytes]]) -> bytes:
    """A struct: fields in ascending order, each by its distance from the one before."""
    found, last = b"", 0
    for number, (kind, value) in fields.items():
        found += bytes([(number - last) << 4 | kind]) + value
        last = number
    return found + b"\x00"


def _list(kind: int, values: list[bytes]) -> tuple[int, bytes]:
    few = len(values) < 15
    head = bytes([(len(values) if few else 15) << 4 | kind])
    return _LIST, head + (b"" if few else _varint(len(values))) + b"".join(values)


def _i32(value: int) -> tuple[int, bytes]:
    return _I32, _zigzag(value)


def _i64(value: int) -> tuple[int, bytes]:
    return _I64, _zigzag(value)


def _zigzag(value: int) -> bytes:
    return _varint(value << 1 if value >= 0 else (-value << 1) - 1)


def _text(value: str) -> bytes:
    data = value.encode()
    return _varint(len(data)) + data


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
