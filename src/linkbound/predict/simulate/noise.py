"""How steps scatter around what they are predicted to take."""

import math
import random
from collections.abc import Callable

Noise = Callable[[int], float]
"""What `steps` steps in a row take, over what they are predicted to take."""

# A step is never shorter than this share of itself, however wide the spread.
LEAST = 0.1


def steady(_steps: int) -> float:
    """Every step takes what it is predicted to."""
    return 1.0


def normal(spread: float, seed: str) -> Noise:
    """Steps apart by a normal error of `spread` (relative): n in a row by a root of n less."""
    if not spread:
        return steady
    draw = random.Random(f"noise {seed}").gauss

    def factor(steps: int) -> float:
        return max(LEAST, 1 + spread / math.sqrt(steps) * draw(0.0, 1.0))

    return factor
