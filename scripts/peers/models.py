#!/usr/bin/env python3
"""Writes the model files that both engines of a comparison load.

    scripts/peers/models.py widen  Q4_1.gguf OUT.gguf    the same model, every matrix dequantised to bf16
    scripts/peers/models.py random Q4_1.gguf OUT.gguf    a LLaMA of 1.1 billion seeded random weights in bf16

The random model has TinyLlama's shape. Its tokenizer is the first 32000 tokens of the given file's, with the
merges that make them: token and merge lie in the same order there, so the cut leaves a whole tokenizer."""

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
    reader = gguf.GGUFReader(source)
    tokens = {name: reader.fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type", "merges")}
    cut = VOCABULARY - len(tokens["tokens"]) + len(tokens["merges"])
    made = ["".join(merge.split(" ")) for merge in tokens["merges"][:cut]]
    if made != tokens["tokens"][VOCABULARY - cut : VOCABULARY]:
        sys.exit(f"The merges of {source} are not in the order of its tokens, so its tokenizer cannot be cut.")
    replaced = {
        "general.name": "seeded random 1.1B",
        "general.size_label": "1.1B",
        "general.file_type": int(gguf.LlamaFileType.MOSTLY_BF16),
        "llama.block_count": LAYERS,
        "llama.context_length": 2048,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": FEED_FORWARD,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": HIDDEN // HEADS,
        "llama.vocab_size": VOCABULARY,
        "tokenizer.ggml.tokens": tokens["tokens"][:VOCABULARY],
        "tokenizer.ggml.token_type": tokens["token_type"][:VOCABULARY],
        "tokenizer.ggml.merges": tokens["merges"][:cut],
        **{name: None for name in reader.fields if name.startswith("general.") and name.split(".")[1] in UNTRUE},
    }
    writer = gguf.GGUFWriter(target, "llama", use_temp_file=True)
    copy_metadata(reader, writer, replaced)
    generator = np.random.default_rng(SEED)
    kv = HIDDEN // HEADS * KV_HEADS
    matrices = {
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (kv, HIDDEN),
        "attn_v": (kv, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_gate": (FEED_FORWARD, HIDDEN),
        "ffn_up": (FEED_FORWARD, HIDDEN),
        "ffn_down": (HIDDEN, FEED_FORWARD),
    }

    def matrix(rows, columns):
        # The size that keeps activations as large as they are, so that no sum overflows or dies out.
        return generator.standard_normal((rows, columns), dtype=np.float32) / np.float32(columns**0.5)

    add(writer, "token_embd.weight", matrix(VOCABULARY, HIDDEN))
    for layer in range(LAYERS):
        for name, (rows, columns) in matrices.items():
            add(writer, f"blk.{layer}.{name}.weight", matrix(rows, columns))
        for name in ("attn_norm", "ffn_norm"):
            add(writer, f"blk.{layer}.{name}.weight", np.ones(HIDDEN, np.float32))
    add(writer, "output_norm.weight", np.ones(HIDDEN, np.float32))
    add(writer, "output.weight", matrix(VOCABULARY, HIDDEN))
    write(writer)


# Of the file that lends its tokenizer, and nothing that the random model is.
UNTRUE = {"organization", "finetune", "basename", "license", "languages"}


def add(writer, name, values):
    if values.ndim == 1:
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
    if len(sys.argv) != 4 or sys.argv[1] not in ("widen", "random"):
        sys.exit(__doc__)
    (widen if sys.argv[1] == "widen" else random)(sys.argv[2], sys.argv[3])
