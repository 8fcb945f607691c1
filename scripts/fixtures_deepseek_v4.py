"""DeepSeek V4: a residual of streams that are mixed by mappings of their own, one KV head that is key and
value at once, an output that is rotated back and passes a linear of each group of heads, and experts
that the first layers select by token."""

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as reference

from fixtures_indexed import no_positive_parts
from fixtures_routers import SHARED, SIZES, no_selection_bias, no_shared_expert

WINDOWS = "sliding_attention"
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
F32 = (
    "_hc.fn",
    "_hc.base",
    "_hc.scale",
    "hc_head.hc_fn",
    "hc_head.hc_base",
    "hc_head.hc_scale",
    "sinks",
    "e_score_correction_bias",
    "mlp.gate.weight",
    "position_bias",
    "compressor.kv_norm.weight",
    "indexer.kv_norm.weight",
)


def modules(model, kind):
    return [module for module in model.modules() if type(module).__name__ == f"DeepseekV4{kind}"]


def fill_tables(model):
    """Experts of each token, different ones."""
    generator = torch.Generator().manual_seed(7)
    for router in modules(model, "HashRouter"):
        count = router.weight.shape[0]
        rows = [torch.randperm(count, generator=generator) for _ in router.tid2eid]
        router.tid2eid.copy_(torch.stack(rows)[:, : router.tid2eid.shape[1]])


def publish(folder):
    """Names the tensors as published; those that transformers saves differ."""
    path = folder / "model.safetensors"
    tensors = {published(name): value for name, value in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})


def published(name):
    name = name.removeprefix("model.").replace("embed_tokens.", "embed.")
    name = name.replace("hc_head.hc_", "hc_head_").replace("attn.norm.", "attn.kv_norm.")
    name = name.replace("compressor.indexer.scorer.", "indexer.").replace("indexer.q_b_proj.", "indexer.wq_b.")
    return name.replace("compressor.indexer.", "indexer.compressor.")


def fill(part, value):
    """Fills the parameters whose names contain a part."""

    def undo(model):
        for name, parameter in model.named_parameters():
            if part in name:
                parameter.data.fill_(value)

    return undo


def no_head_norms(model):
    for attention in modules(model, "Attention"):
        attention.q_b_norm = nn.Identity()


class Ropes:
    """Calls of the rope by one forward of attention: of q, of kv and of the output."""

    def __init__(self, model, rotate):
        self.count = 0
        for attention in modules(model, "Attention"):
            forward = attention.forward

            def counted(*inputs, forward=forward, **named):
                self.count = 0
                kept = reference.apply_rotary_pos_emb

                def rotated(x, cos, sin, *more, **options):
                    self.count += 1
                    return rotate(self.count, kept, x, cos, sin)

                reference.apply_rotary_pos_emb = rotated
                try:
                    return forward(*inputs, **named)
                finally:
                    reference.apply_rotary_pos_emb = kept

            attention.forward = counted


def not_rotated_back(model):
    Ropes(model, lambda count, rope, x, cos, sin: x if count == 3 else rope(x, cos, sin))


def first_elements(model):
    """The first elements of a head are rotated."""

    def rotate(_, rope, x, cos, sin):
        return rope(x.flip(-1), cos, sin).flip(-1)

    Ropes(model, rotate)


