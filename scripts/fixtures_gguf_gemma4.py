"""What fixtures_gguf.py writes of Gemma 4, as llama.cpp's converter does: sizes of heads and networks by
layer, factors that leave pairs unrotated, and names that the `gguf` package lacks."""

import gguf
import numpy

ARCHITECTURES = {
    "Gemma4ForCausalLM": gguf.MODEL_ARCH.GEMMA4,
    "Gemma4ForConditionalGeneration": gguf.MODEL_ARCH.GEMMA4,
}


def add_keys(writer, config):
    layers, windowed = config["num_hidden_layers"], windows(config)
    shared, ffn = config["num_kv_shared_layers"], config["intermediate_size"]
    if config.get("use_double_wide_mlp"):
        readers = range(layers - shared, layers)
        writer.add_feed_forward_length([ffn * (1 + (layer in readers)) for layer in range(layers)])
    else:
        writer.add_feed_forward_length(ffn)
    local = config["num_key_value_heads"]
    everywhere = config.get("num_global_key_value_heads") if config["attention_k_eq_v"] else None
    writer.add_head_count_kv([local if own else everywhere or local for own in windowed])
    writer.add_key_length(config["global_head_dim"])
    writer.add_value_length(config["global_head_dim"])
    writer.add_key_length_swa(config["head_dim"])
    writer.add_value_length_swa(config["head_dim"])
    writer.add_rope_dimension_count(config["global_head_dim"])
    writer.add_rope_dimension_count_swa(config["head_dim"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(windowed)
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if config["enable_moe_block"]:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def windows(config):
    return [kind == "sliding_attention" for kind in config["layer_types"]]


def add_rope(writer, config):
    ropes = config["rope_parameters"]
    writer.add_rope_freq_base(ropes["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(ropes["sliding_attention"]["rope_theta"])
    pairs = config["global_head_dim"] // 2
    rotated = int(pairs * ropes["full_attention"]["partial_rotary_factor"])
    factors = [1.0] * rotated + [1e30] * (pairs - rotated)
    writer.add_tensor("rope_freqs.weight", numpy.float32(factors))


def changed(name, value):
    """A tensor under the name that the `gguf` package knows."""
    layer = name.split(".")[2]
    if name.endswith(".router.scale"):
        return f"blk.{layer}.ffn_gate_inp.scale", value
    if name.endswith(".per_expert_scale"):
        return f"blk.{layer}.ffn_down_exps.scale", value
    is_bare = name.endswith("layer_scalar") or ".experts." in name
    return name + ".weight" if is_bare else name, value
