"""A reader of small Parquet files, apart from the writer that it checks."""

import struct
from typing import Any


class Compact:
    """Thrift's compact protocol, as far as a footer goes: structs become {field: value}."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def varint(self) -> int:
        value = shift = 0
        while True:
            one = self.byte()
            value |= (one & 0x7F) << shift
            shift += 7
            if not one & 0x80:
                return value

    def number(self) -> int:
        value = self.varint()
        return value >> 1 ^ -(value & 1)

    def value(self, kind: int) -> Any:
        match kind:
            case 5 | 6:
                return self.number()
            case 8:
                size = self.varint()
                self.at += size
                return self.data[self.at - size : self.at]
            case 9:
                head = self.byte()
                count = head >> 4 if head >> 4 < 15 else self.varint()
                return [self.value(head & 15) for _ in range(count)]
            case 12:
                return self.struct()
        raise AssertionError(kind)

    def struct(self) -> dict[int, Any]:
        found, number = {}, 0
        while head := self.byte():
            assert head >> 4, "fields lie close to each other here"
            number += head >> 4
            found[number] = self.value(head & 15)
        return found


def read(data: bytes) -> dict[str, list[Any]]:
    """The columns of a file without levels, packing or compression; anything else fails."""
    assert data[:4] == data[-4:] == b"PAR1"
    (size,) = struct.unpack("<I", data[-8:-4])
    footer = Compact(data[-8 - size : -8]).struct()
    root, *elements = footer[2]
    assert root[5] == len(elements)
    (group,) = footer[4]
    assert footer[3] == group[3]
    found = {}
    for element, chunk in zip(elements, group[1], strict=True):
        about = chunk[3]
        assert about[3] == [element[4]]
        assert (about[1], element[3], about[4]) == (element[1], 0, 0)
        reader = Compact(data)
        reader.at = about[9]
        page = reader.struct()
        assert (page[1], page[2], page[5][1], page[5][2]) == (0, page[3], footer[3], 0)
        assert reader.at + page[2] - about[9] == about[7]
        found[element[4].decode()] = values(
            element[1], data[reader.at : reader.at + page[2]], footer[3]
        )
    return found


def values(kind: int, data: bytes, rows: int) -> list[Any]:
    if kind == 2:
        return list(struct.unpack(f"<{rows}q", data))
    if kind == 5:
        return list(struct.unpack(f"<{rows}d", data))
    texts, at = [], 0
    for _ in range(rows):
        (size,) = struct.unpack_from("<I", data, at)
        texts.append(data[at + 4 : at + 4 + size].decode())
        at += 4 + size
    assert at == len(data)
    return texts
