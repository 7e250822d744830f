"""A frozen set as text: every prediction, and the hash that is to be posted (E3)."""

from collections.abc import Iterator

from linkbound.predict.calibrate import split_of
from linkbound.predict.frozen import Frozen
from linkbound.predict.load_points import LoadPrediction
from linkbound.predict.points import Metric, Prediction
from linkbound.report.table import render_table

_WORDS = ("engine", "model", "split", "arm", "metric", "")
_HEADER = (*_WORDS, "batch", "input", "output", "~ms", "from-to")
_LOAD_HEADER = ("engine", "model", "contender", "cell", "figure", "", "~ms or a second", "from-to")


def frozen_lines(frozen: Frozen) -> list[str]:
    """The table, what is left out, and when and under which id it was frozen."""
    content = frozen.content
    rows = [row for one in content.predictions for row in _rows(one)]
    loads = [row for one in content.loads for row in _load_rows(one)]
    lines = [
        f"Predictions for the machine {content.machine}; ~ is predicted, nothing was measured."
    ]
    if rows:
        lines += render_table(_HEADER, rows, left=len(_WORDS))
    if loads:
        lines += render_table(_LOAD_HEADER, loads, left=len(_LOAD_HEADER) - 2)
    if content.left_out:
        lines += ["Not predicted:", *(f"  {one}" for one in content.left_out)]
    return [
        *lines,
        f"Frozen {len(rows) + len(loads)} figures of "
        f"{len(content.predictions) + len(content.loads)} points at {content.frozen}.",
        f"id {frozen.id}",
        "Post the id, or the file, before you measure: an edit changes it.",
    ]


def _load_rows(one: LoadPrediction) -> Iterator[tuple[str, ...]]:
    for name, figure in one.figures.items():
        scale = 1e3 if name.endswith("_s") and not name.endswith("_per_s") else 1.0
        value, low, high = (part * scale for part in (figure.value, figure.low, figure.high))
        yield (
            one.engine,
            one.model,
            one.contender,
            one.cell.name,
            name,
            "overloaded" if one.overloaded else "",
            f"~{value:.2f}",
            f"{low:.2f}-{high:.2f}",
        )


def _rows(one: Prediction) -> Iterator[tuple[str, ...]]:
    spec = one.spec
    for metric, time in one.estimates.items():
        yield (
            spec.engine,
            spec.model,
            split_of(spec).name,
            "-" if spec.arm is None else spec.arm.value,
            metric.value,
            _word(one, metric),
            str(spec.batch),
            f"{spec.prompt_tokens:,}",
            f"{spec.output_tokens:,}",
            f"~{time.value * 1e3:.2f}",
            f"{time.low * 1e3:.2f}-{time.high * 1e3:.2f}",
        )


def _word(one: Prediction, metric: Metric) -> str:
    """What stands apart from a prediction by constants that never saw the point."""
    if one.seen:
        return "seen"
    return "shard timed" if metric in one.shards else ""
