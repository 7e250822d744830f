"""How many tokens a load really moved through an engine, and in steps of which sizes (P3).

The scheduler's steps are not logged: what is not known of their sizes is a range.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence

from linkbound.evidence.types import Reason
from linkbound.serve.load_types import Request
from linkbound.values import Value


class DecodeTokens(Value, frozen=True, kw_only=True):
    """Tokens that were decoded in steps of about the same batch."""

    fewest: int
    most: int
    """Sequences in such a step."""
    tokens: float


class Moved(Value, frozen=True, kw_only=True):
    """The tokens that went through the model."""

    prompt_tokens: int
    """Computed, so without those that the prefix cache had."""
    prompts: int
    """Each samples its first token in its last chunk."""
    fewest_in_step: int
    most_in_step: int
    """Tokens of a step with prompts."""
    decode: tuple[DecodeTokens, ...]

    @property
    def decode_tokens(self) -> float:
        return sum(one.tokens for one in self.decode)


def moved_by_batch(
    batch: int, prompt_tokens: int, output_tokens: int, step_tokens: int, calls: int = 1
) -> Moved:
    """`calls` fixed batches, all prompts given at once, in steps of at most `step_tokens`."""
    total = batch * prompt_tokens
    decoded = calls * batch * (output_tokens - 1)
    # Prompts fill a step after the other; the last step has what is left.
    last = total % step_tokens or step_tokens
    return Moved(
        prompt_tokens=calls * total,
        prompts=calls * batch,
        fewest_in_step=min(total, last),
        most_in_step=min(total, step_tokens),
        decode=(DecodeTokens(fewest=batch, most=batch, tokens=decoded),) if decoded else (),
    )


def moved_by_requests(
    requests: Sequence[Request], step_tokens: int, sequences: int
) -> Moved | Reason:
    """What a cell moved, its warm-up included, or why that is not known.

    A batch is what the client saw at the time of a token, one more or one less; never more than
    `sequences`, nor than were ever under way at once.
    """
    sent = [request for request in requests if request.sent_s is not None]
    failed = sum(not request.ok for request in sent)
    if failed or not sent:
        text = f"{failed} of {len(sent)} requests failed: what they moved is not known."
        return Reason(code="tokens-unknown", text=text)
    if any(request.used_output_tokens is None for request in sent):
        text = "The server gave no usage: how many tokens it computed is not known."
        return Reason(code="tokens-unknown", text=text)
    prompts = [_computed(request) for request in sent]
    return Moved(
        prompt_tokens=sum(prompts),
        prompts=len(sent),
        fewest_in_step=min(min(prompts), step_tokens),
        most_in_step=min(sum(prompts), step_tokens),
        decode=_decoded(sent, sequences),
    )


def _computed(request: Request) -> int:
    asked = request.prompt_tokens
    used = asked if request.used_prompt_tokens is None else request.used_prompt_tokens
    return max(1, used - (request.cached_tokens or 0))


def _decoded(requests: Iterable[Request], sequences: int) -> tuple[DecodeTokens, ...]:
    """Tokens after the first of each request, by the batch in which they were decoded."""
    batches: Counter[tuple[int, int]] = Counter()
    total = 0.0
    for group in _groups(requests):
        total += sum((one.used_output_tokens or 1) - 1 for one in group)
        batches.update(_batches(group, sequences))
    seen = sum(batches.values())
    # Text may come in fewer events than tokens: the shares are the client's, the sum the server's.
    return tuple(
        DecodeTokens(fewest=fewest, most=most, tokens=total * count / seen)
        for (fewest, most), count in sorted(batches.items())
        if total
    )


def _groups(requests: Iterable[Request]) -> list[list[Request]]:
    """Requests that can have met in a step: of one replica, in one of the two clocks."""
    groups: dict[tuple[str, bool], list[Request]] = {}
    for one in requests:
        groups.setdefault((one.target, one.warm_up), []).append(one)
    return list(groups.values())


def _batches(requests: Sequence[Request], sequences: int) -> Counter[tuple[int, int]]:
    times = [[chunk.at_s for chunk in one.chunks if chunk.has_token] for one in requests]
    begun = sorted(one[0] for one in times if one)
    ended = sorted(one[-1] for one in times if one)
    found: Counter[int] = Counter(
        bisect_right(begun, at_s) - bisect_left(ended, at_s) for one in times for at_s in one[1:]
    )
    limit = min(sequences, max(found, default=1))
    ranges: Counter[tuple[int, int]] = Counter()
    for batch, count in found.items():
        middle = min(batch, limit)
        ranges[max(1, middle - 1), min(limit, middle + 1)] += count
    return ranges
