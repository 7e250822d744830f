"""Writes headers of GGUF files for tests, from the format's description."""

import struct

STRING, ARRAY, U32, F32 = 8, 9, 4, 6


def text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(content):
    if isinstance(content, str):
        return struct.pack("<I", STRING) + text(content)
    if isinstance(content, bool):
        return struct.pack("<IB", 7, content)
    if isinstance(content, float):
        return struct.pack("<If", F32, content)
    if isinstance(content, list) and content and isinstance(content[0], str):
        head = struct.pack("<IIQ", ARRAY, STRING, len(content))
        return head + b"".join(map(text, content))
    if isinstance(content, list):
        kind, code = (7, "?") if content and isinstance(content[0], bool) else (U32, "I")
        head = struct.pack("<IIQ", ARRAY, kind, len(content))
        return head + struct.pack(f"<{len(content)}{code}", *content)
    return struct.pack("<II", U32, content)


def gguf(keys, tensors, version=3):
    """Bytes of a header; tensors are (name, dimensions, type id)."""
    parts = [b"GGUF", struct.pack("<IQQ", version, len(tensors), len(keys))]
    parts += [text(key) + value(content) for key, content in keys.items()]
    for name, dimensions, kind in tensors:
        parts.append(text(name) + struct.pack("<I", len(dimensions)))
        parts.append(struct.pack(f"<{len(dimensions)}Q", *dimensions))
        parts.append(struct.pack("<IQ", kind, 0))
    return b"".join(parts)


def llama_keys(layers=2, arch="llama", **more):
    plain = {
        "block_count": layers,
        "embedding_length": 256,
        "context_length": 4096,
        "feed_forward_length": 512,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
    }
    keys = {"general.architecture": arch, "tokenizer.ggml.tokens": [f"t{i}" for i in range(1000)]}
    named = {key.replace("__", "."): content for key, content in more.items()}
    return keys | {f"{arch}.{key}": content for key, content in {**plain, **named}.items()}


def llama_tensors(layers=2, head=True):
    tensors = [("token_embd.weight", (256, 1000), 14), ("output_norm.weight", (256,), 0)]
    for index in range(layers):
        tensors += [
            (f"blk.{index}.attn_norm.weight", (256,), 0),
            (f"blk.{index}.ffn_norm.weight", (256,), 0),
            (f"blk.{index}.attn_q.weight", (256, 256), 12),
            (f"blk.{index}.attn_k.weight", (256, 128), 12),
            (f"blk.{index}.attn_v.weight", (256, 128), 14),
            (f"blk.{index}.attn_output.weight", (256, 256), 12),
            (f"blk.{index}.ffn_gate.weight", (256, 512), 12),
            (f"blk.{index}.ffn_up.weight", (256, 512), 12),
            (f"blk.{index}.ffn_down.weight", (512, 256), 14),
        ]
    return [*tensors, ("output.weight", (256, 1000), 14)] if head else tensors
