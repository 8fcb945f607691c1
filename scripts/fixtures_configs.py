#!/usr/bin/env python3
"""Makes model/tests/fixtures/configs/transformers_VERSION.json: the config.json that a version of transformers
saves for every architecture that is supported.

    python3 -m venv DIR && DIR/bin/pip install transformers==VERSION    # without torch
    DIR/bin/python scripts/fixtures_configs.py

The files are committed; nothing in the build or the tests runs this. They were made with 4.57.1 and
5.24.0. `cases` has, by kind and then by name:

    default      what the architecture's configuration class says where nothing is given
    full         the same with the fields that are as in every class, which are left out otherwise
    tiny         a model small enough to be run
    published    the models of model/src/known, read and saved again

An architecture that the version does not have is left out.
"""

import json
import tempfile
from pathlib import Path

import transformers
from transformers import AutoConfig

ROOT = Path(__file__).resolve().parent.parent / "model"
VERSION = ".".join(transformers.__version__.split(".")[:2])
FILE = ROOT / "tests" / "fixtures" / "configs" / f"transformers_{VERSION}.json"

# Architectures by model type.
ARCHITECTURES = {
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "deepseek_v32": "DeepseekV32ForCausalLM",
    "deepseek_v4": "DeepseekV4ForCausalLM",
    "dots1": "Dots1ForCausalLM",
    "ernie4_5_moe": "Ernie4_5_MoeForCausalLM",
    "gemma3": "Gemma3ForConditionalGeneration",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma4": "Gemma4ForConditionalGeneration",
    "gemma4_text": "Gemma4ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "glm4_moe_lite": "Glm4MoeLiteForCausalLM",
    "glm_moe_dsa": "GlmMoeDsaForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "granite": "GraniteForCausalLM",
    "granitemoe": "GraniteMoeForCausalLM",
    "granitemoehybrid": "GraniteMoeHybridForCausalLM",
    "hy_v3": "HYV3ForCausalLM",
    "kimi_k25": "Kimi_K25ForConditionalGeneration",
    "kimi_linear": "KimiLinearForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "lfm2_moe": "Lfm2MoeForCausalLM",
    "llama": "LlamaForCausalLM",
    "minimax_m2": "MiniMaxM2ForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "mistral3": "Mistral3ForConditionalGeneration",
    "mistral4": "Mistral4ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "olmo3": "Olmo3ForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "opt": "OPTForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "qwen3_5": "Qwen3_5ForConditionalGeneration",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "seed_oss": "SeedOssForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "step3p5": "Step3p5ForCausalLM",
    "step3p7": "Step3p7ForConditionalGeneration",
}

# What a class does not say by itself, or says otherwise than any model.
NEEDED = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {
        "n_routed_experts": 128,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "head_dim": 144,
    },
    "glm4_moe": {"head_dim": 128},
    # By default also networks next to experts, which no published model has.
    "nemotron_h": {"layers_block_type": ["linear_attention", "moe", "full_attention", "moe"]},
}

TINY = {
    "vocab_size": 260,
    "hidden_size": 64,
    "intermediate_size": 128,
    "ffn_dim": 128,
    "word_embed_proj_dim": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 8,
    "moe_num_experts": 8,
    "moe_k": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def saved(config, architecture):
    """The object that `save_pretrained` writes."""
    config.architectures = [architecture]
    config.dtype = "bfloat16"
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        return json.loads((Path(folder) / "config.json").read_text())


def full(config, architecture):
    config.architectures = [architecture]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        config.to_json_file(file, use_diff=False)
        return json.loads(file.read_text())


def default(model_type):
    return AutoConfig.for_model(model_type, **NEEDED.get(model_type, {}))


def tiny(model_type):
    """The sizes that a configuration has, in the text's where it has one."""
    whole = default(model_type)
    text = getattr(whole, "text_config", None)
    of = text if text is not None else whole
    # Sizes that differ by layer have one for all others too.
    of.allow_global_per_layer_attribute_access = True
    sizes = {name: size for name, size in TINY.items() if getattr(of, name, None) is not None}
    if getattr(of, "kv_lora_rank", None):
        # Latent attention has keys and values of every head; eight groups of eight experts have one each.
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
        sizes["n_group"] = sizes["topk_group"] = 1
        # Another name of the part that is rotated, to which the size of a whole head does not adapt.
        sizes.pop("head_dim", None)
    if model_type == "deepseek_v4":
        # One head that is key and value, and groups of the heads of q.
        sizes |= {"layer_types": ["sliding_attention"] * 4, "num_key_value_heads": 1, "o_groups": 2}
    if model_type == "nemotron_h":
        # Each pair of a mixer and experts is a layer of the program.
        sizes["layers_block_type"] = NEEDED[model_type]["layers_block_type"] * 2
    if getattr(of, "original_max_position_embeddings", None):
        sizes["original_max_position_embeddings"] = 512
    if text is None:
        return AutoConfig.for_model(model_type, **sizes)
    return AutoConfig.for_model(model_type, text_config={"model_type": text.model_type, **sizes})


def resaved(path):
    given = json.loads(path.read_text())
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(given))
        return saved(AutoConfig.from_pretrained(folder), given["architectures"][0])


def main():
    cases = {"default": {}, "full": {}, "tiny": {}, "published": {}}
    known = set()
    for model_type, architecture in ARCHITECTURES.items():
        try:
            AutoConfig.for_model(model_type)
        except ValueError:
            print(f"{VERSION} has no {model_type}")
            continue
        known.add(architecture)
        cases["default"][model_type] = saved(default(model_type), architecture)
        cases["full"][model_type] = full(default(model_type), architecture)
        cases["tiny"][model_type] = saved(tiny(model_type), architecture)
    for path in sorted((ROOT / "src" / "known").glob("*.json")):
        given = json.loads(path.read_text())
        # Kimi K2 names its own model type for DeepSeek V3's layers.
        if given["architectures"][0] in known and given["model_type"] != "kimi_k2":
            cases["published"][path.stem] = resaved(path)
    lines = [f' "version": {json.dumps(transformers.__version__)},', ' "cases": {']
    for kind, members in cases.items():
        rows = [f"   {json.dumps(name)}: {json.dumps(config)}" for name, config in members.items()]
        lines += [f'  {json.dumps(kind)}: {{', ",\n".join(rows), "  },"]
    lines[-1] = "  }"
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text("{\n" + "\n".join(lines) + "\n }\n}\n")
    json.loads(FILE.read_text())
    print(f"{FILE.name}: {sum(map(len, cases.values()))} cases, {FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
