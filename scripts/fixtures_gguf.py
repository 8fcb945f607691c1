#!/usr/bin/env python3
"""Writes the GGUF file that llama.cpp's converter would make of a fixture: the same weights, without a
vocabulary's texts.

    DIR/bin/python scripts/fixtures_gguf.py NAME ...    # tests/fixtures/NAME/model.gguf

fixtures.py calls it. Matrices are f16, which holds the fixtures' values exactly, but those of routers;
vectors and biases are f32; MXFP4 blocks change places only. Names of tensors are the `gguf` package's.
llama.cpp reads all of these files and gives the tokens of golden.json, but for close calls (it rounds
what it multiplies by f16 matrices, more so by MXFP4) and what fixtures_moe.py says of gpt-oss.
"""

import json
import math
import sys

import gguf
import numpy
import torch
from safetensors.torch import load_file

import fixtures_gguf_convolutions
import fixtures_gguf_gemma4
import fixtures_gguf_kimi_linear
import fixtures_gguf_latent
import fixtures_gguf_mamba
import fixtures_gguf_nemotron
import fixtures_gguf_routers
import fixtures_gguf_states
import fixtures_gguf_step
import fixtures_nested
from fixtures_common import FIXTURES

ARCHITECTURES = {
    "Gemma3ForCausalLM": gguf.MODEL_ARCH.GEMMA3,
    "Gemma3ForConditionalGeneration": gguf.MODEL_ARCH.GEMMA3,
    "GptOssForCausalLM": gguf.MODEL_ARCH.GPT_OSS,
    "GraniteForCausalLM": gguf.MODEL_ARCH.GRANITE,
    "GraniteMoeForCausalLM": gguf.MODEL_ARCH.GRANITE_MOE,
    "LlamaForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "Mistral3ForConditionalGeneration": gguf.MODEL_ARCH.LLAMA,
    "MixtralForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "OlmoeForCausalLM": gguf.MODEL_ARCH.OLMOE,
    "Phi3ForCausalLM": gguf.MODEL_ARCH.PHI3,
    "Qwen2ForCausalLM": gguf.MODEL_ARCH.QWEN2,
    "Qwen3ForCausalLM": gguf.MODEL_ARCH.QWEN3,
    "Qwen3MoeForCausalLM": gguf.MODEL_ARCH.QWEN3MOE,
    "Qwen3NextForCausalLM": gguf.MODEL_ARCH.QWEN3NEXT,
    "Qwen3_5ForCausalLM": gguf.MODEL_ARCH.QWEN35,
    "Qwen3_5MoeForConditionalGeneration": gguf.MODEL_ARCH.QWEN35MOE,
    "SmolLM3ForCausalLM": gguf.MODEL_ARCH.SMOLLM3,
    "Olmo2ForCausalLM": gguf.MODEL_ARCH.OLMO2,
    "Olmo3ForCausalLM": gguf.MODEL_ARCH.OLMO2,
    "SeedOssForCausalLM": gguf.MODEL_ARCH.SEED_OSS,
    **fixtures_gguf_routers.ARCHITECTURES,
    **fixtures_gguf_latent.ARCHITECTURES,
    **fixtures_gguf_convolutions.ARCHITECTURES,
    **fixtures_gguf_mamba.ARCHITECTURES,
    **fixtures_gguf_gemma4.ARCHITECTURES,
    **fixtures_gguf_kimi_linear.ARCHITECTURES,
    **fixtures_gguf_step.ARCHITECTURES,
}
# Those of text models whose architecture is one of models of text and images, by their type.
TEXT_MODELS = {
    "ministral3": gguf.MODEL_ARCH.MISTRAL3,
    "mistral4": gguf.MODEL_ARCH.MISTRAL4,
}
# Those whose rope turns neighbours, so that rows of q and k are put beside each other.
NEIGHBOURS = {
    gguf.MODEL_ARCH.LLAMA,
    gguf.MODEL_ARCH.MISTRAL3,
    gguf.MODEL_ARCH.SMOLLM3,
    gguf.MODEL_ARCH.GRANITE,
    gguf.MODEL_ARCH.GRANITE_MOE,
    gguf.MODEL_ARCH.GRANITE_HYBRID,
    gguf.MODEL_ARCH.ERNIE4_5_MOE,
}
GEMMA3_DEFAULTS = {"rms_norm_eps": 1e-6, "rope_theta": 1e6, "rope_local_base_freq": 1e4}
# What names of the text's tensors begin with, where a model has more, and what with by themselves.
PREFIXES = {fixtures_nested.PREFIX: "", "model.language_model.": "model."}
# f32 matrices.
F32 = (
    "ffn_gate_inp.weight",
    "ffn_gate_inp_shexp.weight",
    "shortconv.conv.weight",
    "ssm_conv1d.weight",
    "ssm_conv1d_q.weight",
    "ssm_conv1d_k.weight",
    "ssm_conv1d_v.weight",
    "ssm_norm.weight",
)


