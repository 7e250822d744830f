"""Every split x placement x arm x batch limit of a machine, and the best of them."""

from linkbound.search.choose import answer, find
from linkbound.search.search import Search
from linkbound.search.types import Choice, Found, Objective, Scores

__all__ = ["Choice", "Found", "Objective", "Scores", "Search", "answer", "find"]
