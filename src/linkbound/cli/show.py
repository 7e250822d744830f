"""`linkbound show`: the records of a study, or one of them with all that it rests on (E1, E2)."""

import json
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import msgspec

from linkbound.cli.options import HELP
from linkbound.cli.studies import (
    SHOWN_DIGITS,
    columns,
    echo_json,
    locate_study,
    printable,
    study_option,
    subject_words,
)
from linkbound.errors import StudyError
from linkbound.evidence.compare import outcome_word
from linkbound.evidence.stats import cov, median, p10, p90
from linkbound.evidence.study import SHORTEST_PREFIX, Study
from linkbound.evidence.types import Failed, Predicted, Record, Samples, Skipped
from linkbound.units import format_time

_ID = re.compile(rf"[0-9a-f]{{{SHORTEST_PREFIX},64}}")
_SHOWN_ROWS = 20
_LONGEST_OUTCOME = 40
"""Characters of an outcome in the list; the record itself has all of it."""


@click.command("show", context_settings=HELP)
@study_option
@click.argument("what", metavar="[ID|KIND]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(study_path: Path | None, what: str | None, as_json: bool) -> None:
    """List the records of a study, all or of a KIND, or show the one with this ID in full.

    KIND is a kind (links.curve) or a layer (links). ID is the beginning of an id.
    """
    path = locate_study(study_path)
    with Study.open(path) as study:
        if what is not None and _ID.fullmatch(what):
            record = study.get(what)
            rests_on = list(_ancestors(study, record))
            if as_json:
                _echo_record(path, record, rests_on)
            else:
                click.echo("\n".join(_in_full(study, record)))
        else:
            records = _of_kind(study, what)
            if as_json:
                _echo_list(path, records)
            else:
                click.echo("\n".join(_listed(records)))


def _of_kind(study: Study, kind: str | None) -> list[Record]:
    records = list(study.records())
    if kind is None:
        return records
    chosen = [one for one in records if one.kind == kind or one.kind.startswith(f"{kind}.")]
    if not chosen:
        kinds = ", ".join(dict.fromkeys(one.kind for one in records)) or "none"
        raise StudyError(
            f"{study.path} has no records of kind '{kind}'.",
            why=f"Its kinds are: {kinds}.",
            hint="Give one of them, or the id of a record.",
        )
    return chosen


def _ancestors(study: Study, record: Record) -> Iterator[Record]:
    """Every record it rests on, nearest first, each once."""
    waiting = list(record.parents)
    seen: set[str] = set()
    for record_id in waiting:
        if record_id not in seen:
            seen.add(record_id)
            parent = study.get(record_id)
            waiting.extend(parent.parents)
            yield parent


def _echo_record(path: Path, record: Record, rests_on: list[Record]) -> None:
    echo_json(
        {
            "schema": "linkbound.record",
            "version": record.schema_version,
            "study": str(path),
            "id": record.id,
            "record": msgspec.to_builtins(record),
            "rests_on": [_summary(parent) for parent in rests_on],
        }
    )


def _echo_list(path: Path, records: Iterable[Record]) -> None:
    echo_json(
        {
            "schema": "linkbound.records",
            "version": 1,
            "study": str(path),
            "records": [_summary(record) for record in records],
        }
    )


def _summary(record: Record) -> dict[str, object]:
    return {
        "id": record.id,
        "kind": record.kind,
        "subject": record.subject,
        "outcome": record.outcome.__struct_config__.tag,
        "reason": msgspec.to_builtins(getattr(record.outcome, "reason", None)),
        "method": record.method,
        "parents": record.parents,
    }


def _listed(records: list[Record]) -> list[str]:
    rows = [
        (
            record.id[:SHOWN_DIGITS],
            printable(record.kind),
            _shortened(printable(outcome_word(record.outcome))),
            subject_words(record.subject),
        )
        for record in records
    ]
    return columns([("id", "kind", "outcome", "subject"), *rows])


def _shortened(text: str) -> str:
    """One long reason must not push the subjects of all records out of sight."""
    return text if len(text) <= _LONGEST_OUTCOME else f"{text[: _LONGEST_OUTCOME - 3]}..."


def _in_full(study: Study, record: Record) -> list[str]:
    lines = columns([(name, printable(text)) for name, text in _facts(study, record)])
    lines += _values(record)
    if record.environment:
        names = sorted(record.environment.items())
        lines += ["", "environment", *(f"  {printable(f'{name}={text}')}" for name, text in names)]
    if record.samples is not None:
        lines += ["", *_samples(record.samples)]
    return [*lines, "", *_tree(study, record)]


def _facts(study: Study, record: Record) -> Iterator[tuple[str, str]]:
    yield "record", record.id
    yield "kind", record.kind
    if record.subject:
        yield "subject", subject_words(record.subject)
    yield "outcome", outcome_word(record.outcome)
    yield "method", f"{record.method}, version {record.method_version}"
    if record.machine is not None:
        yield "machine", record.machine
    if record.command:
        yield "command", shlex.join(record.command)
    if record.started is not None:
        yield "started", record.started
    if record.duration_s is not None:
        yield "duration", format_time(record.duration_s)
    for blob_id in record.blobs:
        yield "blob", f"{blob_id[:SHOWN_DIGITS]}, {len(study.blob(blob_id)):,} bytes"
    if isinstance(record.outcome, Failed) and record.outcome.log is not None:
        log = study.blob(record.outcome.log).decode(errors="replace").splitlines()
        yield from (("log", line) for line in log[-_SHOWN_ROWS:])


def _values(record: Record) -> list[str]:
    match record.outcome:
        case Skipped() | Failed():
            return []
        case Predicted(basis=basis, values=values):
            head = ["", f"basis  {printable(basis)}"]
        case outcome:
            head, values = [], outcome.values
    if not values:
        return head
    text = json.dumps(msgspec.to_builtins(values), indent=2, ensure_ascii=False)
    return [*head, "", "values", *(f"  {printable(line)}" for line in text.splitlines())]


def _samples(samples: Samples) -> list[str]:
    figures: list[tuple[str, ...]] = [("column", "n", "median", "p10", "p90", "cov")]
    for name in samples.columns:
        cells = [cell for cell in samples.column(name) if isinstance(cell, (int, float))]
        found = (median(cells), p10(cells), p90(cells), cov(cells))
        figures.append((printable(name), str(len(cells)), *map(_figure, found)))
    rows = [tuple(map(printable, samples.columns))]
    rows += [tuple(map(_cell, row)) for row in samples.rows[:_SHOWN_ROWS]]
    lines = [*columns(figures), "", *columns(rows)]
    more = len(samples.rows) - _SHOWN_ROWS
    if more > 0:
        lines.append(f"and {more:,} rows more: --json has all of them")
    return [f"samples  {len(samples.rows):,} rows", *(f"  {line}".rstrip() for line in lines)]


def _figure(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"


def _cell(cell: float | int | str | None) -> str:
    return "not measured" if cell is None else printable(str(cell))


def _tree(study: Study, record: Record) -> list[str]:
    """What it rests on, indented; a record met again is named and not unfolded."""
    if not record.parents:
        return ["rests on no other record"]
    lines = ["rests on"]
    waiting = [(1, parent) for parent in reversed(record.parents)]
    seen: set[str] = set()
    while waiting:
        depth, record_id = waiting.pop()
        parent = study.get(record_id)
        words = (record_id[:SHOWN_DIGITS], parent.kind, subject_words(parent.subject))
        again = "  (see above)" if record_id in seen and parent.parents else ""
        lines.append("  " * depth + printable("  ".join(words).rstrip()) + again)
        if record_id not in seen:
            waiting += [(depth + 1, one) for one in reversed(parent.parents)]
        seen.add(record_id)
    return lines