def head_dim(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def neighbours(rows, heads):
    """Rows i and i + d / 2 of each head become rows 2i and 2i + 1."""
    halves = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def add_sizes(writer, arch, config, is_old):
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    guessing = fixtures_gguf_states.guessing(arch, config) + fixtures_gguf_routers.guessing(config)
    writer.add_block_count(config["num_hidden_layers"] + guessing)
    has_layer_sizes = arch == gguf.MODEL_ARCH.GEMMA4
    if has_layer_sizes:
        fixtures_gguf_gemma4.add_keys(writer, config)
    elif arch in fixtures_gguf_nemotron.NEMOTRON:
        fixtures_gguf_nemotron.add_keys(writer, config)
    elif "intermediate_size" in config and arch != gguf.MODEL_ARCH.LFM2:
        writer.add_feed_forward_length(config["intermediate_size"])
    has_layer_heads = arch == fixtures_gguf_step.STEP
    if not has_layer_heads:
        writer.add_head_count(config["num_attention_heads"])
    kv_heads = fixtures_gguf_convolutions.kv_heads(arch, config)
    if arch == gguf.MODEL_ARCH.GRANITE_HYBRID:
        kv_heads = fixtures_gguf_mamba.kv_heads(config)
    if arch == fixtures_gguf_kimi_linear.KIMI_LINEAR:
        kv_heads = fixtures_gguf_kimi_linear.kv_heads(config)
    if not (has_layer_sizes or has_layer_heads or arch in fixtures_gguf_nemotron.NEMOTRON):
        writer.add_head_count_kv(kv_heads)
    epsilons = ("rms_norm_eps", "norm_eps", "layer_norm_epsilon")
    writer.add_layer_norm_rms_eps(next(config[name] for name in epsilons if name in config))
    if "head_dim" in config and not has_layer_sizes:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if arch in NEIGHBOURS or arch == gguf.MODEL_ARCH.PHI3:
        turned = int(config.get("partial_rotary_factor", 1) * head_dim(config))
        writer.add_rope_dimension_count(turned)
    counts = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    experts = next((config[name] for name in counts if name in config), None)
    if experts:
        writer.add_expert_count(experts)
        names = ("num_experts_per_tok", "moe_k", "top_k_experts")
        writer.add_expert_used_count(next(config[name] for name in names if name in config))
    if arch == gguf.MODEL_ARCH.GPT_OSS:
        writer.add_expert_feed_forward_length(config["intermediate_size"])
    if arch == gguf.MODEL_ARCH.QWEN3MOE:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if arch in fixtures_gguf_routers.ARCHITECTURES.values():
        fixtures_gguf_routers.add_keys(writer, arch, config)
    if arch in fixtures_gguf_latent.LATENT:
        fixtures_gguf_routers.add_keys(writer, arch, config, is_old)
        fixtures_gguf_latent.add_keys(writer, config, is_old)
    if arch == fixtures_gguf_kimi_linear.KIMI_LINEAR:
        fixtures_gguf_kimi_linear.add_keys(writer, config)
    if has_layer_heads:
        fixtures_gguf_step.add_keys(writer, config)
    if arch in fixtures_gguf_convolutions.ARCHITECTURES.values():
        fixtures_gguf_convolutions.add_keys(writer, arch, config)
    if arch == gguf.MODEL_ARCH.GRANITE_HYBRID:
        fixtures_gguf_mamba.add_keys(writer, config)
    if arch in fixtures_gguf_states.ARCHITECTURES:
        fixtures_gguf_states.add_keys(writer, arch, config)
        fixtures_gguf_states.add_guessing(writer, arch, config)


def add_traits(writer, arch, config):
    if arch in (gguf.MODEL_ARCH.GEMMA3, gguf.MODEL_ARCH.GPT_OSS):
        writer.add_sliding_window(config["sliding_window"])
    if arch == gguf.MODEL_ARCH.OLMO2 and "sliding_window" in config:
        writer.add_sliding_window(config["sliding_window"])
        windowed = [kind == "sliding_attention" for kind in config["layer_types"]]
        writer.add_sliding_window_pattern(windowed)
    if arch == gguf.MODEL_ARCH.PHI3:
        # Zero says that this is no Phi-3 with a window.
        writer.add_sliding_window(config.get("sliding_window") or 0)
        writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
    if arch == gguf.MODEL_ARCH.MISTRAL3:
        rope = config["rope_parameters"]
        writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    if arch in (
        gguf.MODEL_ARCH.GRANITE,
        gguf.MODEL_ARCH.GRANITE_MOE,
        gguf.MODEL_ARCH.GRANITE_HYBRID,
    ):
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])


