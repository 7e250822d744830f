"""Reads XML that strangers wrote: no entities, no internal DTD, bounded in size, depth and count.

Every XML reader of this layer goes through here (M4).
"""

from typing import NamedTuple
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from linkbound.errors import InputError

MAX_BYTES = 64 * 1024**2
MAX_DEPTH = 200
MAX_ELEMENTS = 1_000_000
"""A machine's tree has thousands; a million small elements would take gigabytes of memory."""

_CUT_OFF = frozenset(
    (
        expat.errors.codes[expat.errors.XML_ERROR_NO_ELEMENTS],
        expat.errors.codes[expat.errors.XML_ERROR_UNCLOSED_TOKEN],
        expat.errors.codes[expat.errors.XML_ERROR_PARTIAL_CHAR],
        expat.errors.codes[expat.errors.XML_ERROR_UNCLOSED_CDATA_SECTION],
    )
)


class XmlCutOff(InputError):
    """The XML ends before its root element does."""


def load_xml(data: bytes | str, source: str) -> Element:
    """The root element of a complete document. Raises InputError, whatever `data` is."""
    loader = _Loader(source)
    loader.feed(_as_bytes(data, source), data)
    return loader.builder.close()


class XmlStart(NamedTuple):
    """As much of a document as is there."""

    root: Element
    cut: str | None
    """Where it was cut off; None if it is complete."""
    unfinished: tuple[Element, ...]
    """Elements that the cut left open: what they say is not all that they said."""


def load_xml_start(data: bytes | str, source: str) -> XmlStart:
    """A document that may be cut off. Raises InputError where not even the root began."""
    loader = _Loader(source)
    try:
        loader.feed(_as_bytes(data, source), data)
    except XmlCutOff as error:
        if not loader.open:
            raise
        unfinished = tuple(loader.open)
        return XmlStart(loader.close_what_is_open(), error.seen, unfinished)
    return XmlStart(loader.builder.close(), None, ())


class _Loader:
    """An expat parser that fills a tree and refuses what no topology file needs."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.builder = TreeBuilder()
        self.open: list[Element] = []
        self.count = 0

    def feed(self, content: bytes, given: bytes | str) -> None:
        # Text was decoded by the caller, so an encoding named in the file no longer holds.
        parser = expat.ParserCreate("utf-8" if isinstance(given, str) else None)
        parser.buffer_text = True
        parser.StartElementHandler = self.start
        parser.EndElementHandler = self.end
        parser.CharacterDataHandler = self.builder.data
        parser.StartDoctypeDeclHandler = self.doctype
        parser.EntityDeclHandler = self.entity
        try:
            parser.Parse(content, True)
        except expat.ExpatError as error:
            raise self.refused(error) from None
        except (ValueError, LookupError) as error:
            raise _not_xml(self.source, f"its encoding cannot be read ({error})") from None

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.count += 1
        if len(self.open) >= MAX_DEPTH:
            raise _not_xml(self.source, f"it nests deeper than {MAX_DEPTH} elements")
        if self.count > MAX_ELEMENTS:
            raise _not_xml(self.source, f"it has more than {MAX_ELEMENTS:,} elements")
        self.open.append(self.builder.start(tag, attributes))

    def end(self, tag: str) -> None:
        self.builder.end(tag)
        self.open.pop()

    def close_what_is_open(self) -> Element:
        """Ends the elements that the cut left open: their start tags were complete."""
        while self.open:
            self.end(self.open[-1].tag)
        return self.builder.close()

    def doctype(self, *declared: object) -> None:
        # hwloc and nvidia-smi name an external DTD; it is never fetched. The last item says that
        # the file brings declarations of its own.
        if declared[-1]:
            raise _not_xml(self.source, "it declares its own DTD")

    def entity(self, name: str, *_: object) -> None:
        raise _not_xml(self.source, f"it declares the entity '{name}'")

    def refused(self, error: expat.ExpatError) -> InputError:
        place = f"line {error.lineno}, column {error.offset}"
        if error.code in _CUT_OFF and self.count:
            return XmlCutOff(
                f"{self.source}: the XML ends at {place} before it is complete.",
                why="It is a fragment of a file.",
                hint="Give the whole file.",
            )
        return _not_xml(self.source, f"{expat.errors.messages[error.code]} at {place}")


def _as_bytes(data: bytes | str, source: str) -> bytes:
    content = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if len(content) > MAX_BYTES:
        raise InputError(
            f"{source}: {len(content):,} bytes of XML.",
            why=f"A topology file is below {MAX_BYTES:,} bytes.",
            hint="Check that this is the file you meant.",
        )
    return content


def _not_xml(source: str, what: str) -> InputError:
    return InputError(
        f"{source}: cannot be read as XML: {what}.",
        why="Nothing was taken from this file.",
        hint="Write the file again with the tool that makes it.",
    )
