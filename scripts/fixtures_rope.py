#!/usr/bin/env python3
"""Makes model/tests/fixtures/rope.json: inverse frequencies, attention factors and rotated heads of
every kind of rotary embedding, by transformers. The environment is that of fixtures_env.sh:
    DIR/bin/python scripts/fixtures_rope.py
"""

from pathlib import Path

import torch
from fixtures_common import write_json
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding, apply_rotary_pos_emb

OUT = Path(__file__).resolve().parent.parent / "model" / "tests" / "fixtures" / "rope.json"


def factors(first, last, count):
    """Factors of longrope that grow from `first` to `last`."""
    return [round(first + (last - first) * (i / (count - 1)) ** 2, 4) for i in range(count)]


# (name, head_dim, max_position_embeddings, position, lengths, rope_parameters)
CASES = [
    ("default", 64, 2048, 300, [0], {"rope_type": "default", "rope_theta": 1e4}),
    ("partial", 80, 2048, 300, [0],
     {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.4}),
    ("linear", 32, 8192, 700, [0], {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}),
    ("llama3", 64, 131072, 900, [0],
     {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
      "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    ("gpt-oss", 64, 131072, 700, [0],
     {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0,
      "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 4096}),
    ("yarn", 128, 131072, 500, [0, 100000],
     {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0,
      "original_max_position_embeddings": 32768}),
    ("yarn, partial, other betas", 64, 65536, 600, [0],
     {"rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0, "beta_fast": 20.0, "beta_slow": 2.0,
      "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.5}),
    ("yarn, mscale", 64, 163840, 200, [0],
     {"rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.5,
      "original_max_position_embeddings": 4096}),
    ("yarn, mscale alone", 32, 163840, 200, [0],
     {"rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "mscale": 0.707,
      "original_max_position_embeddings": 4096}),
    ("yarn, its own attention factor", 32, 65536, 100, [0],
     {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "attention_factor": 1.5,
      "original_max_position_embeddings": 64}),
    ("longrope", 128, 131072, 400, [0, 4096, 4097, 100000],
     {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75,
      "short_factor": factors(1.0, 2.8, 48), "long_factor": factors(1.1, 64.0, 48),
      "original_max_position_embeddings": 4096}),
    ("longrope, its own attention factor", 32, 8192, 100, [0, 8192],
     {"rope_type": "longrope", "rope_theta": 1e4, "attention_factor": 1.25,
      "short_factor": factors(1.0, 1.5, 16), "long_factor": factors(1.0, 8.0, 16),
      "original_max_position_embeddings": 1024}),
    ("dynamic", 64, 2048, 800, [0, 2048, 2049, 7000],
     {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}),
]


def scaling(parameters, attention_factor, positions):
    """The kind of scaling as model::rope::RopeScaling writes it."""
    kind = parameters["rope_type"]
    original = parameters.get("original_max_position_embeddings", positions)
    match kind:
        case "default":
            return "None"
        case "linear":
            return {"Linear": {"factor": parameters["factor"]}}
        case "llama3":
            members = ["factor", "low_freq_factor", "high_freq_factor"]
            own = {member: parameters[member] for member in members}
            return {"Llama3": {**own, "original_max_positions": original}}
        case "yarn":
            return {"Yarn": {
                "factor": parameters["factor"],
                "original_max_positions": original,
                "beta_fast": parameters.get("beta_fast", 32.0),
                "beta_slow": parameters.get("beta_slow", 1.0),
                "attention_factor": attention_factor,
                "truncate": parameters.get("truncate", True),
            }}
        case "longrope":
            return {"Longrope": {
                "short_factors": parameters["short_factor"],
                "long_factors": parameters["long_factor"],
                "original_max_positions": original,
                "attention_factor": attention_factor,
            }}
        case "dynamic":
            return {"Dynamic": {"factor": parameters["factor"], "original_max_positions": original}}
    raise ValueError(kind)


def made(name, head_dim, max_positions, position, length, parameters):
    """One member of the fixture: `length` is that of the text, 0 where it says nothing."""
    config = LlamaConfig(
        hidden_size=2 * head_dim, num_attention_heads=2, num_key_value_heads=2, head_dim=head_dim,
        max_position_embeddings=max_positions, rope_parameters=dict(parameters),
    )
    if parameters["rope_type"] == "default":
        frequencies, factor = Phi3RotaryEmbedding.compute_default_rope_parameters(config)
    else:
        initial = ROPE_INIT_FUNCTIONS[parameters["rope_type"]]
        frequencies, factor = initial(config, seq_len=length or None)
    # Exact in f32, all different in size.
    x = torch.tensor([(i * 37 % 101 - 50) / 32 for i in range(head_dim)])
    angles = position * frequencies
    angles = torch.cat((angles, angles))
    cosines, sines = angles.cos() * factor, angles.sin() * factor
    heads = x.view(1, 1, 1, -1)
    rotated, _ = apply_rotary_pos_emb(heads, heads, cosines.view(1, 1, -1), sines.view(1, 1, -1))
    rotary_dim = 2 * len(frequencies)
    return {
        "name": f"{name}, {length}",
        "parameters": parameters,
        "rope": {
            "theta": parameters["rope_theta"],
            "scaling": scaling(parameters, factor, max_positions),
            "rotary_dim": None if rotary_dim == head_dim else rotary_dim,
        },
        "head_dim": head_dim,
        "max_positions": max_positions,
        "length": length,
        "attention_factor": factor,
        "frequencies": frequencies.tolist(),
        "x": x.tolist(),
        "position": position,
        "rotated": rotated.flatten().tolist(),
    }


def short(value):
    """Floats of f32 in as few digits as say them."""
    if isinstance(value, list):
        return [short(item) for item in value]
    if isinstance(value, dict):
        return {key: short(item) for key, item in value.items()}
    return float(f"{value:.9g}") if isinstance(value, float) else value


def main():
    members = []
    for name, head_dim, max_positions, position, lengths, parameters in CASES:
        for length in lengths:
            member = made(name, head_dim, max_positions, position, length, parameters)
            lists = {key: short(member[key]) for key in ["frequencies", "x", "rotated"]}
            members.append({**member, **lists})
    write_json(OUT, members)
    print(f"{OUT.name}: {len(members)} cases, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
