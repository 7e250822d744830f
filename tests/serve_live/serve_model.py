"""A small llama with random weights as a GGUF file, for a real server without a download."""

import gguf
import numpy as np

PAIRS = [first + second for first in "abcdefghijklmnopqrstuvwxyz" for second in "abcdefghijk"]


def _bytes_as_text():
    """The printable stand-in of every byte in a byte-level vocabulary (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def write_model(path, layers=4, width=128, seed=7):
    """4 layers x 128: 3 MB; every likely token is two letters, so each is a text of its own."""
    rng = np.random.default_rng(seed)
    heads, kv_heads, inner = 4, 2, 2 * width
    tokens = [*_bytes_as_text(), *PAIRS, "<s>", "</s>"]
    ordinary, control = 1, 3
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // heads)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([ordinary] * (len(tokens) - 2) + [control] * 2)
    writer.add_token_merges([f"{pair[0]} {pair[1]}" for pair in PAIRS])
    writer.add_bos_token_id(len(tokens) - 2)
    writer.add_eos_token_id(len(tokens) - 1)
    writer.add_add_bos_token(False)

    def random(*shape):
        return (rng.standard_normal(shape) * 0.05).astype(np.float32)

    head = random(len(tokens), width)
    # Bytes and control tokens score nothing: halves of characters are held back by the server.
    head[:256] = 0
    head[-2:] = 0
    tensors = {
        "token_embd.weight": random(len(tokens), width),
        "output_norm.weight": np.ones(width, np.float32),
        "output.weight": head,
    }
    for index in range(layers):
        name = f"blk.{index}."
        tensors |= {
            f"{name}attn_norm.weight": np.ones(width, np.float32),
            f"{name}ffn_norm.weight": np.ones(width, np.float32),
            f"{name}attn_q.weight": random(width, width),
            f"{name}attn_k.weight": random(width // heads * kv_heads, width),
            f"{name}attn_v.weight": random(width // heads * kv_heads, width),
            f"{name}attn_output.weight": random(width, width),
            f"{name}ffn_gate.weight": random(inner, width),
            f"{name}ffn_up.weight": random(inner, width),
            f"{name}ffn_down.weight": random(width, inner),
        }
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
