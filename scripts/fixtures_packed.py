"""Experts of 4-bit integers as compressed-tensors packs them (`pack-quantized`), with a scale for each 32
inputs of a row, as in Kimi K2 Thinking: `weight_packed` is int32 [out, in / 8], eight inputs a word, the
first in the lowest bits, plus 8; `weight_scale` is bf16 [out, in / 32]. And experts of 4-bit floats as
ModelOpt packs them (NVFP4): `weight` is uint8 [out, in / 2], two inputs a byte, the first in the low
half; `weight_scale` is float8_e4m3fn [out, in / 16], and `weight_scale_2` one f32."""

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
MODELOPT = {
    "ignore": ["lm_head", "*self_attn*", "*shared_experts*", "*.0.mlp*"],
    "kv_cache_scheme": None,
    "quant_algo": "NVFP4",
    "quant_method": "modelopt",
}


class Integers:
    """Integers from -8 to 7, and a scale for each group of a row."""

    def quantise(matrix):
        """[.., out, in / 32, 32], and scales, [.., out, in / 32]."""
        groups = matrix.float().unflatten(-1, (-1, GROUP))
        scales = (groups.abs().amax(-1) / 7.5).bfloat16()
        assert (scales.half().float() == scales.float()).all(), "f16 holds the scales"
        q = (groups / scales.float().unsqueeze(-1)).round().clamp(-8, 7)
        return q.to(torch.int32), scales

    def expand(q, scales):
        return (q * scales.float().unsqueeze(-1)).flatten(-2)

    def tensors(q, scales):
        """The tensors of a module, by the ends of their names."""
        eights = (q.flatten(-2) + 8).unflatten(-1, (-1, 8))
        words = sum(eights[..., place].to(torch.int64) << 4 * place for place in range(8))
        words = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
        shape = torch.tensor([q.shape[0], q.shape[1] * GROUP])
        return {".weight_packed": words, ".weight_scale": scales, ".weight_shape": shape}

    def values(stored, stem):
        words = stored[f"{stem}.weight_packed"]
        q = torch.stack([words >> 4 * place & 15 for place in range(8)], -1).flatten(-2) - 8
        return Integers.expand(q.unflatten(-1, (-1, GROUP)), stored[f"{stem}.weight_scale"])


class Floats:
    """Indices of 4-bit floats, and a scale for each group of a row, in 8 bits, with the factor."""

    GROUP = 16
    FACTOR = 0.003
    TABLE = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    TABLE = torch.cat([TABLE, -TABLE])

    def quantise(matrix):
        groups = matrix.float().unflatten(-1, (-1, Floats.GROUP))
        scales = (groups.abs().amax(-1) / 6 / Floats.FACTOR).to(torch.float8_e4m3fn)
        steps = groups / (scales.float() * Floats.FACTOR).clamp(min=1e-9).unsqueeze(-1)
        q = (steps.unsqueeze(-1) - Floats.TABLE).abs().argmin(-1)
        return q, scales

    def expand(q, scales):
        factors = scales.float() * torch.tensor(Floats.FACTOR)
        return (Floats.TABLE[q] * factors.unsqueeze(-1)).flatten(-2)

    def tensors(q, scales):
        low, high = q.flatten(-2).to(torch.uint8).unflatten(-1, (-1, 2)).unbind(-1)
        factor = torch.tensor(Floats.FACTOR)
        return {".weight": low | high << 4, ".weight_scale": scales, ".weight_scale_2": factor}

    def values(stored, stem):
        pairs = stored[f"{stem}.weight"]
        q = torch.stack([pairs & 15, pairs >> 4], -1).flatten(-2).long()
        q, scales = q.unflatten(-1, (-1, Floats.GROUP)), stored[f"{stem}.weight_scale"]
        assert stored[f"{stem}.weight_scale_2"] == torch.tensor(Floats.FACTOR)
        return Floats.expand(q, scales)


def stacks(model):
    return [(name, value) for name, value in model.named_parameters() if name.endswith(STACKS)]


def scales_of_first_groups(form):
    def change(model):
        """Gives all groups of a row the scale of its first one."""
        for name, parameter in stacks(model):
            q, scales = form.quantise(parameter.data)
            parameter.data = form.expand(q, scales[..., :1].expand_as(scales))

    return change


def modules(name, rows):
    """The modules that are stacked in a tensor, with their rows of each expert's matrix."""
    layer = name.rpartition(".")[0]
    if name.endswith("down_proj"):
        return {f"{layer}.EXPERT.down_proj": slice(0, rows)}
    halves = slice(0, rows // 2), slice(rows // 2, rows)
    return {f"{layer}.EXPERT.{part}_proj": half for part, half in zip(("gate", "up"), halves)}


def functions(form):
    """How a model's experts are rounded to a form, stored and loaded."""

    def prepare(model):
        """Rounds the experts' matrices, and keeps what they are rounded to for `save`."""
        model.packed = {}
        for name, parameter in stacks(model):
            model.packed[name] = form.quantise(parameter.data)
            parameter.data = form.expand(*model.packed[name])

    def save(model, folder, spec):
        """Stores a model whose experts are rounded."""
        stored = {}
        for name, value in model.state_dict().items():
            if name not in model.packed:
                kept = name.endswith(tuple(spec["f32"]))
                stored[name] = value.to(torch.float32 if kept else spec["dtype"]).contiguous()
                continue
            q, scales = model.packed[name]
            for module, rows in modules(name, q.shape[1]).items():
                for expert in range(q.shape[0]):
                    stem = module.replace("EXPERT", str(expert))
                    for end, tensor in form.tensors(q[expert, rows], scales[expert, rows]).items():
                        stored[stem + end] = tensor.contiguous()
        save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})

    def load(folder, config, options):
        """The model in f32, from what `save` stored."""
        plain = {key: value for key, value in config.items() if key != "quantization_config"}
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(**plain), dtype=torch.float32, **options
        )
        stored = load_file(folder / "model.safetensors")
        names = dict(model.named_parameters()) | dict(model.named_buffers())
        weights = {name: value.float() for name, value in stored.items() if name in names}
        for name, parameter in stacks(model):
            experts = []
            for expert in range(parameter.shape[0]):
                stems = [module.replace("EXPERT", str(expert)) for module in modules(name, 2)]
                experts.append(torch.cat([form.values(stored, stem) for stem in stems]))
            weights[name] = torch.stack(experts)
            assert weights[name].shape == parameter.shape, name
        model.load_state_dict(weights)
        return model

    return {"prepare": prepare, "save": save, "load": load}
