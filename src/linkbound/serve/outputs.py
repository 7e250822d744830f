"""The same prompt in every arm: answers that differ beyond rounding are corruption (L6, P2).

Arms add in another order, so the last bits differ and a near tie may fall the other way. What
rounding cannot do is to prefer a token that the other arm found far less likely.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from linkbound.errors import InputError
from linkbound.evidence.types import Finding, Level, Severity
from linkbound.values import Value

# bf16 keeps 8 bits: logits around 20 move by some 0.1 from another order of summation.
ROUNDING_NATS = 0.5


class OutputToken(Value, frozen=True, kw_only=True):
    """One token of an answer, with what else was likely there."""

    token: str
    logprob: float | None
    alternatives: Mapping[str, float] = {}


class Output(Value, frozen=True, kw_only=True):
    """An arm's answer to the fixed prompt; no tokens where no log-probabilities are given."""

    name: str
    text: str
    tokens: tuple[OutputToken, ...] = ()


def parse_output(data: bytes, name: str) -> Output:
    """An unstreamed completion with log-probabilities. Raises InputError."""
    try:
        body = msgspec.json.decode(data)
        choice = body["choices"][0]
        text = choice.get("text")
        if text is None:
            text = choice["message"]["content"]
        logprobs = choice.get("logprobs") or {}
        tokens = tuple(_content(logprobs) if "content" in logprobs else _lists(logprobs))
        return Output(name=name, text=str(text), tokens=tokens)
    except (
        *(msgspec.DecodeError, RecursionError, UnicodeDecodeError, ValueError),
        *(KeyError, IndexError, TypeError, AttributeError),
    ) as error:
        raise InputError(
            f"{name}: the answer to the fixed prompt is no completion: {data[:60]!r}.",
            why="Arms are compared by it.",
            hint="Look at the server's log.",
        ) from error


def _content(logprobs: Mapping[str, Any]) -> list[OutputToken]:
    """The form of chat, which llama.cpp also gives for completions."""
    return [
        OutputToken(
            token=_name(entry),
            logprob=float(entry["logprob"]),
            alternatives={
                _name(other): float(other["logprob"]) for other in entry.get("top_logprobs") or ()
            },
        )
        for entry in logprobs["content"] or ()
    ]


def _name(entry: Mapping[str, Any]) -> str:
    # Several tokens are no text of their own: the id tells them apart, where it is given.
    return f"{entry['token']}#{entry['id']}" if "id" in entry else str(entry["token"])


def _lists(logprobs: Mapping[str, Any]) -> list[OutputToken]:
    """The form of completions: lists side by side."""
    tokens = logprobs.get("tokens") or []
    values = logprobs.get("token_logprobs") or [None] * len(tokens)
    tops = logprobs.get("top_logprobs") or [None] * len(tokens)
    return [
        OutputToken(
            token=str(token),
            logprob=None if value is None else float(value),
            alternatives={str(key): float(one) for key, one in (top or {}).items()},
        )
        for token, value, top in zip(tokens, values, tops, strict=True)
    ]


def compare_outputs(one: Output, other: Output) -> Finding | None:
    """None where both are the same; else how grave the difference is."""
    if one.tokens and other.tokens:
        return _compare_tokens(one, other)
    if one.text == other.text:
        return None
    at = _first_difference(one.text, other.text)
    return _finding(
        "outputs-differ",
        Level.SUSPECTED,
        Severity.WARNING,
        f"{one.name} and {other.name} answer the fixed prompt differently from character {at} on.",
        "The engine gives no log-probabilities, so rounding cannot be told from corruption.",
    )


def _compare_tokens(one: Output, other: Output) -> Finding | None:
    at = _first_difference(
        [token.token for token in one.tokens], [token.token for token in other.tokens]
    )
    if at is None:
        return None
    if at >= min(len(one.tokens), len(other.tokens)):
        margin = None
    else:
        margin = _margin(one.tokens[at], other.tokens[at])
    where = f"{one.name} and {other.name} part at token {at} of the fixed prompt's answer"
    if margin is not None and margin <= ROUNDING_NATS:
        return _finding(
            "outputs-round-differently",
            Level.HEALTHY,
            Severity.INFO,
            f"{where}, at a near tie ({margin:.3f} nats).",
            f"Another order of summation decides ties; up to {ROUNDING_NATS} nats it is rounding.",
        )
    far = "more than their lists show" if margin is None else f"{margin:.3f} nats"
    return _finding(
        "outputs-differ",
        Level.SEEN,
        Severity.ERROR,
        f"{where}, {far} apart.",
        "Rounding does not do that: one of the two paths changes data.",
    )


def _margin(one: OutputToken, other: OutputToken) -> float | None:
    """How much less likely each found the other's token, the larger of both; None: not listed."""
    margins = []
    for mine, theirs in ((one, other), (other, one)):
        if mine.logprob is None or theirs.token not in mine.alternatives:
            return None
        margins.append(mine.logprob - mine.alternatives[theirs.token])
    return max(margins)


def _first_difference(one: str | list[str], other: str | list[str]) -> int | None:
    for at, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return at
    return None if len(one) == len(other) else min(len(one), len(other))


def _finding(code: str, level: Level, severity: Severity, seen: str, why: str) -> Finding:
    return Finding(
        code=code,
        level=level,
        severity=severity,
        seen=seen,
        why=why,
        remedy="Verify the transfers of this pair (`linkbound links`), then run both arms again."
        if severity is not Severity.INFO
        else "None is needed.",
    )
