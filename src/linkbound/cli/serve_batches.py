"""`linkbound serve` for engines without HTTP: whole batches, and what they are compared in (P1)."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from linkbound.cli.options import write_text
from linkbound.cli.serve_tables import ABSENT, traffic_lines
from linkbound.cli.studies import SHOWN_DIGITS, echo_json, printable

if TYPE_CHECKING:
    from linkbound.evidence.study import Study
    from linkbound.evidence.types import Finding, Record
    from linkbound.serve.compare_batches import BatchRow, Beyond, Middle
    from linkbound.serve.contenders import ServeRun
    from linkbound.serve.hand_over_rows import HandOverRow

SCHEMA = "linkbound.serve.batches"
VERSION = 1
_HEADER = (
    *("batch", "contender", "n", "prefill", "low", "high", "token", "low", "high"),
    *("tok/s", "failed"),
)
_HANDED_HEADER = ("batch", "contender", "step", "copies", "MB", "alone", "of its time")
_BEYOND_HEADER = ("batch", "contender", "prefill", "share", "token", "low", "high", "share")


def serve_batches(study: "Study", run: "ServeRun", runs_file: Path | None, as_json: bool) -> bool:
    """Run what is left, print the comparison; whether any batch has figures."""
    from linkbound.serve.batch_findings import batch_findings, batches_record
    from linkbound.serve.batch_records import HAND_OVER_KIND, held_batches
    from linkbound.serve.batches import run_batches
    from linkbound.serve.compare_batches import batch_rows, beyond_twins
    from linkbound.serve.engines import ENGINES
    from linkbound.serve.hand_over_rows import hand_over_rows
    from linkbound.serve.traffic_rows import traffic_rows

    interrupted = False
    try:
        run_batches(study, run, lambda text: click.echo(printable(text), err=True))
    except KeyboardInterrupt:
        # What was measured is compared all the same.
        interrupted = True
    records = held_batches(study, run)
    rows = batch_rows(records)
    if interrupted and not rows:
        raise KeyboardInterrupt
    beyond = beyond_twins(rows)
    traffic = traffic_rows(held_batches(study, run, "serve.traffic"))
    handed = hand_over_rows(held_batches(study, run, HAND_OVER_KIND), rows)
    in_turn = ENGINES[run.engine].stages_in_turn
    findings = batch_findings(rows, handed, traffic, in_turn=in_turn)
    subject = {"engine": run.engine, "model": run.model}
    compared = batches_record(rows, beyond, findings, traffic, handed, subject)
    record_id = study.append(compared)
    if as_json:
        _show_json(run, record_id, compared)
    else:
        click.echo("\n".join(batch_lines(rows, beyond)))
        click.echo("\n".join(hand_over_lines(handed)), nl=bool(handed))
        click.echo("\n".join(finding_lines(findings)), nl=bool(findings))
        click.echo("\n".join(traffic_lines(traffic)), nl=bool(traffic))
        click.echo(f"record {record_id[:SHOWN_DIGITS]}")
    has_figures = any(row.prefill_s is not None for row in rows)
    if runs_file is not None and has_figures:
        write_runs(runs_file, run, records)
    if interrupted:
        raise KeyboardInterrupt
    return has_figures


def _show_json(run: "ServeRun", record_id: str, compared: "Record") -> None:
    from linkbound.evidence.types import Derived

    assert isinstance(compared.outcome, Derived)
    head: dict[str, Any] = {"schema": SCHEMA, "version": VERSION}
    named = {"engine": run.engine, "model": run.model, "record_id": record_id}
    echo_json({**head, **named, **compared.outcome.values})


def batch_lines(
    rows: "tuple[BatchRow, ...]",
    beyond: "tuple[Beyond, ...]",
) -> list[str]:
    """A row for each contender at each point, then what a split takes beyond its twin."""
    from linkbound.report.table import render_table
    from linkbound.serve.twin import NOT_IN_IT

    lines = ["Times in ms. Prefill: the call with one token for all; token: each further one."]
    lines += render_table(_HEADER, [_cells(row) for row in rows], left=2)
    if beyond:
        lines.append(
            "Beyond the twin (the same shard alone on one GPU): sending, waiting, several workers."
        )
        lines += render_table(_BEYOND_HEADER, [_beyond_cells(one) for one in beyond], left=2)
        lines += [f"Not the same: {one}." for one in NOT_IN_IT]
    return lines


def hand_over_lines(handed: "tuple[HandOverRow, ...]") -> list[str]:
    """What a step copies from GPU to GPU, and how long that takes alone; nothing if none does."""
    from linkbound.report.table import render_table

    if not handed:
        return []
    lines = [
        "Copied from GPU to GPU in one step; alone: the copies while nothing else runs, in ms."
    ]
    return lines + render_table(
        _HANDED_HEADER, [cells for one in handed for cells in _hand_over_cells(one)], left=3
    )


def _hand_over_cells(one: "HandOverRow") -> list[tuple[str, ...]]:
    from linkbound.units import format_significant

    steps = (
        ("prefill", one.last.prefill, one.prefill_share),
        ("token", one.last.token, one.token_share),
    )
    return [
        (
            *(_point(one), one.contender, step, str(found.tensors)),
            *(f"{found.size_bytes / 1e6:,.3f}", format_significant(found.time_s * 1e3)),
            ABSENT if share is None else f"{share:.1%}",
        )
        for step, found, share in steps
    ]


def finding_lines(findings: "tuple[Finding, ...]") -> list[str]:
    """Each with why it matters and what to do."""
    return [f"{one.severity}: {one.seen} {one.why} {one.remedy}" for one in findings]


def _point(row: "BatchRow | Beyond | HandOverRow") -> str:
    return f"{row.batch} x {row.prompt_tokens:,} + {row.output_tokens}"


def _cells(row: "BatchRow") -> tuple[str, ...]:
    from linkbound.units import format_significant

    whole = row.whole_s
    speed = ABSENT
    if whole is not None:
        speed = format_significant(row.batch * row.output_tokens / whole.value)
    n = 0 if row.prefill_s is None else row.prefill_s.n
    return (
        *(_point(row), row.contender, str(n)),
        *_times(row.prefill_s),
        *_times(row.token_s),
        *(speed, ", ".join(dict.fromkeys(row.problems)) or "0"),
    )


def _times(found: "Middle | None") -> tuple[str, str, str]:
    from linkbound.units import format_significant

    if found is None:
        return (ABSENT, ABSENT, ABSENT)
    low, middle, high = (
        format_significant(one * 1e3) for one in (found.low, found.value, found.high)
    )
    return middle, low, high


def _beyond_cells(one: "Beyond") -> tuple[str, ...]:
    prefill, _, _ = _times(one.prefill)
    shares = [ABSENT if share is None else f"{share:.0%}" for share in _shares(one)]
    return (_point(one), one.contender, prefill, shares[0], *_times(one.token), shares[1])


def _shares(one: "Beyond") -> tuple[float | None, float | None]:
    return one.prefill_share, one.token_share


def write_runs(path: Path, run: "ServeRun", records: "tuple[Record, ...]") -> None:
    """A runs file of what has figures, and `configs/MODEL/config.json` of every model beside it."""
    import msgspec

    from linkbound.evidence.types import Measured
    from linkbound.serve.batch_records import model_label
    from linkbound.serve.engines.model_files import configuration
    from linkbound.serve.runs_file import runs_lines
    from linkbound.serve.twin import twin_name
    from linkbound.serve.types import EngineRun

    runs = [
        msgspec.structs.replace(
            msgspec.convert(record.outcome.values["run"], EngineRun), started=record.started
        )
        for record in records
        if isinstance(record.outcome, Measured)
    ]
    write_text(path, runs_lines(runs))
    for split in {contender.twin_of for contender in run.contenders}:
        label = model_label(run.model)
        name = label if split is None else twin_name(label, split)
        folder = path.parent / "configs" / name
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "config.json", configuration(run.model, split))
    click.echo(f"Wrote {path}", err=True)
