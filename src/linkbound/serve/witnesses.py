"""Three witnesses to one verdict: direct, staged, mixed or unknown, and why (P3).

A switch that turns off only one consumer of peer-to-peer does not make a run staged.
"""

from collections.abc import Sequence

from linkbound.evidence.types import Finding, Level, Severity
from linkbound.links.log_path import path_of
from linkbound.links.log_types import NcclLog, Transport, TransportKind
from linkbound.serve.path_types import (
    EngineLog,
    OwnReduce,
    PathAnswer,
    PathVerdict,
    Witness,
    WitnessKind,
)

_CERTAIN = (PathAnswer.DIRECT, PathAnswer.STAGED)
_OVER_THE_LINK = (PathAnswer.DIRECT, PathAnswer.MIXED)


def nccl_witness(log: NcclLog) -> Witness:
    """What the channel lines of NCCL say of the data that NCCL carries."""
    summary = path_of(log)
    answers = {answer for pair in summary.pairs if (answer := _path_of_pair(pair)) is not None}
    return Witness(
        kind=WitnessKind.NCCL,
        source=log.source,
        answer=_of_all(answers),
        why=summary.why if answers else summary.why + _warning(log),
        pairs=tuple(
            f"{pair.src_rank} -> {pair.dst_rank} {pair.kind}/{pair.detail[:40]} x{pair.channels}"
            for pair in summary.pairs
        ),
    )


def _warning(log: NcclLog) -> str:
    """What NCCL itself complains of: often the reason why no channel came up."""
    return f" NCCL warns: {log.warnings[0].text}." if log.warnings else ""


def _path_of_pair(pair: Transport) -> PathAnswer | None:
    match pair.kind:
        case TransportKind.P2P:
            return PathAnswer.DIRECT
        case TransportKind.SHM:
            return PathAnswer.STAGED
        case TransportKind.NET:
            return PathAnswer.DIRECT if pair.gdr else PathAnswer.STAGED
        case TransportKind.OTHER:
            return None


def engine_witness(log: EngineLog) -> Witness:
    """What the engine's own words say of the data that its own kernels carry."""
    named = f"{log.engine} {log.version or ''}".strip()
    match log.own_reduce:
        case OwnReduce.LIVE:
            answer, why = PathAnswer.DIRECT, f"{named}: {log.own_reduce_why}."
        case OwnReduce.LISTED:
            answer = PathAnswer.UNKNOWN
            why = f"{named}: {log.own_reduce_why}, but no line shows that it was used."
        case OwnReduce.OFF:
            answer = PathAnswer.UNKNOWN
            why = f"{named}: {log.own_reduce_why}: all of it follows NCCL's choice."
        case OwnReduce.UNKNOWN:
            answer, why = PathAnswer.UNKNOWN, f"{named}: {_silence(log)}"
    return Witness(kind=WitnessKind.ENGINE, source=log.source, answer=answer, why=why)


def _silence(log: EngineLog) -> str:
    if log.world_size == 1:
        return "one GPU: nothing crosses."
    if log.engine == "llama.cpp":
        return "its log never says whether peer copies are direct (GGML_CUDA_P2P is silent)."
    return "no line of the log speaks of its all-reduce."


def judge(
    nccl: Sequence[NcclLog], engines: Sequence[EngineLog], counters: Sequence[Witness] = ()
) -> PathVerdict:
    """The verdict of all witnesses; each is kept, and a contradiction is a finding."""
    transport = tuple(nccl_witness(log) for log in nccl)
    words = tuple(engine_witness(log) for log in engines)
    own = _strongest(engines)
    answer, why = _from_logs(_together(transport), own, transport, engines)
    if not (transport or words):
        why = "No line of NCCL or of an engine was seen." if counters else "No witness was given."
    facts = [one for one in counters if one.answer is not PathAnswer.UNKNOWN]
    findings = _partial_switch(nccl, transport, own, engines, facts)
    findings += _ignored_settings(nccl, transport)
    if facts:
        findings += _contradictions(answer, facts, own)
        answer, why = _with_counters(answer, why, facts)
    return PathVerdict(
        answer=answer,
        why=why,
        witnesses=(*transport, *words, *counters),
        findings=tuple(findings),
    )


def _strongest(engines: Sequence[EngineLog]) -> OwnReduce:
    """Own kernels count as used where any process says so."""
    order = (OwnReduce.LIVE, OwnReduce.LISTED, OwnReduce.OFF)
    said = {log.own_reduce for log in engines}
    return next((one for one in order if one in said), OwnReduce.UNKNOWN)


def _together(witnesses: Sequence[Witness]) -> PathAnswer:
    return _of_all({one.answer for one in witnesses} - {PathAnswer.UNKNOWN})


def _of_all(answers: set[PathAnswer]) -> PathAnswer:
    if not answers:
        return PathAnswer.UNKNOWN
    return next(iter(answers)) if len(answers) == 1 else PathAnswer.MIXED


