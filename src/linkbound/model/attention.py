"""Parameters and caches of attention blocks: MHA to MQA, unequal widths, latent (S1, S3).

Formulas are in docs/models.md.
"""

from linkbound.errors import InputError
from linkbound.model.families import Family, QkNorm
from linkbound.model.keys import Config
from linkbound.model.parts import Part, norm
from linkbound.model.types import Attention, LatentAttention, Role, Shard
from linkbound.values import Value


class Heads(Value, frozen=True, kw_only=True):
    """One attention geometry of a model; Gemma-4 and MiMo-V2 have a second for other layers."""

    query: int
    kv: int
    key_dim: int
    value_dim: int
    values_from_keys: bool = False
    """No v_proj: values are the keys' projection, normed in another way and cached beside them."""
    sinks: bool = False


def read_heads(config: Config, family: Family, hidden: int) -> Heads:
    """The main geometry. head_dim is taken as it stands; hidden / heads only without one."""
    query = config.need("query_heads")
    key_dim = config.count("head_dim") or _derived_dim(config, hidden, query)
    return Heads(
        query=query,
        kv=_kv_heads(config, query),
        key_dim=key_dim,
        value_dim=config.count("v_head_dim") or key_dim,
        sinks=family.sinks or config.flag("add_full_attention_sink_bias") is True,
    )


def read_window_heads(config: Config, main: Heads) -> Heads:
    """The geometry of window layers where it differs (swa_*, MiMo-V2)."""
    key_dim = config.count("swa_head_dim") or main.key_dim
    return Heads(
        query=config.count("swa_num_attention_heads") or main.query,
        kv=config.count("swa_num_key_value_heads") or main.kv,
        key_dim=key_dim,
        value_dim=config.count("swa_v_head_dim") or main.value_dim,
        sinks=main.sinks or config.flag("add_swa_attention_sink_bias") is True,
    )


def read_global_heads(config: Config, main: Heads) -> Heads:
    """The geometry of full-attention layers where it differs (global_*, Gemma-4)."""
    dim = config.count("global_head_dim")
    shared = config.flag("attention_k_eq_v") is True
    # The second count of heads is used together with shared keys and values alone.
    kv = config.count("num_global_key_value_heads") if shared else None
    return Heads(
        query=main.query,
        kv=kv or main.kv,
        key_dim=dim or main.key_dim,
        value_dim=dim or main.value_dim,
        values_from_keys=shared,
        sinks=main.sinks,
    )


def _derived_dim(config: Config, hidden: int, query: int) -> int:
    if hidden % query:
        raise InputError(
            f"{config.source} has no head_dim, and hidden size {hidden} is not a multiple of "
            f"{query} heads.",
            why="The width of a head decides the cache.",
            hint="Give --override head_dim=VALUE.",
        )
    return hidden // query


def _kv_heads(config: Config, query: int) -> int:
    # Falcon's first design has one key/value head whatever num_kv_heads says.
    multi_query = config.flag("multi_query")
    newer = config.flag("new_decoder_architecture")
    if multi_query and not newer:
        return 1
    kv = config.count("kv_heads") or query
    if kv > query or query % kv:
        raise InputError(
            f"{config.source} has {query} attention heads over {kv} key/value heads.",
            why="Each key/value head serves the same number of attention heads.",
            hint="Correct num_attention_heads or num_key_value_heads.",
        )
    return kv


def attention_parts(config: Config, family: Family, hidden: int, heads: Heads) -> list[Part]:
    """Projections, biases, norms and sinks of one block."""
    query, key = heads.query * heads.key_dim, heads.kv * heads.key_dim
    value = 0 if heads.values_from_keys else heads.kv * heads.value_dim
    gated = config.flag("attn_output_gate")
    rows = query * (2 if (family.gated_query if gated is None else gated) else 1)
    parts = [
        _split("q", hidden * rows, "q_proj"),
        _by_kv_head("k", hidden * key, "k_proj"),
        _by_kv_head("v", hidden * value, "v_proj"),
        _split("o", heads.query * heads.value_dim * hidden, "o_proj"),
    ]
    stated = config.flag("attention_bias") or config.flag("add_qkv_bias") or config.flag("bias")
    bias = bool(stated)
    if bias if family.qkv_bias is None else family.qkv_bias:
        parts += [_split("q bias", rows), _by_kv_head("kv bias", key + value)]
    if bias if family.o_bias is None else family.o_bias:
        parts.append(norm(hidden, "o bias"))
    if heads.sinks:
        parts.append(_split("sinks", heads.query))
    return [*parts, *_qk_norm(config, family, heads)]


