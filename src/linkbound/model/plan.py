"""Which layer is of which kind: full, windowed or recurrent; dense or with experts (S1, S3).

Families write this as lists, patterns, periods and offsets; here it becomes one entry a layer.
"""

from enum import StrEnum

from linkbound.errors import InputError
from linkbound.model.families import Family, WindowRule
from linkbound.model.keys import LAYER_LIMIT, Config, refused, shorten
from linkbound.values import Value


class MixerKind(StrEnum):
    FULL = "full"
    WINDOW = "window"
    LATENT = "latent"
    DELTA = "delta"
    MAMBA = "mamba"
    LINEAR = "linear"
    """A plain matrix in the place of attention (Nemotron-NAS)."""
    NONE = "none"


class FfnKind(StrEnum):
    DENSE = "dense"
    EXPERTS = "experts"
    LINEAR = "linear"
    NONE = "none"


class LayerPlan(Value, frozen=True, kw_only=True):
    """One layer before its sizes: equal plans are equal layers."""

    mixer: MixerKind
    ffn: FfnKind
    window: int | None = None
    kv_heads: int | None = None
    """Where a layer differs from the model's number."""
    intermediate: int | None = None


def plan_layers(config: Config, family: Family, latent: bool, experts: bool) -> list[LayerPlan]:
    """One plan a layer, in order."""
    pattern = config.text("hybrid_override_pattern")
    if pattern is not None:
        return _pattern_plans(config, pattern, experts)
    count = config.need("layers", most=LAYER_LIMIT)
    if config.rows("block_configs") is not None:
        return _block_plans(config, count)
    mixers = [(MixerKind.LATENT, None)] * count if latent else _mixers(config, family, count)
    sparse = _sparse(config, count) if experts else [False] * count
    return [
        LayerPlan(mixer=kind, window=window, ffn=FfnKind.EXPERTS if routed else FfnKind.DENSE)
        for (kind, window), routed in zip(mixers, sparse, strict=True)
    ]


def _pattern_plans(config: Config, pattern: str, experts: bool) -> list[LayerPlan]:
    """Nemotron-H: one block a letter, mixer or feed-forward, each with its own residual."""
    kinds = {
        "M": LayerPlan(mixer=MixerKind.MAMBA, ffn=FfnKind.NONE),
        "*": LayerPlan(mixer=MixerKind.FULL, ffn=FfnKind.NONE),
        "-": LayerPlan(mixer=MixerKind.NONE, ffn=FfnKind.DENSE),
    }
    if experts:
        kinds["E"] = LayerPlan(mixer=MixerKind.NONE, ffn=FfnKind.EXPERTS)
    unknown = sorted(set(pattern) - set(kinds))
    if unknown:
        raise refused(
            config.source, ("hybrid_override_pattern",), f" with the letter {unknown[0]!r}"
        )
    stated = config.count("layers")
    if stated is not None and stated != len(pattern):
        raise InputError(
            f"hybrid_override_pattern of {config.source} has {len(pattern)} letters for {stated} "
            "layers.",
            why="Each layer needs one.",
            hint="The file may be cut or edited: fetch it again.",
        )
    return [kinds[letter] for letter in pattern]


def _block_plans(config: Config, count: int) -> list[LayerPlan]:
    """Nemotron-NAS: a table a layer, which may lack attention or the feed-forward block."""
    entries = config.per_layer("block_configs", count) or ()
    return [_block_plan(config, entry, index) for index, entry in enumerate(entries)]


def _block_plan(config: Config, entry: object, index: int) -> LayerPlan:
    where = f"block_configs[{index}]"
    attention, ffn = (
        entry.get(key) if isinstance(entry, dict) else None for key in ("attention", "ffn")
    )
    if not isinstance(attention, dict) or not isinstance(ffn, dict):
        return config.wrong(where, entry, "a table with attention and ffn")
    odd = [key for key in ("window_length", "num_sink_tokens", "sparsify") if attention.get(key)]
    if odd:
        raise refused(config.source, (f"{where}.attention.{odd[0]}",))
    mixer, kv_heads = MixerKind.FULL, None
    if attention.get("no_op"):
        mixer = MixerKind.NONE
    elif attention.get("replace_with_linear"):
        mixer = MixerKind.LINEAR
    else:
        kv_heads = _kv_heads(config, attention.get("n_heads_in_group"), where)
    if ffn.get("no_op"):
        return LayerPlan(mixer=mixer, ffn=FfnKind.NONE, kv_heads=kv_heads)
    if ffn.get("replace_with_linear"):
        return LayerPlan(mixer=mixer, ffn=FfnKind.LINEAR, kv_heads=kv_heads)
    width = _multiplied(config, ffn.get("ffn_mult"), where)
    return LayerPlan(mixer=mixer, ffn=FfnKind.DENSE, kv_heads=kv_heads, intermediate=width)


def _kv_heads(config: Config, group: object, where: str) -> int:
    heads = config.need("query_heads")
    if isinstance(group, bool) or not isinstance(group, int) or group < 1 or heads % group:
        return config.wrong(f"{where}.attention.n_heads_in_group", group, f"a divisor of {heads}")
    return heads // group


