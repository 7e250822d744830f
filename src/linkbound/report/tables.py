"""Tables of figures for other programs: CSV, and Prometheus text for a dashboard (E2).

A row is named by its labels, its record among them; a figure that is not known is an empty cell in
CSV and no sample in Prometheus.
"""

import csv
import io
import re
from collections.abc import Iterator, Sequence

from linkbound.values import Value

Label = str | int | None
Number = float | int | None

_UNITS = {"_bytes_per_s": "_bytes_per_second", "_per_s": "_per_second", "_s": "_seconds"}
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Table(Value, frozen=True, kw_only=True):
    """Rows of labels and figures; a figure's unit is the ending of its name, in SI."""

    name: str
    about: str
    labels: tuple[str, ...]
    figures: tuple[str, ...]
    rows: tuple[tuple[tuple[Label, ...], tuple[Number, ...]], ...]


def render_csv(table: Table) -> str:
    """A header, then one line a row (RFC 4180)."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow((*table.labels, *table.figures))
    writer.writerows((*labels, *figures) for labels, figures in table.rows)
    return text.getvalue()


def render_prometheus(tables: Sequence[Table]) -> str:
    """Gauges in the text exposition format 0.0.4, one metric a figure: `linkbound_TABLE_FIGURE`."""
    return "".join(line + "\n" for table in tables for line in _families(table))


def _families(table: Table) -> Iterator[str]:
    for at, figure in enumerate(table.figures):
        # Labels name a sample: of rows that say the same twice the last one stands.
        samples = {labels: figures[at] for labels, figures in table.rows if figures[at] is not None}
        if not samples:
            continue
        metric = f"linkbound_{table.name}_{_with_unit(figure)}"
        yield f"# HELP {metric} {table.about.translate(_ESCAPES)}"
        yield f"# TYPE {metric} gauge"
        for labels, value in samples.items():
            yield f"{metric}{{{_labelled(table.labels, labels)}}} {value!r}"


def _with_unit(figure: str) -> str:
    for ending, unit in _UNITS.items():
        if figure.endswith(ending):
            return re.sub(f"{ending}$", unit, figure)
    return figure


def _labelled(names: Sequence[str], values: Sequence[Label]) -> str:
    pairs = zip(names, values, strict=True)
    return ",".join(
        f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in pairs if value is not None
    )