def unrelated_groups(model):
    """Groups of heads have each other's linears."""
    for attention in modules(model, "Attention"):
        weight = attention.o_a_proj.weight.data
        weight.copy_(weight.roll(weight.shape[0] // attention.config.o_groups, 0).clone())


def mapped(change):
    """Changes post and comb of each half."""

    def undo(model):
        for connection in modules(model, "HyperConnection"):
            forward = connection.forward

            def changed(streams, forward=forward):
                post, comb, collapsed = forward(streams)
                return (*change(post, comb), collapsed)

            connection.forward = changed

    return undo


def limits_behind_silu(model):
    for experts in modules(model, "Experts"):

        def gated(gate_up, limit=experts.limit):
            gate, up = gate_up.chunk(2, dim=-1)
            return nn.functional.silu(gate).clamp(max=limit) * up.clamp(min=-limit, max=limit)

        experts._apply_gate = gated


def no_limits_in_shared(model):
    for network in modules(model, "MLP"):
        network.limit = 1e9


def no_limits_in_experts(model):
    for experts in modules(model, "Experts"):
        experts.limit = 1e9


def tables_unused(model):
    """Layers that select experts by token select them by their scores."""
    for router in modules(model, "HashRouter"):

        def forward(hidden, _, router=router):
            logits = nn.functional.linear(hidden.reshape(-1, router.hidden_dim), router.weight)
            scores = router.score_fn(logits)
            chosen = scores.topk(router.top_k).indices
            weights = scores.gather(1, chosen)
            weights = weights / weights.sum(-1, keepdim=True) * router.routed_scaling_factor
            return logits, weights, chosen

        router.forward = forward


def even_weights(model):
    """Experts that are selected by token have equal weights."""
    for router in modules(model, "HashRouter"):
        router.weight.data.zero_()


def compressors(model, *kinds):
    return [module for kind in kinds for module in modules(model, kind)]


def fill_own(kinds, name, value):
    """Fills a parameter of compressors of some kinds, but not of those within them."""

    def undo(model):
        for compressor in compressors(model, *kinds):
            compressor.get_parameter(name).data.fill_(value)

    return undo


def no_overlap(*kinds):
    """Entries have nothing of the group before their own."""

    def undo(model):
        for compressor in compressors(model, *kinds):
            compressor.position_bias.data[:, : compressor.head_dim] = -1e9

    return undo


def later_positions(*kinds):
    """Entries are rotated by the last position of their group."""

    def undo(model):
        for compressor in compressors(model, *kinds):
            rotary, rate = compressor.rotary_emb, compressor.compress_rate

            def rotated(x, position_ids, layer_type, rotary=rotary, rate=rate):
                # Queries of the indexer are rotated by the same module, as rows of the model.
                of_entries = x.shape[-1] != SIZES["hidden_size"]
                return rotary(x, position_ids + (rate - 1 if of_entries else 0), layer_type=layer_type)

            compressor.rotary_emb = Called(rotated)

    return undo


class Called(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.forward = function


def entries_late(model):
    """Rows attend to the entries of groups that end before their position."""
    for attention in modules(model, "Attention"):
        if attention.compressor is None:
            continue
        forward = attention.compressor.forward

        def late(hidden, latent, positions, *rest, forward=forward):
            entries, bias = forward(hidden, latent, positions, *rest)
            rate = forward.__self__.compress_rate
            ends = (torch.arange(entries.shape[2]) + 1) * rate - 1
            hidden_now = ends[None, None, None] >= positions[:, None, :, None]
            if bias is None:
                bias = entries.new_zeros((*hidden_now.shape[:3], entries.shape[2]))
            return entries, bias.masked_fill(hidden_now, float("-inf"))

        attention.compressor.forward = late


HEAVY, SPARSE = "HCACompressor", "CSACompressor"
COMPRESSED_UNDONE = {
    **{
        f"{what} of {of}": fill_own((kind,), name, value)
        for kind, of in ((HEAVY, "all entries"), (SPARSE, "selected entries"), ("Indexer", "the indexer"))
        for what, name, value in (
            ("biases", "position_bias", 0),
            ("gates", "gate_proj.weight", 0),
            ("gains", "kv_norm.weight", 1),
        )
    },
    "overlap of entries": no_overlap(SPARSE),
    "overlap of the indexer": no_overlap("Indexer"),
    "first positions": later_positions(HEAVY, SPARSE),
    "first positions of the indexer": later_positions("Indexer"),
    "entries that end with a row": entries_late,
    "selection": {"index_topk": 128},
    "weights of the indexer": fill("weights_proj", 1),
    "positive parts": no_positive_parts,
    "sinks": fill("sinks", -1e9),
    "windows": {"sliding_window": 128},
    "rope of entries": {"compress_rope_theta": 100.0},
    "YaRN": {"rope_scaling": None},
    "factor of YaRN": {"rope_scaling": {**YARN, "attention_factor": 1.14}},
}

UNDONE = {
    "selection bias": no_selection_bias,
    "shared expert": no_shared_expert,
    "scale of experts": {"routed_scaling_factor": 1.0},
    "tables of experts": tables_unused,
    "weights by score": even_weights,
    "limits in experts": no_limits_in_experts,
    "limits in the shared expert": no_limits_in_shared,
    "limits before SiLU": limits_behind_silu,
    "sinks": fill("sinks", -1e9),
    "gains of the query's latent": fill("q_a_norm.weight", 1),
    "gains of keys": fill("kv_norm.weight", 1),
    "norms of heads": no_head_norms,
    "rotation back": not_rotated_back,
    "rope of last elements": first_elements,
    "groups of outputs": unrelated_groups,
    "Sinkhorn's iterations": {"hc_sinkhorn_iters": 1},
    "half of Sinkhorn's iterations": {"hc_sinkhorn_iters": 2},
    "order of comb": mapped(lambda post, comb: (post, comb.transpose(-1, -2))),
    "post": mapped(lambda post, comb: (torch.ones_like(post), comb)),
    "rows of mappings": fill("_hc.fn", 0),
    "bases of mappings": fill("_hc.base", 0),
    "scales of mappings": fill("_hc.scale", 1),
    "rows of the last mapping": fill("hc_head.hc_fn", 0),
    "base of the last mapping": fill("hc_head.hc_base", 0),
    "scale of the last mapping": fill("hc_head.hc_scale", 1),
}
CONFIG = {
    **SIZES,
    "architectures": ["DeepseekV4ForCausalLM"],
    "head_dim": 24,
    "hc_eps": 1e-3,
    "hc_mult": 3,
    "hc_sinkhorn_iters": 4,
    "model_type": "deepseek_v4",
    "moe_intermediate_size": 16,
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 3,
    "num_key_value_heads": 1,
    "o_groups": 2,
    "o_lora_rank": 20,
    "q_lora_rank": 28,
    "rms_norm_eps": 1e-5,
    "routed_scaling_factor": 1.7,
    "scoring_func": "sqrtsoftplus",
    "sliding_window": 9,
    "swiglu_limit": 0.7,
}
MODELS = {
    # Entries of eight positions that all rows attend to, and of four with those before, of which an
    # indexer of eight heads selects five; a window of nine positions between, and YaRN without its factor.
    "deepseek_v4": {
        **SHARED,
        "seed": 111,
        "gguf": False,
        "f32": F32,
        "scale": {"_hc.scale": 1.6, "position_bias": 6.0, "sinks": 2.0},
        "prepare": fill_tables,
        "after_save": publish,
        "without": COMPRESSED_UNDONE,
        "config": {
            **CONFIG,
            "compress_rates": {
                "compressed_sparse_attention": 4,
                "heavily_compressed_attention": 8,
            },
            "compress_rope_theta": 400.0,
            "hc_mult": 2,
            "index_head_dim": 14,
            "index_n_heads": 8,
            "index_topk": 5,
            "layer_types": [
                "heavily_compressed_attention",
                "compressed_sparse_attention",
                WINDOWS,
                "compressed_sparse_attention",
            ],
            "num_hash_layers": 1,
            "num_hidden_layers": 4,
            "qk_rope_head_dim": 8,
            "rope_scaling": YARN,
            "rope_theta": 100.0,
        },
    },
    # Windows in all layers; three streams, heads of which the last eight elements are rotated, two groups
    # of two heads, and experts by token in the first layer. Fields and tensors as published.
    "deepseek_v4_windows": {
        **SHARED,
        "seed": 110,
        "gguf": False,
        "f32": F32,
        "scale": {"_hc.scale": 1.6},
        "prepare": fill_tables,
        "after_save": publish,
        "without": {**UNDONE, "windows": {"sliding_window": 128}},
        "config": {
            **CONFIG,
            "compress_ratios": [0, 0, 0],
            "compress_rope_theta": 400.0,
            "num_hash_layers": 1,
            "qk_rope_head_dim": 8,
            "rope_theta": 100.0,
        },
    },
}
