"""From the options of `linkbound serve` to what is run (P2)."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from linkbound.errors import InputError, UsageError

if TYPE_CHECKING:
    from linkbound.serve.contenders import ServeRun
    from linkbound.serve.engines.types import Engine
    from linkbound.serve.load_types import TraceEntry
    from linkbound.serve.plan import LoadWords

# A prompt's template and the engine's own tokens come on top of what is asked.
CONTEXT_MARGIN = 64


def plan_run(model: str | None, engine: "Engine", asked: dict[str, Any]) -> "ServeRun":
    """Everything that was asked, in one value. Raises UsageError and InputError."""
    from linkbound.serve.contenders import ServeRun
    from linkbound.serve.plan import parse_slo, plan_cells, plan_contenders

    if model is None or engine.starts == bool(asked["urls"]):
        raise UsageError(
            "serve needs a MODEL, and an address exactly where the engine is `external`.",
            why="Other engines are started here, on a port of this host.",
            hint="Write: linkbound serve MODEL --engine vllm --split tp2 --gpus 0,1 --rate 1,4, "
            "or: linkbound serve MODEL --engine external --url http://127.0.0.1:8000 --rate 1,4",
        )
    words = _load_words(asked)
    cells = plan_cells(words)
    lengths = [(entry.prompt_tokens, entry.output_tokens) for entry in words.trace]
    lengths.append((words.prompt_tokens, words.output_tokens))
    rule = engine.rules.max_sequences if engine.rules else 256
    return ServeRun(
        engine=engine.name,
        model=model,
        contenders=plan_contenders(
            asked["splits"], asked["arms"], asked["label"], external=not engine.starts
        ),
        cells=cells,
        repeats=asked["repeats"],
        devices=_devices(asked["gpus"]),
        urls=tuple(url.rstrip("/") for url in asked["urls"]),
        slo=parse_slo(asked["slo"]),
        context_tokens=max(map(sum, lengths)) + CONTEXT_MARGIN,
        sequences=asked["sequences"] or rule,
        dummy_weights=asked["dummy_weights"],
        program=asked["program"],
        extra=asked["extra"],
        ready_limit_s=asked["ready_limit_s"],
        allow_multicast=asked["allow_multicast"],
    )


def _read_trace(file: Path | None) -> "tuple[TraceEntry, ...]":
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


def _devices(text: str | None) -> tuple[int, ...]:
    parts = [] if text is None else text.split(",")
    if not all(part.strip().isdecimal() for part in parts) or len(set(parts)) < len(parts):
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
        trace=_read_trace(asked["trace_file"]),
        prompt_tokens=asked["prompt"],
        output_tokens=asked["output"],
        seed=asked["seed"],
        **{name: asked[name] for name in names},
    )
