"""From the options of `linkbound serve` to what is run (P2)."""

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from linkbound.cli.given import refuse_all_but, refuse_given
from linkbound.errors import InputError, UsageError

if TYPE_CHECKING:
    from linkbound.serve.contenders import ServeRun
    from linkbound.serve.engines.types import Engine
    from linkbound.serve.load_types import TraceEntry
    from linkbound.serve.plan import LoadWords

# A prompt's template and the engine's own tokens come on top of what is asked.
CONTEXT_MARGIN = 64
_OF_REQUESTS = (
    *("rates", "burstiness", "concurrency", "trace_file", "requests", "warm_up", "slo"),
)
_OF_BATCHES = ("batches", "calls", "twins", "runs_file")
_OF_A_START = (
    *("gpus", "sequences", "dummy_weights", "program", "extra", "ready_limit_s"),
    *("allow_multicast",),
)
_READ_BY_IMPORT = ("imports", "path")
_READ_BY_ALL_REDUCE = ("all_reduce", "engine_name", "gpus", "program", "limit_s", "path", "as_json")
_ONLY = {
    "list_engines": (("list_engines",), "--list shows what each engine can"),
    "imports": (_READ_BY_IMPORT, "--import reads what another tool measured"),
    "all_reduce": (_READ_BY_ALL_REDUCE, "--all-reduce runs no model"),
}
"""Options that decide by themselves what is done, and what each reads."""


def refuse_ignored(engine: "Engine", asked: dict[str, Any]) -> None:
    """Raises UsageError for an option that nothing reads with this engine, or with the others."""
    batches = engine.takes_batches
    refuse_given(
        _OF_REQUESTS if batches else _OF_BATCHES,
        f"{engine.name} takes {'whole batches' if batches else 'requests'}",
        why="Requests have arrivals; a batch is given at once.",
        hint="Write --engine vllm for requests, --engine vllm-offline for batches.",
    )
    if batches and engine.rules is None:
        refuse_given(
            ("sequences",),
            f"{engine.name} has no scheduler",
            why="All sequences of a batch go through the model at once.",
        )
    if engine.starts:
        refuse_given(
            ("label",),
            f"{engine.name} is started here",
            why="What is started has the name of its split and arm.",
        )
    else:
        refuse_given(
            _OF_A_START,
            "the server is already running",
            why="It decides how a server is started.",
            hint="Say what was started with --label.",
        )
    if asked["rates"] is None:
        refuse_given(
            ("burstiness",),
            "no --rate is written",
            why="It is the shape of the gaps between arrivals.",
            hint="Write --rate 4 --burstiness 0.5.",
        )


def refuse_beside(name: str) -> None:
    """Raises UsageError for what `--list`, `--import` or `--all-reduce` does not read."""
    read, because = _ONLY[name]
    refuse_all_but(read, because, why="It would be read by nothing.")


def plan_run(model: str | None, engine: "Engine", asked: dict[str, Any]) -> "ServeRun":
    """Everything that was asked, in one value. Raises UsageError and InputError."""
    import msgspec

    from linkbound.serve.beside import stand_side_by_side
    from linkbound.serve.plan import plan_contenders

    if model is None or engine.starts == bool(asked["urls"]):
        raise UsageError(
            "serve needs a MODEL, and an address exactly where the engine is `external`.",
            why="Other engines are started here, on a port of this host.",
            hint="Write: linkbound serve MODEL --engine vllm --split tp2 --gpus 0,1 --rate 1,4, "
            "or: linkbound serve MODEL --engine external --url http://127.0.0.1:8000 --rate 1,4",
        )
    refuse_ignored(engine, asked)
    run = _batches(model, engine, asked) if engine.takes_batches else _cells(model, engine, asked)
    rule = engine.rules.max_sequences if engine.rules else 256
    contenders = plan_contenders(
        asked["splits"],
        asked["arms"],
        asked["label"],
        asked["twins"],
        external=not engine.starts,
    )
    if engine.takes_batches and any(one.split.replicas > 1 for one in contenders):
        raise UsageError(
            f"{engine.name} has no replicas.",
            why="A batch is given to one engine whole.",
            hint="Write --engine vllm: requests are dealt out to replicas.",
        )
    run = msgspec.structs.replace(
        run,
        contenders=contenders,
        repeats=asked["repeats"],
        devices=devices_of(asked["gpus"]),
        urls=tuple(map(_base_url, asked["urls"])),
        sequences=asked["sequences"] or rule,
        dummy_weights=asked["dummy_weights"],
        program=asked["program"],
        extra=asked["extra"],
        ready_limit_s=asked["ready_limit_s"],
        allow_multicast=asked["allow_multicast"],
    )
    return stand_side_by_side(run) if asked["side_by_side"] else run


