"""What `linkbound profile` prints: rows and their notes, plans, traces; as text or JSON (P1)."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linkbound.errors import InputError

if TYPE_CHECKING:
    from linkbound.evidence import Finding
    from linkbound.profile import Effect, Job, Row, ShardCheck

SCHEMA = "linkbound.profile"
VERSION = 3


def render(
    rows: "Sequence[Row]",
    effects: "Sequence[Effect]",
    checks: "Sequence[ShardCheck]",
    findings: "Sequence[Finding]",
    as_json: bool,
) -> str:
    """The tables of parts, bytes and checks with what stands out, or one JSON document."""
    if as_json:
        return _json(SCHEMA, **_document(rows, effects, checks, findings))
    from linkbound.profile.cells import (
        BYTES_HEADER,
        CHECK_HEADER,
        HEADER,
        bytes_cells,
        cells,
        check_cells,
        notes,
    )
    from linkbound.report.table import render_table

    lines = render_table(HEADER, [cells(row) for row in rows], left=3)
    sending = [bytes_cells(row) for row in rows if row.moved is not None]
    if sending:
        lines += ["", "Bytes of a step; sent and counted over all GPUs.", ""]
        lines += render_table(BYTES_HEADER, sending, left=3)
    if checks:
        lines += ["", "A shard's step and its calls alone, against the split's step.", ""]
        lines += render_table(CHECK_HEADER, [check_cells(one) for one in checks], left=3)
    return "\n".join([*lines, "", *notes(rows, effects, findings)])


def _document(
    rows: "Sequence[Row]",
    effects: "Sequence[Effect]",
    checks: "Sequence[ShardCheck]",
    findings: "Sequence[Finding]",
) -> dict[str, Any]:
    import msgspec

    from linkbound.profile.effects import sentence
    from linkbound.profile.records import document_of

    return {
        "rows": [document_of(row) for row in rows],
        "effects": [
            {"code": one.code, "text": sentence(one), **msgspec.to_builtins(one)} for one in effects
        ],
        "shard_checks": [
            {**msgspec.to_builtins(one), "predicted_s": one.predicted_s, "ratio": one.ratio}
            for one in checks
        ],
        "findings": msgspec.to_builtins(findings),
    }


def render_plan(plan: "Sequence[tuple[int, Job]]", as_json: bool) -> str:
    """The children that would run."""
    from linkbound.profile.plan_words import plan_lines, planned

    if not as_json:
        return "\n".join(plan_lines(plan))
    return _json(f"{SCHEMA}.plan", children=[planned(repeat, job) for repeat, job in plan])


def render_traces(paths: Sequence[Path], as_json: bool) -> str:
    """Parts of every step that all traces show. Raises InputError."""
    import msgspec

    from linkbound.profile.cells import TRACE_HEADER, trace_cells, trace_notes
    from linkbound.profile.decompose import align, decompose
    from linkbound.profile.kineto import parse_traces
    from linkbound.report.table import render_table

    timelines = parse_traces([(_read(path), path.name) for path in paths])
    found, offsets = decompose(timelines), align(timelines)
    if as_json:
        steps, clocks = msgspec.to_builtins(found), msgspec.to_builtins(offsets)
        return _json(f"{SCHEMA}.trace", steps=steps, clocks=clocks)
    table = render_table(TRACE_HEADER, [trace_cells(one) for one in found], left=0)
    return "\n".join([*table, *trace_notes(timelines, offsets)])


def _json(schema: str, **content: object) -> str:
    return json.dumps({"schema": schema, "version": VERSION, **content}, indent=2, allow_nan=False)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror}.",
            why="It should hold a trace.",
            hint="Check the name, and that it may be read.",
        ) from error
