"""Step 3.5 and the text model of Step 3.7: windows in which queries have more heads and another rope, a
gate for each head of attention's output, limits of activations by layer, norms around zero. transformers
has the text model as a part of one of text and images alone."""

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin
from transformers.modeling_outputs import MoeCausalLMOutputWithPast
from transformers.models.step3p7.configuration_step3p7 import Step3p7TextConfig
from transformers.models.step3p7.modeling_step3p7 import Step3p7PreTrainedModel, Step3p7TextModel

import fixtures_routers
from fixtures_routers import SHARED, no_selection_bias

ALL, WINDOWS = "full_attention", "sliding_attention"
TYPES = [ALL, WINDOWS, WINDOWS, WINDOWS, ALL]
# Names as published, where they differ; transformers has gate and up of the experts in one tensor.
PUBLISHED = {
    "mlp.gate.weight": "moe.gate.weight",
    "mlp.gate.e_score_correction_bias": "moe.router_bias",
    "mlp.experts.down_proj": "moe.down_proj.weight",
    "mlp.shared_experts.": "share_expert.",
}
GATE_UP = "mlp.experts.gate_up_proj"
PREFIX = "model.language_model."


class StepForCausalLM(Step3p7PreTrainedModel, GenerationMixin):
    """transformers' text model with its head."""

    config: Step3p7TextConfig
    config_class = Step3p7TextConfig
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config):
        super().__init__(config)
        self.model = Step3p7TextModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self):
        return self.lm_head

    def forward(self, input_ids=None, attention_mask=None, cache=None, use_cache=None, **kwargs):
        kept = kwargs.pop("logits_to_keep", 0)
        kwargs.pop("return_dict", None)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            cache=cache,
            use_cache=use_cache,
            **kwargs,
        )
        logits = self.lm_head(outputs.last_hidden_state[:, -kept:])
        return MoeCausalLMOutputWithPast(logits=logits, cache=outputs.cache)


AutoModelForCausalLM.register(Step3p7TextConfig, StepForCausalLM, exist_ok=True)


def published(tensors):
    named = {}
    for name, value in tensors.items():
        if name.endswith(GATE_UP):
            layer = name.removesuffix(GATE_UP)
            gate, up = value.chunk(2, 1)
            named[f"{layer}moe.gate_proj.weight"] = gate.contiguous()
            named[f"{layer}moe.up_proj.weight"] = up.contiguous()
            continue
        for ours, theirs in PUBLISHED.items():
            name = name.replace(ours, theirs)
        named[name] = value
    return named


def of_transformers(tensors):
    named = {}
    for name, value in tensors.items():
        if name.endswith("moe.up_proj.weight"):
            continue
        if name.endswith("moe.gate_proj.weight"):
            layer = name.removesuffix("moe.gate_proj.weight")
            named[layer + GATE_UP] = torch.cat([value, tensors[f"{layer}moe.up_proj.weight"]], 1)
            continue
        for ours, theirs in PUBLISHED.items():
            name = name.replace(theirs, ours)
        named[name] = value
    return named


def stored(model, spec):
    """The text model's tensors in `dtype`, but those whose names end as one of `f32`."""
    tied = model.config.tie_word_embeddings
    return {
        name: value if name.endswith(spec["f32"]) else value.to(spec["dtype"])
        for name, value in model.state_dict().items()
        if not (tied and name.startswith("lm_head"))
    }