def _from_logs(
    transport: PathAnswer,
    own: OwnReduce,
    said: Sequence[Witness],
    engines: Sequence[EngineLog],
) -> tuple[PathAnswer, str]:
    """NCCL's path, corrected by what the engine moves without NCCL."""
    shown = " ".join(dict.fromkeys(one.why for one in said if one.answer is not PathAnswer.UNKNOWN))
    words = next((log.own_reduce_why for log in engines if log.own_reduce is own), "")
    if own is OwnReduce.LIVE:
        if transport is PathAnswer.STAGED:
            return PathAnswer.MIXED, (
                f"Not staged: {words}, and that works only over peer-to-peer. NCCL's part is "
                f"staged. {shown}"
            )
        if transport is PathAnswer.UNKNOWN:
            return (
                PathAnswer.DIRECT,
                f"The engine: {words}. What NCCL carries beside it is not shown.",
            )
        return transport, f"The engine: {words}. {shown}"
    if own is OwnReduce.LISTED and transport is PathAnswer.STAGED:
        return PathAnswer.UNKNOWN, (
            f"NCCL's part is staged, but {words}, and which one a call takes is not printed. "
            f"{shown}"
        )
    if transport is PathAnswer.UNKNOWN:
        return transport, _nothing_shown(said, engines)
    if own is OwnReduce.OFF:
        return transport, f"The engine: {words}. {shown}"
    return transport, shown if engines else f"{shown} No engine's log says what else moves data."


def _nothing_shown(said: Sequence[Witness], engines: Sequence[EngineLog]) -> str:
    parts = [one.why for one in said] + [engine_witness(log).why for log in engines]
    return " ".join(dict.fromkeys(parts))


def _partial_switch(
    nccl: Sequence[NcclLog],
    said: Sequence[Witness],
    own: OwnReduce,
    engines: Sequence[EngineLog],
    facts: Sequence[Witness],
) -> list[Finding]:
    """NCCL's variable alone: something that does not ask NCCL still uses peer-to-peer."""
    if not any(log.settings.get("NCCL_P2P_DISABLE") == "1" for log in nccl):
        return []
    seen = _seen_beside_nccl(said, own, engines, facts)
    if not seen:
        return []
    certain = own is OwnReduce.LIVE or any(one.answer in _OVER_THE_LINK for one in facts)
    return [
        Finding(
            code="p2p-off-is-partial",
            level=Level.SEEN if certain else Level.SUSPECTED,
            severity=Severity.ERROR,
            seen=f"NCCL_P2P_DISABLE is 1, but {'; '.join(seen)}.",
            why="The variable governs NCCL alone; the engine's own kernels still write into the "
            "other GPU's memory, so this run is no measurement of the staged path.",
            remedy="Switch them off too: --disable-custom-all-reduce and the other settings that "
            "`linkbound serve --list` shows for the arm `staged`.",
        )
    ]


def _seen_beside_nccl(
    said: Sequence[Witness],
    own: OwnReduce,
    engines: Sequence[EngineLog],
    facts: Sequence[Witness],
) -> list[str]:
    """What shows that data went over peer-to-peer although NCCL's own channels do not."""
    seen = []
    if own in (OwnReduce.LIVE, OwnReduce.LISTED):
        engine = next(log for log in engines if log.own_reduce is own)
        seen.append(f"{engine.engine}: {engine.own_reduce_why}")
    # Channels over P2P explain the bytes by themselves: that is another finding.
    if _together(said) in (PathAnswer.STAGED, PathAnswer.UNKNOWN):
        seen += [
            f"the counters: {one.why.removesuffix('.')}"
            for one in facts
            if one.answer in _OVER_THE_LINK
        ]
    return seen


def _ignored_settings(nccl: Sequence[NcclLog], said: Sequence[Witness]) -> list[Finding]:
    return [
        Finding(
            code="p2p-setting-ignored",
            level=Level.SEEN,
            severity=Severity.ERROR,
            seen=f"{log.source}: NCCL_P2P_DISABLE is 1, yet channels run over P2P.",
            why="The setting did not reach every communicator, so the arm is not what it says.",
            remedy="Set it in the environment of every rank, and look for a line that it was set.",
        )
        for log, witness in zip(nccl, said, strict=True)
        if log.settings.get("NCCL_P2P_DISABLE") == "1"
        and witness.answer in (PathAnswer.DIRECT, PathAnswer.MIXED)
        and any(pair.kind is TransportKind.P2P for pair in log.transports)
    ]


def _contradictions(answer: PathAnswer, facts: Sequence[Witness], own: OwnReduce) -> list[Finding]:
    if answer not in _CERTAIN:
        return []
    return [
        Finding(
            code="witnesses-disagree",
            level=Level.SEEN,
            severity=Severity.ERROR,
            seen=f"The logs say {answer}, the counters say {fact.answer}: {fact.why}",
            why="One of them speaks of other data than this run's"
            + ("." if own is not OwnReduce.UNKNOWN else ", or something else moves data too."),
            remedy="Run again with nothing else on these GPUs, and give the engine's log as well.",
        )
        for fact in facts
        if fact.answer is not answer
    ]


def _with_counters(
    answer: PathAnswer, why: str, facts: Sequence[Witness]
) -> tuple[PathAnswer, str]:
    """A byte counter is a fact: where it can tell, it has the last word."""
    counted = _together(facts)
    shown = " ".join(one.why for one in facts)
    if counted is answer:
        return answer, f"{why} Counters agree: {shown}"
    return counted, f"Counters: {shown} The logs alone say {answer}: {why}"
