"""What runs prove: compared bytes, counted errors, one GPU only, outputs that were cut (L6, M3)."""

from collections.abc import Iterator

from linkbound.doctor.types import Facts, Message
from linkbound.doctor.vocabulary import by_source, healthy, listed, seen, suspected
from linkbound.evidence.types import Finding
from linkbound.links.log_types import NcclLog, TransportKind
from linkbound.links.types import NcclTestsRow, Timing
from linkbound.topology.types import Machine, Pair, PathKind

_WRONG_ERROR = 1e-3
"""The old `error` column: floats differ by rounding far below, lost data far above."""
_COARSE_TYPES = frozenset(("half", "bfloat16", "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2"))
_SETUP = ("Bootstrap", "Using network", "Channel ", "Trees ", "Init START")


def corruption(facts: Facts) -> Iterator[Finding]:
    """Peer memory that was compared at its owner and differs."""
    wrong = [check for check in facts.peer_checks if not check.correct]
    if wrong:
        where = by_source(check.place for check in wrong)
        pairs = listed(check.pair for check in wrong)
        yield seen("p2p-corruption", f"{pairs}: {wrong[0].text} ({where}).")


def hang(facts: Facts) -> Iterator[Finding]:
    """A watchdog's line: seen where the run used peer transports, else a case for the check."""
    lines = [message for message in facts.messages if message.kind == "timeout"]
    if not lines:
        return
    kinds = {one.kind for log in facts.logs for one in log.transports}
    text = f"{lines[0].text} ({by_source(message.place for message in lines)})"
    if TransportKind.P2P in kinds:
        yield seen("p2p-hang", f"{text}, and channels via P2P.")
    elif not kinds:
        yield suspected("p2p-hang", f"{text}; no channel line shows the transport.")


def wrong_values(facts: Facts) -> Iterator[Finding]:
    """Rows of nccl-tests whose verification failed."""
    for run in facts.runs:
        bad = [text for row in run.rows if (text := _wrong(row))]
        if bad:
            yield seen("wrong-values", f"{listed(bad, 4)} ({run.source}).")
        elif run.out_of_bounds:
            text = f"Out of bounds values: {run.out_of_bounds} FAILED ({run.source})."
            yield seen("wrong-values", text)
        elif largest := max((e for row in run.rows if (e := _error(row))), default=0.0):
            text = f"Largest deviation {largest:g} of {len(run.rows)} sizes ({run.source})."
            yield healthy("rounding-not-corruption", text)


def _wrong(row: NcclTestsRow) -> str | None:
    counts = [timing.wrong for timing in _halves(row) if timing.wrong]
    if counts:
        return f"{'+'.join(map(str, counts))} wrong at {row.size_bytes} B"
    error = _error(row)
    if error is not None and error >= _WRONG_ERROR and row.dtype not in _COARSE_TYPES:
        return f"error {error:g} at {row.size_bytes} B"
    return None


def _error(row: NcclTestsRow) -> float | None:
    return max((timing.error for timing in _halves(row) if timing.error), default=None)


def _halves(row: NcclTestsRow) -> list[Timing]:
    return [row.out_of_place] if row.in_place is None else [row.out_of_place, row.in_place]


def single_gpu(facts: Facts) -> Iterator[Finding]:
    """Runs with one rank or one device in all."""
    for run in facts.runs:
        if len(run.devices) == 1:
            text = f"One rank on {run.devices[0].name or 'one GPU'} ({run.source})."
            yield healthy("single-gpu-run", text)
    for source in (one.source for one in facts.nvbandwidth if one.count == 1):
        yield healthy("single-gpu-run", f"nvbandwidth lists one GPU ({source}).")
    for log in facts.logs:
        if log.communicators and all(comm.ranks == 1 for comm in log.communicators):
            yield healthy("single-gpu-run", f"Communicators of one rank only ({log.source}).")


def incomplete(facts: Facts) -> Iterator[Finding]:
    """Where an input ends before it is complete, one finding a file."""
    found: dict[str, list[str]] = {}
    for gap in facts.gaps:
        line = "" if gap.place.line is None else f"line {gap.place.line}: "
        found.setdefault(gap.place.source, []).append(f"{line}{gap.text.rstrip('.')}")
    for run in facts.runs:
        if not run.complete and run.rows and run.out_of_bounds is None:
            found.setdefault(run.source, []).append("no summary line below the table")
    for log in facts.logs:
        if text := _cut_log(facts, log):
            found.setdefault(log.source, []).append(text)
    for source, texts in found.items():
        yield seen("incomplete-output", f"{source}: {listed(texts, 4)}.")


def _cut_log(facts: Facts, log: NcclLog) -> str | None:
    """A log that sets up channels and shows none, or not those of all ranks."""
    if any(run.source == log.source for run in facts.runs):
        return None
    sources = {one.src_rank for one in log.transports}
    # NCCL_DEBUG_FILE gives each rank a file: a rank that does not write here is not missing.
    own = {comm.rank for comm in log.communicators}
    missing = (own or {rank for ring in log.rings for rank in ring}) - sources
    ranks = {comm.ranks for comm in log.communicators}
    if log.transports:
        return f"no channel line of rank {listed(sorted(missing))}" if missing else None
    text = next((text.text for text in facts.texts if text.source == log.source), "")
    begun = log.rings or log.paths or log.communicators or any(word in text for word in _SETUP)
    return "channels are set up and no transport line is shown" if begun and ranks != {1} else None


def inconsistent(facts: Facts) -> Iterator[Finding]:
    """Tables that contradict themselves: a path is the same seen from both ends."""
    for machine in facts.machines:
        paths = {path.pair: path for path in machine.pairs if path.kind and not path.derived}
        labels = {gpu.key: gpu.label for gpu in machine.gpus}
        odd = [
            f"{labels[pair.src]}->{labels[pair.dst]} {path.label}, back {back.label}"
            for pair, path in paths.items()
            if (back := paths.get(Pair(src=pair.dst, dst=pair.src)))
            and back.label != path.label
            and pair.src < pair.dst
            and not _only_counts(machine, pair)
        ]
        if odd:
            yield seen("inconsistent-matrix", f"{listed(odd)} ({machine.sources[0]}).")
    found: dict[str, list[Message]] = {}
    for message in facts.contradictions:
        found.setdefault(message.place.source, []).append(message)
    for source, texts in found.items():
        yield seen("inconsistent-matrix", f"{listed((m.text for m in texts), 3)} ({source}).")


def _only_counts(machine: Machine, pair: Pair) -> bool:
    """NVLink both ways with unequal numbers: a link that is down, not a torn table."""
    kinds = [
        path.kind for path in machine.pairs if path.pair in (pair, Pair(src=pair.dst, dst=pair.src))
    ]
    return all(kind is PathKind.NVLINK for kind in kinds)