def save(model, folder, spec):
    """Stores the tensors as published, with those of a layer for multi-token prediction behind the
    last one, which transformers does not compute."""
    tensors = published(stored(model, spec))
    count = model.config.num_hidden_layers
    last = f"model.layers.{count - 1}."
    for name in [name for name in tensors if name.startswith(last) and "moe" not in name]:
        tensors[name.replace(last, f"model.layers.{count}.")] = tensors[name].clone()
    hidden, dtype = model.config.hidden_size, spec["dtype"]
    for name in ("enorm", "hnorm", "transformer.shared_head.norm"):
        tensors[f"model.layers.{count}.{name}.weight"] = torch.ones(hidden, dtype=dtype)
    tensors[f"model.layers.{count}.eh_proj.weight"] = torch.ones(hidden, 2 * hidden, dtype=dtype)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def save_nested(model, folder, spec):
    """Stores the tensors as transformers saves a model of text and images, next to some of the others."""
    generator = torch.Generator().manual_seed(spec["seed"])
    others = {
        "model.vision_model.embeddings.patch_embedding.weight": (16, 3, 14, 14),
        "model.vision_model.layers.0.lambda_1": (16,),
        "model.multi_modal_projector.weight": (32, 64),
    }
    vision = {name: torch.randn(shape, generator=generator) for name, shape in others.items()}
    tensors = {name: value.to(spec["dtype"]) for name, value in vision.items()}
    for name, value in stored(model, spec).items():
        name = PREFIX + name.removeprefix("model.") if name.startswith("model.") else name
        tensors[name] = value.contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def load(folder, config, options):
    """The text model in f32, from what `save` or `save_nested` stored."""
    config = AutoConfig.for_model(**config.get("text_config", config))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, **options)
    tensors = load_file(folder / "model.safetensors")
    if any(name.startswith(PREFIX) for name in tensors):
        own = (PREFIX, "lm_head.")
        tensors = {k: v for k, v in tensors.items() if k.startswith(own)}
        tensors = {k.replace(PREFIX, "model."): v for k, v in tensors.items()}
    else:
        tensors = of_transformers(tensors)
    behind = f"model.layers.{config.num_hidden_layers}."
    tensors = {k: v.float() for k, v in tensors.items() if not k.startswith(behind)}
    if config.tie_word_embeddings:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    model.load_state_dict(tensors)
    return model


def modules(model, kind):
    return [module for module in model.modules() if type(module).__name__ == kind]


def open_gates(model):
    """Gates of heads that do not depend on the row."""
    for attention in modules(model, "Step3p7Attention"):
        attention.g_proj.weight.data.zero_()


def one_gate(model):
    """All heads of a row have the gate of the first one."""
    for attention in modules(model, "Step3p7Attention"):
        weight = attention.g_proj.weight.data
        weight.copy_(weight[:1].expand_as(weight).clone())


def gains_around_one(model):
    for norm in modules(model, "Step3p7RMSNorm"):
        norm.weight.data.sub_(1)


def unit_head_gains(model):
    for attention in modules(model, "Step3p7Attention"):
        attention.q_norm.weight.data.zero_()
        attention.k_norm.weight.data.zero_()


def no_shared_expert(model):
    for block in modules(model, "Step3p7SparseMoeBlock"):
        block.shared_experts.down_proj.weight.data.zero_()


def unnormalised(model):
    """Weights of experts are not divided by their sum."""
    for router in modules(model, "Step3p7TopKRouter"):

        def forward(hidden, router=router):
            logits = nn.functional.linear(hidden, router.weight)
            scores = logits.sigmoid()
            chosen = (scores + router.e_score_correction_bias).topk(router.top_k).indices
            return logits, scores.gather(1, chosen), chosen

        router.forward = forward


def limits_before_silu(model):
    for experts in modules(model, "Step3p7Experts"):

        def gated(gate_up, limit=experts.limit):
            gate, up = gate_up.chunk(2, dim=-1)
            return nn.functional.silu(gate.clamp(max=limit)) * up.clamp(min=-limit, max=limit)

        experts._apply_gate = gated


