"""Options that no other one beats in everything (D1)."""

from collections.abc import Iterator

from linkbound.search.option import Option
from linkbound.search.types import Scores

Axes = tuple[float, float, float, float]


def axes(scores: Scores) -> Axes:
    """The scores, lower is better in each."""
    return (scores.latency_s, -scores.tokens_per_s, -scores.held, -scores.goodput_per_s)


class Front:
    """The options so far; equal ones take the fewest GPUs, then the one that came first."""

    def __init__(self) -> None:
        self._options: list[tuple[Axes, Option]] = []

    def __iter__(self) -> Iterator[Option]:
        return (option for _, option in self._options)

    def beats(self, bound: Axes, gpus: int) -> bool:
        """Whether an option is as good in everything as the bound, with no more GPUs if equal."""
        return any(
            all(mine <= other for mine, other in zip(known, bound, strict=True))
            and (known != bound or option.candidate.gpus <= gpus)
            for known, option in self._options
        )

    def add(self, option: Option) -> None:
        """Keep the option unless it is beaten; drop what it beats."""
        mine = axes(option.scores)
        if self.beats(mine, option.candidate.gpus):
            return
        self._options = [
            (known, other)
            for known, other in self._options
            if not all(one <= two for one, two in zip(mine, known, strict=True))
        ]
        self._options.append((mine, option))
