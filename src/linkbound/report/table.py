"""A table as text: aligned columns, words to the left, numbers to the right."""

from collections.abc import Iterable, Sequence

Row = Sequence[str]


def render_table(header: Row, rows: Iterable[Row], *, left: int, gap: int = 2) -> list[str]:
    """Aligned columns `gap` spaces apart, the first `left` to the left, numbers to the right."""
    table = [header, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    return [
        (" " * gap)
        .join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        .rstrip()
        for row in table
    ]
