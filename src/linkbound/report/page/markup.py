"""HTML that is safe by construction: text is escaped on its way in, records are cited (E2).

A figure without a record says so; a record that the study does not hold is never linked.
"""

import html
from collections.abc import Iterable, Sequence

from linkbound.report.words import short_id, unique, visible

# So many links stand in the open; the rest of a long list folds away.
CITED_IN_THE_OPEN = 2
# From here on the words of a cell are a sentence.
LONG_CHARS = 40
# Digits of a record id in an anchor: 64 bits, with which no study has two records alike.
ANCHOR_DIGITS = 16


def esc(text: object) -> str:
    """Any value as text of an element or of a quoted attribute."""
    return html.escape(visible(str(text)), quote=True)


def anchor(record_id: str) -> str:
    """The name of a record's row on the page."""
    return esc(f"r-{record_id[:ANCHOR_DIGITS]}")


class Citations:
    """Links to the records that the page lists."""

    def __init__(self, known: Iterable[str]) -> None:
        self._known = frozenset(known)

    def __call__(self, ids: Iterable[str]) -> str:
        """Links to records; a sentence where there is none."""
        links = [self._link(one) for one in unique(ids)]
        if not links:
            return '<span class="cite">no record</span>'
        shown = " ".join(links[:CITED_IN_THE_OPEN])
        rest = links[CITED_IN_THE_OPEN:]
        more = (
            f'<details class="more"><summary>and {len(rest)} more</summary>'
            f"{' '.join(rest)}</details>"
            if rest
            else ""
        )
        return f'<span class="cite">{shown}{more}</span>'

    def _link(self, record_id: str) -> str:
        if record_id not in self._known:
            return f"<span>{esc(short_id(record_id))} (not in this study)</span>"
        return f'<a href="#{anchor(record_id)}">{esc(short_id(record_id))}</a>'


class Cell:
    """A cell of a table: its content as HTML, and how it looks."""

    __slots__ = ("content", "look", "title")

    def __init__(self, content: str, look: str = "", title: str = "") -> None:
        self.content = content
        self.look = look
        self.title = title

    def markup(self, tag: str, scope: str = "") -> str:
        look = f' class="{self.look}"' if self.look else ""
        title = f' title="{esc(self.title)}"' if self.title else ""
        return f"<{tag}{scope}{look}{title}>{self.content}</{tag}>"


def text(value: object) -> Cell:
    """Words, to the left; a sentence keeps a width in which it can be read."""
    words = esc(value)
    return Cell(words, "long" if len(words) > LONG_CHARS else "")


def number(value: object, look: str = "") -> Cell:
    """A figure, to the right."""
    return Cell(esc(value), f"n {look}".strip())


def table(
    caption: str, header: Sequence[Cell], rows: Iterable[Sequence[Cell]], *, look: str = ""
) -> str:
    """A table that scrolls inside its own frame; the first cell of each row names the row."""
    head = "".join(cell.markup("th", ' scope="col"') for cell in header)
    body = "\n".join(_row(row) for row in rows)
    named = f' class="{look}"' if look else ""
    return (
        f'<div class="scroll"><table{named}><caption>{caption}</caption>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>\n"
    )


def _row(row: Sequence[Cell]) -> str:
    first, *rest = row
    named = first.markup("th", ' scope="row"')
    return f"<tr>{named}{''.join(cell.markup('td') for cell in rest)}</tr>"


def section(name: str, title: str, *parts: str) -> str:
    """A section with its heading; nothing where it has no content."""
    content = "".join(parts)
    if not content:
        return ""
    return f'<section id="{name}"><h2>{esc(title)}</h2>\n{content}</section>\n'


def figure(title: str, picture: str, reading: str, cited: str) -> str:
    """A picture with the sentence that says how to read it, and its records."""
    return (
        f'<figure><figcaption class="top">{esc(title)}</figcaption>'
        f'<div class="scroll">{picture}</div>'
        f'<figcaption class="how">{esc(reading)} {cited}</figcaption></figure>\n'
    )


def how(reading: str) -> str:
    """The sentence under a table that says how to read it."""
    return f'<p class="how">{esc(reading)}</p>\n'


def items(entries: Iterable[str]) -> str:
    """A list of ready entries; nothing where it is empty."""
    content = "".join(f"<li>{one}</li>" for one in entries)
    return f"<ul>{content}</ul>\n" if content else ""
