"""Experts of 4-bit integers as compressed-tensors packs them (`pack-quantized`), with a scale for each 32
inputs of a row, as in Kimi K2 Thinking: `weight_packed` is int32 [out, in / 8], eight inputs a word, the
first in the lowest bits, plus 8; `weight_scale` is bf16 [out, in / 32]."""

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

GROUP = 32
STACKS = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
QUANTIZATION = {
    "config_groups": {
        "group_0": {
            "input_activations": None,
            "output_activations": None,
            "targets": ["Linear"],
            "weights": {
                "actorder": None,
                "block_structure": None,
                "dynamic": False,
                "group_size": GROUP,
                "num_bits": 4,
                "observer": "minmax",
                "observer_kwargs": {},
                "strategy": "group",
                "symmetric": True,
                "type": "int",
            },
        }
    },
    "format": "pack-quantized",
    "ignore": [
        "lm_head",
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
    ],
    "kv_cache_scheme": None,
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
}


def quantise(matrix):
    """Integers from -8 to 7, [.., out, in / 32, 32], and their scales, [.., out, in / 32]."""
    groups = matrix.float().unflatten(-1, (-1, GROUP))
    scales = (groups.abs().amax(-1) / 7.5).bfloat16()
    assert (scales.half().float() == scales.float()).all(), "f16 holds the scales"
    q = (groups / scales.float().unsqueeze(-1)).round().clamp(-8, 7)
    return q.to(torch.int32), scales


def expand(q, scales):
    return (q * scales.float().unsqueeze(-1)).flatten(-2)


def stacks(model):
    return [(name, value) for name, value in model.named_parameters() if name.endswith(STACKS)]


def round_experts(model):
    """Rounds the experts' matrices, and keeps what they are rounded to for `save`."""
    model.packed = {}
    for name, parameter in stacks(model):
        model.packed[name] = quantise(parameter.data)
        parameter.data = expand(*model.packed[name])


def scales_of_first_groups(model):
    """Gives all groups of a row the scale of its first one."""
    for name, parameter in stacks(model):
        q, scales = quantise(parameter.data)
        parameter.data = expand(q, scales[..., :1].expand_as(scales))


def modules(name, rows):
    """The modules that are stacked in a tensor, with their rows of each expert's matrix."""
    layer = name.rpartition(".")[0]
    if name.endswith("down_proj"):
        return {f"{layer}.EXPERT.down_proj": slice(0, rows)}
    halves = slice(0, rows // 2), slice(rows // 2, rows)
    return {f"{layer}.EXPERT.{part}_proj": half for part, half in zip(("gate", "up"), halves)}


def save(model, folder, spec):
    """Stores a model whose experts are rounded."""
    stored = {}
    for name, value in model.state_dict().items():
        if name not in model.packed:
            kept = name.endswith(tuple(spec["f32"]))
            stored[name] = value.to(torch.float32 if kept else spec["dtype"]).contiguous()
            continue
        q, scales = model.packed[name]
        eights = (q.flatten(-2) + 8).unflatten(-1, (-1, 8))
        words = sum(eights[..., place].to(torch.int64) << 4 * place for place in range(8))
        words = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
        for module, rows in modules(name, q.shape[1]).items():
            for expert in range(q.shape[0]):
                stem = module.replace("EXPERT", str(expert))
                stored[f"{stem}.weight_packed"] = words[expert, rows].contiguous()
                stored[f"{stem}.weight_scale"] = scales[expert, rows].contiguous()
                shape = [rows.stop - rows.start, q.shape[-2] * GROUP]
                stored[f"{stem}.weight_shape"] = torch.tensor(shape)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})


def load(folder, config, options):
    """The model in f32, from what `save` stored."""
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**plain), dtype=torch.float32, **options
    )
    stored = load_file(folder / "model.safetensors")
    packed = (".weight_packed", ".weight_scale", ".weight_shape")
    weights = {name: value.float() for name, value in stored.items() if not name.endswith(packed)}
    for name, parameter in stacks(model):
        experts = []
        for expert in range(parameter.shape[0]):
            stems = [module.replace("EXPERT", str(expert)) for module in modules(name, 2)]
            words = torch.cat([stored[f"{stem}.weight_packed"] for stem in stems])
            scales = torch.cat([stored[f"{stem}.weight_scale"] for stem in stems])
            q = torch.stack([words >> 4 * place & 15 for place in range(8)], -1).flatten(-2) - 8
            experts.append(expand(q.unflatten(-1, (-1, GROUP)), scales))
        weights[name] = torch.stack(experts)
        assert weights[name].shape == parameter.shape, name
    model.load_state_dict(weights)
    return model
