"""The engines as text: what each can start, what every arm does to it, and what was never run."""

from collections.abc import Iterable, Iterator

from linkbound.serve.engines.types import ArmSwitch, Cache, Engine

_BESIDE = {
    Cache.BYTES: "yes, its cache is told its size",
    Cache.PLACES: "yes, its cache is its places at full length",
    None: "no",
}


def render_engines(engines: Iterable[Engine]) -> str:
    """One block an engine; `unverified` where its adapter was never run against it."""
    return "\n\n".join("\n".join(_block(engine)) for engine in engines)


def standing(engine: Engine) -> str:
    """`verified with VERSION`, or `unverified`."""
    return f"verified with {', '.join(engine.verified)}" if engine.verified else "unverified"


def _block(engine: Engine) -> Iterator[str]:
    yield f"{engine.name}: {engine.title} [{standing(engine)}]"
    yield f"  splits: {engine.splits}"
    yield f"  side by side: {_BESIDE[engine.cache]}"
    yield f"  ready: {engine.ready}"
    yield f"  death: {engine.death}"
    yield f"  metrics: {engine.metrics or 'none'}"
    yield f"  dummy weights: {engine.dummy_weights}"
    yield f"  output length: {'fixed' if engine.fixed_length else 'as the model ends it'}"
    for arm, switch in engine.arms.items():
        yield from (f"  arm {arm}: {words}" for words in _arm(switch))
    for flag in engine.flags:
        yield f"  {flag.name} ({flag.versions}): {flag.meaning}"
    for proof in engine.proofs:
        yield f"  '{proof.seen}' proves: {proof.proves}"
    if engine.stages_in_turn:
        yield "  scheduler: none, a batch is one step"
    elif engine.rules is None:
        yield "  scheduler: no rules are known"
    else:
        yield (
            f"  scheduler: {engine.rules.max_batched_tokens:,} tokens and "
            f"{engine.rules.max_sequences} sequences a step ({engine.rules.source})"
        )


def _arm(switch: ArmSwitch) -> Iterator[str]:
    if switch.impossible is not None:
        yield f"none. {switch.impossible}"
        return
    settings = [f"{name}={value}" for name, value in switch.environment.items()]
    yield "sets " + (" ".join([*settings, *switch.flags]) or "nothing of its own, NCCL's variables")
    if switch.switches_off:
        yield f"switches off {'; '.join(switch.switches_off)}"
    for open_still in switch.cannot:
        yield f"cannot: {open_still}"
