"""A product of one row by our kernel is the product, under Triton's interpreter and on a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed")
pytest.importorskip("triton", reason="torch came without Triton")

TOLERANCE = 0.01
"""Relative: results rounded to bf16 are within 0.3 %."""


def _all_right(errors: dict[str, list[float]]) -> None:
    assert errors
    for name, values in errors.items():
        assert max(values) < TOLERANCE, name


def test_interpreted_products_are_right() -> None:
    # A process of its own: the interpreter is chosen when Triton is imported.
    script = Path(__file__).with_name("matvec_cases.py")
    ended = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    _all_right(json.loads(ended.stdout))


@pytest.mark.gpu(1)
def test_products_on_a_gpu_are_right() -> None:
    from matvec_cases import errors

    _all_right(errors("cuda"))


@pytest.mark.parametrize("rows", [2, 8])
def test_more_rows_go_to_the_library(rows: int) -> None:
    from linkbound.profile.matvec import cut_of

    assert cut_of(torch.empty(rows, 4096)) is None


def test_inputs_that_no_tile_divides_go_to_the_library() -> None:
    from linkbound.profile.matvec import cut_of

    x = torch.empty(1, 2880)
    assert cut_of(x) is cut_of(x, normed=True) is cut_of(x, gated=True) is None
