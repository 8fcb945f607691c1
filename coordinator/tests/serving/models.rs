//! Tiny models whose layers overwrite what they keep of a sequence.

use model::config::{Activation, Family, Features, ModelConfig, QkNorm, Rope, RopeScaling};
use model::delta::{DeltaNet, StateDecay};
use model::experts::{ExpertScoring, Experts};
use model::known::find_known;
use model::latent::LatentAttention;
use model::layers::{ActivationLimits, FeedForward, LayerKind, LayerSizes, Layers};
use model::mamba::Mamba;

fn attending() -> LayerKind {
    LayerKind::dense(Some(Rope::new(10_000.0, RopeScaling::None)))
}

fn windowed(window: usize) -> LayerKind {
    LayerKind { window: Some(window), ..attending() }
}

fn llama() -> ModelConfig {
    ModelConfig {
        name: "tiny-llama".to_owned(),
        num_layers: 3,
        hidden_size: 24,
        num_heads: 6,
        num_kv_heads: 2,
        head_dim: 8,
        ffn_size: 40,
        vocab_size: 200,
        max_positions: 8192,
        layers: Layers::uniform(attending()),
        tied_embeddings: false,
        bos_token_id: None,
        eos_token_ids: vec![],
        ..find_known("smollm2-135m").expect("it is known").config
    }
}

/// Returns a Gemma 3: most layers have a window.
pub fn gemma() -> ModelConfig {
    ModelConfig {
        name: "tiny-gemma3".to_owned(),
        family: Family::Gemma3,
        activation: Activation::GeluTanh,
        layers: Layers::from_kinds([windowed(40), attending(), windowed(40)]),
        qk_norm: Some(QkNorm::PerHead),
        post_norms: true,
        ..llama()
    }
}

/// Returns a gpt-oss: a window in every other layer, sinks and experts.
pub fn gpt_oss() -> ModelConfig {
    let scoring = ExpertScoring::TopKSoftmax;
    let with_experts = |kind| LayerKind { feed_forward: FeedForward::Experts, ..kind };
    ModelConfig {
        name: "tiny-gpt-oss".to_owned(),
        family: Family::GptOss,
        num_layers: 2,
        activation: Activation::ClampedSwiGlu,
        layers: Layers::from_kinds([windowed(24), attending()].map(with_experts)),
        experts: Some(Experts::new(5, 2, 16, scoring)),
        sinks: true,
        ..llama()
    }
}

/// Returns a Qwen3.5: a recurrent state in most layers.
pub fn qwen35() -> ModelConfig {
    let delta = LayerKind::delta(FeedForward::Dense);
    ModelConfig {
        name: "tiny-qwen3.5".to_owned(),
        family: Family::Qwen35,
        layers: Layers::from_kinds([delta.clone(), delta, attending()]),
        delta: Some(DeltaNet {
            key_heads: 2,
            value_heads: 4,
            takes_turns: false,
            key_dim: 6,
            value_dim: 10,
            taps: 4,
            decay: StateDecay::PerHead,
        }),
        output_gate: true,
        qk_norm: Some(QkNorm::PerHead),
        ..llama()
    }
}

/// Returns a Kimi Linear: states that decay by channel, and latent attention.
pub fn kimi_linear() -> ModelConfig {
    let latent = LatentAttention {
        q_rank: None,
        kv_rank: 12,
        nope_dim: 6,
        rope_dim: 4,
        value_dim: 10,
        rotates_neighbours: true,
    };
    let delta = LayerKind::delta(FeedForward::Dense);
    let decay = StateDecay::PerChannel { rank: 5 };
    ModelConfig {
        name: "tiny-kimi-linear".to_owned(),
        family: Family::KimiLinear,
        layers: Layers::from_kinds([delta.clone(), delta, LayerKind::dense(None)]),
        delta: qwen35().delta.map(|net| DeltaNet { decay, ..net }),
        num_kv_heads: 1,
        head_dim: latent.key_dim(),
        latent: Some(latent),
        ..llama()
    }
}

/// Returns a Qwen3-Next: states, and experts, one of which is shared by all rows.
pub fn qwen_next() -> ModelConfig {
    let config = qwen35();
    let with_experts =
        |kind: &LayerKind| LayerKind { feed_forward: FeedForward::SharedExpert, ..kind.clone() };
    let kinds = [0, 1, 2].map(|layer| with_experts(config.layers.kind(layer)));
    let scoring = ExpertScoring::SoftmaxTopK { renormalise: true };
    ModelConfig {
        family: Family::Qwen35Moe,
        layers: Layers::from_kinds(kinds),
        experts: Some(Experts::new(5, 2, 16, scoring)),
        ..config
    }
}

/// Returns an LFM2: short convolutions.
pub fn lfm2() -> ModelConfig {
    let convolving = LayerKind::short_conv(3);
    ModelConfig {
        name: "tiny-lfm2".to_owned(),
        family: Family::Lfm2,
        layers: Layers::from_kinds([convolving.clone(), attending(), convolving]),
        qk_norm: Some(QkNorm::PerHead),
        ..llama()
    }
}

/// Returns a Granite 4: Mamba2 in most layers.
pub fn granite() -> ModelConfig {
    let mamba = LayerKind::mamba(FeedForward::Dense);
    ModelConfig {
        name: "tiny-granite4".to_owned(),
        family: Family::GraniteHybrid,
        layers: Layers::from_kinds([mamba.clone(), mamba, LayerKind::dense(None)]),
        mamba: Some(Mamba {
            heads: 4,
            head_dim: 10,
            groups: 2,
            state_dim: 6,
            taps: 4,
            conv_bias: true,
            min_step: 0.0,
            max_step: None,
        }),
        ..llama()
    }
}

/// Returns a Step 3.5: windows in which queries have more heads, a gate for each head, and a limit
/// of the activations of a layer.
pub fn step() -> ModelConfig {
    let model = llama();
    let sizes = Some(LayerSizes { num_heads: Some(10), ..model.sizes() });
    let limits = ActivationLimits { experts: None, network: Some(0.5) };
    let local = LayerKind { sizes, ..windowed(24) };
    let kinds = [attending(), local.clone(), LayerKind { limits, ..local }];
    ModelConfig {
        name: "tiny-step".to_owned(),
        family: Family::Step3p5,
        layers: Layers::from_kinds(kinds),
        output_gate: true,
        qk_norm: Some(QkNorm::PerHead),
        features: Features { gates_heads: true, ..Features::default() },
        ..model
    }
    .with_kind_models()
}

/// Returns all of them.
pub fn all() -> Vec<ModelConfig> {
    vec![gemma(), gpt_oss(), qwen35(), kimi_linear(), qwen_next(), lfm2(), granite(), step()]
}
