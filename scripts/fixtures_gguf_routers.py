"""What fixtures_gguf.py writes of models whose routers are more than a softmax, as llama.cpp's converter
does: the keys of the router, of shared experts and of layers without experts."""

import gguf

ARCHITECTURES = {
    "Dots1ForCausalLM": gguf.MODEL_ARCH.DOTS1,
    "Ernie4_5_MoeForCausalLM": gguf.MODEL_ARCH.ERNIE4_5_MOE,
    "Glm4MoeForCausalLM": gguf.MODEL_ARCH.GLM4_MOE,
    "MiniMaxM2ForCausalLM": gguf.MODEL_ARCH.MINIMAXM2,
    "Qwen2MoeForCausalLM": gguf.MODEL_ARCH.QWEN2MOE,
}
SIGMOID = (
    gguf.MODEL_ARCH.DOTS1,
    gguf.MODEL_ARCH.GLM4_MOE,
    gguf.MODEL_ARCH.MINIMAXM2,
)
# Fields and the methods that write their keys.
FIELDS = {
    "first_k_dense_replace": "add_leading_dense_block_count",
    "moe_intermediate_size": "add_expert_feed_forward_length",
    "moe_layer_interval": "add_interleave_moe_layer_step",
    "moe_layer_start_index": "add_leading_dense_block_count",
    "moe_num_shared_experts": "add_expert_shared_count",
    "n_group": "add_expert_group_count",
    "n_shared_experts": "add_expert_shared_count",
    "num_nextn_predict_layers": "add_nextn_predict_layers",
    "routed_scaling_factor": "add_expert_weights_scale",
    "shared_expert_intermediate_size": "add_expert_shared_feed_forward_length",
    "topk_group": "add_expert_group_used_count",
}


def guessing(config):
    return config.get("num_nextn_predict_layers", 0)


def add_keys(writer, arch, config, is_old=False):
    for field, method in FIELDS.items():
        if field in config:
            getattr(writer, method)(config[field])
    is_sigmoid = arch == gguf.MODEL_ARCH.DEEPSEEK2 and config["model_type"] != "deepseek_v2"
    is_sigmoid = is_sigmoid or arch == gguf.MODEL_ARCH.GLM_DSA
    if arch in SIGMOID or is_sigmoid:
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    elif arch == gguf.MODEL_ARCH.DEEPSEEK2 and not is_old:
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SOFTMAX)
    if arch == gguf.MODEL_ARCH.MINIMAXM2:
        writer.add_expert_feed_forward_length(config["intermediate_size"])
        writer.add_rope_dimension_count(config["rotary_dim"])
    elif "norm_topk_prob" in config and not is_old and arch != gguf.MODEL_ARCH.QWEN2MOE:
        writer.add_expert_weights_norm(config["norm_topk_prob"])
    if arch == gguf.MODEL_ARCH.GLM4_MOE:
        turned = config["head_dim"] * config["partial_rotary_factor"]
        writer.add_rope_dimension_count(int(turned))


def changed(name, value):
    """A tensor under the name that the `gguf` package knows."""
    name = name.replace("moe_statics.e_score_correction_bias", "e_score_correction_bias")
    name = name.replace("e_score_correction_bias", "e_score_correction.bias")
    vectors = ("e_score_correction.bias", "shared_expert_gate.weight")
    return {name: value.flatten() if name.endswith(vectors) else value}