def scaled_windows(model):
    """The rope of layers with a window has the scaling of the others."""
    rotary = model.model.rotary_emb
    plain = rotary.sliding_attention_inv_freq
    scaled = plain.clone()
    scaled[len(scaled) // 2 :] /= 2
    rotary.sliding_attention_inv_freq = scaled


SIZES = {k: v for k, v in fixtures_routers.SIZES.items() if k not in ("hidden_act", "num_key_value_heads")}
TEXT = {
    **SIZES,
    "head_dim": 16,
    "intermediate_size": 80,
    "model_type": "step3p5",
    "moe_intermediate_size": 16,
    "num_hidden_layers": 5,
    "rms_norm_eps": 1e-5,
    "sliding_window": 9,
}
UNDONE = {
    "selection bias": no_selection_bias,
    "sum of weights": unnormalised,
    "shared expert": no_shared_expert,
    "gates of rows": open_gates,
    "gates of heads": one_gate,
    "gains around zero": gains_around_one,
    "norms of q and k": unit_head_gains,
    "limits in experts": {"swiglu_limits": None},
    "limits in networks": {"swiglu_limits_shared": None},
    "limits behind SiLU": limits_before_silu,
    "windows": {"sliding_window": 128},
}
MODELS = {
    # Layers with windows in the middle, in which queries have six heads instead of four and rotate
    # whole heads at another base; the first two layers dense, the others with the best three of sixteen
    # experts and a shared one, in some with limits. Fields and tensors as published: lists that go on
    # for a layer for multi-token prediction.
    "step3p5": {
        **SHARED,
        "seed": 100,
        "f32": ("e_score_correction_bias", "mlp.gate.weight"),
        "gain_mean": 0,
        "save": save,
        "load": load,
        "without": {
            **UNDONE,
            "scale": {"moe_router_scaling_factor": 1.0},
            "base of windows": {"rope_theta": [500.0] * 6},
            "half rope": {"partial_rotary_factors": [1.0] * 6},
            "scaling of the rope": {"rope_scaling": None},
            "scaling without windows": scaled_windows,
        },
        "config": {
            **TEXT,
            "architectures": ["Step3p5ForCausalLM"],
            "att_impl_type": "GQA",
            "attention_other_setting": {
                "attention_type": WINDOWS,
                "head_dim": 16,
                "num_attention_groups": 2,
                "num_attention_heads": 6,
                "true_head_dim": 16,
            },
            "layer_types": [*TYPES, WINDOWS],
            "max_seq_len": 128,
            "moe_every_n_layer": 1,
            "moe_layer_offset": 0,
            "moe_layers_enum": "2,3,4",
            "moe_num_experts": 16,
            "moe_router_activation": "sigmoid",
            "moe_router_scaling_factor": 1.7,
            "moe_top_k": 3,
            "need_fp32_gate": True,
            "norm_expert_weight": True,
            "num_attention_groups": 2,
            "num_nextn_predict_layers": 1,
            "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0, 0.5, 1.0],
            "rope_scaling": {
                "factor": 2.0,
                "high_freq_factor": 4.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 64,
                "rope_type": "llama3",
            },
            "rope_theta": [500.0, 50.0, 50.0, 50.0, 500.0, 50.0],
            "share_expert_dim": 24,
            "sink": False,
            "swiglu_limits": [0.0, 0.0, 0.0, 0.4, 0.9, 0.0],
            "swiglu_limits_shared": [0.7, 0.0, 0.0, 0.5, 1.1, 0.0],
            "use_head_wise_attn_gate": True,
            "use_moe": True,
            "use_moe_router_bias": True,
            "use_qk_norm": True,
            "use_rope_layers": [],
            "yarn_only_types": [ALL],
            "zero_centered": True,
        },
    },
    # The same sizes but for the scale of scores and biases of attention's linears, with fields and
    # tensors as transformers writes them, within a model of text and images.
    "step3p7": {
        **SHARED,
        "seed": 101,
        "gguf": False,
        "f32": ("e_score_correction_bias", "mlp.gate.weight"),
        "gain_mean": 0,
        "save": save_nested,
        "load": load,
        "without": {
            **UNDONE,
            "scale of scores": {"query_pre_attn_scalar": 16},
            "biases": fixtures_routers.no_attention_biases,
        },
        "config": {
            "architectures": ["Step3p7ForConditionalGeneration"],
            "eos_token_id": 2,
            "image_token_id": 259,
            "model_type": "step3p7",
            "projector_bias": False,
            "text_config": {
                **TEXT,
                "attention_bias": True,
                "layer_types": TYPES,
                "mlp_bias": False,
                "mlp_layer_types": ["dense", "sparse", "sparse", "sparse", "sparse"],
                "moe_router_scaling_factor": 1.3,
                "n_routed_experts": 16,
                "num_experts_per_tok": 3,
                "num_key_value_heads": 2,
                "num_sliding_attention_heads": 6,
                "per_layer_config": {str(i): {"num_attention_heads": 6} for i in (1, 2, 3)},
                "query_pre_attn_scalar": 8,
                "rope_parameters": {
                    ALL: {"partial_rotary_factor": 0.5, "rope_theta": 500.0, "rope_type": "default"},
                    WINDOWS: {"partial_rotary_factor": 1.0, "rope_theta": 50.0, "rope_type": "default"},
                },
                "share_expert_dim": 24,
                "swiglu_limits": [None, 0.6, None, 0.4, 0.9],
                "swiglu_limits_shared": [0.7, None, None, 0.5, 1.1],
            },
            "tie_word_embeddings": False,
            "vision_config": {"hidden_size": 16, "model_type": "step3p5_vision", "num_hidden_layers": 1},
        },
    },
}
