"""A split of a model over GPUs, what crosses between them, and what each must hold (S1-S3)."""

from collections.abc import Mapping
from enum import StrEnum

from linkbound.links.types import Operation
from linkbound.values import Value


class Phase(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"


class Dispatch(StrEnum):
    """How expert parallelism exchanges tokens (notes: predicting, section 6)."""

    ALL_REDUCE = "all_reduce"
    """Experts inside the tensor-parallel group: the layer's own all-reduce carries them."""
    GATHER_SCATTER = "allgather_reducescatter"
    ALL_TO_ALL = "all_to_all"


class Split(Value, frozen=True, kw_only=True):
    """Degrees; the GPUs used are tp x pp x replicas. ep is 1 or equals tp x replicas-as-data."""

    tp: int = 1
    pp: int = 1
    ep: int = 1
    replicas: int = 1
    stage_layers: tuple[int, ...] | None = None
    """Layers a pipeline stage; None is the engine's own rule."""
    tensor_ratio: tuple[float, ...] | None = None
    """Share of each tensor rank; None is even."""
    dispatch: Dispatch = Dispatch.ALL_REDUCE

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "ep", "replicas"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.stage_layers is not None and len(self.stage_layers) != self.pp:
            raise ValueError(
                f"{len(self.stage_layers)} stage sizes {self.stage_layers} for pp {self.pp}"
            )
        if self.tensor_ratio is not None and len(self.tensor_ratio) != self.tp:
            raise ValueError(f"{len(self.tensor_ratio)} tensor ratios for tp {self.tp}")
        if self.tensor_ratio is not None and min(self.tensor_ratio) <= 0:
            raise ValueError(f"a tensor ratio must be above 0, not {min(self.tensor_ratio)}")
        if self.ep > 1 and self.ep not in (self.tp, self.tp * self.replicas):
            raise ValueError(
                f"ep {self.ep} is neither tp = {self.tp} nor tp x replicas = "
                f"{self.tp} x {self.replicas} = {self.tp * self.replicas}"
            )

    @property
    def gpus(self) -> int:
        """tp x pp x replicas."""
        return self.tp * self.pp * self.replicas

    @property
    def name(self) -> str:
        """`one GPU`, `tp2`, `tp2 pp2`, `pp2:20,12`, `2 replicas`, ..."""
        parts = []
        if self.replicas > 1 and self.tp * self.pp * self.ep == 1:
            return f"{self.replicas} replicas"
        if self.tp > 1:
            parts.append(f"tp{self.tp}" + _stated(self.tensor_ratio))
        if self.pp > 1:
            parts.append(f"pp{self.pp}" + _stated(self.stage_layers))
        if self.ep > 1:
            parts.append(f"ep{self.ep}")
        if self.replicas > 1:
            parts.append(f"x{self.replicas}")
        return " ".join(parts) or "one GPU"


def _stated(parts: tuple[float, ...] | None) -> str:
    return "" if parts is None else ":" + ",".join(f"{part:g}" for part in parts)


class Placement(Value, frozen=True, kw_only=True):
    """Which GPU holds which rank: keys in rank order, tensor-parallel ranks adjacent."""

    gpus: tuple[str, ...]
    cores: Mapping[str, str] = {}
    """Processors (list notation) near each GPU, where known."""
    numa_nodes: Mapping[str, int] = {}


class CrossingKind(StrEnum):
    TENSOR = "tensor"
    EMBEDDING = "embedding"
    LOGITS = "logits"
    PIPELINE = "pipeline"
    POSITIONS = "positions"
    """What a layer is told of its tokens' places, where it does not work that out itself."""
    EXPERT = "expert"
    KV_TRANSFER = "kv_transfer"


class Crossing(Value, frozen=True, kw_only=True):
    """One transfer that the split makes the model do, in one forward step."""

    kind: CrossingKind
    operation: Operation
    ranks: tuple[int, ...]
    """Ranks that take part; for a send (src, dst)."""
    size_bytes: int
    """Payload of one call on one rank, as nccl-tests counts it."""
    count: int
    """Calls a step."""
    phase: Phase


class MemoryPart(Value, frozen=True, kw_only=True):
    """One thing that takes memory on a GPU."""

    name: str
    size_bytes: float
    low_bytes: float
    high_bytes: float
    basis: str
    """Measured, stated by the file, or the prior it is, with its source."""


class RankMemory(Value, frozen=True, kw_only=True):
    """What one GPU holds (S3: each GPU by itself)."""

    rank: int
    gpu: str
    capacity_bytes: int
    usable_bytes: float
    parts: tuple[MemoryPart, ...]
    kv_bytes_per_token: float
    """Cache that one more token of one sequence takes on this GPU, windows not yet full."""
    kv_tokens: int | None
    """Tokens of cache that fit beside the rest; None where nothing here grows with tokens."""


class Fit(Value, frozen=True, kw_only=True):
    """Whether a split fits, on which GPUs, and what limits it."""

    split: Split
    fits: bool
    reason: str
    ranks: tuple[RankMemory, ...]
    kv_tokens: int | None
    """Tokens that the fullest GPU of a replica allows: the number that counts."""
    longest_context: int | None
    """Of one sequence, in any replica; None where the split does not fit."""
    largest_batch: int | None
    """Sequences of the load's length at once, in all replicas; None where it does not fit."""
