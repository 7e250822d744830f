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
    machine: str,
    runs: tuple[EngineRun, ...],
    used: tuple[EngineRun, ...],
    before: Calibration,
    after: Calibration,
) -> list[str]:
    """The runs, every constant before and after, and the errors that predictions state.

    `used` are runs that had calibrated the constants already.
    """
    rows = [_row(name, before, after) for name in _constants(after)]
    return [
        *_sources(machine, runs, used),
        *render_table(_HEADER, rows, left=2),
        *([_told(after)] if runs else []),
        f"Model error {_percent(after.model_error)}, before {_percent(before.model_error)}; "
        f"of a ratio of two plans {_percent(after.gain_error)}, before "
        f"{_percent(before.gain_error)}.",
    ]


def render_calibration_json(
    machine: str,
    runs: tuple[EngineRun, ...],
    used: tuple[EngineRun, ...],
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
        "used_before": [{"tag": run.tag, **msgspec.to_builtins(run.spec)} for run in used],
        "before": msgspec.to_builtins(before),
        "after": msgspec.to_builtins(after),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode()


def _sources(machine: str, runs: tuple[EngineRun, ...], used: tuple[EngineRun, ...]) -> list[str]:
    lines = []
    if runs:
        lines.append(f"Constants of vllm on {machine}, from {len(runs)} runs: {_points(runs)}.")
    if used:
        lines.append(
            f"{len(used)} runs had calibrated the constants of {machine} already and move nothing "
            f"again: {_points(used)}."
        )
    if not runs:
        lines.append("No run is new: the constants stay what they were.")
    return lines


def _points(runs: tuple[EngineRun, ...]) -> str:
    return ", ".join(f"{run.tag} {run.spec.batch} x {run.spec.prompt_tokens:,}" for run in runs)


def _told(after: Calibration) -> str:
    """How many constants the new runs alone tell: what earlier ones told is a prior again."""
    names = _constants(after)
    told = sum(_get(after, name).provenance is Provenance.CALIBRATED for name in names)
    return f"The runs tell {told} of {len(names)} constants; the others are priors."


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
