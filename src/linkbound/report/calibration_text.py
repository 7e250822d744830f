"""What runs made of an engine's constants: before, after, and which were told apart (D5, E3)."""

from typing import Any

import msgspec

from linkbound.evidence.types import Provenance
from linkbound.predict.calibration import Calibration, Constant
from linkbound.report.table import render_table
from linkbound.serve.types import EngineRun

SCHEMA, VERSION = "linkbound.calibration", 1
_HEADER = ("constant", "from", "before", "after", "interval")


def calibration_lines(
    machine: str, runs: tuple[EngineRun, ...], before: Calibration, after: Calibration
) -> list[str]:
    """The runs, every constant before and after, and the errors that predictions state."""
    points = ", ".join(f"{run.tag} {run.spec.batch} x {run.spec.prompt_tokens:,}" for run in runs)
    rows = [_row(name, before, after) for name in _constants(after)]
    told = sum(_get(after, name).provenance is Provenance.CALIBRATED for name in _constants(after))
    return [
        f"Constants of vllm on {machine}, from {len(runs)} runs: {points}.",
        *render_table(_HEADER, rows, left=2),
        f"The runs tell {told} of {len(rows)} constants; the others stay what they were.",
        f"Model error {_percent(after.model_error)}, before {_percent(before.model_error)}; "
        f"of a ratio of two plans {_percent(after.gain_error)}, before "
        f"{_percent(before.gain_error)}.",
    ]


def render_calibration_json(
    machine: str,
    runs: tuple[EngineRun, ...],
    before: Calibration,
    after: Calibration,
    record_id: str,
) -> str:
    """One JSON document; constants in the unit of their name."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "version": VERSION,
        "machine": machine,
        "engine": "vllm",
        "record_id": record_id,
        "runs": [{"tag": run.tag, **msgspec.to_builtins(run.spec)} for run in runs],
        "before": msgspec.to_builtins(before),
        "after": msgspec.to_builtins(after),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode()


def _constants(calibration: Calibration) -> list[str]:
    names = calibration.__struct_fields__
    return [name for name in names if isinstance(getattr(calibration, name), Constant)]


def _get(calibration: Calibration, name: str) -> Constant:
    found: Constant = getattr(calibration, name)
    return found


def _row(name: str, before: Calibration, after: Calibration) -> tuple[str, ...]:
    found = _get(after, name)
    return (
        name,
        found.provenance.value,
        f"{_get(before, name).value:.3g}",
        f"{found.value:.3g}",
        f"{found.estimate.low:.3g} to {found.estimate.high:.3g}",
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
