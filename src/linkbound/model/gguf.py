"""A GGUF file, whole or in parts, to a ModelShape: sizes from its tensors, caches from its keys.

What a tensor is for is read from its name, how many bytes it takes from its type (S3).
"""

import re
from collections.abc import Mapping
from pathlib import Path

from linkbound.errors import InputError
from linkbound.model.gguf_header import Header, Tensor, damaged, read_header
from linkbound.model.gguf_keys import Keys
from linkbound.model.keys import LAYER_LIMIT
from linkbound.model.types import Layer, ModelShape, Role, Shard, Weights

_PART = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")
_BLOCK = re.compile(r"^blk\.(\d{1,4})\.(.+?)(?:\.weight|\.bias)?$")

# What a tensor inside a block is for; the first pattern that matches decides.
_KINDS: tuple[tuple[str, Shard, Role], ...] = (
    (r"ffn_(gate|up|down|gate_up)_exps", Shard.EXPERTS, Role.ROUTED_EXPERTS),
    (r"ffn_(gate|up|down)\.\d+", Shard.EXPERTS, Role.ROUTED_EXPERTS),
    (r"ffn_gate_inp.*|exp_probs_b.*", Shard.REPLICATED, Role.ROUTER),
    (r".*norm.*", Shard.REPLICATED, Role.NORM),
    (r"attn_(k|v|kv)", Shard.KV_HEADS, Role.ATTENTION),
    (r"attn_(q_a|kv_a_mqa)|indexer.*", Shard.REPLICATED, Role.ATTENTION),
    (r"(attn|ssm|shortconv).*", Shard.SPLIT, Role.ATTENTION),
    (r"ffn.*", Shard.SPLIT, Role.FFN),
)
_COMPILED = tuple((re.compile(pattern + "$"), shard, role) for pattern, shard, role in _KINDS)


def read_gguf(path: Path) -> ModelShape:
    """The shape of a model in one GGUF file or in parts (`-00001-of-00003`), all of them needed."""
    headers = [_header(part) for part in _parts(path)]
    return shape_from_headers(headers, path.stem)


def gguf_models(directory: Path) -> list[Path]:
    """The models in a directory, one file each; projectors (mmproj) and later parts left out."""
    files = [file for file in sorted(directory.glob("*.gguf")) if "mmproj" not in file.name]
    parts = [(file, _PART.match(file.name)) for file in files]
    return [file for file, named in parts if named is None or int(named["number"]) == 1]


def _header(path: Path) -> Header:
    try:
        with path.open("rb") as stream:
            return read_header(stream, str(path))
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror or error}.",
            why="The model's sizes are in it.",
            hint="Check the path and its permissions.",
        ) from None


def _parts(path: Path) -> list[Path]:
    named = _PART.match(path.name)
    if named is None:
        return [path]
    count = int(named["count"])
    names = [f"{named['stem']}-{index:05}-of-{count:05}.gguf" for index in range(1, count + 1)]
    parts = [path.with_name(name) for name in names]
    missing = [part.name for part in parts if not part.is_file()]
    if missing or not parts:
        raise InputError(
            f"{path} is one of {count} parts; {len(missing)} are missing, the first of them "
            f"{missing[0] if missing else path.name}.",
            why="The sizes are the sum over all parts.",
            hint="Put all parts into one directory.",
        )
    return parts


def shape_from_headers(headers: list[Header], name: str) -> ModelShape:
    """The shape that the headers of all parts state together; the first part has the keys."""
    first = headers[0]
    keys = Keys(first.keys, first.source)
    split = first.keys.get("split.count", 1)
    if isinstance(split, int) and split > 1 and split != len(headers):
        raise damaged(first.source, f"it is one of {split} parts, and {len(headers)} were read")
    tensors = [tensor for header in headers for tensor in header.tensors]
    blocks, outside = _by_block(tensors, keys)
    layers = tuple(
        Layer(
            mixer=keys.mixer(index, _names(block)),
            ffn=keys.ffn(index, _names(block)),
            weights=_weights(block),
            reductions=keys.reductions(_names(block)),
        )
        for index, block in enumerate(blocks)
    )
    return _assemble(keys, layers, outside, name)


