"""What the child of a `device_map` split is to build (P2)."""

from collections.abc import Mapping
from typing import Any

from linkbound.values import Value


class LayerJob(Value, frozen=True, kw_only=True):
    """A model, its stages, and how tensors go from one to the next."""

    folder: str
    """With its config.json, and its weights unless `dummy_weights`."""
    dummy_weights: bool
    stages: int
    stage_layers: tuple[int, ...] | None = None
    """Layers of each stage; None: as even as they go."""
    staged: bool = False
    """Copies between GPUs go through memory of the host."""
    arguments: Mapping[str, Any] = {}
    """More of `from_pretrained`."""
