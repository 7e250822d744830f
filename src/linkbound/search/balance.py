"""Layers for the stages of a pipeline over unlike GPUs: by speed, or by memory (S1, S3)."""

from collections.abc import Sequence


def divided(layers: int, weights: Sequence[float]) -> tuple[int, ...]:
    """`layers` in proportion to `weights`, a layer at least for each; what is left over goes to
    the largest remainders. Raises ValueError for more weights than layers.
    """
    if len(weights) > layers:
        raise ValueError(f"{layers} layers for {len(weights)} stages")
    spare = layers - len(weights)
    shares = [spare * weight / sum(weights) for weight in weights]
    counts = [int(share) for share in shares]
    by_rest = sorted(range(len(weights)), key=lambda at: (counts[at] - shares[at], at))
    for at in by_rest[: spare - sum(counts)]:
        counts[at] += 1
    return tuple(1 + count for count in counts)
