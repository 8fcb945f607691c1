"""What fixtures_gguf.py writes of models with Mamba2, as llama.cpp's converter does: the keys of their
layers, and tensors in other shapes."""

import gguf
import torch

GRANITE = gguf.MODEL_ARCH.GRANITE_HYBRID
ARCHITECTURES = {"GraniteMoeHybridForCausalLM": GRANITE}


def add_keys(writer, config):
    inner = config["mamba_expand"] * config["hidden_size"]
    writer.add_ssm_conv_kernel(config["mamba_d_conv"])
    writer.add_ssm_state_size(config["mamba_d_state"])
    writer.add_ssm_group_count(config["mamba_n_groups"])
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_time_step_rank(config["mamba_n_heads"])
    writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])
    # The one flag of the file that says whether q and k are rotated.
    writer.add_rope_scaling_finetuned(config["position_embedding_type"] == "rope")


def kv_heads(config):
    """KV heads of each layer, of which those with Mamba2 have none."""
    heads = config["num_key_value_heads"]
    return [heads if kind == "attention" else 0 for kind in config["layer_types"]]


def changed(config, name, value):
    """The tensors that a file has of one of a checkpoint, under names that the `gguf` package knows."""
    layer, is_shared, part = name.partition(".shared_mlp.")
    if is_shared:
        module = f"{layer}.mlp.shared_experts" if config["num_local_experts"] else f"{layer}.mlp"
        if part == "output_linear.weight":
            return {f"{module}.down_proj.weight": value}
        gate, up = value.chunk(2)
        return {f"{module}.gate_proj.weight": gate, f"{module}.up_proj.weight": up}
    if ".mamba." not in name:
        return {name: value}
    if name.endswith("A_log"):
        return {name: -torch.exp(value.float()).unsqueeze(-1)}
    if name.endswith(".D"):
        return {name: value.unsqueeze(-1)}
    if name.endswith("dt_bias"):
        return {name.replace("dt_bias", "dt_proj.bias"): value}
    if name.endswith("conv1d.weight"):
        return {name: value.squeeze(1)}
    if name.endswith("norm.weight"):
        return {name: value.reshape(config["mamba_n_groups"], -1)}
    return {name: value}
