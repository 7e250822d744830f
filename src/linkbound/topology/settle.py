"""One value out of what several sources say, with a note of every disagreement (M4)."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from linkbound.topology.types import Claim, Contradiction

T = TypeVar("T")


def same(a: object, b: object) -> bool:
    """Plain equality, the rule where a fact has no spelling of its own."""
    return a == b


class Ledger:
    """Collects the contradictions of one merge, in the order in which they are met."""

    def __init__(self) -> None:
        self.contradictions: list[Contradiction] = []

    def settle(
        self,
        what: str,
        claims: Iterable[tuple[str, T | None]],
        agree: Callable[[T, T], bool] = same,
    ) -> T | None:
        """The first value that a source states; None if none does. A claim of None is no claim."""
        stated = [(source, value) for source, value in claims if value is not None]
        if not stated:
            return None
        first = stated[0][1]
        if not all(agree(first, value) for _, value in stated[1:]):
            self.disagree(what, ((source, str(value)) for source, value in stated))
        return first

    def disagree(self, what: str, claims: Iterable[tuple[str, str]]) -> None:
        """Writes down a disagreement with every source's claim, each claim once."""
        unique = dict.fromkeys(claims)
        self.contradictions.append(
            Contradiction(
                what=what,
                claims=tuple(Claim(source=source, value=value) for source, value in unique),
            )
        )