def _qk_norm(config: Config, family: Family, heads: Heads) -> list[Part]:
    kind = family.qk_norm
    if config.flag("use_qk_norm") is False:
        kind = QkNorm.NONE
    match kind:
        case QkNorm.NONE:
            return []
        case QkNorm.HEAD:
            return [norm(2 * heads.key_dim, "qk norm")]
        case QkNorm.FULL:
            return [norm((heads.query + heads.kv) * heads.key_dim, "qk norm")]


def attention_mixer(heads: Heads, window: int | None, cache_bits: float) -> Attention:
    """What one block keeps and computes."""
    return Attention(
        query_heads=heads.query,
        kv_heads=heads.kv,
        key_dim=heads.key_dim,
        value_dim=heads.value_dim,
        window=window,
        cache_bits=cache_bits,
    )


def is_latent(config: Config) -> bool:
    """Multi-head latent attention: what num_key_value_heads and head_dim say is no cache width."""
    return config.count("kv_lora_rank") is not None


def read_latent(config: Config, cache_bits: float) -> LatentAttention:
    """The latent block of DeepSeek-V2, V3, Kimi and GLM-5."""
    return LatentAttention(
        query_heads=config.need("query_heads"),
        latent_dim=config.need("kv_lora_rank"),
        rope_dim=config.need("qk_rope_head_dim"),
        nope_dim=config.need("qk_nope_head_dim"),
        value_dim=config.need("v_head_dim"),
        cache_bits=cache_bits,
        indexer_dim=config.count("index_head_dim") or 0,
    )


def latent_parts(config: Config, hidden: int, latent: LatentAttention) -> list[Part]:
    """Down-projections (whole on every rank), up-projections, norms and the indexer."""
    heads = latent.query_heads
    query = heads * (latent.nope_dim + latent.rope_dim)
    down = latent.latent_dim + latent.rope_dim
    up = latent.latent_dim * heads * (latent.nope_dim + latent.value_dim)
    rank = config.count("q_lora_rank")
    if rank is None:
        queries = [_split("q", hidden * query, "q_proj")]
    else:
        queries = [
            _whole("q down", hidden * rank, "q_a_proj"),
            norm(rank, "latent norms"),
            _split("q up", rank * query, "q_b_proj"),
        ]
    parts = [
        *queries,
        _whole("kv down", hidden * down, "kv_a_proj_with_mqa"),
        norm(latent.latent_dim, "latent norms"),
        _split("kv up", up, "kv_b_proj"),
        _split("o", heads * latent.value_dim * hidden, "o_proj"),
    ]
    if config.flag("attention_bias"):
        parts.append(norm((rank or 0) + down + hidden, "attention bias"))
    if latent.indexer_dim:
        parts += _indexer_parts(config, hidden, rank, latent.indexer_dim)
    return parts


def _indexer_parts(config: Config, hidden: int, rank: int | None, dim: int) -> list[Part]:
    heads = config.need("index_n_heads")
    config.need("index_topk")
    kinds = config.rows("indexer_types")
    if kinds is not None and set(map(str, kinds)) != {"full"}:
        config.wrong("indexer_types", kinds, "full for every layer")
    return [
        _whole("indexer", (rank or hidden) * heads * dim + hidden * dim, "indexer.wq_b"),
        _whole("indexer weights", hidden * heads),
        norm(2 * dim, "indexer norm"),
    ]


def _split(name: str, parameters: int, module: str = "") -> Part:
    return _part(name, parameters, module, Shard.SPLIT)


def _by_kv_head(name: str, parameters: int, module: str = "") -> Part:
    return _part(name, parameters, module, Shard.KV_HEADS)


def _whole(name: str, parameters: int, module: str = "") -> Part:
    return _part(name, parameters, module, Shard.REPLICATED)


def _part(name: str, parameters: int, module: str, shard: Shard) -> Part:
    path = f"self_attn.{module}" if module else ""
    return Part(name=name, parameters=parameters, shard=shard, role=Role.ATTENTION, module=path)
