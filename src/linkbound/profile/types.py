"""What is timed, on which ranks, and what each rank says of it (P1).

A job is one child's work: one split in one arm, every point of it. Times are seconds.
"""

from enum import StrEnum

from linkbound.links.traffic import Traffic
from linkbound.links.types import Arm, Launch, Operation
from linkbound.model.types import ModelShape
from linkbound.splits.types import Phase, Split
from linkbound.values import Value

TRACED_STEPS = 3
CHUNK_TOKENS = 8192
"""Of one prefill step: what vLLM takes by default on the recorded pair."""


class Device(StrEnum):
    """Where the reference runtime runs."""

    CUDA = "cuda"
    CPU = "cpu"
    """The same code over gloo: for tests, says nothing about GPUs."""


class Point(Value, frozen=True, kw_only=True):
    """One thing to time: a prefill of `tokens` a sequence, or a decode step after `context`."""

    phase: Phase
    batch: int
    tokens: int
    """New tokens of each sequence: the prompt or chunk in prefill, 1 in decode."""
    context: int = 0
    """Tokens that each sequence has in the cache before."""

    @property
    def name(self) -> str:
        """`prefill 8 x 1,024`, `decode 8 after 1,024`, `prefill 1 x 512 after 1,536`."""
        after = f" after {self.context:,}" if self.context else ""
        times = f" x {self.tokens:,}" if self.phase is Phase.PREFILL else ""
        return f"{self.phase.value} {self.batch:,}{times}{after}"


class Delay(Value, frozen=True, kw_only=True):
    """A control: `rank` waits this long before each collective, so that waiting is known."""

    rank: int
    seconds: float


class Job(Value, frozen=True, kw_only=True):
    """What one child does. `alone` is the rank whose shard runs without its peers."""

    shape: ModelShape
    split: Split
    arm: Arm | None
    device: Device
    points: tuple[Point, ...]
    steps: int = 20
    """Timed decode steps of a point; of a prefill as many as fit into a second, two at least."""
    traced_steps: int = TRACED_STEPS
    """Steps that are run once more under the instrument; of a long prefill one. 0 leaves
    out parts, counters and the calls alone."""
    chunk_tokens: int = CHUNK_TOKENS
    """Tokens of one prefill step: longer prompts come in chunks, short ones together."""
    micro_batches: int = 1
    """Pieces of a step that follow each other through a pipeline."""
    seed: int = 0
    alone: int | None = None
    delay: Delay | None = None


def chunks_of(point: Point, chunk_tokens: int) -> int:
    """In how many chunks a prefill goes through; 1 for a decode step."""
    if point.phase is Phase.DECODE:
        return 1
    each = -(-point.tokens // chunk_tokens)
    together = max(1, chunk_tokens // point.tokens)
    return each * -(-point.batch // together)


class Call(Value, frozen=True, kw_only=True):
    """Calls of one kind in one step, as the runtime issued them on one rank."""

    kind: str
    """A `CrossingKind`, or `sampled` and `routing` for what crossings leave out."""
    operation: Operation
    implementation: str
    ranks: tuple[int, ...]
    size_bytes: int
    """Payload of one call on one rank, as nccl-tests counts it."""
    count: int


class KernelClass(StrEnum):
    """What the device was busy with."""

    COMPUTE = "compute"
    NCCL = "nccl"
    CUSTOM = "custom"
    """An engine's own all-reduce: one-shot, two-shot, symmetric memory."""
    PEER_COPY = "peer_copy"
    HOST_COPY = "host_copy"
    """Between host and device: token ids, or a staged peer copy."""


class Interval(Value, frozen=True, kw_only=True):
    """Something that ran on a rank's device, on that rank's clock."""

    kernel: KernelClass
    start_s: float
    end_s: float
    name: str = ""
    operation: str | None = None
    """Which collective, as far as its name says."""
    ranks: tuple[int, ...] = ()
    """Who took part, where the trace says; empty where not."""
    size_bytes: int | None = None


class StepSpan(Value, frozen=True, kw_only=True):
    """From the first work of a step to the first work of the next."""

    index: int
    name: str
    start_s: float
    end_s: float


class Timeline(Value, frozen=True, kw_only=True):
    """One rank's steps and intervals, ascending by start."""

    rank: int
    steps: tuple[StepSpan, ...]
    intervals: tuple[Interval, ...]
    source: str = ""


class RankPoint(Value, frozen=True, kw_only=True):
    """What one rank says of one point: a line of its result file."""

    rank: int
    point: Point
    launch: Launch
    eager_because: str | None = None
    """Why the host launches the step call by call; None of a graph, and on a CPU."""
    times_s: tuple[float, ...]
    """Every timed step."""
    calls: tuple[Call, ...]
    """Of one step."""
    with_calls_s: tuple[float, ...] = ()
    """The same calls, each behind a product of a layer, each time; empty where none can be
    repeated."""
    products_s: tuple[float, ...] = ()
    """Those products without the calls."""
    under_profiler_s: tuple[float, ...] = ()
    """Steps timed as those of `times_s` are, while the profiler ran and before its trace began;
    empty on a CPU."""
    timeline: Timeline | None = None
    traffic: Traffic | None = None
    """What the ports of all GPUs counted during `traffic_steps` steps; on rank 0 of a GPU job."""
    traffic_steps: int = 0
    parameters: int = 0
    """Parameters that this rank holds."""
    float8_parameters: int = 0
    """Of these, those that are multiplied as 8-bit floats."""
    bf16_because: tuple[str, ...] = ()
    """What is in bf16 though the file stores it in fewer bits, each with the reason."""
    memory_bytes: int | None = None
    """Most that the rank's allocator held; None on a CPU."""
