"""How many bits a weight is stored in, scales included, from either place a model states it (S3).

The place is quantization_config inside config.json, or hf_quant_config.json beside it.
"""

from collections.abc import Mapping

from linkbound.errors import InputError
from linkbound.model.keys import Config, load_json, refused, shorten
from linkbound.model.modules import ModulePatterns, canonical
from linkbound.values import Value

TYPICAL_ROW = 4096
"""Elements a row, for the share of one scale a row: 0.1 % of the bits, whatever the model."""


class Scheme(Value, frozen=True, kw_only=True):
    """One way to store a weight: bits of an element, and of what is stored beside each group."""

    name: str
    bits: float
    float8: bool = False
    """8-bit floats with float32 scales; not those of blocks of 32 with a shared exponent."""


class Quantization:
    """Bits of every module of one model."""

    def __init__(
        self,
        plain_bits: float,
        scheme: Scheme | None = None,
        skipped: ModulePatterns | None = None,
        only: Mapping[str, Scheme] | None = None,
        cache_bits: float | None = None,
        gaps: tuple[str, ...] = (),
    ):
        self.plain_bits = plain_bits
        self.scheme = scheme
        self.cache_bits = cache_bits
        self.gaps = gaps
        self._skipped = skipped
        self._only = {canonical(name): stored for name, stored in (only or {}).items()}

    @property
    def name(self) -> str | None:
        """What the weights are stored as; None where nothing is quantised."""
        if self._only:
            return "mixed precision"
        return None if self.scheme is None else self.scheme.name

    def of(self, module: str) -> Scheme:
        """How a weight of `module` is stored; "" for what is never quantised."""
        plain = Scheme(name="plain", bits=self.plain_bits)
        if not module:
            return plain
        if self._only:
            return self._listed(module) or plain
        if self.scheme is None or (self._skipped is not None and self._skipped.match(module)):
            return plain
        return self.scheme

    def _listed(self, module: str) -> Scheme | None:
        parts = module.split(".")
        for end in range(len(parts), 0, -1):
            scheme = self._only.get(".".join(parts[:end]))
            if scheme is not None:
                return scheme
        return None


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 1 << 20


def fp8(block: object = None, channel: bool = False) -> Scheme:
    """8-bit floats; a float32 scale a block, a channel, or one for the tensor."""
    if isinstance(block, list) and len(block) == 2:
        rows, columns = (size if _is_size(size) else 128 for size in block)
        return Scheme(name="fp8 in blocks", bits=8 + 32 / (rows * columns), float8=True)
    return Scheme(name="fp8", bits=8 + (32 / TYPICAL_ROW if channel else 0), float8=True)


def grouped(name: str, bits: float, group: int | None, scale_bits: float) -> Scheme:
    """Integers or small floats with `scale_bits` stored beside every group of elements."""
    return Scheme(name=name, bits=bits + (scale_bits / group if group else 0))


NVFP4 = grouped("nvfp4", 4, 16, 8)
MXFP4 = grouped("mxfp4", 4, 32, 8)
MXFP8 = grouped("mxfp8", 8, 32, 8)
_MODELOPT = {"NVFP4": NVFP4, "W4A16_NVFP4": NVFP4, "W4A8_NVFP4_FP8": NVFP4, "MXFP4": MXFP4}
_MODELOPT |= {"MXFP8": MXFP8, "FP8": fp8(), "FP8_PER_CHANNEL_PER_TOKEN": fp8(channel=True)}
_MODELOPT |= {"FP8_PB_WO": fp8([128, 128]), "INT8_SQ": Scheme(name="int8", bits=8)}
_MODELOPT |= {"W4A16_AWQ": grouped("awq", 4, 128, 16), "W4A8_AWQ": grouped("awq", 4, 128, 16)}


def read_quantization(config: Config, plain_bits: float, quant_text: str | None) -> Quantization:
    """Bits of every module from quantization_config, else from the side file's text."""
    inside = config.table("quantization_config")
    beside = None if quant_text is None else _side_table(quant_text)
    table = {**(beside or {}), **{k: v for k, v in (inside or {}).items() if v is not None}}
    if not table:
        return Quantization(plain_bits)
    return _Reader(table, config.source, plain_bits).read()


def _side_table(text: str) -> Mapping[str, object]:
    table = load_json(text, "hf_quant_config.json").get("quantization")
    if isinstance(table, dict):
        return table
    raise InputError(
        f"hf_quant_config.json has {shorten(table)} for quantization.",
        why="It does not say how the weights are stored.",
        hint="Fetch the file again, or remove it.",
    )


