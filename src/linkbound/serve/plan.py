"""From words of a command line to what is run: cells, contenders, demands (P2)."""

import re
from collections.abc import Sequence

from linkbound.errors import UsageError
from linkbound.links.types import Arm
from linkbound.serve.batch_types import Batch
from linkbound.serve.contenders import Contender
from linkbound.serve.load_types import Arrival, Cell, Slo, TraceEntry
from linkbound.splits.parse_split import parse_split
from linkbound.splits.types import Split
from linkbound.units import parse_duration_s
from linkbound.values import Value

_NUMBER = r"([1-9][0-9]{0,7})"
_COUNT = re.compile(_NUMBER)
_BATCH = re.compile(rf"{_NUMBER}(?:x{_NUMBER})?(?:\+{_NUMBER})?")
_SLO_HINT = "Write --slo ttft=200ms,tpot=20ms,e2e=5s; each may be left out."


class LoadWords(Value, frozen=True, kw_only=True):
    """What was asked of the load, as written."""

    rates: str | None
    burstiness: float | None
    concurrency: str | None
    trace: tuple[TraceEntry, ...] = ()
    requests: int
    prompt_tokens: int
    output_tokens: int
    vocabulary: str
    warm_up: int
    limit_s: float
    seed: int


def plan_cells(words: LoadWords) -> tuple[Cell, ...]:
    """A cell for each rate, each concurrency and the trace. Raises UsageError where none is."""
    cells = [
        _cell(
            words,
            Arrival.POISSON if words.burstiness is None else Arrival.GAMMA,
            requests=requests,
            rate_per_s=rate,
            burstiness=words.burstiness or 1.0,
        )
        for rate, requests in _points(words.rates, "--rate", 1e6).items()
    ]
    closed = _points(words.concurrency, "--concurrency", 100_000, whole=True)
    for count, requests in closed.items():
        if count > (requests or words.requests):
            raise UsageError(
                f"{count:,.0f} requests at once of {requests or words.requests:,} in all.",
                why="So many are never under way: it would be another load than its name says.",
                hint=f"Write --requests {count:.0f} or more, best several times as many.",
            )
        cells.append(_cell(words, Arrival.CLOSED, requests=requests, concurrency=int(count)))
    if words.trace:
        requests = min(words.requests, len(words.trace))
        cells.append(_cell(words, Arrival.TRACE, requests=requests, entries=words.trace))
    if not cells:
        raise UsageError(
            "No load was given.",
            why="Latency depends on how often requests come.",
            hint="Write --rate 1,4,16 for an open loop, or --concurrency 8, or --trace FILE.",
        )
    return tuple(cells)


def plan_batches(
    text: str | None, prompt_tokens: int, output_tokens: int, vocabulary: str, calls: int, seed: int
) -> tuple[Batch, ...]:
    """`1,8,128x128,1x8192+1`: sequences, their prompt, their output. Raises UsageError."""
    batches: dict[Batch, None] = {}
    for number, part in enumerate((text or "").split(",")):
        found = _BATCH.fullmatch(part.strip())
        if found is None:
            raise UsageError(
                "This engine takes batches, and none was given."
                if text is None
                else f"--batch '{text}' has a part '{part}' that is no batch.",
                why="Each is a number of sequences, and may state its prompt and its output.",
                hint="Write --batch 1,8,32 for --prompt and --output, or --batch 128x128+65.",
            )
        count, prompt, output = found.groups()
        batch = Batch(
            batch=int(count),
            prompt_tokens=int(prompt or prompt_tokens),
            output_tokens=int(output or output_tokens),
            calls=calls,
            seed=seed * 1_000 + number,
            vocabulary=_vocabulary(vocabulary),
        )
        batches[batch] = None
    return tuple(batches)


def _cell(
    words: LoadWords,
    arrival: Arrival,
    *,
    requests: int | None = None,
    rate_per_s: float | None = None,
    burstiness: float = 1.0,
    concurrency: int | None = None,
    entries: tuple[TraceEntry, ...] = (),
) -> Cell:
    return Cell(
        arrival=arrival,
        requests=requests or words.requests,
        rate_per_s=rate_per_s,
        burstiness=burstiness,
        concurrency=concurrency,
        entries=entries,
        prompt_tokens=words.prompt_tokens,
        output_tokens=words.output_tokens,
        vocabulary=_vocabulary(words.vocabulary),
        warm_up=words.warm_up,
        limit_s=words.limit_s,
        seed=words.seed,
    )


