"""What fixtures_gguf.py writes of models with short convolutions, as llama.cpp's converter does: heads of keys
and values by layer, of which layers with a convolution have none, and convolutions as matrices."""

import gguf

ARCHITECTURES = {
    "Lfm2ForCausalLM": gguf.MODEL_ARCH.LFM2,
    "Lfm2MoeForCausalLM": gguf.MODEL_ARCH.LFM2MOE,
}


def kv_heads(arch, config):
    heads = config["num_key_value_heads"]
    if arch not in ARCHITECTURES.values():
        return heads
    return [heads if kind == "full_attention" else 0 for kind in config["layer_types"]]


def add_keys(writer, arch, config):
    writer.add_shortconv_l_cache(config["conv_L_cache"])
    if arch == gguf.MODEL_ARCH.LFM2:
        # Two thirds, times a factor, rounded up.
        width = int(config["block_ffn_dim_multiplier"] * int(2 * config["block_ff_dim"] / 3))
        multiple = config["block_multiple_of"]
        writer.add_feed_forward_length(multiple * -(-width // multiple))
        return
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_leading_dense_block_count(config["num_dense_layers"])
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    # llama.cpp has no factor here, which published models have as 1.
    writer.add_expert_weights_scale(config["routed_scaling_factor"])


def changed(name, value):
    """A tensor under the name that the `gguf` package knows."""
    name = name.replace(".expert_bias", ".expert_bias.bias")
    name = name.replace("feed_forward.experts.", "mlp.experts.")
    return name, value.squeeze(1) if name.endswith("conv.conv.weight") else value
