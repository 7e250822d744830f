"""A frozen set as text: every prediction, and the hash that is to be posted (E3)."""

from collections.abc import Iterator

from linkbound.predict.calibrate import split_of
from linkbound.predict.frozen import Frozen
from linkbound.predict.points import Prediction
from linkbound.report.table import render_table

_WORDS = ("engine", "model", "split", "arm", "metric", "")
_HEADER = (*_WORDS, "batch", "input", "output", "~ms", "from-to")


def frozen_lines(frozen: Frozen) -> list[str]:
    """The table, what is left out, and when and under which id it was frozen."""
    content = frozen.content
    rows = [row for one in content.predictions for row in _rows(one)]
    lines = [
        f"Predictions for the machine {content.machine}; ~ is predicted, nothing was measured.",
        *render_table(_HEADER, rows, left=len(_WORDS)),
    ]
    if content.left_out:
        lines += ["Not predicted:", *(f"  {one}" for one in content.left_out)]
    return [
        *lines,
        f"Frozen {len(rows)} times of {len(content.predictions)} points at {content.frozen}.",
        f"id {frozen.id}",
        "Post the id, or the file, before you measure: an edit changes it.",
    ]


def _rows(one: Prediction) -> Iterator[tuple[str, ...]]:
    spec = one.spec
    for metric, time in one.estimates.items():
        yield (
            spec.engine,
            spec.model,
            split_of(spec).name,
            "-" if spec.arm is None else spec.arm.value,
            metric.value,
            "seen" if one.seen else "",
            str(spec.batch),
            f"{spec.prompt_tokens:,}",
            f"{spec.output_tokens:,}",
            f"~{time.value * 1e3:.2f}",
            f"{time.low * 1e3:.2f}-{time.high * 1e3:.2f}",
        )
