"""Weights, prompts and answers of the fixtures: what transformers computes from a tiny random model.

An answer is kept where nothing in it is a close call, neither between the best two logits of a step
(MARGIN) nor, in a mixture of experts, between the last expert that a row goes to and the next one
(ROUTER_MARGIN), nor between the last position that an indexer selects and the next one: a runtime that
sums in another order may decide those otherwise."""

import torch
from torch.nn.functional import linear
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import fixtures_indexed
from fixtures_common import MARGIN, greedy, greedy_uncached

PROMPT_LENGTHS = [1, 2, 3, 5, 8, 13, 17, 24, 31, 40]
STEPS = 32
# Fewer different tokens than this in an answer, and it says little about attention.
DISTINCT = 10
ROUTER_MARGIN = 2e-4
# Routers that select groups by softmaxes, and how many of a group's scores make up its own.
SOFTMAX_GROUPS = {"DeepseekV2TopkRouter": 1, "Mistral4TopkRouter": 2}


class Reference:
    """A model that answers greedily.

    With `declared`, rotary factors depend on the length of a sequence, and one set of them holds
    from its first row to its last: the one for all positions it may come to have, prompt + STEPS.
    (transformers itself would change the factors, and all cached keys, in the middle of an answer.)
    """

    def __init__(self, model, declared=False):
        self.model = model.eval()
        self.declared = declared
        self.router_margin = self.index_margin = float("inf")
        fixtures_indexed.watch(model, self._indexed)
        for module in model.modules():
            if type(module).__name__.lower().endswith("topkrouter"):
                module.register_forward_hook(self._routed)
            if type(module).__name__ == "Gemma4TextRouter":
                module.register_forward_hook(self._selected)

    def _routed(self, router, inputs, _):
        weight, bias = router.weight.float(), getattr(router, "bias", None)
        logits = linear(inputs[0].float().flatten(0, -2), weight, bias)
        gap = router_gap(router, logits, inputs[1] if len(inputs) > 1 else None)
        self.router_margin = min(self.router_margin, gap)

    def _indexed(self, gap):
        self.index_margin = min(self.index_margin, gap)

    def _selected(self, router, _, outputs):
        best = outputs[0].log().topk(router.config.top_k_experts + 1).values
        self.router_margin = min(self.router_margin, (best[:, -2] - best[:, -1]).min().item())

    def force_rope(self, positions):
        """Rotary factors for a sequence of so many positions, until this is called again."""
        rotary, config = self.model.model.rotary_emb, self.model.config
        kind = config.rope_parameters["rope_type"]
        rotary.inv_freq, rotary.attention_scaling = ROPE_INIT_FUNCTIONS[kind](
            config, "cpu", seq_len=positions
        )
        # Of this type they are never replaced.
        rotary.rope_type = "default"

    def answer(self, prompt, eos_token_ids=None):
        """As `greedy`; tokens, whether no decision was close, the margin and the first logits."""
        self.router_margin = self.index_margin = float("inf")
        if self.declared:
            self.force_rope(len(prompt) + STEPS)
            tokens, margin, logits = greedy_uncached(self.model, prompt, STEPS, eos_token_ids)
        else:
            tokens, margin, logits = greedy(self.model, prompt, STEPS, eos_token_ids)
        clear = margin > MARGIN and self.router_margin > ROUTER_MARGIN
        clear = clear and self.index_margin > fixtures_indexed.INDEX_MARGIN
        return tokens, clear, margin, logits


def router_gap(router, logits, added):
    """How far the last expert that a row goes to is ahead of the next one, and the last group of
    experts of the next one. `added` is what is added to the scores for the choice, if that is no
    member of the router."""
    statics = getattr(router, "moe_statics", None)
    added = getattr(router if statics is None else statics, "e_score_correction_bias", added)
    if added is not None:
        # DeepSeek V4's routers have the function of their scores.
        score = getattr(router, "score_fn", torch.sigmoid)
        scores = logits.softmax(-1) if statics is not None else score(logits)
        logits = scores + added.squeeze()
    elif type(router).__name__ in SOFTMAX_GROUPS:
        logits = logits.softmax(-1)
    groups = getattr(router, "num_group", 1) or 1
    gap = float("inf")
    if groups > 1:
        apart = logits.unflatten(-1, (groups, -1))
        sums = apart.topk(SOFTMAX_GROUPS.get(type(router).__name__, 2)).values.sum(-1)
        best = sums.topk(router.topk_group + 1)
        gap = (best.values[:, -2] - best.values[:, -1]).min().item()
        apart = apart.clone()
        rest = sums.argsort(descending=True)[:, router.topk_group :]
        apart.scatter_(1, rest[..., None].expand(-1, -1, apart.shape[-1]), float("-inf"))
        logits = apart.flatten(1)
    best = logits.topk(router.top_k + 1).values
    return min(gap, (best[:, -2] - best[:, -1]).min().item())


