#!/usr/bin/env python3
"""Makes model/tests/fixtures/quantized: a matrix in each way that `quantization_config` names and that is
read, and what transformers, or the method's own formula in numpy, makes of it.

    DIR/bin/python scripts/fixtures_quantized.py    # the environment of fixtures_env.sh

The files are committed; nothing in the build or the tests runs this. Seeded: the same bytes each time.
Each folder has config.json, model.safetensors and expected.safetensors with the values in f32.
Last made with transformers 5.24, torch 2.15 and compressed-tensors 0.20.
"""

import json
from pathlib import Path

import numpy
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme
from safetensors.torch import save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import _convert_moe_packed_tensors

FOLDER = Path(__file__).resolve().parent.parent / "model" / "tests" / "fixtures" / "quantized"
STEM = "model.layers.0.mlp.down_proj"
OUTPUTS, INPUTS, GROUP = 24, 64, 32

# Where AWQ's packing puts the eight outputs of a word, the lowest bits first.
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def write(name, quantization, tensors, expected):
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["LlamaForCausalLM"], "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_file({f"{STEM}{part}": tensor.contiguous() for part, tensor in tensors.items()}, folder / "model.safetensors")
    expected = expected.to(torch.float32).contiguous()
    assert expected.shape == (OUTPUTS, INPUTS)
    assert expected.isfinite().all()
    save_file({"expected": expected}, folder / "expected.safetensors")