def add_rope(writer, config):
    """The base and its scaling; LLaMA-3's and LongRoPE's factors are tensors."""
    if "global_head_dim" in config:
        fixtures_gguf_gemma4.add_rope(writer, config)
        return
    if config["model_type"] == "step3p5":
        fixtures_gguf_step.add_rope(writer, config, llama3_factors)
        return
    if config["model_type"] == "nemotron_h":
        return
    writer.add_rope_freq_base(config.get("rope_parameters", config)["rope_theta"])
    if "rope_local_base_freq" in config:
        writer.add_rope_freq_base_swa(config["rope_local_base_freq"])
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scaling["factor"])
    elif kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(scaling["factor"])
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        if "attention_factor" in scaling:
            # llama.cpp multiplies this by its own factor.
            own = 0.1 * math.log(scaling["factor"]) + 1
            writer.add_rope_scaling_attn_factors(scaling["attention_factor"] / own)
        if "beta_fast" in scaling:
            writer.add_rope_scaling_yarn_beta_fast(scaling["beta_fast"])
            writer.add_rope_scaling_yarn_beta_slow(scaling["beta_slow"])
    elif kind == "longrope":
        original = config["original_max_position_embeddings"]
        longer = config["max_position_embeddings"] / original
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(longer) / math.log(original)))
        writer.add_tensor("rope_factors_long.weight", numpy.float32(scaling["long_factor"]))
        writer.add_tensor("rope_factors_short.weight", numpy.float32(scaling["short_factor"]))
    elif kind == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(config, scaling))