def _cells(model: str, engine: "Engine", asked: dict[str, Any]) -> "ServeRun":
    """What a server is loaded with."""
    from linkbound.serve import output_probe
    from linkbound.serve.contenders import ServeRun
    from linkbound.serve.plan import parse_slo, plan_cells

    words = _load_words(asked)
    lengths = [(entry.prompt_tokens, entry.output_tokens) for entry in words.trace]
    lengths.append((words.prompt_tokens, words.output_tokens))
    lengths.append((output_probe.PROMPT_TOKENS, output_probe.OUTPUT_TOKENS))
    return ServeRun(
        engine=engine.name,
        model=model,
        contenders=(),
        cells=plan_cells(words),
        repeats=1,
        slo=parse_slo(asked["slo"]),
        context_tokens=_context_tokens(model, max(map(sum, lengths))),
        sequences=1,
    )


def _context_tokens(model: str, longest: int, block: int = 1) -> int:
    """The longest sequence with the margin, in whole blocks, as far as the model takes so many.

    Engines end where more is asked than the model's file states; one not here states nothing.
    """
    from linkbound.model.read_model import read_model

    wanted = -(-(longest + CONTEXT_MARGIN) // block) * block
    try:
        most = read_model(model).max_context
    except InputError:
        return wanted
    return wanted if most is None else min(wanted, max(most, longest))


def _batches(model: str, engine: "Engine", asked: dict[str, Any]) -> "ServeRun":
    """What an engine without HTTP is given."""
    from linkbound.serve.contenders import ServeRun
    from linkbound.serve.plan import plan_batches

    batches = plan_batches(
        asked["batches"],
        asked["prompt"],
        asked["output"],
        asked["vocabulary"],
        asked["calls"],
        asked["seed"],
    )
    longest = max(one.prompt_tokens + one.output_tokens for one in batches)
    return ServeRun(
        engine=engine.name,
        model=model,
        contenders=(),
        batches=batches,
        repeats=1,
        # A whole number of blocks of 1,024: the recorded runs had 9,216 for 8,192 and one more.
        context_tokens=_context_tokens(model, longest, block=1024),
        sequences=1,
        batch_limit_s=asked["limit_s"],
    )


def read_trace(file: Path | None) -> "tuple[TraceEntry, ...]":
    from linkbound.serve.arrivals import parse_trace

    return () if file is None else parse_trace(read_file(file), str(file))


def read_file(file: Path) -> bytes:
    """The bytes of a file that was named. Raises InputError."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputError(
            f"{file} cannot be read ({error.strerror}).",
            why="It was named as an input.",
            hint="Check the path.",
        ) from error


def _base_url(text: str) -> str:
    """The address of a server, without what the client adds to it. Raises UsageError."""
    try:
        found = urlsplit(text)
        is_base = found.scheme in ("http", "https") and bool(found.hostname) and found.port != 0
    except ValueError:
        is_base = False
    path = found.path.rstrip("/") if is_base else ""
    if not is_base or path.endswith("/v1") or found.query or found.fragment:
        raise UsageError(
            f"--url '{text}' is no base address of a server.",
            why="Requests go to /v1/completions, or /v1/chat/completions, below it.",
            hint="Write --url http://127.0.0.1:8000.",
        )
    return text.rstrip("/")


def devices_of(text: str | None) -> tuple[int, ...]:
    """Ordinals as written. Raises UsageError."""
    parts = [] if text is None else text.split(",")
    # 0 and 00 are one GPU.
    ordinals = {int(part) for part in parts if part.strip().isdecimal()}
    if len(ordinals) < len(parts):
        raise UsageError(
            f"--gpus '{text}' is no list of ordinals.",
            why="Some engines read them as numbers, and each holds one rank.",
            hint="Write --gpus 0,1, in the order that `nvidia-smi` shows.",
        )
    return tuple(map(int, parts))


def _load_words(asked: dict[str, Any]) -> "LoadWords":
    from linkbound.serve.plan import LoadWords

    names = ("rates", "burstiness", "concurrency", "requests", "vocabulary", "warm_up", "limit_s")
    return LoadWords(
        trace=read_trace(asked["trace_file"]),
        prompt_tokens=asked["prompt"],
        output_tokens=asked["output"],
        seed=asked["seed"],
        **{name: asked[name] for name in names},
    )