def randomise(model, generator, spec):
    """Weights large enough that the answer depends on every one of them: attention that is not
    uniform, norm gains away from 1, biases away from 0, blocks that outweigh the embedding (or a
    tied model would only repeat its input).

    `gain_mean` of the spec is what a norm's parameter is around, `scale` multiplies parameters by a
    part of their name, `exact_f16` makes all values representable both as bf16 and as f16, but those
    whose names end as one of `f32`."""
    done = set()
    for name, parameter in model.named_parameters():
        if parameter.data_ptr() in done:
            continue
        done.add(parameter.data_ptr())
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("bias"):
            value = 0.2 * noise
        elif parameter.dim() == 1:
            value = spec.get("gain_mean", 1) + 0.3 * noise
        elif "embed" in name:
            value = 0.3 * noise
        else:
            # Stacks of matrices are [experts, out, in], but [experts, in, out] in gpt-oss.
            fan_in = parameter.shape[1 if "experts_input_first" in spec else -1]
            value = 1.8 * noise / fan_in**0.5
        for part, factor in spec.get("scale", {}).items():
            if part in name:
                value = factor * value
        parameter.data.copy_(value)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(0.2 * torch.randn(buffer.shape, generator=generator))
    # So that some answers meet the EOS: a longer row of the head is the best one more often.
    model.get_output_embeddings().weight.data[2] *= 1.6
    if spec.get("exact_f16"):
        for name, parameter in model.named_parameters():
            if name.endswith(tuple(spec.get("f32", ()))):
                continue
            value = parameter.data.bfloat16().float()
            value[value.half().float() != value] = 0
            parameter.data.copy_(value)


def goldens(reference, spec, vocab_size, generator):
    """Random prompts whose answers vary and are no close calls: golden.json without eos_case."""
    golden = {"prompts": [], "tokens": [], "min_margin": []}
    for length in spec.get("lengths", PROMPT_LENGTHS):
        for _ in range(50):
            prompt = torch.randint(4, vocab_size, (length,), generator=generator).tolist()
            tokens, clear, margin, logits = reference.answer(prompt)
            if clear and len(set(tokens)) >= DISTINCT:
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


def eos_case(reference, eos, golden, vocab_size, generator):
    """A prompt whose answer meets one of `eos` after at least three tokens."""
    for attempt in range(300):
        if attempt < len(golden["prompts"]):
            prompt = golden["prompts"][attempt]
        else:
            prompt = torch.randint(4, vocab_size, (6,), generator=generator).tolist()
        tokens, clear, _, _ = reference.answer(prompt, eos)
        if 4 <= len(tokens) < STEPS and tokens[-1] in eos and clear:
            return {"prompt": prompt, "tokens": tokens[:-1], "eos": tokens[-1], "eos_token_ids": eos}
    raise SystemExit("no prompt meets an EOS early")


def check_uncached(reference, golden):
    """The longest answer, computed without a cache of keys and values, is the same."""
    if not reference.declared:
        tokens, _, _ = greedy_uncached(reference.model, golden["prompts"][-1], STEPS)
        assert tokens == golden["tokens"][-1], "an answer depends on the cache"


def check_traits(name, spec, golden, load):
    """A fixture is worth nothing if a trait of its model could be left out unnoticed. `without` of
    the spec names each trait with what undoes it, other fields of the configuration or a function
    of the model, and most of the answers must then be others."""
    for trait, undo in spec.get("without", {}).items():
        if callable(undo):
            model = load({})
            undo(model)
        else:
            model = load(undo)
        # Nemotron's configurations have no rope.
        rope = getattr(model.config, "rope_parameters", None) or {}
        scaled = rope.get("rope_type", "default") != "default"
        other = Reference(model, spec.get("declared", False) and scaled)
        pairs = list(zip(golden["prompts"], golden["tokens"]))
        changed = sum(other.answer(prompt)[0] != tokens for prompt, tokens in pairs)
        print(f"  {name} without {trait}: {changed} of {len(pairs)} answers change")
        if changed < len(pairs) // 2:
            raise SystemExit(f"{name}: {trait} could be left out unnoticed")
