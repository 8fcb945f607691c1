"""Qwen3.5 and Qwen3-Next in GGUF files: what llama.cpp's converter makes of their keys and tensors."""

import gguf
import numpy
import torch

TAKE_TURNS = (gguf.MODEL_ARCH.QWEN35, gguf.MODEL_ARCH.QWEN35MOE)
ARCHITECTURES = (*TAKE_TURNS, gguf.MODEL_ARCH.QWEN3NEXT)


def add_keys(writer, arch, config):
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    values = config["linear_num_value_heads"]
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(values)
    writer.add_ssm_inner_size(values * config["linear_value_head_dim"])
    if "layer_types" in config:
        recurrent = [kind == "linear_attention" for kind in config["layer_types"]]
        # The package has no function for this key yet.
        writer.add_array(f"{gguf.MODEL_ARCH_NAMES[arch]}.attention.recurrent_layers", recurrent)
    writer.add_full_attention_interval(config["full_attention_interval"])
    rope = config.get("rope_parameters", config)
    writer.add_rope_dimension_count(int(config["head_dim"] * rope["partial_rotary_factor"]))
    if arch in TAKE_TURNS:
        writer.add_rope_dimension_sections([*rope["mrope_section"], 0])


def guessing(arch, config):
    """Layers that guess further tokens, which a file has behind the model's: Qwen3.5's dense one, here."""
    return config["mtp_num_hidden_layers"] if arch == gguf.MODEL_ARCH.QWEN35 else 0


def add_guessing(writer, arch, config):
    """Such a layer: tensors that no answer comes from."""
    layers, size, count = config["num_hidden_layers"], config["hidden_size"], guessing(arch, config)
    if count:
        writer.add_nextn_predict_layers(count)
    for layer in range(layers, layers + count):
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", numpy.ones(size, numpy.float32))
        writer.add_tensor(f"blk.{layer}.nextn.eh_proj.weight", numpy.zeros((size, 2 * size), numpy.float16))


def in_turn(value, config, head_dim, first=0, dim=0):
    """Heads of v, from an element of a dimension on: neighbours share a head of q and k, and in a file they
    take turns."""
    kept, heads = value.split([first, value.shape[dim] - first], dim)
    keys = config["linear_num_key_heads"]
    shape = list(heads.shape)
    parted = shape[:dim] + [keys, -1, head_dim] + shape[dim + 1 :]
    heads = heads.reshape(parted).transpose(dim, dim + 1).reshape(shape)
    return torch.cat([kept, heads], dim)


def changed(arch, config, name, value):
    """The tensors that a file has of one of a checkpoint, with their names."""
    value = value.float()
    layer, _, part = name.partition(".mlp.experts.")
    if part == "gate_up_proj":
        halves = zip(("gate_proj", "up_proj"), value.chunk(2, 1))
        return {f"{layer}.mlp.experts.{of}.weight": rows for of, rows in halves}
    if part == "down_proj":
        return {f"{name}.weight": value}
    if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        return {name: value + 1}
    layer, is_linear, part = name.partition(".linear_attn.")
    if not is_linear:
        return {name: value}
    if part == "in_proj_qkvz.weight":
        return {f"{layer}.linear_attn.{of}.weight": rows for of, rows in apart(config, value).items()}
    key_size = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    width = config["linear_value_head_dim"]
    if arch in TAKE_TURNS:
        turn = {
            "in_proj_qkv.weight": (width, 2 * key_size),
            "in_proj_z.weight": (width,),
            "in_proj_b.weight": (1,),
            "in_proj_a.weight": (1,),
            "A_log": (1,),
            "dt_bias": (1,),
            "conv1d.weight": (width, 2 * key_size),
            "out_proj.weight": (width, 0, 1),
        }
        if part in turn:
            value = in_turn(value, config, *turn[part])
    if part == "A_log":
        value = -torch.exp(value)
    if part == "dt_bias":
        name = f"{layer}.linear_attn.dt_proj.bias"
    if part == "conv1d.weight":
        value = value.squeeze(1)
    return {name: value}


def apart(config, value):
    """Rows of q, k, v and z, which lie together for each head of q and k."""
    keys, width = config["linear_num_key_heads"], config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] // keys * config["linear_value_head_dim"]
    heads = value.reshape(keys, -1, value.shape[-1])
    q, k, v, z = heads.split([width, width, values, values], 1)
    rows = [part.reshape(-1, value.shape[-1]) for part in (q, k, v, z)]
    return {"in_proj_qkv": torch.cat(rows[:3]), "in_proj_z": rows[3]}