def _by_block(
    tensors: list[Tensor], keys: Keys
) -> tuple[list[list[tuple[str, Tensor]]], dict[str, Tensor]]:
    """Tensors of each layer with their short names, and those outside layers."""
    count = keys.need("block_count", LAYER_LIMIT)
    blocks: list[list[tuple[str, Tensor]]] = [[] for _ in range(count)]
    outside: dict[str, Tensor] = {}
    for tensor in tensors:
        found = _BLOCK.match(tensor.name)
        if found is None:
            outside[tensor.name] = tensor
        elif int(found[1]) < count:
            blocks[int(found[1])].append((found[2], tensor))
        else:
            raise damaged(keys.source, f"it has {tensor.name} in a model of {count} layers")
    empty = next((index for index, block in enumerate(blocks) if not block), None)
    if empty is not None:
        raise damaged(keys.source, f"it has no tensor of layer {empty}")
    counted = [block for block in blocks if not _predicts(block)]
    if len(counted) < count:
        keys.note("Layers for multi-token prediction are in the file and not counted.")
    return counted, outside


def _predicts(block: list[tuple[str, Tensor]]) -> bool:
    return any(short.startswith("nextn.") for short, _ in block)


def _names(block: list[tuple[str, Tensor]]) -> Mapping[str, Tensor]:
    """Weights by short name; a bias comes after its weight and does not replace it."""
    return {short: tensor for short, tensor in block if not tensor.name.endswith(".bias")}


def _weights(block: list[tuple[str, Tensor]]) -> tuple[Weights, ...]:
    sums: dict[tuple[str, Shard, Role, float], int] = {}
    for short, tensor in block:
        shard, role = _kind(short)
        # The bias of a row-parallel product is added once, by every rank that holds it whole.
        if tensor.name.endswith("output.bias") or tensor.name.endswith("ffn_down.bias"):
            shard = Shard.REPLICATED
        key = (short, shard, role, tensor.bits)
        sums[key] = sums.get(key, 0) + tensor.elements
    return tuple(
        Weights(name=short, parameters=total, bits=bits, shard=shard, role=role)
        for (short, shard, role, bits), total in sums.items()
    )


def _kind(short: str) -> tuple[Shard, Role]:
    for pattern, shard, role in _COMPILED:
        if pattern.match(short):
            return shard, role
    return Shard.REPLICATED, Role.OTHER


def _assemble(
    keys: Keys, layers: tuple[Layer, ...], outside: dict[str, Tensor], name: str
) -> ModelShape:
    embedding = outside.pop("token_embd.weight", None)
    if embedding is None:
        raise InputError(
            f"{keys.source} has no token_embd.weight.",
            why="It holds no language model: a projector (mmproj) or an adapter is a file beside.",
            hint="Give the .gguf file of the model itself.",
        )
    head = outside.pop("output.weight", None)
    hidden = keys.need("embedding_length")
    return ModelShape(
        name=name,
        architecture=keys.architecture,
        hidden=hidden,
        vocabulary=embedding.dimensions[-1],
        layers=layers,
        embedding=_one(embedding, "embedding", Shard.VOCABULARY, Role.EMBEDDING),
        head=None if head is None else _one(head, "head", Shard.VOCABULARY, Role.HEAD),
        extra=tuple(
            _one(tensor, short, *_outside_kind(short)) for short, tensor in outside.items()
        ),
        max_context=keys.context,
        source=f"{keys.source} (GGUF header)",
        gaps=keys.gaps,
    )


def _outside_kind(name: str) -> tuple[Shard, Role]:
    return Shard.REPLICATED, Role.NORM if "norm" in name else Role.OTHER


def _one(tensor: Tensor, name: str, shard: Shard, role: Role) -> Weights:
    return Weights(name=name, parameters=tensor.elements, bits=tensor.bits, shard=shard, role=role)
