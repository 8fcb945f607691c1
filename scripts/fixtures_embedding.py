#!/usr/bin/env python3
"""Makes tests/fixtures/qwen3_embedding: a tiny random model that is stored as published embedding
models are, without a head and without the prefix of a language model's tensors, with the vectors
that Hugging Face transformers computes for it in float32.

    DIR/bin/python scripts/fixtures_embedding.py   # the environment is that of fixtures.py

golden.json holds:

    prompts      token ids, of ragged lengths
    last, mean   the hidden state of the last token, and the mean over all tokens, after the final
                 norm and scaled to a length of 1, for each prompt
    no_norm      the vectors of the last token without the final norm, which differ from `last`
"""

import torch
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3Model

from fixtures_common import FIXTURES, write_json

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "max_window_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "vocab_size": 96,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]
POOLING = {
    "word_embedding_dimension": 32,
    "pooling_mode_cls_token": False,
    "pooling_mode_mean_tokens": False,
    "pooling_mode_max_tokens": False,
    "pooling_mode_mean_sqrt_len_tokens": False,
    "pooling_mode_weightedmean_tokens": False,
    "pooling_mode_lasttoken": True,
    "include_prompt": True,
}
LENGTHS = [1, 7, 20, 33]


def main():
    torch.manual_seed(29)
    folder = FIXTURES / "qwen3_embedding"
    (folder / "1_Pooling").mkdir(parents=True, exist_ok=True)
    model = Qwen3Model._from_config(
        Qwen3Config(**CONFIG), dtype=torch.float32, attn_implementation="eager"
    ).eval()
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape)
        values = 1 + 0.3 * noise if "norm" in name else 0.2 * noise
        # The stored values are exact, so that both sides compute with the same weights.
        parameter.data.copy_(values.to(torch.bfloat16).float())
    tensors = {name: value.to(torch.bfloat16) for name, value in model.state_dict().items()}
    assert "embed_tokens.weight" in tensors and "lm_head.weight" not in tensors
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    write_json(folder / "config.json", CONFIG)
    write_json(folder / "modules.json", MODULES)
    write_json(folder / "1_Pooling" / "config.json", POOLING)

    prompts = [torch.randint(3, 96, (length,)).tolist() for length in LENGTHS]
    unit = torch.nn.functional.normalize
    golden = {"prompts": prompts, "last": [], "mean": [], "no_norm": []}
    with torch.no_grad():
        for prompt in prompts:
            hidden = []
            hook = model.norm.register_forward_pre_hook(lambda _, inputs: hidden.append(inputs[0]))
            rows = model(torch.tensor([prompt])).last_hidden_state[0]
            hook.remove()
            for name, vector in [
                ("last", rows[-1]),
                ("mean", rows.mean(dim=0)),
                ("no_norm", hidden[0][0, -1]),
            ]:
                golden[name].append(unit(vector, dim=0).tolist())
    write_json(folder / "golden.json", golden)


if __name__ == "__main__":
    main()
