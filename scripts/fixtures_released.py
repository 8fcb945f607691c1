"""DeepSeek V4 as it is released: linears of attention and of the shared expert in 8-bit floats
(e4m3) with a power of two for each block of 128 x 128, experts in 4-bit floats (e2m1), two inputs a
byte of type int8, the first in the low half, with a power of two for each 32 inputs of a row. Powers
are bytes of type e8m0 in tensors named `.scale`; `expert_dtype` is a field of its own, not of
`quantization_config`.

The reference is the same checkpoint, expanded: `load` writes it with the names and fields of an
unquantised one, which transformers reads."""

import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

import fixtures_mxfp4
from fixtures_deepseek_v4 import CONFIG, HEAVY, fill_own, fill_tables, publish
from fixtures_routers import SHARED

BLOCK = 128
# e4m3's largest number.
LARGEST = 448.0
IN_EIGHT_BITS = (
    *(f".attn.{linear}.weight" for linear in ("wq_a", "wq_b", "wkv", "wo_a", "wo_b")),
    ".attn.indexer.wq_b.weight",
    *(f".ffn.shared_experts.{linear}.weight" for linear in ("w1", "w2", "w3")),
)
QUANTIZATION = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "scale_fmt": "ue8m0",
    "weight_block_size": [BLOCK, BLOCK],
}


def is_expert(name):
    return ".ffn.experts." in name


def spread(exponents, shape):
    """The power of two of each element of a matrix, from the bytes of its blocks."""
    powers = (exponents.double() - 127).exp2().float()
    powers = powers.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return powers[: shape[0], : shape[1]]


