#!/usr/bin/env python3
"""Makes tests/fixtures: tiny random models as real checkpoints, with the tokens that Hugging Face
transformers generates from them (greedy, computed in float32), and the same for SmolLM2.

    scripts/fixtures_env.sh DIR                  # the environment, once
    DIR/bin/python scripts/fixtures.py [NAME ...]  # opt llama llama3 qwen2 mistral smollm2; all of them

The files are committed; nothing in the build or the tests runs this. They were last made with
transformers 5.23 and torch 2.15 on a machine without a GPU: torch was installed alone, with
stand-ins for the CUDA libraries that it links (fixtures_env.sh makes them), and computed on the CPU.
Everything is seeded: the same versions write the same bytes.

Each tiny model has traits that a loader can get wrong, named at its entry in MODELS. Its folder has
the checkpoint and golden.json:

    prompts      token ids, of ragged lengths
    tokens       the 32 tokens that follow each, EOS ignored
    min_margin   smallest difference of the best two logits over those 32 steps
    logits       logits of the first step of the first prompt
    eos_case     a prompt that meets an EOS of the model early: tokens (the EOS not among them),
                 eos (the token that ended it)
"""

import shutil
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

import fixtures_smollm2
import fixtures_tokenizers
from fixtures_common import FIXTURES, MARGIN, greedy, write_json

PROMPT_LENGTHS = [1, 2, 3, 5, 8, 13, 17, 24, 31, 40]
STEPS = 32
# Fewer different tokens than this in an answer, and it says little about attention.
DISTINCT = 10

MODELS = {
    # Learned positions that start at row 2, biases everywhere, tied, LayerNorm. The vocabulary is
    # padded beyond the tokenizer's, as in the published checkpoints; add_bos_token with BOS = EOS.
    "opt": {
        "dtype": torch.float32,
        "tokenizer": fixtures_tokenizers.opt,
        "config": {
            "architectures": ["OPTForCausalLM"],
            "model_type": "opt",
            "hidden_size": 32,
            "word_embed_proj_dim": 32,
            "ffn_dim": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": 128,
            "vocab_size": 384,
            "activation_function": "relu",
            "do_layer_norm_before": True,
            "dropout": 0.1,
            "attention_dropout": 0.0,
            "bos_token_id": 2,
            "eos_token_id": 2,
            "pad_token_id": 1,
            "torch_dtype": "float32",
            "prefix": "</s>",
        },
    },
    # GQA, tied, rope_parameters and dtype as transformers 5 writes them.
    "llama": {
        "dtype": torch.float32,
        "tokenizer": fixtures_tokenizers.llama,
        "config": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": 48,
            "intermediate_size": 80,
            "num_hidden_layers": 2,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 128,
            "vocab_size": 320,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": True,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "dtype": "float32",
        },
    },
    # rope_scaling of LLaMA-3 (kept, ramped and divided frequencies all occur), untied, sharded, no
    # head_dim. generation_config.json lists other EOS ids than config.json, and goes first.
    "llama3": {
        "dtype": torch.float32,
        "shard_size": "90KB",
        "pick_eos": True,
        "config": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 256,
            "vocab_size": 288,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "rope_theta": 500.0,
            "rope_scaling": {
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
                "rope_type": "llama3",
            },
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "torch_dtype": "float32",
        },
    },
    # q, k and v have biases, out has none; stored in bf16; a sliding window that is switched off.
    "qwen2": {
        "dtype": torch.bfloat16,
        "pick_eos": True,
        "config": {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 128,
            "max_window_layers": 2,
            "sliding_window": 16,
            "use_sliding_window": False,
            "vocab_size": 300,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0,
            "tie_word_embeddings": False,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "torch_dtype": "bfloat16",
        },
    },
    # MQA; head_dim 14 is neither hidden_size / heads (10) nor a multiple of 4; stored in f16.
    "mistral": {
        "dtype": torch.float16,
        "pick_eos": True,
        "config": {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "hidden_size": 40,
            "intermediate_size": 72,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 14,
            "max_position_embeddings": 128,
            "sliding_window": None,
            "vocab_size": 260,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "torch_dtype": "float16",
        },
    },
}


def randomise(model, generator):
    """Weights large enough that the answer depends on every one of them: attention that is not
    uniform, norm gains away from 1, biases away from 0, blocks that outweigh the embedding (or a
    tied model would only repeat its input)."""
    done = set()
    for name, parameter in model.named_parameters():
        if parameter.data_ptr() in done:
            continue
        done.add(parameter.data_ptr())
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("bias"):
            value = 0.2 * noise
        elif parameter.dim() == 1:
            value = 1 + 0.3 * noise
        elif "embed" in name:
            value = 0.3 * noise
        else:
            value = 1.8 * noise / parameter.shape[1] ** 0.5
        parameter.data.copy_(value)
    # So that some answers meet the EOS: a longer row of the head is the best one more often.
    model.get_output_embeddings().weight.data[2] *= 1.6