def llama3_factors(config, scaling):
    """What each inverse frequency is divided by."""
    width = head_dim(config)
    plain = config["rope_theta"] ** -(numpy.arange(0, width, 2) / width)
    turns = scaling["original_max_position_embeddings"] * plain / (2 * math.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    # The share that is kept: all of fast frequencies, nothing of slow ones, a ramp between.
    kept = numpy.clip((turns - low) / (high - low), 0, 1)
    return numpy.float32(1 / (kept + (1 - kept) / scaling["factor"]))


def split_experts(tensors):
    """Experts as one tensor for each of gate, up and down, under the names that all families have in
    a GGUF; other tensors as they are."""
    single, stacks = {}, {}
    for name, value in tensors.items():
        name = name.replace("block_sparse_moe.experts", "mlp.experts")
        name = name.replace(".w1.", ".gate_proj.").replace(".w2.", ".down_proj.")
        name = name.replace(".w3.", ".up_proj.")
        layer, is_expert, rest = name.partition(".mlp.experts.")
        if is_expert and rest.split(".")[0].isdigit():
            number, part = rest.split(".", 1)
            stacks.setdefault(f"{layer}.mlp.experts.{part}", {})[int(number)] = value
        elif name.endswith("block_sparse_moe.input_linear.weight"):
            gate, up = value.chunk(2, 1)
            layer = name.partition(".block_sparse_moe")[0]
            single[f"{layer}.mlp.experts.gate_proj.weight"] = gate
            single[f"{layer}.mlp.experts.up_proj.weight"] = up
        elif is_expert and not rest.endswith("_proj.weight"):
            single.update(gpt_oss_experts(f"{layer}.mlp.experts", rest, value))
        else:
            single[name] = value
    for name, experts in stacks.items():
        single[name] = torch.stack([experts[i] for i in range(len(experts))])
    return single


def gpt_oss_experts(layer, name, value):
    """gpt-oss has gate and up in alternating rows, and unquantised matrices as [experts, in, out]."""
    kind = next((k for k in ("_bias", "_blocks", "_scales") if name.endswith(k)), "")
    part = name.removesuffix(kind)
    suffix = {"": ".weight", "_bias": ".bias"}.get(kind, kind)
    rows = value.transpose(1, 2) if kind == "" else value
    if part == "gate_up_proj":
        return {f"{layer}.gate_proj{suffix}": rows[:, 0::2], f"{layer}.up_proj{suffix}": rows[:, 1::2]}
    return {f"{layer}.{part}{suffix}": rows}


def mxfp4_blocks(blocks, scales):
    """GGML has the scale first, then a block's first 16 numbers in low halves, its last 16 in high."""
    codes = torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2)
    packed = codes[..., :16] | codes[..., 16:] << 4
    return torch.cat([scales.unsqueeze(-1), packed], -1).flatten(-2).contiguous().numpy()


