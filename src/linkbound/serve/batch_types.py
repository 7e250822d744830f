"""Whole batches for an engine without HTTP: what is asked, and every repeat of the answer (P2)."""

from linkbound.values import Value


class Batch(Value, frozen=True, kw_only=True):
    """One point: so many sequences at once, of these lengths, drawn from one seed."""

    batch: int
    prompt_tokens: int
    output_tokens: int
    calls: int = 3
    """Timed calls with one output token, and as many with all of them."""
    seed: int = 1
    vocabulary: tuple[int, int] = (100, 512)
    """Prompt tokens are drawn from [low, high): ids that any vocabulary has."""

    def __post_init__(self) -> None:
        for name in ("batch", "prompt_tokens", "output_tokens", "calls"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")

    @property
    def name(self) -> str:
        """`8 x 1,024 + 65`."""
        return f"{self.batch} x {self.prompt_tokens:,} + {self.output_tokens}"

    @property
    def lengths(self) -> tuple[tuple[int, int], ...]:
        """(output tokens, calls) in the order they run: one to warm up, then the timed ones."""
        timed = {1: self.calls, self.output_tokens: self.calls}
        return ((min(self.output_tokens, WARM_UP_TOKENS), 1), *timed.items())


WARM_UP_TOKENS = 4
"""Output tokens of the call before the timed ones, as in the recorded runs."""


class BatchTimes(Value, frozen=True, kw_only=True):
    """Seconds of every timed call, in the order they ran."""

    prefill_s: tuple[float, ...]
    """With one output token for the whole batch."""
    total_s: tuple[float, ...] = ()
    """With all of them; empty where one was asked."""


class HandOver(Value, frozen=True, kw_only=True):
    """What one step hands from GPU to GPU, and how long that takes while nothing else runs."""

    tensors: int
    size_bytes: int
    time_s: float
    """All of its copies, one after the other, on the path of the engine's arm."""


class HandOvers(Value, frozen=True, kw_only=True):
    """Of a batch's two kinds of steps."""

    prefill: HandOver
    token: HandOver
