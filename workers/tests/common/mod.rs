//! Tiny models shared by the tests of this crate.

#![allow(dead_code, reason = "each test binary uses a part")]

pub mod placed;
pub mod served;

use model::config::{Activation, Family, Features, ModelConfig, QkNorm, Rope, RopeScaling, Scales};
use model::delta::{DeltaNet, StateDecay};
use model::experts::{ExpertScoring, Experts};
use model::latent::LatentAttention;
use model::layers::{ActivationLimits, FeedForward, LayerKind, LayerSizes, Layers};
use model::mamba::Mamba;

/// Returns a LLaMA with grouped heads.
pub fn llama() -> ModelConfig {
    ModelConfig {
        name: "tiny-llama".to_owned(),
        family: Family::Llama,
        num_layers: 2,
        hidden_size: 24,
        num_heads: 6,
        num_kv_heads: 2,
        head_dim: 8,
        ffn_size: 40,
        vocab_size: 61,
        max_positions: 64,
        norm_eps: 1e-5,
        activation: Activation::Silu,
        learned_positions: None,
        layers: Layers::uniform(LayerKind::dense(Some(Rope::new(10_000.0, RopeScaling::None)))),
        experts: None,
        qkv_bias: true,
        out_bias: false,
        ffn_bias: false,
        tied_embeddings: false,
        qk_norm: None,
        pre_norms: true,
        post_norms: false,
        delta: None,
        latent: None,
        mamba: None,
        features: Features::default(),
        output_gate: false,
        sinks: false,
        scales: Scales::default(),
        bos_token_id: None,
        eos_token_ids: vec![],
    }
}

/// Returns an OPT with as many KV heads as heads.
pub fn opt() -> ModelConfig {
    ModelConfig {
        name: "tiny-opt".to_owned(),
        family: Family::Opt,
        num_heads: 3,
        num_kv_heads: 3,
        activation: Activation::Relu,
        learned_positions: Some(2),
        layers: Layers::uniform(LayerKind::dense(None)),
        experts: None,
        out_bias: true,
        ffn_bias: true,
        tied_embeddings: true,
        ..llama()
    }
}

/// Returns a Qwen3.5 with a layer that has a state, and one that attends, with a gate.
pub fn delta() -> ModelConfig {
    let attending = LayerKind::dense(Some(Rope::new(10_000.0, RopeScaling::None)));
    ModelConfig {
        name: "tiny-delta".to_owned(),
        family: Family::Qwen35,
        layers: Layers::from_kinds([LayerKind::delta(FeedForward::Dense), attending]),
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
        qkv_bias: false,
        ..llama()
    }
}

/// Returns a Kimi Linear with a layer that has a state that decays by channel, and one with latent
/// attention.
pub fn channel_delta() -> ModelConfig {
    let latent = LatentAttention {
        q_rank: None,
        kv_rank: 12,
        nope_dim: 6,
        rope_dim: 4,
        value_dim: 10,
        rotates_neighbours: true,
    };
    let decay = StateDecay::PerChannel { rank: 5 };
    let kinds = [LayerKind::delta(FeedForward::Dense), LayerKind::dense(None)];
    ModelConfig {
        name: "tiny-channel-delta".to_owned(),
        family: Family::KimiLinear,
        layers: Layers::from_kinds(kinds),
        delta: delta().delta.map(|net| DeltaNet { decay, ..net }),
        num_kv_heads: 1,
        head_dim: latent.key_dim(),
        latent: Some(latent),
        qkv_bias: false,
        ..llama()
    }
}

/// Returns a Step 3.5 with a layer that attends to all positions, and one with a window, more heads
/// of q and a limit of its activations. Both have a gate for each head.
pub fn step() -> ModelConfig {
    let model = llama();
    let attending = model.layers.kind(0).clone();
    let windowed = LayerKind {
        window: Some(5),
        sizes: Some(LayerSizes { num_heads: Some(10), ..model.sizes() }),
        limits: ActivationLimits { experts: None, network: Some(0.25) },
        ..attending.clone()
    };
    ModelConfig {
        name: "tiny-step".to_owned(),
        family: Family::Step3p5,
        layers: Layers::from_kinds([attending, windowed]),
        qk_norm: Some(QkNorm::PerHead),
        output_gate: true,
        features: Features { gates_heads: true, ..Features::default() },
        qkv_bias: false,
        ..model
    }
    .with_kind_models()
}

/// Returns an LFM2 with a layer that has a short convolution, and one that attends.
pub fn convolving() -> ModelConfig {
    let attending = LayerKind::dense(Some(Rope::new(10_000.0, RopeScaling::None)));
    ModelConfig {
        name: "tiny-lfm2".to_owned(),
        family: Family::Lfm2,
        layers: Layers::from_kinds([LayerKind::short_conv(3), attending]),
        qk_norm: Some(QkNorm::PerHead),
        qkv_bias: false,
        ..llama()
    }
}

/// Returns a Granite 4 with a layer that has Mamba2, and one that attends.
pub fn mamba() -> ModelConfig {
    ModelConfig {
        name: "tiny-granite4".to_owned(),
        family: Family::GraniteHybrid,
        layers: Layers::from_kinds([LayerKind::mamba(FeedForward::Dense), LayerKind::dense(None)]),
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
        qkv_bias: false,
        ..llama()
    }
}

/// Returns a Qwen3.5 with experts, one of which is shared by all rows.
pub fn delta_experts() -> ModelConfig {
    let config = delta();
    let with_experts =
        |kind: &LayerKind| LayerKind { feed_forward: FeedForward::SharedExpert, ..kind.clone() };
    let kinds = [0, 1].map(|layer| with_experts(config.layers.kind(layer)));
    let scoring = ExpertScoring::SoftmaxTopK { renormalise: true };
    ModelConfig {
        family: Family::Qwen35Moe,
        layers: Layers::from_kinds(kinds),
        experts: Some(Experts::new(5, 2, 16, scoring)),
        ..config
    }
}
