"""MXFP4 as in OpenAI's gpt-oss checkpoints: 32 numbers of 4 bits (e2m1) share a power of two.

`NAME_blocks` is u8 [experts, out, in / 32, 16], the even inputs of a block in the low halves of its
bytes; `NAME_scales` is u8 [experts, out, in / 32], exponents with a bias of 127."""

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
EXPERTS = ("gate_up_proj", "down_proj")


def quantise(matrix):
    """The nearest numbers of `[experts, out, in]`: codes [.., in / 32, 32] and scales [.., in / 32]."""
    blocks = matrix.reshape(*matrix.shape[:-1], -1, 32)
    largest = blocks.abs().amax(-1, keepdim=True).clamp(min=2.0**-100)
    exponent = largest.log2().floor() - 2
    scaled = blocks / exponent.exp2()
    nearest = (scaled.abs().unsqueeze(-1) - VALUES).abs().argmin(-1)
    codes = nearest + 8 * (scaled < 0)
    return codes.to(torch.uint8), (exponent.squeeze(-1) + 127).to(torch.uint8)


def expand(codes, scales):
    """The values of what `quantise` returned, `[experts, out, in]`."""
    sign = 1 - 2 * (codes >> 3).float()
    values = sign * VALUES[(codes & 7).long()] * (scales.float() - 127).exp2().unsqueeze(-1)
    return values.flatten(-2)


def is_experts(name):
    return name.endswith(tuple(f"experts.{part}" for part in EXPERTS))


def round_experts(model):
    """Rounds the experts' matrices, which transformers keeps as [experts, in, out], to MXFP4."""
    for name, parameter in model.named_parameters():
        if is_experts(name):
            rounded = expand(*quantise(parameter.data.transpose(1, 2)))
            parameter.data.copy_(rounded.transpose(1, 2))


def save(model, folder, spec):
    """Stores a model whose experts are rounded."""
    stored = {}
    for name, value in model.state_dict().items():
        if not is_experts(name):
            stored[name] = value.to(spec["dtype"]).contiguous()
            continue
        matrix = value.float().transpose(1, 2)
        codes, scales = quantise(matrix)
        assert torch.equal(expand(codes, scales), matrix), "rounding twice changes nothing"
        stored[f"{name}_blocks"] = codes[..., 0::2] | codes[..., 1::2] << 4
        stored[f"{name}_scales"] = scales
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})


def load(folder, config, options):
    """The model in f32, from what `save` stored."""
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**plain), dtype=torch.float32, **options
    )
    stored = load_file(folder / "model.safetensors")
    weights = {}
    for name, value in stored.items():
        if name.endswith("_blocks"):
            codes = torch.stack([value & 15, value >> 4], -1).flatten(-2)
            scales = stored[name.removesuffix("_blocks") + "_scales"]
            weights[name.removesuffix("_blocks")] = expand(codes, scales).transpose(1, 2)
        elif not name.endswith("_scales"):
            weights[name] = value.float()
    model.load_state_dict(weights)
    return model
