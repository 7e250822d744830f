"""Each engine's scheduler rules as data, with where they were read (P2)."""

import msgspec

from linkbound.serve.types import SchedulerRules

# vLLM captures 1, 2, 4, then every 8 up to 256 and every 16 up to twice the sequences, at most 512
# (vllm/config/vllm.py, `_set_cudagraph_sizes`).
MOST_GRAPH_SIZE = 512


def graph_sizes(sequences: int) -> tuple[int, ...]:
    """Decode batches for which vLLM captures a CUDA graph by default."""
    most = min(2 * sequences, MOST_GRAPH_SIZE)
    sizes = (1, 2, 4, *range(8, 256, 8), *range(256, MOST_GRAPH_SIZE + 1, 16))
    return tuple(size for size in sizes if size <= most)


def as_served(rules: SchedulerRules, sequences: int | None = None) -> SchedulerRules:
    """The rules of a server started for so many sequences; None: as many as the adapter asks for.

    Where an engine's graph sizes are not known, vLLM's stand in.
    """
    places = rules.max_sequences if sequences is None else sequences
    return msgspec.structs.replace(rules, max_sequences=places, graph_sizes=graph_sizes(places))


# The limits that the recorded runs were started with (recorded/h200-pair/vllm-0.24.0/README.md).
# The 8 MiB limit of the custom all-reduce is vLLM's own (custom_all_reduce.py, `max_size`).
VLLM = SchedulerRules(
    engine="vllm",
    max_batched_tokens=8192,
    max_sequences=256,
    graph_sizes=(1, 2, 4, 8, 16, 32, 64, 128),
    direct_all_reduce_limit_bytes=8 * 1024 * 1024,
    # Asynchronous scheduling and the second model runner, as the logs say: max_concurrent_batches
    # is the number of stages and one more (vllm/config/vllm.py).
    steps_ahead=2,
    # A call's sequences come one by one from another process, and the first ones wake the
    # scheduler. The counts are from the recorded runs: docs/accuracy.md says from which rows.
    entered=(2, 14),
    preemption="the last sequence is put back and computed again",
    source="vLLM 0.24.0 as started in the recorded runs: 8,192 tokens a step, 256 sequences, "
    "graphs up to 128",
)
