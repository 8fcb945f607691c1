#!/usr/bin/env python3
"""Makes model/tests/fixtures/quantized: a matrix in each way that `quantization_config` names and that is
read, and what transformers, or the method's own formula in numpy, makes of it.

    DIR/bin/python scripts/fixtures_quantized.py    # the environment of fixtures_env.sh

The files are committed; nothing in the build or the tests runs this. Seeded: the same bytes each time.
Each folder has config.json, model.safetensors and expected.safetensors with the values in f32.
Last made with transformers 5.24 and torch 2.15.
"""

import json
from pathlib import Path

import numpy
import torch
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


def main():
    random = numpy.random.default_rng(31)
    fp8(random)
    mxfp4(random)
    integers(random)
    print(f"{FOLDER}: {sum(file.stat().st_size for file in FOLDER.glob('*/*'))} bytes")


if __name__ == "__main__":
    main()
