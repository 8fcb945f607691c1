//! Small models with features of newer families: windows, sinks, norms, rope by length, experts.

use model::config::{Activation, Family, ModelConfig, QkNorm, Rope, RopeScaling, Scales};
use model::experts::{ExpertScoring, Experts};
use model::layers::{FeedForward, LayerKind, Layers};

use crate::case::llama;

fn rope() -> Rope {
    Rope::new(10_000.0, RopeScaling::None)
}

fn of_layers(kind: LayerKind) -> ModelConfig {
    ModelConfig { layers: Layers::uniform(kind), ..llama() }
}

/// Returns a model with a window of four positions in the first layer, and no rotation in the
/// second.
pub(crate) fn windowed() -> ModelConfig {
    let first = LayerKind { window: Some(4), ..LayerKind::dense(Some(rope())) };
    let layers = Layers::from_kinds([first, LayerKind::dense(None)]);
    ModelConfig { family: Family::SmolLm3, layers, ..llama() }
}

/// Returns a model with windows in all layers, and sinks.
pub(crate) fn sinks() -> ModelConfig {
    let kind = LayerKind { window: Some(3), ..LayerKind::dense(Some(rope())) };
    ModelConfig { family: Family::GptOss, sinks: true, qkv_bias: true, ..of_layers(kind) }
}

/// Returns a model with norms of q and k.
pub(crate) fn normed_heads(norm: QkNorm) -> ModelConfig {
    ModelConfig { family: Family::Qwen3, qk_norm: Some(norm), ..llama() }
}

/// Returns a model with norms after both halves of a layer, GELU by tanh, two rope bases, and
/// scales.
pub(crate) fn post_normed() -> ModelConfig {
    let local = LayerKind { window: Some(5), ..LayerKind::dense(Some(rope())) };
    let global = LayerKind::dense(Some(Rope::new(1e6, RopeScaling::Linear { factor: 8.0 })));
    ModelConfig {
        family: Family::Gemma3,
        activation: Activation::GeluTanh,
        layers: Layers::from_kinds([local, global]),
        tied_embeddings: true,
        qk_norm: Some(QkNorm::PerHead),
        post_norms: true,
        scales: Scales { embedding: 5.5, attention: Some(0.3), ..Scales::default() },
        ..llama()
    }
}

/// Returns a model in which half of each head is rotated, with other frequencies beyond eleven
/// positions; additions to the residual stream and logits are scaled.
pub(crate) fn longrope() -> ModelConfig {
    let scaling = RopeScaling::Longrope {
        short_factors: vec![1.0, 1.5],
        long_factors: vec![2.0, 40.0],
        original_max_positions: 11,
        attention_factor: 1.2,
    };
    let rope = Rope { rotary_dim: Some(4), ..Rope::new(10.0, scaling) };
    // The tables of a layer kind follow those of the previous kinds.
    let layers =
        Layers::from_kinds([LayerKind::dense(Some(self::rope())), LayerKind::dense(Some(rope))]);
    let scales = Scales { residual: 0.7, logits: 0.4, ..Scales::default() };
    ModelConfig { family: Family::Phi3, layers, scales, ..llama() }
}

/// Returns a model with different rope frequencies for each length beyond six positions.
pub(crate) fn dynamic() -> ModelConfig {
    let scaling = RopeScaling::Dynamic { factor: 4.0, original_max_positions: 6 };
    of_layers(LayerKind::dense(Some(Rope::new(10.0, scaling))))
}

/// Returns a model with experts in all layers, two of which compute each row.
fn experts(scoring: ExpertScoring, bias: bool) -> ModelConfig {
    let kind = LayerKind { feed_forward: FeedForward::Experts, ..LayerKind::dense(Some(rope())) };
    let experts = Experts { bias, ..Experts::new(5, 2, 48, scoring) };
    ModelConfig { family: Family::Mixtral, experts: Some(experts), ..of_layers(kind) }
}

/// Returns a model with experts whose weights are unmodified probabilities.
pub(crate) fn experts_of_all() -> ModelConfig {
    let scoring = ExpertScoring::SoftmaxTopK { renormalise: false };
    ModelConfig { family: Family::Olmoe, ..experts(scoring, false) }
}

/// Returns a model with experts whose weights sum to one, times the residual's factor.
pub(crate) fn experts_renormalised() -> ModelConfig {
    let scales = Scales { residual: 0.22, ..Scales::default() };
    let config = experts(ExpertScoring::SoftmaxTopK { renormalise: true }, false);
    ModelConfig { family: Family::GraniteMoe, scales, ..config }
}

/// Returns a model with experts that have biases and a clamped activation.
pub(crate) fn experts_with_biases() -> ModelConfig {
    ModelConfig {
        family: Family::GptOss,
        activation: Activation::ClampedSwiGlu,
        ..experts(ExpertScoring::TopKSoftmax, true)
    }
}

/// Returns a model with experts as wide as grouped rows and groups require.
pub(crate) fn wide_experts() -> ModelConfig {
    let config = experts_of_all();
    let experts = config.experts.map(|experts| Experts { ffn_size: 64, ..experts });
    ModelConfig { hidden_size: 64, head_dim: 16, ffn_size: 128, experts, ..config }
}
