#!/usr/bin/env python3
"""Writes the model files that both engines of a comparison load.

    scripts/peers/models.py widen   ANY.gguf OUT.gguf     the same model, every matrix dequantised to bf16
    scripts/peers/models.py random  Q4_1.gguf OUT.gguf    a LLaMA of 1.1 billion seeded random weights in bf16
    scripts/peers/models.py experts Q4_1.gguf OUT.gguf    two layers of Qwen3-30B-A3B, seeded random weights in bf16
    scripts/peers/models.py iq2_xs  Q2_K.gguf OUT.gguf    the same model, random blocks of IQ2_XS in place of Q2_K and Q3_K

The random LLaMA has TinyLlama's shape. Random models have the first tokens of the given file's tokenizer, with the
merges that make them: token and merge lie in the same order there, so the cut leaves a whole tokenizer. The layers of
Qwen3-30B-A3B are true, its vocabulary is cut to 4096 tokens, since the head of two layers would count for half a model's."""

import sys
from pathlib import Path

import gguf
import numpy as np

SEED = 2026
LAYERS, HIDDEN, HEADS, KV_HEADS, FEED_FORWARD, VOCABULARY = 22, 2048, 32, 4, 5632, 32000
BF16 = gguf.GGMLQuantizationType.BF16


def copy_metadata(reader, writer, replaced):
    """All of the file's keys but those in `replaced`, which come from there; the writer adds the rest itself."""
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.quantization_version"):
            continue
        value = replaced.get(name, field.contents())
        if value is None:
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, kind, inner)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def widen(source, target):
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama")
    copy_metadata(reader, writer, {"general.file_type": int(gguf.LlamaFileType.MOSTLY_BF16)})
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1])
        add(writer, tensor.name, values)
    write(writer)


