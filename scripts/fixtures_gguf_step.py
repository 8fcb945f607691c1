"""What fixtures_gguf.py writes of Step 3.5, as llama.cpp's converter does: heads, windows and limits by
layer, including those for multi-token prediction, gains as they are used, and the factors of the rope of
layers without a window, of which whole heads have some."""

import gguf
import numpy

STEP = gguf.MODEL_ARCH.STEP35
ARCHITECTURES = {"Step3p5ForCausalLM": STEP}
WINDOWS = "sliding_attention"
# Fields under the names that other models have.
USUAL_NAMES = {
    "moe_num_experts": "n_routed_experts",
    "moe_top_k": "num_experts_per_tok",
    "num_attention_groups": "num_key_value_heads",
}
# Tensors of the layer for multi-token prediction, of which the package knows no names.
PREDICTION = {
    "eh_proj": "nextn.eh_proj",
    "enorm": "nextn.enorm",
    "hnorm": "nextn.hnorm",
    "transformer.shared_head.norm": "nextn.shared_head_norm",
}


def renamed(arch, config):
    if arch != STEP:
        return config
    return {USUAL_NAMES.get(field, field): value for field, value in config.items()}


def add_keys(writer, config):
    windowed = [kind == WINDOWS for kind in config["layer_types"]]
    heads = config["num_attention_heads"]
    more_heads = config["attention_other_setting"]["num_attention_heads"]
    writer.add_head_count([more_heads if window else heads for window in windowed])
    writer.add_head_count_kv([config["num_key_value_heads"]] * len(windowed))
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(windowed)
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_shared_feed_forward_length(config["share_expert_dim"])
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_weights_scale(config["moe_router_scaling_factor"])
    writer.add_expert_weights_norm(config["norm_expert_weight"])
    writer.add_leading_dense_block_count(int(config["moe_layers_enum"].split(",")[0]))
    writer.add_moe_every_n_layers(config["moe_every_n_layer"])
    writer.add_nextn_predict_layers(config["num_nextn_predict_layers"])
    writer.add_swiglu_clamp_exp(config["swiglu_limits"])
    writer.add_swiglu_clamp_shexp(config["swiglu_limits_shared"])


def add_rope(writer, config, factors):
    """`factors` returns those of a head of the given size."""
    first = config["layer_types"].index(WINDOWS)
    theta = config["rope_theta"][0]
    writer.add_rope_freq_base(theta)
    writer.add_rope_freq_base_swa(config["rope_theta"][first])
    turned = int(config["head_dim"] * config["partial_rotary_factors"][0])
    some = factors({"head_dim": turned, "rope_theta": theta}, config["rope_scaling"])
    rest = numpy.ones(config["head_dim"] // 2 - len(some), numpy.float32)
    writer.add_tensor("rope_freqs.weight", numpy.concatenate([some, rest]))


def changed(config, name, value):
    """A tensor under the name that the `gguf` package knows, in the file's form."""
    if name.endswith("norm.weight"):
        value = value.float() + 1
    name = name.replace("moe.router_bias", "moe.router_bias.bias")
    behind = f"model.layers.{config['num_hidden_layers']}."
    stem = name.removeprefix(behind).removesuffix(".weight")
    if name.startswith(behind) and stem in PREDICTION:
        name = f"blk.{config['num_hidden_layers']}.{PREDICTION[stem]}.weight"
    return {name: value}
