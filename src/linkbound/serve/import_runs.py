"""Which tool wrote a result file, and the records of what it measured (P2, E2)."""

import json

from linkbound.errors import InputError
from linkbound.evidence.types import Measured, Record, Samples
from linkbound.serve.foreign import ForeignRun, read_text
from linkbound.serve.parse_aiperf import parse_aiperf
from linkbound.serve.parse_guidellm import parse_guidellm
from linkbound.serve.parse_vllm_bench import parse_vllm_bench

FIGURES = (
    "ttft_from_schedule_s",
    "ttft_from_send_s",
    "tpot_s",
    "e2e_from_send_s",
    "dispatch_lag_s",
)
_COLUMNS = ("failed", *FIGURES, "prompt_tokens", "output_tokens", "cached_tokens")


def parse_foreign(data: bytes, source: str) -> tuple[ForeignRun, ...]:
    """The runs in a result file of vllm bench, guidellm or aiperf. Raises InputError."""
    text = read_text(data, source)
    # Only aiperf writes lines; the others write one object, known by its lists.
    first = text.lstrip().split("\n", 1)[0]
    if '"metadata"' in first and _is_object(first):
        return (parse_aiperf(data, source),)
    if '"benchmarks"' in text:
        return parse_guidellm(data, source)
    return (parse_vllm_bench(data, source),)


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def foreign_record(run: ForeignRun, blob: str) -> Record:
    """A foreign run with a row for each request, beside the file that it was read from.

    Raises InputError where no request was answered: there is nothing to keep as measured.
    """
    if run.failed == len(run.requests):
        raise InputError(
            f"{run.source}: none of the {len(run.requests)} requests was answered.",
            why="A run without answers has no latency.",
            hint="Look at the errors in the file.",
        )
    return Record(
        kind="serve.import",
        subject={"tool": run.tool, "file": run.source, "run": run.name},
        outcome=Measured(values={"requests": len(run.requests), "failed": run.failed}),
        method=f"linkbound.serve.parse_foreign ({run.tool})",
        samples=Samples(
            columns=_COLUMNS,
            rows=tuple(
                (int(one.failed), *(getattr(one, name) for name in _COLUMNS[1:]))
                for one in run.requests
            ),
        ),
        blobs=(blob,),
    )