def random(source, target):
    kv = HIDDEN // HEADS * KV_HEADS
    shape = {
        "context_length": 16384,
        "block_count": LAYERS,
        "embedding_length": HIDDEN,
        "feed_forward_length": FEED_FORWARD,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
        "rope.dimension_count": HIDDEN // HEADS,
    }
    writer = seeded_writer(source, target, "llama", "seeded random 1.1B", VOCABULARY, shape)
    layer = {
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (kv, HIDDEN),
        "attn_v": (kv, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_gate": (FEED_FORWARD, HIDDEN),
        "ffn_up": (FEED_FORWARD, HIDDEN),
        "ffn_down": (HIDDEN, FEED_FORWARD),
        "attn_norm": (HIDDEN,),
        "ffn_norm": (HIDDEN,),
    }
    add_seeded(writer, VOCABULARY, HIDDEN, LAYERS, layer)
    write(writer)


def iq2_xs(source, target):
    """llama.cpp quantises to this type by the importance of inputs only, which random weights do not have."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama")
    copy_metadata(reader, writer, {"general.file_type": int(gguf.LlamaFileType.MOSTLY_IQ2_XS)})
    generator = np.random.default_rng(SEED)
    kind = gguf.GGMLQuantizationType.IQ2_XS
    elements, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    for tensor in reader.tensors:
        if tensor.tensor_type.name not in ("Q2_K", "Q3_K"):
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        k, n = (int(length) for length in tensor.shape)
        blocks = generator.integers(0, 256, (n, k // elements, block_bytes), np.uint8)
        # An f16 scale, with which weights keep activations about as large as they are.
        blocks[:, :, :2] = np.array([0.02 / k**0.5], np.float16).view(np.uint8)
        writer.add_tensor(tensor.name, blocks.reshape(n, -1), raw_dtype=kind)
    write(writer)


def experts(source, target):
    hidden, heads, kv_heads, head_size, count, width, layers, vocabulary = 2048, 32, 4, 128, 128, 768, 2, 4096
    shape = {
        "context_length": 4096,
        "block_count": layers,
        "embedding_length": hidden,
        "feed_forward_length": 6144,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": head_size,
        "attention.value_length": head_size,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e6,
        "expert_count": count,
        "expert_used_count": 8,
        "expert_feed_forward_length": width,
    }
    writer = seeded_writer(source, target, "qwen3moe", "two layers of Qwen3-30B-A3B, seeded", vocabulary, shape)
    layer = {
        "attn_q": (heads * head_size, hidden),
        "attn_k": (kv_heads * head_size, hidden),
        "attn_v": (kv_heads * head_size, hidden),
        "attn_output": (hidden, heads * head_size),
        "attn_q_norm": (head_size,),
        "attn_k_norm": (head_size,),
        "ffn_gate_inp": (count, hidden),
        "ffn_gate_exps": (count, width, hidden),
        "ffn_up_exps": (count, width, hidden),
        "ffn_down_exps": (count, hidden, width),
        "attn_norm": (hidden,),
        "ffn_norm": (hidden,),
    }
    add_seeded(writer, vocabulary, hidden, layers, layer)
    write(writer)


def seeded_writer(source, target, architecture, name, vocabulary, shape):
    """A file with the architecture's `shape` and the first `vocabulary` tokens of the source's tokenizer."""
    reader = gguf.GGUFReader(source)
    tokens = {name: reader.fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type", "merges")}
    cut = vocabulary - len(tokens["tokens"]) + len(tokens["merges"])
    made = ["".join(merge.split(" ")) for merge in tokens["merges"][:cut]]
    if made != tokens["tokens"][vocabulary - cut : vocabulary]:
        sys.exit(f"The merges of {source} are not in the order of its tokens, so its tokenizer cannot be cut.")
    replaced = {
        "tokenizer.ggml.tokens": tokens["tokens"][:vocabulary],
        "tokenizer.ggml.token_type": tokens["token_type"][:vocabulary],
        "tokenizer.ggml.merges": tokens["merges"][:cut],
        **{field: None for field in reader.fields if field.startswith(("general.", "llama."))},
    }
    writer = gguf.GGUFWriter(target, architecture, use_temp_file=True)
    copy_metadata(reader, writer, replaced)
    writer.add_name(name)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    for field, value in {**shape, "vocab_size": vocabulary}.items():
        add_number = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        add_number(f"{architecture}.{field}", value)
    return writer


def add_seeded(writer, vocabulary, hidden, layers, layer):
    """Embedding, head and `layers` times `layer`. Gains are 1, and a matrix keeps activations as large as they are, so
    that no sum overflows or dies out."""
    generator = np.random.default_rng(SEED)

    def values(*shape):
        if len(shape) == 1:
            return np.ones(shape, np.float32)
        return generator.standard_normal(shape, dtype=np.float32) / np.float32(shape[-1] ** 0.5)

    add(writer, "token_embd.weight", values(vocabulary, hidden))
    for index in range(layers):
        for name, shape in layer.items():
            # llama.cpp takes a router in f32 alone.
            add(writer, f"blk.{index}.{name}.weight", values(*shape), plain=name == "ffn_gate_inp")
    add(writer, "output_norm.weight", values(hidden))
    add(writer, "output.weight", values(vocabulary, hidden))


def add(writer, name, values, plain=False):
    if values.ndim == 1 or plain:
        writer.add_tensor(name, values.astype(np.float32))
        return
    writer.add_tensor(name, to_bf16(values.astype(np.float32)), raw_dtype=BF16)


def to_bf16(values):
    """Nearest, ties to even, as bytes; no value here is NaN."""
    bits = values.view(np.uint32)
    bits = bits + (0x7FFF + ((bits >> 16) & 1))
    return (bits >> 16).astype(np.uint16).view(np.uint8)


def write(writer):
    part = Path(str(writer.path) + ".part")
    target, writer.path = writer.path, part
    writer.write_header_to_file(part)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(target)
    print(f"{target}: {Path(target).stat().st_size / 1e9:.2f} GB")


if __name__ == "__main__":
    kinds = {"widen": widen, "random": random, "experts": experts, "iq2_xs": iq2_xs}
    if len(sys.argv) != 4 or sys.argv[1] not in kinds:
        sys.exit(__doc__)
    kinds[sys.argv[1]](sys.argv[2], sys.argv[3])
