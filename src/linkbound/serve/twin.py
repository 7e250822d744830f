"""A shard as a model of its own: what one rank of a split computes, run without the others (P1).

Widths are divided by tp, layers by pp; the hidden size is not: every rank holds it whole. An engine
that runs this on one GPU does a rank's work and sends nothing, so that the time which the split
takes beyond it is what it costs to be split: sending, waiting, and the work of several workers.
"""

from typing import Any

from linkbound.errors import UsageError
from linkbound.splits.types import Split

FAMILIES = ("llama", "mistral", "mixtral", "qwen3", "qwen3_moe")
"""Whose code in vLLM 0.24 takes head_dim from the configuration; others divide the hidden size by
the number of heads, which a shard changes."""
_DIVIDED = ("num_attention_heads", "vocab_size")
_FFN_WIDTHS = ("intermediate_size", "moe_intermediate_size")
"""Of which a configuration has one or both."""
NOT_IN_IT = (
    "a twin takes the largest logit of its own part of the vocabulary, the split of the whole",
    "a twin of a pipeline's stage has both embedding and head, which the split has on two stages",
)
"""Where a twin's work is not a rank's, in words."""


def shard_config(config: dict[str, Any], split: Split) -> dict[str, Any]:
    """The configuration of one rank's shard, the one with the most layers. Raises UsageError."""
    family = str(config.get("model_type"))
    if family not in FAMILIES:
        raise _refused(split, f"'{family}' is none of {', '.join(FAMILIES)}")
    if split.ep > 1 or split.replicas > 1 or split.tensor_ratio is not None:
        raise _refused(split, "a twin is made for even tp and for pp alone")
    heads = int(config["num_attention_heads"])
    shard = dict(config)
    # Said aloud: without it an engine derives it from the heads, which are fewer now.
    shard["head_dim"] = config.get("head_dim") or int(config["hidden_size"]) // heads
    given = [key for key in _FFN_WIDTHS if config.get(key)]
    for key in (*_DIVIDED, *(given or _FFN_WIDTHS)):
        shard[key] = _divided(config, key, split)
    # With fewer key/value heads than ranks, neighbours hold the same one.
    kv_heads = int(config.get("num_key_value_heads") or heads)
    shard["num_key_value_heads"] = max(1, kv_heads // split.tp)
    layers = int(config["num_hidden_layers"])
    shard["num_hidden_layers"] = max(split.stage_layers or (-(-layers // split.pp),))
    return shard


def twin_name(model: str, split: Split) -> str:
    """`llama-3.1-8b-shard-of-tp2`: what runs of it are filed under."""
    return f"{model}-shard-of-{split.name.replace(' ', '')}"


def _divided(config: dict[str, Any], key: str, split: Split) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value % split.tp:
        raise _refused(split, f"{key} is {value}, which tp {split.tp} does not divide")
    return value // split.tp


def _refused(split: Split, why: str) -> UsageError:
    return UsageError(
        f"There is no twin of '{split.name}': {why}.",
        why="A twin is a model of a rank's widths.",
        hint="Time the shard with the reference runtime: linkbound profile MODEL --shards 512.",
    )