def fp8(random):
    codes = random.integers(0, 256, (OUTPUTS, INPUTS), dtype=numpy.uint8)
    # All but the two that are no numbers.
    codes[(codes & 0x7F) == 0x7F] ^= 0x40
    weight = torch.from_numpy(codes).view(torch.float8_e4m3fn)
    blocks = torch.from_numpy(random.normal(size=(OUTPUTS // 8, INPUTS // 16)).astype("<f4") * 1e-3)
    exponents = torch.from_numpy(random.integers(100, 140, (OUTPUTS // 8, INPUTS // 16), dtype=numpy.uint8))
    one = torch.tensor(0.0123, dtype=torch.bfloat16)
    expand = Fp8Dequantize(None)._dequantize_one
    by_block = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [8, 16]}
    whole = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}
    for name, quantization, factors in [
        ("fp8_blocks", by_block, blocks),
        ("fp8_exponents", {**by_block, "scale_fmt": "ue8m0"}, exponents.view(torch.float8_e8m0fnu)),
        ("fp8_whole", whole, one),
    ]:
        expected = expand(weight, factors, output_dtype=torch.float32)
        write(name, quantization, {".weight": weight, ".weight_scale_inv": factors}, expected)


def mxfp4(random):
    blocks = torch.from_numpy(random.integers(0, 256, (OUTPUTS, INPUTS // 32, 16), dtype=numpy.uint8))
    exponents = random.integers(100, 140, (OUTPUTS, INPUTS // 32), dtype=numpy.uint8)
    exponents[0] = [3, 250]
    exponents = torch.from_numpy(exponents)
    # Of one expert, whose matrix comes out with its inputs first.
    expected = _convert_moe_packed_tensors(blocks[None], exponents[None], dtype=torch.float32)[0].T
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    write("mxfp4", quantization, {"_blocks": blocks, "_scales": exponents}, expected)


def packed(values, order):
    """Eight neighbours of the last axis as one word; `order` says which of them is in which place."""
    eight = values.reshape(*values.shape[:-1], -1, 8).astype(numpy.uint32)
    word = sum(eight[..., output] << numpy.uint32(4 * place) for place, output in enumerate(order))
    return torch.from_numpy(word.astype(numpy.uint32).view(numpy.int32))


def integers(random):
    in_order = list(range(8))
    groups = INPUTS // GROUP
    # Of some groups no scale is an ordinary one.
    scales = (random.normal(size=(groups, OUTPUTS)) * 2.0 ** -random.integers(0, 12, (groups, OUTPUTS))).astype("<f2")
    scales[0, :3] = [6e-8, 4000.0, -0.0]
    q = random.integers(0, 16, (INPUTS, OUTPUTS), dtype=numpy.uint8)
    eights = numpy.full((groups, OUTPUTS), 8, dtype=numpy.uint8)
    one_up = random.integers(1, 17, (groups, OUTPUTS), dtype=numpy.uint8)
    any_zeros = random.integers(0, 16, (groups, OUTPUTS), dtype=numpy.uint8)
    order = torch.arange(INPUTS, dtype=torch.int32) // GROUP
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False}
    awq = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
    for name, quantization, zeros, stored in [
        ("gptq_symmetric", {**gptq, "sym": True}, eights, eights - 1),
        ("gptq", {**gptq, "sym": False}, one_up, one_up - 1),
        ("gptq_v2", {**gptq, "sym": False, "checkpoint_format": "gptq_v2"}, any_zeros, any_zeros),
        ("awq", awq, any_zeros, any_zeros),
    ]:
        spread = numpy.repeat(numpy.arange(groups), GROUP)
        expected = scales[spread].astype("<f4") * (q.astype("<f4") - zeros[spread].astype("<f4"))
        tensors = {".scales": torch.from_numpy(scales)}
        if name == "awq":
            tensors[".qweight"], tensors[".qzeros"] = packed(q, AWQ_ORDER), packed(stored, AWQ_ORDER)
        else:
            tensors[".qweight"] = packed(q.T, in_order).T
            tensors[".qzeros"], tensors[".g_idx"] = packed(stored, in_order), order
        write(name, quantization, tensors, torch.from_numpy(expected.T))


def compressed(random, name, weights, dtype=torch.bfloat16, more=None):
    """A matrix that compressed-tensors packs, and what it unpacks. `weights` is the `weights` of its group."""
    weights = {"symmetric": True, **weights}
    bits, kind, size = weights["num_bits"], weights["type"], weights.get("group_size")
    groups = {"channel": 1, "tensor": 1, "block": INPUTS // 16}.get(weights["strategy"]) or INPUTS // size
    rows = {"tensor": 1, "block": OUTPUTS // 8}.get(weights["strategy"], OUTPUTS)
    exponents = torch.from_numpy(-random.integers(2, 10, (rows, groups))).float()
    scale = torch.from_numpy(random.uniform(1, 2, (rows, groups))).float() * exponents.exp2()
    state = {}
    if "mxfp4" in name:
        scale = exponents.exp2()
        scale[0, 0] = 2.0**-120
    elif "nvfp4" in name:
        # Factors of groups are E4M3, also those below the smallest normal one.
        scale = torch.from_numpy(random.uniform(0, 448, (rows, groups))).to(torch.float8_e4m3fn).float()
        scale[0] = torch.tensor([2.0**-9, 448, 0.0, 1.0])
        state["weight_global_scale"] = torch.tensor([1234.5])
    if weights["strategy"] == "tensor":
        scale = scale[:1, 0]
    scale = scale.to(dtype)
    state["weight_scale"] = scale
    if not weights["symmetric"]:
        half = 2 ** (bits - 1)
        zeros = random.integers(-half, half, (rows, groups), dtype=numpy.int8)
        state["weight_zero_point"] = torch.from_numpy(zeros)
    # Any value of the range, whatever the scale: what is stored is what matters.
    state["weight"] = torch.from_numpy(random.normal(size=(OUTPUTS, INPUTS))).to(dtype) * 6
    if kind == "int":
        reach = 2 ** (bits - 1) * scale.abs().amax().item()
        state["weight"] = (state["weight"] / 12 * reach).to(dtype)
    form = name.removeprefix("ct_").split("_")[0]
    form = {"int4": "pack", "int8": "pack", "bytes": "int", "fp8": "float"}.get(form, form)
    form = {"mxfp4": "mxfp4-pack", "nvfp4": "nvfp4-pack"}.get(form, form) + "-quantized"
    scheme = QuantizationScheme(targets=["Linear"], weights=weights, format=form)
    compressor = BaseCompressor.get_value_from_registry(form)
    stored = compressor.compress(dict(state), scheme)
    # Exact, where the package rounds to the type of the scales.
    exact = {key: value for key, value in stored.items()}
    if kind == "int" or form == "float-quantized":
        exact["weight_scale"] = scale.float()
    expected = compressor.decompress(exact, scheme)["weight"].float()
    rounded = compressor.decompress(dict(stored), scheme)["weight"]
    if "mxfp4" not in name:
        assert torch.equal(expected.to(rounded.dtype), rounded), name
    if "nvfp4" in name:
        # In f32; the package's own is rounded to bf16, as was checked.
        codes = stored["weight_packed"]
        values = torch.stack([codes & 15, codes >> 4], -1).flatten(-2).long()
        factors = (stored["weight_scale"].float() / state["weight_global_scale"]).repeat_interleave(16, 1)
        table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        expected = torch.cat([table, -table])[values] * factors
        assert torch.equal(expected.bfloat16(), rounded.bfloat16()), name
    quantization = {
        "config_groups": {"group_0": {"input_activations": None, "targets": ["Linear"], "weights": weights}},
        "format": form,
        "ignore": ["lm_head", r"re:.*self_attn\.[qo]_proj"],
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }
    write(name, quantization, {f".{part}": tensor for part, tensor in stored.items()}, expected)
    return stored, expected


def compressed_tensors(random):
    integers = {"type": "int", "strategy": "group", "num_bits": 4}
    eight = {"type": "int", "strategy": "channel", "num_bits": 8}
    floats = {"type": "float", "num_bits": 8}
    fours = {"type": "float", "num_bits": 4, "strategy": "group"}
    compressed(random, "ct_int4_32", {**integers, "group_size": 32})
    compressed(random, "ct_int4_64_f16", {**integers, "group_size": 64}, torch.float16)
    compressed(random, "ct_int4_zeros", {**integers, "group_size": 32, "symmetric": False})
    compressed(random, "ct_int8_channel", eight)
    compressed(random, "ct_int8_zeros", {**eight, "strategy": "group", "group_size": 32, "symmetric": False})
    compressed(random, "ct_bytes_channel", eight)
    compressed(random, "ct_bytes_zeros", {**eight, "symmetric": False})
    compressed(random, "ct_fp8_channel", {**floats, "strategy": "channel"})
    compressed(random, "ct_fp8_tensor", {**floats, "strategy": "tensor"})
    compressed(random, "ct_fp8_block", {**floats, "strategy": "block", "block_structure": [8, 16]})
    compressed(random, "ct_mxfp4", {**fours, "group_size": 32})
    stored, _ = compressed(random, "ct_nvfp4", {**fours, "strategy": "tensor_group", "group_size": 16})
    # ModelOpt's names, and a factor for a divisor.
    codes, scales, factor = stored["weight_packed"], stored["weight_scale"], torch.tensor(0.000321)
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = torch.cat([table, -table])[torch.stack([codes & 15, codes >> 4], -1).flatten(-2).long()]
    expected = values * (scales.float() * factor).repeat_interleave(16, 1)
    tensors = {".weight": codes, ".weight_scale": scales, ".weight_scale_2": factor}
    tensors[".input_scale"] = torch.tensor(0.5)
    modelopt = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
    write("modelopt_nvfp4", modelopt, tensors, expected)


def main():
    random = numpy.random.default_rng(31)
    fp8(random)
    mxfp4(random)
    integers(random)
    compressed_tensors(random)
    print(f"{FOLDER}: {sum(file.stat().st_size for file in FOLDER.glob('*/*'))} bytes")


if __name__ == "__main__":
    main()
