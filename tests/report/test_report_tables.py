"""Tables for other programs: nothing lost, nothing invented, names that cannot break a line."""

import csv
import io
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from linkbound.report.tables import Table, render_csv, render_prometheus

SAMPLE = re.compile(r'^(\w+)\{((?:\w+="(?:[^"\\\n]|\\.)*",?)*)\} (\S+)$')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def table(*rows: Any, figures: tuple[str, ...] = ("time_s", "rate_bytes_per_s", "n")) -> Table:
    return Table(name="t", about="Of it.", labels=("a", "b"), figures=figures, rows=rows)


def test_csv_has_a_row_for_a_row_and_an_empty_cell_for_what_is_not_known() -> None:
    text = render_csv(table((("x", None), (1.5e-06, None, 3)), (('y,"z"', 2), (0.0, 1e9, None))))
    assert list(csv.reader(io.StringIO(text))) == [
        ["a", "b", "time_s", "rate_bytes_per_s", "n"],
        ["x", "", "1.5e-06", "", "3"],
        ['y,"z"', "2", "0.0", "1000000000.0", ""],
    ]


def test_a_metric_for_each_figure_and_no_sample_for_what_is_not_known() -> None:
    text = render_prometheus(
        [table((("x", None), (1.5e-06, None, None)), (("y", 2), (2.0, 3.0, None)))]
    )
    assert text.splitlines() == [
        "# HELP linkbound_t_time_seconds Of it.",
        "# TYPE linkbound_t_time_seconds gauge",
        'linkbound_t_time_seconds{a="x"} 1.5e-06',
        'linkbound_t_time_seconds{a="y",b="2"} 2.0',
        "# HELP linkbound_t_rate_bytes_per_second Of it.",
        "# TYPE linkbound_t_rate_bytes_per_second gauge",
        'linkbound_t_rate_bytes_per_second{a="y",b="2"} 3.0',
    ]
    assert text.endswith("\n")


def test_labels_name_one_sample() -> None:
    text = render_prometheus([table((("x", 1), (1.0, None, None)), (("x", 1), (2.0, None, None)))])
    assert [line for line in text.splitlines() if line[0] != "#"] == [
        'linkbound_t_time_seconds{a="x",b="1"} 2.0'
    ]


@given(st.text(max_size=20), st.floats(allow_nan=False, allow_infinity=False))
def test_any_text_is_one_label_of_one_line(text: str, value: float) -> None:
    lines = render_prometheus([table(((text, 1), (value, None, None)))]).split("\n")
    assert len(lines) == 4
    found = SAMPLE.match(lines[2])
    assert found is not None
    labels = dict(LABEL.findall(found[2]))
    back = re.sub(r"\\(.)", lambda one: "\n" if one[1] == "n" else one[1], labels["a"])
    assert back == text
    assert float(found[3]) == value
