"""Programs that read peer memory back at its owner: what they found (L6, M3).

A write is proven only where the owner of the memory reads it; the writer may see a mirror.
"""

import re

from linkbound.doctor.types import PeerCheck, Place

_PROBE = re.compile(
    r"^.{0,40}?(\d{1,4}) ?-> ?(\d{1,4})\s.{0,40}?\b(writer|owner)\b[^:]{0,40}:\s*"
    r"((?:(?:0x)?[0-9a-f]{2,16}[ ,]*)+)",
    re.I,
)
_KERNEL = re.compile(r"^Run kernel on GPU(\d{1,4}), taking source data from GPU(\d{1,4})")
_ELEMENT = re.compile(r"^Verification error @ element (\d{1,12}): val = (\S+), ref = (\S+)")
_PASSED = re.compile(r"^Test passed\s*$")
_VERDICT = re.compile(
    r"^.{0,60}?(?:GPU ?|dev(?:ice)? ?|cuda:)?(\d{1,4}) ?(?:->|→) ?(?:GPU ?|dev(?:ice)? ?|cuda:)?"
    r"(\d{1,4})\b(?=.{0,160}\b(?:peer|p2p|copy|bytes|data|verif\w+|read ?back)\b)"
    r".{0,160}?\b(mismatch(?:es)?|corrupt\w*|verification failed)\b(.{0,80})",
    re.I,
)
_NONE = re.compile(r"\b(?:no|0|zero|without) $", re.I)
_NEEDLES = ("owner", "Verification error", "Run kernel on GPU", "ismatch", "orrupt", "erification")
_LONGEST = 400


def parse_peer_checks(text: str, source: str) -> tuple[PeerCheck, ...]:
    """Every comparison at a destination, in order; none where the text holds none."""
    if not any(needle in text for needle in _NEEDLES):
        return ()
    state = _Checks(source)
    for number, line in enumerate(text.splitlines(), 1):
        state.read(line[:_LONGEST].strip(), Place(source=source, line=number))
    return tuple(state.found)


class _Checks:
    """What was written so far, so that what the owner reads can be compared with it."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.found: list[PeerCheck] = []
        self.written: dict[tuple[str, str], str] = {}
        self.pairs: list[str] = []
        self.failed = False

    def read(self, line: str, place: Place) -> None:
        if line.startswith(("#", "//")):
            return
        if probe := _PROBE.match(line):
            self._read_probe(probe, place)
        elif kernel := _KERNEL.match(line):
            self.pairs.append(f"{kernel[2]} -> {kernel[1]}")
        elif element := _ELEMENT.match(line):
            self._read_element(element, place)
        elif self.pairs and _PASSED.match(line) and not self.failed:
            self._add(place, ", ".join(self.pairs), line, correct=True)
        elif (verdict := _VERDICT.match(line)) and not _NONE.search(line[: verdict.start(3)]):
            self._add(place, f"{verdict[1]} -> {verdict[2]}", line, correct=False)

    def _read_probe(self, probe: re.Match[str], place: Place) -> None:
        src, dst, who, value = probe.groups()
        words = " ".join(value.replace(",", " ").lower().split())
        if who.lower() == "writer":
            self.written[src, dst] = words
        elif (src, dst) in self.written:
            written = self.written[src, dst]
            text = f"written {written}, the owner reads {words}"
            self._add(place, f"{src} -> {dst}", text, correct=words == written)

    def _read_element(self, element: re.Match[str], place: Place) -> None:
        if self.failed or element[2] == element[3]:
            return
        self.failed = True
        pairs = ", ".join(self.pairs) or "the pair tested"
        text = f"element {element[1]} is {element[2]}, {element[3]} was expected"
        self._add(place, pairs, text, correct=False)

    def _add(self, place: Place, pair: str, text: str, *, correct: bool) -> None:
        self.found.append(PeerCheck(place=place, pair=pair, correct=correct, text=text[:200]))
