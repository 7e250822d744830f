"""What an engine was asked to run, what it took, and the rules by which it forms steps (P2)."""

from linkbound.links.types import Arm
from linkbound.values import Value


class RunSpec(Value, frozen=True, kw_only=True):
    """One point of an engine run: everything known before it ran. Hashable: the key of a point."""

    model: str
    tp: int
    pp: int
    expert_parallel: bool
    custom_all_reduce: bool
    p2p_disabled: bool
    batch: int
    prompt_tokens: int
    output_tokens: int
    engine: str = "vllm"

    @property
    def arm(self) -> Arm | None:
        """Which paths were open; None where nothing is split."""
        if self.tp == 1 and self.pp == 1:
            return None
        if self.p2p_disabled:
            return Arm.STAGED
        return Arm.P2P if self.custom_all_reduce else Arm.NCCL


class RunTimes(Value, frozen=True, kw_only=True):
    """What was measured: every repeat, in seconds, in ascending order."""

    prefill_s: tuple[float, ...]
    """Calls with one output token for the whole batch."""
    total_s: tuple[float, ...] = ()
    """Calls with all output tokens; empty where only one was asked."""


class EngineRun(Value, frozen=True, kw_only=True):
    """One line of a runs file: its tag, the point and the times."""

    tag: str
    line: int
    spec: RunSpec
    times: RunTimes
    started: str | None = None
    """ISO 8601 with offset; None where the file does not say when it was measured."""


class SchedulerRules(Value, frozen=True, kw_only=True):
    """How an engine turns requests into steps, as far as a fixed batch shows it."""

    engine: str
    max_batched_tokens: int
    """Token budget of a step; prompts longer than what is left are cut into chunks."""
    max_sequences: int
    graph_sizes: tuple[int, ...]
    """Decode batches with a CUDA graph; a step is padded to the next size."""
    direct_all_reduce_limit_bytes: int
    """Messages from this size on go through NCCL instead of the engine's own all-reduce."""
    source: str
    preemption: str | None = None
    """What happens to running sequences when the cache is full; None where it is not known."""
    steps_ahead: int = 1
    """Steps that are formed before the result of the first is back, on one pipeline stage."""
    mixes: bool = True
    """Whether a step may hold prompts beside decodes; else prompts go alone, and before them."""
    entered: tuple[int, int] | None = None
    """Sequences of a call given at once that are there for the first step, and how many more for
    each further step that forms before its result is back, where the scheduler hands its steps to
    other processes; None: all are there for the first step."""
    set_by: tuple[str, ...] = ()
    """Flags that the adapter passes so that these limits hold; empty where they are defaults."""