def in_eight_bits(matrix, generator):
    """A matrix in 8-bit floats, and the bytes of its blocks' powers, none like those next to it."""
    counts = [-(-size // BLOCK) for size in matrix.shape]
    exponents = torch.empty(counts, dtype=torch.uint8)
    for row in range(counts[0]):
        for column in range(counts[1]):
            block = matrix[row * BLOCK :, column * BLOCK :][:BLOCK, :BLOCK].float()
            least = (block.abs().max() / LARGEST).log2().ceil().int().item()
            more = 2 * ((row + column) % 2) + torch.randint(0, 2, (1,), generator=generator).item()
            exponents[row, column] = 127 + least + more
    scaled = matrix.float() / spread(exponents, matrix.shape)
    return scaled.to(torch.float8_e4m3fn), exponents


def release(folder):
    """Rounds the linears of a published checkpoint to the released types."""
    publish(folder)
    path = folder / "model.safetensors"
    generator = torch.Generator().manual_seed(3)
    stored = {}
    for name, value in load_file(path).items():
        stem = name.removesuffix(".weight")
        if is_expert(name):
            codes, exponents = fixtures_mxfp4.quantise(value.float())
            codes = codes.flatten(-2)
            stored[name] = (codes[:, 0::2] | codes[:, 1::2] << 4).view(torch.int8)
            stored[f"{stem}.scale"] = exponents.view(torch.float8_e8m0fnu)
        elif name.endswith(IN_EIGHT_BITS):
            stored[name], exponents = in_eight_bits(value, generator)
            stored[f"{stem}.scale"] = exponents.view(torch.float8_e8m0fnu)
        else:
            stored[name] = value
    # A tensor of the layer for multi-token prediction, which the model does without.
    stored["mtp.0.norm.weight"] = torch.ones(8, dtype=torch.bfloat16)
    stored = {name: value.contiguous() for name, value in stored.items()}
    save_file(stored, path, metadata={"format": "pt"})


def expanded(stored):
    """The values of a released checkpoint."""
    weights = {}
    for name, value in stored.items():
        if name.endswith(".scale") or name.startswith("mtp."):
            continue
        exponents = stored.get(name.removesuffix(".weight") + ".scale")
        if exponents is None:
            weights[name] = value
        elif is_expert(name):
            pairs = value.view(torch.uint8)
            codes = torch.stack([pairs & 15, pairs >> 4], -1).flatten(-2).unflatten(-1, (-1, 32))
            weights[name] = fixtures_mxfp4.expand(codes, exponents.view(torch.uint8))
        else:
            weights[name] = value.float() * spread(exponents.view(torch.uint8), value.shape)
    for name, value in weights.items():
        assert value.dtype != torch.float32 or value.isfinite().all(), name
    return weights


def load(folder, config, options):
    """The model in f32, from a released checkpoint."""
    of_release = ("quantization_config", "expert_dtype")
    config = {key: value for key, value in config.items() if key not in of_release}
    weights = expanded(load_file(folder / "model.safetensors"))
    with tempfile.TemporaryDirectory() as plain:
        save_file(weights, Path(plain) / "model.safetensors", metadata={"format": "pt"})
        (Path(plain) / "generation_config.json").write_text("{}")
        model = AutoModelForCausalLM.from_pretrained(
            plain, config=AutoConfig.for_model(**config), dtype=torch.float32, **options
        )
    return model


def even_powers(model):
    """Gives all groups of a row of an expert's matrix the power of its first one."""
    for name, parameter in model.named_parameters():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            codes, exponents = fixtures_mxfp4.quantise(parameter.data)
            parameter.data = fixtures_mxfp4.expand(codes, exponents[..., :1].expand_as(exponents))


def even_blocks(model):
    """Gives the blocks of a matrix of 8-bit floats, whose powers alternate, the same power."""
    for name, parameter in model.named_parameters():
        if name.endswith(("self_attn.q_b_proj.weight", "self_attn.o_b_proj.weight")):
            counts = [-(-size // BLOCK) for size in parameter.shape]
            assert max(counts) > 1, name
            odd = (torch.arange(counts[0])[:, None] + torch.arange(counts[1])) % 2
            parameter.data = parameter.data / spread(127 + 2 * odd, parameter.shape)


MODELS = {
    # One layer of each type. Prompts have more than the published 128 positions of an entry of the
    # third, and fewer than the published 512 entries that an indexer selects; experts by token in the
    # first layer. Fields as published, with a ratio for the layer that drafts tokens.
    "deepseek_v4_released": {
        **SHARED,
        "seed": 112,
        "gguf": False,
        "f32": (
            *("_hc.fn", "_hc.base", "_hc.scale"),
            *("hc_head.hc_fn", "hc_head.hc_base", "hc_head.hc_scale"),
            *("sinks", "e_score_correction_bias", "position_bias"),
        ),
        "scale": {"_hc.scale": 1.6, "position_bias": 6.0, "sinks": 2.0},
        "lengths": [1, 3, 24, 97, 127, 128, 140, 180, 200, 257],
        "prepare": fill_tables,
        "after_save": release,
        "load": load,
        "without": {
            "powers of experts": even_powers,
            "powers of blocks": even_blocks,
            "biases of all entries": fill_own((HEAVY,), "position_bias", 0),
            "rope of entries": {"compress_rope_theta": 100.0},
        },
        "config": {
            **CONFIG,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 0,
            "compress_ratios": [0, 4, 128, 0],
            "compress_rope_theta": 400.0,
            "expert_dtype": "fp4",
            "hc_mult": 2,
            "head_dim": 64,
            "hidden_size": 64,
            "index_head_dim": 32,
            "index_n_heads": 4,
            "index_topk": 512,
            "initializer_range": 0.02,
            "max_position_embeddings": 512,
            "moe_intermediate_size": 32,
            "n_routed_experts": 8,
            "norm_topk_prob": True,
            "num_experts_per_tok": 2,
            "num_hash_layers": 1,
            "num_nextn_predict_layers": 1,
            "o_lora_rank": 80,
            "q_lora_rank": 32,
            "qk_rope_head_dim": 16,
            "quantization_config": QUANTIZATION,
            "rope_scaling": {
                "beta_fast": 32,
                "beta_slow": 1,
                "factor": 16,
                "original_max_position_embeddings": 32,
                "type": "yarn",
            },
            "rope_theta": 100.0,
            "sliding_window": 128,
            "swiglu_limit": 1.0,
            "topk_method": "noaux_tc",
            "transformers_version": "4.57.1",
            "use_cache": True,
        },
    },
}