def add_tensors(writer, arch, config, tensors, is_old):
    blocks = config["num_hidden_layers"] + fixtures_gguf_routers.guessing(config)
    names = gguf.get_tensor_name_map(arch, blocks)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    if arch in fixtures_gguf_states.ARCHITECTURES:
        parts = (fixtures_gguf_states.changed(arch, config, *one) for one in tensors.items())
        tensors = {name: value for part in parts for name, value in part.items()}
    if arch in fixtures_gguf_latent.LATENT:
        parts = (fixtures_gguf_latent.changed(config, *one, is_old) for one in tensors.items())
        tensors = {name: value for part in parts for name, value in part.items()}
    if arch in fixtures_gguf_convolutions.ARCHITECTURES.values():
        tensors = dict(fixtures_gguf_convolutions.changed(*one) for one in tensors.items())
    if arch == gguf.MODEL_ARCH.GRANITE_HYBRID:
        parts = (fixtures_gguf_mamba.changed(config, *one) for one in tensors.items())
        tensors = {name: value for part in parts for name, value in part.items()}
    if arch in fixtures_gguf_nemotron.NEMOTRON:
        parts = (fixtures_gguf_nemotron.changed(config, *one) for one in tensors.items())
        tensors = {name: value for part in parts for name, value in part.items()}
    if arch in (*fixtures_gguf_routers.ARCHITECTURES.values(), *fixtures_gguf_latent.LATENT):
        parts = (fixtures_gguf_routers.changed(*one) for one in tensors.items())
        tensors = {name: value for part in parts for name, value in part.items()}
    if arch == gguf.MODEL_ARCH.GEMMA4:
        tensors = dict(fixtures_gguf_gemma4.changed(*one) for one in tensors.items())
    if arch == fixtures_gguf_kimi_linear.KIMI_LINEAR:
        parts = (fixtures_gguf_kimi_linear.changed(*one) for one in tensors.items())
        tensors = {name: value for part in parts for name, value in part.items()}
    if arch == fixtures_gguf_step.STEP:
        parts = (fixtures_gguf_step.changed(config, *one) for one in tensors.items())
        tensors = {name: value for part in parts for name, value in part.items()}
    tensors = split_experts(tensors)
    for name, value in tensors.items():
        if name.endswith("_scales"):
            continue
        if name.endswith("_blocks"):
            stem = name.removesuffix("_blocks")
            data = mxfp4_blocks(value, tensors[stem + "_scales"])
            mapped = names.get_name(stem + ".weight", (".weight",))
            kind = gguf.GGMLQuantizationType.MXFP4
            writer.add_tensor(mapped, data, raw_dtype=kind)
            continue
        name = name + ".weight" if name.endswith("sinks") else name
        value = value.float()
        part = name.split(".")[-2]
        # ERNIE's own rope turns neighbours.
        if arch in NEIGHBOURS and arch != gguf.MODEL_ARCH.ERNIE4_5_MOE and part in heads:
            value = neighbours(value, heads[part])
        if arch == gguf.MODEL_ARCH.GEMMA3 and part.endswith("norm"):
            value = value + 1
            if part == "q_norm":
                # 1 / sqrt(query_pre_attn_scalar) where llama.cpp has 1 / sqrt(head_dim).
                value = value * (head_dim(config) / config["query_pre_attn_scalar"]) ** 0.5
        # llama.cpp reads a head of every architecture, of which the package does not know all.
        unlisted = "output.weight" if name == "lm_head.weight" else None
        unlisted = name if name.startswith("blk.") else unlisted
        mapped = names.get_name(name, (".weight", ".bias")) or unlisted
        assert mapped, f"the gguf package has no name for {name}"
        data = value.contiguous().numpy()
        if value.dim() > 1 and mapped.endswith(".weight") and not mapped.endswith(F32):
            half = data.astype(numpy.float16)
            assert (half == data).all(), f"{name} is not exact in f16"
            data = half
        writer.add_tensor(mapped, data)


def write(folder, is_old=False):
    config = json.loads((folder / "config.json").read_text())
    generation = json.loads((folder / "generation_config.json").read_text())
    text = config.get("text_config", config)
    arch = TEXT_MODELS.get(text["model_type"]) or ARCHITECTURES.get(config["architectures"][0])
    arch = arch or fixtures_gguf_nemotron.architecture(text)
    config = fixtures_gguf_step.renamed(arch, fixtures_gguf_kimi_linear.renamed(arch, text))
    config = fixtures_gguf_latent.with_one_head(arch, config, is_old)
    if arch == gguf.MODEL_ARCH.GEMMA3:
        config = {**GEMMA3_DEFAULTS, **config}
    tensors = load_file(folder / "model.safetensors")
    for prefix, text in PREFIXES.items():
        if any(name.startswith(prefix) for name in tensors):
            own = ("lm_head.", prefix)
            tensors = {k.replace(prefix, text): v for k, v in tensors.items() if k.startswith(own)}

    file = folder / ("old.gguf" if is_old else "model.gguf")
    writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[arch])
    writer.add_name(folder.name)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    add_sizes(writer, arch, config, is_old)
    add_traits(writer, arch, config)
    add_rope(writer, config)
    writer.add_tokenizer_model("no_vocab")
    # The second of the ids, where there are two: the one that an answer meets.
    writer.add_eos_token_id(numpy.ravel(generation["eos_token_id"])[-1].item())
    if generation.get("bos_token_id") is not None:
        writer.add_bos_token_id(generation["bos_token_id"])
    add_tensors(writer, arch, config, tensors, is_old)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    for fixture in sys.argv[1:]:
        write(FIXTURES / fixture)
