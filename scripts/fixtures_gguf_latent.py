"""What fixtures_gguf.py writes of models with latent attention, as llama.cpp's converter does: the sizes of
latents, one cached head, and the matrices of keys and values apart, those of keys transposed. Old files
have the sizes of the heads that latents are expanded to, and one matrix as in a checkpoint."""

import gguf

ARCHITECTURES = {
    "DeepseekV2ForCausalLM": gguf.MODEL_ARCH.DEEPSEEK2,
    "DeepseekV3ForCausalLM": gguf.MODEL_ARCH.DEEPSEEK2,
    "Glm4MoeLiteForCausalLM": gguf.MODEL_ARCH.DEEPSEEK2,
    "GlmMoeDsaForCausalLM": gguf.MODEL_ARCH.GLM_DSA,
}
LATENT = (
    gguf.MODEL_ARCH.DEEPSEEK2,
    gguf.MODEL_ARCH.GLM_DSA,
    gguf.MODEL_ARCH.KIMI_LINEAR,
    gguf.MODEL_ARCH.MISTRAL4,
)


def with_one_head(arch, config, is_old):
    """The configuration with the cached head in place of the heads of keys and values."""
    if arch not in LATENT:
        return config
    dense = [kind == "dense" for kind in config.get("mlp_layer_types", [])].count(True)
    heads = config["num_key_value_heads"] if is_old else 1
    return {"first_k_dense_replace": dense, **config, "num_key_value_heads": heads}


def add_keys(writer, config, is_old):
    rank, rotated = config["kv_lora_rank"], config["qk_rope_head_dim"]
    if config["q_lora_rank"]:
        writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(rank)
    if is_old:
        writer.add_key_length(config["qk_nope_head_dim"] + rotated)
        writer.add_value_length(config["v_head_dim"])
    else:
        writer.add_key_length(rank + rotated)
        # The converter has `head_dim`, another size, in its place in files of Kimi Linear.
        if config["model_type"] != "kimi_linear":
            writer.add_value_length(rank)
        writer.add_key_length_mla(config["qk_nope_head_dim"] + rotated)
        writer.add_value_length_mla(config["v_head_dim"])
    writer.add_rope_dimension_count(rotated)
    if "index_topk" in config:
        writer.add_indexer_head_count(config["index_n_heads"])
        writer.add_indexer_key_length(config["index_head_dim"])
        writer.add_indexer_top_k(config["index_topk"])
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if "mscale_all_dim" in scaling:
        writer.add_rope_scaling_yarn_log_mul(0.1 * scaling["mscale_all_dim"])
    if "llama_4_scaling_beta" in scaling:
        # llama.cpp's converter leaves it out of files of Mistral 4.
        writer.add_attn_temperature_scale(scaling["llama_4_scaling_beta"])


def changed(config, name, value, is_old):
    """A tensor under the names that the `gguf` package knows."""
    if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        return {f"{name}.weight": value}
    if is_old or not name.endswith("kv_b_proj.weight"):
        return {name: value}
    heads, keys = config["num_attention_heads"], config["qk_nope_head_dim"]
    of_heads = value.reshape(heads, -1, value.shape[1])
    return {
        name.replace("kv_b", "k_b"): of_heads[:, :keys].transpose(1, 2),
        name.replace("kv_b", "v_b"): of_heads[:, keys:],
    }
