"""What fixtures_gguf.py writes of Kimi Linear, as llama.cpp's converter does: heads of keys and values by
layer, of which layers with a state have none, convolutions of four dimensions, and rates as they are used."""

import gguf
import torch

KIMI_LINEAR = gguf.MODEL_ARCH.KIMI_LINEAR
ARCHITECTURES = {"KimiLinearForCausalLM": KIMI_LINEAR}
# Fields under the names that other models with such layers have.
USUAL_NAMES = {
    "model_max_length": "max_position_embeddings",
    "moe_renormalize": "norm_topk_prob",
    "num_expert_group": "n_group",
    "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
}


def renamed(arch, config):
    if arch != KIMI_LINEAR:
        return config
    return {USUAL_NAMES.get(field, field): value for field, value in config.items()}


def kv_heads(config):
    attending = config["linear_attn_config"]["full_attn_layers"]
    heads = config["num_key_value_heads"]
    return [heads if layer + 1 in attending else 0 for layer in range(config["num_hidden_layers"])]


def add_keys(writer, config):
    states = config["linear_attn_config"]
    writer.add_ssm_conv_kernel(states["short_conv_kernel_size"])
    writer.add_kda_head_dim(states["head_dim"])
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def changed(name, value):
    """A tensor under the name that the `gguf` package knows, in the file's form."""
    if name.endswith("_conv1d.weight"):
        channels, _, taps = value.shape
        value = value.reshape(1, channels, 1, taps)
    if name.endswith("A_log"):
        value = -torch.exp(value.float())
    return {name.replace("dt_bias", "dt_proj.bias"): value}