class _Reader:
    """One quantisation table, whichever tool wrote it."""

    def __init__(self, table: Mapping[str, object], source: str, plain_bits: float):
        self.table = table
        self.source = source
        self.plain_bits = plain_bits
        self.gaps: list[str] = []

    def read(self) -> Quantization:
        layers = self.table.get("quantized_layers")
        if isinstance(layers, dict) and layers:
            only = {name: self._algorithm(stored) for name, stored in layers.items()}
            return Quantization(
                self.plain_bits, only=only, cache_bits=self._cache_bits(), gaps=tuple(self.gaps)
            )
        scheme = self._scheme()
        return Quantization(
            self.plain_bits,
            scheme=scheme,
            skipped=ModulePatterns(self._skipped_names(), self.source),
            cache_bits=self._cache_bits(),
            gaps=tuple(self.gaps),
        )

    def _scheme(self) -> Scheme:
        method = self.table.get("quant_method") or ""
        algorithm = self.table.get("quant_algo")
        if algorithm is not None and method in ("", "modelopt", "modelopt_fp4"):
            return self._algorithm(self.table)
        match method:
            case "fp8":
                return fp8(self.table.get("weight_block_size"))
            case "fbgemm_fp8":
                return fp8(channel=True)
            case "mxfp4":
                return MXFP4
            case "awq" | "gptq" | "auto-round" | "gptq_marlin" | "awq_marlin":
                bits = self._size("bits", self.table.get("w_bit", 4))
                # A half-precision scale and a packed zero point stand beside each group.
                return grouped(str(method), bits, self._group(128), 16 + bits)
            case "bitsandbytes":
                return self._bitsandbytes()
            case "compressed-tensors":
                return self._compressed()
        raise refused(
            self.source, ("quantization_config",), f" with quant_method {shorten(method)}"
        )

    def _algorithm(self, stored: object) -> Scheme:
        name = stored.get("quant_algo") if isinstance(stored, dict) else stored
        scheme = _MODELOPT.get(name) if isinstance(name, str) else None
        if scheme is None:
            raise refused(
                self.source, ("quantization_config",), f" with quant_algo {shorten(name)}"
            )
        return scheme

    def _bitsandbytes(self) -> Scheme:
        if self.table.get("load_in_8bit") is True:
            return Scheme(name="int8", bits=8)
        # One float32 maximum for 64 elements; double quantisation stores it in 8 bits, with a
        # float32 for 256 of those.
        beside = 8 + 32 / 256 if self.table.get("bnb_4bit_use_double_quant") is True else 32
        return grouped("4-bit bitsandbytes", 4, 64, beside)

    def _compressed(self) -> Scheme:
        groups = self.table.get("config_groups")
        listed = list(groups.values()) if isinstance(groups, dict) else []
        found = [_weights_of(group) for group in listed]
        schemes = {scheme for scheme in map(self._weights, found) if scheme is not None}
        if not schemes:
            raise refused(self.source, ("config_groups",), " without the weights' num_bits")
        widest = max(schemes, key=lambda scheme: scheme.bits)
        if len(schemes) > 1:
            self.gaps.append(
                f"config_groups store weights in {len(schemes)} ways; all are counted as the "
                f"widest, {widest.name}."
            )
        return widest

    def _weights(self, weights: Mapping[str, object] | None) -> Scheme | None:
        bits = None if weights is None else weights.get("num_bits")
        if weights is None or not _is_size(bits):
            return None
        assert isinstance(bits, int)
        stated = weights.get("group_size")
        group = stated if isinstance(stated, int) and _is_size(stated) else None
        if weights.get("type") == "float":
            if bits == 8:
                channel = weights.get("strategy") == "channel"
                return fp8(weights.get("block_structure"), channel=channel)
            return grouped("nvfp4" if group == 16 else "mxfp4", bits, group or 32, 8)
        zero = 0 if weights.get("symmetric", True) else bits
        return grouped(f"int{bits}", bits, group, 16 + zero)

    def _skipped_names(self) -> list[object]:
        names: list[object] = ["lm_head"] if self.table.get("lm_head") is not True else []
        for key in ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules"):
            listed = self.table.get(key)
            if isinstance(listed, list):
                names.extend(listed)
        skipped = self.table.get("llm_int8_skip_modules")
        return names + skipped if isinstance(skipped, list) else names

    def _size(self, key: str, default: object) -> int:
        value = self.table.get(key, default)
        if not _is_size(value):
            raise InputError(
                f"{key} in the quantisation of {self.source} is {shorten(value)}.",
                why="The stored size of the weights depends on it.",
                hint="Correct the file.",
            )
        assert isinstance(value, int)
        return value

    def _group(self, default: int) -> int | None:
        key = "q_group_size" if "q_group_size" in self.table else "group_size"
        # -1 stands for one scale a whole row.
        return None if self.table.get(key) == -1 else self._size(key, default)

    def _cache_bits(self) -> float | None:
        stated = self.table.get("kv_cache_scheme") or self.table.get("kv_cache_quant_algo")
        if stated is None or stated in ("none", "NONE"):
            return None
        if isinstance(stated, dict):
            bits = stated.get("num_bits")
            return float(bits) if isinstance(bits, int) and bits in (4, 8, 16) else None
        named = {"FP8": 8.0, "INT8": 8.0, "NVFP4": NVFP4.bits, "NVFP4_KV": NVFP4.bits}
        found = named.get(stated.upper()) if isinstance(stated, str) else None
        if found is None:
            raise refused(self.source, ("kv_cache_scheme",), f" {shorten(stated)}")
        return found


def _weights_of(group: object) -> Mapping[str, object] | None:
    weights = group.get("weights") if isinstance(group, dict) else None
    return weights if isinstance(weights, dict) else None
