"""The size of a vision tower beside a language model: memory only, from its dimensions (S3)."""

from collections.abc import Mapping

from linkbound.model.keys import Config
from linkbound.model.types import Role, Shard, Weights

_LIMIT = 1 << 20


def vision_weights(config: Config, bits: float, gaps: list[str]) -> tuple[Weights, ...]:
    """The tower's blocks as one group; adds a sentence on what is left out, or why it is absent."""
    table = config.outer("vision_config")
    if not isinstance(table, dict):
        return ()
    depth = _first(table, "depth", "num_hidden_layers", "vt_num_hidden_layers")
    hidden = _first(table, "hidden_size", "vt_hidden_size")
    width = _first(table, "intermediate_size", "vt_intermediate_size")
    if depth is None or hidden is None or width is None:
        gaps.append("vision_config lacks dimensions; the vision tower is not counted.")
        return ()
    gaps.append(
        "The vision tower is counted as blocks of 4 H^2 + 2 H I; patches, positions and the "
        "projector are left out."
    )
    parameters = depth * (4 * hidden * hidden + 2 * hidden * width)
    tower = Weights(
        name="vision tower",
        parameters=parameters,
        bits=bits,
        shard=Shard.REPLICATED,
        role=Role.OTHER,
    )
    return (tower,)


def _first(table: Mapping[str, object], *keys: str) -> int | None:
    for key in keys:
        value = table.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _LIMIT:
            return value
    return None
