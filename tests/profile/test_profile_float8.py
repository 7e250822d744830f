"""Products of 8-bit floats: what is stored so, how near they are, and what says why not."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from profile_models import CONFIGS, MODELS
from profile_pair import job_of

from linkbound.model.parse_config import parse_config
from linkbound.model.types import Weights
from linkbound.splits.parse_split import parse_split

torch = pytest.importorskip("torch", reason="the extra torch is not installed")

ROUNDED = 0.03
"""Relative error of numbers of any size in three bits of mantissa: 2.4 %, evenly spread."""
TWICE_ROUNDED = 0.05
"""Of a product of two such: 3.4 %."""


def _maker(model: str, split: str = "one") -> Any:
    from linkbound.profile.build import build
    from linkbound.profile.transport import Alone

    job = replace(job_of("tp2"), shape=MODELS[model], split=parse_split(split))
    return build(job, 0, Alone())[2]


def _error(found: Any, expected: Any) -> float:
    return float((found.float() - expected.float()).norm() / expected.float().norm())


def _weights(*names: str, float8: bool = True) -> list[Weights]:
    weights = MODELS["fp8" if float8 else "dense"].layers[0].weights
    return [one for one in weights if one.name in names]


def _plain_maker() -> Any:
    from linkbound.profile.weights import Maker

    return Maker(7, torch.float32, torch.device("cpu"))


def test_a_shard_in_8_bits_is_the_slice_of_the_whole() -> None:
    maker = _plain_maker()
    ranges = ((0, 64), (0, 96)), ((16, 48), (32, 96))
    whole, part = (
        maker.stored(maker.matrix("o", (64, 96), one, 96), _weights("o"), 96) for one in ranges
    )
    assert torch.equal(part.values.float(), whole.values[16:48, 32:].float())
    assert torch.equal(part.scale, whole.scale[:, 16:48])
    plain = maker.matrix("o", (64, 96), ranges[0], 96)
    assert 0.01 < _error(whole.values.float() * whole.scale.t(), plain) < ROUNDED
    assert maker.float8_parameters == 64 * 96 + 32 * 64


def test_a_product_is_near_that_of_unrounded_numbers() -> None:
    from linkbound.profile import ops

    maker = _plain_maker()
    weight = maker.matrix("o", (64, 96), ((0, 64), (0, 96)), 96)
    # Rows of very unlike sizes: each has its own scale. A row of zeros stays one.
    x = torch.randn(4, 96) * torch.tensor([1e-3, 1.0, 1e3, 0.0])[:, None]
    found = ops.product(x, maker.stored(weight, _weights("o"), 96))
    for row, right in zip(found[:3], x @ weight.t(), strict=False):
        assert 0 < _error(row, right) < TWICE_ROUNDED
    assert torch.equal(found[3], torch.zeros(64))
    room = torch.empty(4, 64)
    assert ops.product(x, maker.stored(weight, _weights("o"), 96), room) is room
    assert torch.equal(room, found)


def test_grouped_products_are_the_products_of_each_group() -> None:
    from linkbound.profile import ops

    maker = _plain_maker()
    weights = maker.matrix("experts", (3, 32, 64), ((0, 3), (0, 32), (0, 64)), 64)
    stored = maker.stored(weights, _weights("o"), 64)
    x = torch.randn(9, 64)
    ends = torch.tensor([4, 4, 7], dtype=torch.int32)
    found = ops.grouped_product(x, stored, ends)
    assert _error(found[:4], x[:4] @ weights[0].t()) < TWICE_ROUNDED
    assert _error(found[4:7], x[4:7] @ weights[2].t()) < TWICE_ROUNDED


def test_all_matrices_of_an_fp8_file_are_in_8_bits() -> None:
    maker = _maker("fp8")
    shape = MODELS["fp8"]
    stored = sum(one.parameters for layer in shape.layers for one in layer.weights if one.float8)
    assert maker.float8_parameters == stored
    assert stored > 0.7 * maker.parameters
    # The file's cache has 8 bits too.
    assert maker.bf16_because == ("cache: attention is computed in bf16",)


def test_experts_are_in_8_bits_and_up_projections_of_latents_are_not() -> None:
    assert _maker("fp8_mixture").bf16_because == ()
    assert _maker("fp8_latent").bf16_because == ("kv up: taken into queries and outputs in bf16",)


def test_a_plain_model_says_nothing() -> None:
    maker = _maker("mixture")
    assert (maker.float8_parameters, maker.bf16_because) == (0, ())


def test_what_no_product_takes_is_named() -> None:
    # 96 columns over four ranks are 24 each.
    because = _maker("fp8", "tp4").bf16_because
    assert "gate up, " not in " ".join(because)
    assert "down: 64 x 24 on a rank, no multiples of 16" in because


@pytest.mark.parametrize(
    ("table", "because"),
    [
        ({"quant_method": "awq", "bits": 4}, "q, k, v, o, gate up, down: 4.15625 bits, no 8-bit"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "8 bits, no 8-bit floats"),
        ({"quant_algo": "MXFP8"}, "8.25 bits, no 8-bit floats"),
    ],
)
def test_other_quantisations_stay_plain_and_are_named(table: dict[str, Any], because: str) -> None:
    shape = parse_config(
        json.dumps({**CONFIGS["dense"], "quantization_config": table}), "config.json"
    )
    from linkbound.profile.build import build
    from linkbound.profile.transport import Alone

    maker = build(replace(job_of("tp2"), shape=shape, split=parse_split("one")), 0, Alone())[2]
    assert maker.float8_parameters == 0
    (text,) = maker.bf16_because
    assert because in text


def test_one_product_of_unlike_weights_is_plain() -> None:
    maker = _plain_maker()
    matrix = torch.randn(128, 64)
    weights = [*_weights("q", "k"), *_weights("v", float8=False)]
    assert maker.stored(matrix, weights, 64) is matrix
    assert maker.bf16_because == ("q, k: one product with v",)


def test_a_device_without_8_bit_products_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from linkbound.profile import float8

    monkeypatch.setattr(float8, "refused", lambda _device, *, grouped: f"grouped {grouped}")
    maker = _plain_maker()
    assert isinstance(maker.stored(torch.randn(64, 64), _weights("o"), 64), torch.Tensor)
    maker.stored(torch.randn(2, 64, 64), _weights("down"), 64)
    assert maker.bf16_because == ("o: grouped False", "down: grouped True")


def test_interpreted_rows_are_those_of_plain_torch() -> None:
    pytest.importorskip("triton", reason="torch came without Triton")
    # A process of its own: the interpreter is chosen when Triton is imported.
    ended = subprocess.run(
        [sys.executable, Path(__file__).with_name("float8_cases.py")],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert json.loads(ended.stdout) == pytest.approx(0.024, abs=0.006)


@pytest.mark.gpu(1)
def test_rows_of_the_kernel_are_those_of_plain_torch() -> None:
    from float8_cases import rows_error

    assert rows_error("cuda") == pytest.approx(0.024, abs=0.006)


@pytest.mark.gpu(1)
@pytest.mark.parametrize("rows", [1, 8, 1024])
@pytest.mark.parametrize(("outputs", "inputs"), [(5120, 4096), (10240, 5120), (5120, 25600)])
def test_products_on_a_gpu_are_near(rows: int, outputs: int, inputs: int) -> None:
    from float8_cases import product_errors

    same, unrounded = product_errors(rows, outputs, inputs)
    assert same < ROUNDED
    assert unrounded < TWICE_ROUNDED


@pytest.mark.gpu(1)
@pytest.mark.parametrize("rows", [8, 1024])
def test_grouped_products_on_a_gpu_are_near(rows: int) -> None:
    from float8_cases import grouped_errors

    same, unrounded = grouped_errors(rows)
    assert same < ROUNDED
    assert unrounded < TWICE_ROUNDED


@pytest.mark.gpu(1)
@pytest.mark.parametrize("rows", [1, 8])
def test_a_graph_replays_a_product_of_new_numbers(rows: int) -> None:
    from float8_cases import replayed_error

    assert replayed_error(rows) == 0
