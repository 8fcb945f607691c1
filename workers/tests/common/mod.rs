//! Tiny models that the tests of this crate share.

#![allow(dead_code, reason = "each test binary uses a part")]

pub mod placed;

use model::config::{Activation, Family, ModelConfig, Rope, RopeScaling, Scales};
use model::layers::{LayerKind, Layers};

/// A LLaMA with grouped heads.
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
        layers: Layers::alike(LayerKind::dense(Some(Rope::new(10_000.0, RopeScaling::None)))),
        experts: None,
        qkv_bias: true,
        out_bias: false,
        ffn_bias: false,
        tied_embeddings: false,
        qk_norm: None,
        post_norms: false,
        delta: None,
        output_gate: false,
        sinks: false,
        scales: Scales::default(),
        bos_token_id: None,
        eos_token_ids: vec![],
    }
}

/// An OPT with as many KV heads as heads.
pub fn opt() -> ModelConfig {
    ModelConfig {
        name: "tiny-opt".to_owned(),
        family: Family::Opt,
        num_heads: 3,
        num_kv_heads: 3,
        activation: Activation::Relu,
        learned_positions: Some(2),
        layers: Layers::alike(LayerKind::dense(None)),
        experts: None,
        out_bias: true,
        ffn_bias: true,
        tied_embeddings: true,
        ..llama()
    }
}
