"""What is assumed of the program that serves: the knobs that decide memory and messages (S2, S3).

One value, so that another program is other data; the defaults are vLLM's and say so.
"""

from linkbound.units import GIB
from linkbound.values import Value


class EngineAssumptions(Value, frozen=True, kw_only=True):
    """Settings of a serving program that change what a GPU holds or what is sent."""

    name: str = "vLLM"
    utilisation: float = 0.92
    """Share of a GPU's memory that the program may fill: vLLM's default since 0.22."""
    block_tokens: int = 16
    """Tokens of one block of the cache; a sequence takes whole blocks."""
    step_tokens: int | None = None
    """Most tokens in one step; None is the program's own rule by the size of the GPU."""
    step_sequences: int = 256
    """Most sequences in one step: rows of logits that the sampler holds."""
    stage_tensors: int = 2
    """Tensors of T x H sent to the next pipeline stage: vLLM sends hidden state and residual."""
    dispatch_bits: float | None = None
    """Bits of an element sent to an expert's GPU; None is the model's activation type."""

    def tokens_in_step(self, capacity_bytes: int) -> int:
        """Most tokens in one step on a GPU of `capacity_bytes`."""
        if self.step_tokens is not None:
            return self.step_tokens
        return LARGE_STEP_TOKENS if capacity_bytes >= LARGE_GPU_BYTES else SMALL_STEP_TOKENS


# vLLM's server takes 8,192 tokens a step on GPUs of 70 GiB and more, 2,048 below.
LARGE_GPU_BYTES = 70 * GIB
LARGE_STEP_TOKENS = 8192
SMALL_STEP_TOKENS = 2048

VLLM = EngineAssumptions()