def goldens(model, vocab_size, generator):
    """Random prompts whose answers vary and have healthy margins: golden.json without eos_case."""
    golden = {"prompts": [], "tokens": [], "min_margin": []}
    for length in PROMPT_LENGTHS:
        for _ in range(50):
            prompt = torch.randint(4, vocab_size, (length,), generator=generator).tolist()
            tokens, margin, logits = greedy(model, prompt, STEPS)
            if margin > MARGIN and len(set(tokens)) >= DISTINCT:
                break
        else:
            raise SystemExit(f"no usable prompt of length {length}: margins or variety too small")
        golden["prompts"].append(prompt)
        golden["tokens"].append(tokens)
        golden["min_margin"].append(round(margin, 6))
        golden.setdefault("logits", [float(f"{x:.7g}") for x in logits.tolist()])
    return golden


def pick_eos(golden, vocab_size):
    """EOS ids of which an answer meets config.json's at its 5th token or later, and after it one of
    generation_config.json's: a loader that reads the wrong file ends too early."""
    for tokens in golden["tokens"]:
        first = [i for i, token in enumerate(tokens) if token not in tokens[:i] and token > 3]
        late = [i for i in first if i >= 4]
        if len(late) >= 5:
            unused = next(i for i in range(vocab_size - 1, 0, -1) if i not in tokens)
            return tokens[late[0]], [unused, tokens[late[4]]]
    raise SystemExit("no answer with enough different tokens to choose EOS ids from")


def eos_case(model, eos, golden, vocab_size, generator):
    """A prompt whose answer meets one of `eos` after at least three tokens."""
    for attempt in range(300):
        if attempt < len(golden["prompts"]):
            prompt = golden["prompts"][attempt]
        else:
            prompt = torch.randint(4, vocab_size, (6,), generator=generator).tolist()
        tokens, margin, _ = greedy(model, prompt, STEPS, eos)
        if 4 <= len(tokens) < STEPS and tokens[-1] in eos and margin > MARGIN:
            return {"prompt": prompt, "tokens": tokens[:-1], "eos": tokens[-1], "eos_token_ids": eos}
    raise SystemExit("no prompt meets an EOS early")


def check_rope_scaling(folder, model, golden, config):
    """The fixture is worth nothing if the scaling could be left out unnoticed."""
    plain = AutoConfig.for_model(**{**config, "rope_scaling": None})
    other = AutoModelForCausalLM.from_pretrained(folder, config=plain, dtype=torch.float32)
    other.eval()
    same = sum(greedy(other, p, STEPS)[0] == t for p, t in zip(golden["prompts"], golden["tokens"]))
    if same > 2:
        raise SystemExit(f"{same} answers do not depend on rope_scaling")


def make(name, spec):
    folder = FIXTURES / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = spec["config"]
    generator = torch.Generator().manual_seed(1 + list(MODELS).index(name))

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    randomise(model, generator)
    model.to(spec["dtype"]).save_pretrained(folder, max_shard_size=spec.get("shard_size", "1GB"))
    # transformers writes every default; a published config.json has what its author wrote.
    write_json(folder / "config.json", config)

    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    golden = goldens(model, config["vocab_size"], generator)
    eos = [config["eos_token_id"]]
    if spec.get("pick_eos"):
        config["eos_token_id"], eos = pick_eos(golden, config["vocab_size"])
        write_json(folder / "config.json", config)
    golden["eos_case"] = eos_case(model, eos, golden, config["vocab_size"], generator)
    generation = {"bos_token_id": config["bos_token_id"], "eos_token_id": eos}
    if len(eos) == 1:
        generation["eos_token_id"] = eos[0]
    write_json(folder / "generation_config.json", generation)
    write_json(folder / "golden.json", golden)
    if config.get("rope_scaling"):
        check_rope_scaling(folder, model, golden, config)
    if "tokenizer" in spec:
        spec["tokenizer"](folder)

    for file in folder.iterdir():
        file.chmod(0o644)
    stored = {k: v for file in folder.glob("*.safetensors") for k, v in load_file(file).items()}
    assert {v.dtype for v in stored.values()} == {spec["dtype"]}
    tied = config.get("tie_word_embeddings", True)
    assert tied == ("lm_head.weight" not in stored), "the head is stored exactly when it is not tied"
    size = sum(file.stat().st_size for file in folder.iterdir())
    distinct = sum(len(set(t)) for t in golden["tokens"]) / len(golden["tokens"])
    print(
        f"{name}: {size // 1024} KiB, margins from {min(golden['min_margin'])},"
        f" {distinct:.1f} different tokens of {STEPS},"
        f" EOS after {len(golden['eos_case']['tokens'])}"
    )


def main():
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    names = sys.argv[1:] or [*MODELS, "smollm2"]
    for name in names:
        if name == "smollm2":
            fixtures_smollm2.make()
        elif name in MODELS:
            make(name, MODELS[name])
        else:
            raise SystemExit(f"unknown fixture {name}; known: {', '.join(MODELS)}, smollm2")


if __name__ == "__main__":
    main()