def _points(
    text: str | None, option: str, most: float, whole: bool = False
) -> dict[float, int | None]:
    """`1,4x500`: rates or concurrencies, and the requests of those that state them."""
    if text is None:
        return {}
    points: dict[float, int | None] = {}
    for part in text.split(","):
        point, separator, stated = part.strip().partition("x")
        try:
            number = float(int(point) if whole else float(point))
        except ValueError:
            number = 0.0
        count = _COUNT.fullmatch(stated)
        if not 0 < number <= most or bool(separator) != bool(count):
            raise UsageError(
                f"{option} '{text}' has a part '{part}' that is none of its numbers.",
                why=f"Each must be above 0 and at most {most:,.0f}, and may state its requests.",
                hint=f"Write {option} 1,4,16, or {option} 1x200,4,16: 200 requests of the first.",
            )
        requests = int(stated) if count else None
        if points.setdefault(number, requests) != requests:
            raise UsageError(
                f"{option} '{text}' states {number:g} with several numbers of requests.",
                why="Cells of one load are repeats of each other.",
                hint="Write it once.",
            )
    return points


def _vocabulary(text: str) -> tuple[int, int]:
    try:
        low, high = (int(one) for one in text.split(","))
    except ValueError:
        low, high = 0, 0
    if not 0 <= low < high <= 10**7:
        raise UsageError(
            f"--vocabulary '{text}' is no range of token ids.",
            why="Prompts are drawn from it.",
            hint="Write --vocabulary 100,512: from, and up to but without.",
        )
    return low, high


def plan_contenders(
    splits: Sequence[str],
    arms: Sequence[str],
    label: str | None,
    twins: Sequence[str] = (),
    *,
    external: bool,
) -> tuple[Contender, ...]:
    """Every split in every arm, or in the one that it names ("tp2 staged"); then twins.

    What has nothing to split stands there once and without an arm. Raises UsageError.
    """
    if external:
        if splits or arms:
            raise UsageError(
                "--split and --arm have no effect on a server that is already running.",
                why="They decide how it is started.",
                hint="Say what was started with --label 'tp2 staged'.",
            )
        return (Contender(split=parse_split("one"), arm=None, label=label or "running server"),)
    contenders: dict[Contender, None] = {}
    asks_arms = False
    for text in splits or (() if twins else ("one",)):
        split, own = _split_and_arm(text)
        talks = split.tp * split.pp * split.ep > 1
        asks_arms |= talks and own is None
        given = (own,) if own is not None else tuple(Arm(one) for one in arms) or (Arm.P2P,)
        for arm in given if talks else (None,):
            contenders[Contender(split=split, arm=arm)] = None
    for text in twins:
        contenders[Contender(split=Split(), arm=None, twin_of=parse_split(text))] = None
    if arms and not asks_arms:
        raise UsageError(
            f"--arm {', '.join(arms)} has no effect: no split has two GPUs that talk, and no arm.",
            why="An arm decides how GPUs of one model talk to each other.",
            hint="Add --split tp2 or --split pp2.",
        )
    return tuple(contenders)


def _split_and_arm(text: str) -> tuple[Split, Arm | None]:
    """`tp2 nccl`, or `tp2` and no arm of its own. Raises UsageError."""
    *words, last = text.split() or [""]
    if last not in set(Arm):
        return parse_split(text), None
    split = parse_split(" ".join(words))
    if split.tp * split.pp * split.ep == 1:
        raise UsageError(
            f"--split '{text}' names an arm, and nothing crosses in it.",
            why="An arm decides how GPUs of one model talk to each other.",
            hint=f"Write --split '{' '.join(words)}'.",
        )
    return split, Arm(last)


def parse_slo(text: str | None) -> Slo | None:
    """`ttft=200ms,tpot=20ms,e2e=5s`. Raises UsageError."""
    if text is None:
        return None
    found: dict[str, float] = {}
    for part in text.split(","):
        name, separator, value = part.partition("=")
        name = name.strip()
        if name not in ("ttft", "tpot", "e2e") or not separator or name in found:
            raise UsageError(
                f"--slo '{text}' has a part '{part}' that is no demand.",
                why="It decides which requests count as good.",
                hint=_SLO_HINT,
            )
        found[name] = parse_duration_s(value)
        if found[name] == 0:
            raise UsageError(
                f"--slo '{text}' asks for {name} of 0.", why="No request keeps it.", hint=_SLO_HINT
            )
    return Slo(ttft_s=found.get("ttft"), tpot_s=found.get("tpot"), e2e_s=found.get("e2e"))