def _multiplied(config: Config, factor: object, where: str) -> int:
    """The width that ffn_mult stands for: two thirds of it times H, up to a multiple of 256."""
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < 1000:
        return config.wrong(f"{where}.ffn.ffn_mult", factor, "a positive number")
    width = int(2 * factor * config.need("hidden") / 3)
    return -(-width // 256) * 256


def _mixers(config: Config, family: Family, count: int) -> list[tuple[MixerKind, int | None]]:
    listed = config.per_layer("layer_types", count)
    if listed is not None:
        return _listed_mixers(config, listed)
    interval = config.count("full_attention_interval")
    if interval is not None:
        return [
            (MixerKind.DELTA if (index + 1) % interval else MixerKind.FULL, None)
            for index in range(count)
        ]
    pattern = config.per_layer("hybrid_layer_pattern", count)
    if pattern is not None:
        config.raw("attention_chunk_size")  # MiMo-V2 repeats its window under this name
        span = config.need("sliding_window")
        return [_windowed(span if entry == 1 else None) for entry in pattern]
    if family.windows is WindowRule.CHUNKS:
        span = config.need("attention_chunk_size")
        return [_windowed(span if local else None) for local in _chunked(config, count)]
    if config.flag("use_sliding_window") is False:
        config.raw("sliding_window")
        return [_windowed(None)] * count
    inside = _inside(config, family, count)
    window = config.count("sliding_window") if any(inside) else None
    return [_windowed(window if kept else None) for kept in inside]


def _windowed(window: int | None) -> tuple[MixerKind, int | None]:
    return (MixerKind.FULL, None) if window is None else (MixerKind.WINDOW, window)


def _listed_mixers(
    config: Config, listed: tuple[object, ...]
) -> list[tuple[MixerKind, int | None]]:
    mixers: list[tuple[MixerKind, int | None]] = []
    for entry in listed:
        match entry:
            case "full_attention" | "attention":
                mixers.append((MixerKind.FULL, None))
            case "sliding_attention":
                mixers.append((MixerKind.WINDOW, config.need("sliding_window")))
            case "chunked_attention":
                mixers.append((MixerKind.WINDOW, config.need("attention_chunk_size")))
            case "linear_attention" if config.count("linear_num_value_heads"):
                mixers.append((MixerKind.DELTA, None))
            case _:
                raise refused(config.source, ("layer_types",), f" with {shorten(entry)}")
    # Stated beside the list, and meaningless where the list names no such layer.
    for key in ("sliding_window", "attention_chunk_size"):
        config.raw(key)
    return mixers


def _chunked(config: Config, count: int) -> list[bool]:
    """Llama-4: chunks everywhere but in layers without rotary positions, every fourth."""
    listed = config.per_layer("no_rope_layers", count) if config.rows("no_rope_layers") else None
    if listed is not None:
        return [bool(entry) for entry in listed]
    every = config.count("no_rope_layer_interval") or 4
    return [(index + 1) % every != 0 for index in range(count)]


def _inside(config: Config, family: Family, count: int) -> list[bool]:
    pattern = config.count("sliding_window_pattern") or family.window_pattern
    match family.windows:
        case WindowRule.ALL:
            return [True] * count
        case WindowRule.EVEN:
            return [index % 2 == 0 for index in range(count)]
        case WindowRule.LATER:
            config.raw("sliding_window")  # without use_sliding_window it holds for no layer
            if config.flag("use_sliding_window") is None:
                return [False] * count
            first = config.count("max_window_layers", least=0)
            return [index >= (count if first is None else first) for index in range(count)]
        case WindowRule.PATTERN | WindowRule.NONE | WindowRule.CHUNKS:
            # Without a pattern no layer is inside, and a window in the file stays unread: refused.
            return [pattern is not None and (index + 1) % pattern != 0 for index in range(count)]


def _sparse(config: Config, count: int) -> list[bool]:
    """Which layers have experts; every rule that the file states must agree."""
    kinds = config.per_layer("mlp_layer_types", count)
    listed = _frequency_list(config, count)
    dense = config.rows("mlp_only_layers") or ()
    first = config.count("first_k_dense_replace", least=0) or 0
    step = config.count("decoder_sparse_step") or 1
    interleave = config.count("interleave_moe_layer_step") or 1
    period = 1 if listed is not None else config.count("moe_layer_freq") or 1
    return [
        (kinds is None or kinds[index] == "sparse")
        and (listed is None or bool(listed[index]))
        and index not in dense
        and index >= first
        and (index + 1) % step == 0
        and (index + 1) % interleave == 0
        and index % period == 0
        for index in range(count)
    ]


def _frequency_list(config: Config, count: int) -> tuple[object, ...] | None:
    if isinstance(config.raw("moe_layer_freq"), list):
        return config.per_layer("moe_layer_freq", count)
    enumerated = config.text("moe_layers_enum")
    if enumerated is None:
        return None
    chosen = {part.strip() for part in enumerated.split(",")}
    return tuple(str(index) in chosen for index in range(count))
