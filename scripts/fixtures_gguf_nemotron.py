"""What fixtures_gguf.py writes of Nemotron-H, as llama.cpp's converter does: a block for each mixer, of
which those with heads of k and v attend and those with a network have its width."""

import gguf
import numpy

from fixtures_gguf_mamba import changed as changed_mamba

NEMOTRON = (gguf.MODEL_ARCH.NEMOTRON_H, gguf.MODEL_ARCH.NEMOTRON_H_MOE)
LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def architecture(config):
    return NEMOTRON["n_routed_experts" in config]


def mixers(config):
    pattern = config.get("hybrid_override_pattern")
    return config.get("layers_block_type") or [LETTERS[letter] for letter in pattern]


def add_keys(writer, config):
    heads, predicting = config["num_key_value_heads"], config.get("num_nextn_predict_layers", 0)
    of_predicting = [heads] * predicting
    of_layers = [heads if kind == "attention" else 0 for kind in mixers(config)]
    writer.add_head_count_kv(of_layers + of_predicting)
    has_experts = "n_routed_experts" in config
    width = config["moe_intermediate_size" if has_experts else "intermediate_size"]
    of_layers = [width if kind in ("mlp", "moe") else 0 for kind in mixers(config)]
    writer.add_feed_forward_length(of_layers + [width] * predicting)
    add_predicting(writer, config, predicting)
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_scaling_finetuned(False)
    writer.add_ssm_conv_kernel(config["conv_kernel"])
    writer.add_ssm_state_size(config["ssm_state_size"])
    writer.add_ssm_group_count(config["n_groups"])
    writer.add_ssm_inner_size(config["mamba_num_heads"] * config["mamba_head_dim"])
    writer.add_ssm_time_step_rank(config["mamba_num_heads"])
    if not has_experts:
        return
    writer.add_expert_feed_forward_length(width)
    writer.add_expert_shared_feed_forward_length(config["moe_shared_expert_intermediate_size"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_norm(config["norm_topk_prob"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    if "moe_latent_size" in config:
        writer.add_moe_latent_size(config["moe_latent_size"])
    writer.add_expert_group_count(config["n_group"])
    # The converter leaves this out, since published models have one group.
    writer.add_expert_group_used_count(config["topk_group"])


def add_predicting(writer, config, count):
    """Blocks for multi-token prediction, which attend and have experts: tensors that no answer comes from."""
    if count:
        writer.add_nextn_predict_layers(count)
    size, first = config["hidden_size"], len(mixers(config))
    for block in range(first, first + count):
        writer.add_tensor(f"blk.{block}.attn_norm.weight", numpy.ones(size, numpy.float32))
        writer.add_tensor(f"blk.{block}.nextn.eh_proj.weight", numpy.zeros((size, 2 * size), numpy.float16))


def changed(config, name, value):
    """The tensors that a file has of one of a checkpoint, under names that the `gguf` package knows."""
    if name.startswith("mtp."):
        return {}
    if name.endswith("e_score_correction_bias"):
        return {name.replace("_bias", ".bias"): value}
    if ".mixer.experts." in name:
        return {name.replace("backbone.", "model.").replace(".mixer.", ".mlp."): value}
    kind = mixers(config)[int(name.split(".")[2])] if ".layers." in name else None
    if kind != "mamba" or ".mixer." not in name:
        return {name: value}
    parts = changed_mamba({"mamba_n_groups": config["n_groups"]}, name.replace("mixer", "mamba"), value)
    return {
        key.replace("mamba", "mixer").replace("dt_proj.bias", "dt.bias"): part
        for key, part in parts.items()
    }
