//! Description of a model, independent of its file format: sizes, family, positions and token ids.
//!
//! A [`ModelConfig`] is created by `config_json` (Hugging Face `config.json`), by `source::gguf`,
//! or by `known` (an architecture by name), and never changes afterwards except by
//! [`ModelConfig::keep_layers`].

use std::fmt::{Debug, Formatter};

use serde::{Deserialize, Serialize};

use crate::delta::DeltaNet;
use crate::experts::Experts;
pub use crate::features::{Features, PerLayerInputs};
use crate::indexer::PositionSelection;
use crate::latent::LatentAttention;
use crate::layers::{
    CacheSharing, ExpertRouting, FeedForward, LayerKind, LayerSizes, Layers, TokenMixer,
};
use crate::mamba::Mamba;
use crate::ops::Kv;
pub use crate::rope::{Rope, RopeScaling};
use crate::short_conv::ShortConv;

/// Number format of weights, activations that cross a cut, and the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// bf16 storage with f32 accumulation (the default).
    Bf16,
    /// f32 everywhere, for verification.
    F32,
}

impl Dtype {
    /// Returns the number of bytes of one element.
    pub const fn size_bytes(self) -> usize {
        match self {
            Dtype::Bf16 => 2,
            Dtype::F32 => 4,
        }
    }

    /// Returns the name used on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::Bf16 => "bf16",
            Dtype::F32 => "f32",
        }
    }
}

macro_rules! define_family {
    ($($family:ident => $module:ident::$constant:ident,)*) => {
        /// Decoder families, each with its own file under `model/src/family/`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub enum Family {
            $($family,)*
        }
    };
}
for_each_family!(define_family);

/// Function between the two halves of the feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// OPT: `relu(x)`.
    Relu,
    /// OPT variants: GELU computed with erf.
    Gelu,
    /// Nemotron: `relu(x)²`.
    ReluSquared,
    /// LLaMA family: `silu(gate) * up`.
    Silu,
    /// Gemma: `gelu(gate) * up` with the tanh approximation of GELU.
    GeluTanh,
    /// gpt-oss: `(up + 1) * gate * sigmoid(1.702 * gate)`, with the gate clamped to at most 7 and
    /// up to between -7 and 7.
    ClampedSwiGlu,
    /// DeepSeek V4: `silu(gate) * up`, with the gate at most a limit and up between it and its
    /// negative. The limits are those of layers.
    SiluOfLimited,
}

impl Activation {
    /// Returns true if the function multiplies two linears of the network (`Gate` and `Up`).
    pub const fn is_gated(self) -> bool {
        !matches!(self, Activation::Relu | Activation::Gelu | Activation::ReluSquared)
    }
}

/// Range of elements that the norm of q and k covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QkNorm {
    /// Each head separately, all with the same gain `[head_dim]`.
    PerHead,
    /// All heads together, with a gain `[heads * head_dim]`.
    FullWidth,
}

/// Scaling factors of a model, by default those without effect.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Scales {
    /// Factor of the embedding.
    pub embedding: f32,
    /// Factor of attention scores; `None` for `1 / sqrt(head_dim)`.
    pub attention: Option<f32>,
    /// Factor of the output that each half of a layer adds to the residual stream.
    pub residual: f32,
    /// Factor of logits.
    pub logits: f32,
}

impl Default for Scales {
    fn default() -> Scales {
        Scales { embedding: 1.0, attention: None, residual: 1.0, logits: 1.0 }
    }
}

/// Complete description of a decoder-only transformer.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Name in reports: directory name, repository id or known name.
    pub name: String,
    pub family: Family,
    pub num_layers: usize,
    pub hidden_size: usize,
    pub num_heads: usize,
    /// Divisor of `num_heads`; smaller than it under GQA, 1 under MQA.
    pub num_kv_heads: usize,
    /// Even number, not always `hidden_size / num_heads`.
    pub head_dim: usize,
    pub ffn_size: usize,
    pub vocab_size: usize,
    /// Number of positions that the model supports: prompt + output never exceeds it.
    pub max_positions: usize,
    pub norm_eps: f32,
    pub activation: Activation,
    /// Number of rows before position 0 in the table of learned positions (OPT: 2), which is added
    /// to the embedding; `None` without such a table.
    pub learned_positions: Option<usize>,
    pub layers: Layers,
    /// Experts of the layers that have them.
    pub experts: Option<Experts>,
    /// State sizes of the layers that keep a recurrent state.
    pub delta: Option<DeltaNet>,
    /// State sizes of the layers with Mamba2.
    pub mamba: Option<Mamba>,
    /// Sizes of latent attention, which all layers with attention then have.
    pub latent: Option<LatentAttention>,
    /// The output of attention is multiplied by the sigmoid of a linear of its input.
    pub output_gate: bool,
    /// q, k and v have biases.
    pub qkv_bias: bool,
    /// The attention output projection has a bias.
    pub out_bias: bool,
    /// The feed-forward linears have biases.
    pub ffn_bias: bool,
    /// The head multiplies by the embedding table.
    pub tied_embeddings: bool,
    /// Norm of q and k before they are rotated; `None` without one.
    pub qk_norm: Option<QkNorm>,
    /// Each half of a layer has a norm before it. Without one, its input is the residual stream.
    pub pre_norms: bool,
    /// Each half of a layer has a norm after it (Gemma, OLMo 2).
    pub post_norms: bool,
    /// The softmax of attention includes an additional logit per head that attends to nothing
    /// (gpt-oss).
    pub sinks: bool,
    pub scales: Scales,
    pub features: Features,
    pub bos_token_id: Option<u32>,
    /// Tokens that end generation; may be empty.
    pub eos_token_ids: Vec<u32>,
}

/// Prints `pre_norms` only if it is false, and `latent`, `mamba` and `features` only if the model
/// has some, since keys of stored data are derived from this text: a field that a model does not
/// use must not change them.
impl Debug for ModelConfig {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        macro_rules! print {
            ($($name:ident),*) => {{
                let ModelConfig { $($name,)* pre_norms, latent, mamba, features } = self;
                let mut fields = f.debug_struct("ModelConfig");
                $(fields.field(stringify!($name), $name);)*
                if !pre_norms {
                    fields.field("pre_norms", pre_norms);
                }
                if let Some(latent) = latent {
                    fields.field("latent", latent);
                }
                if let Some(mamba) = mamba {
                    fields.field("mamba", mamba);
                }
                if features.without_prediction() != Features::default() {
                    fields.field("features", features);
                }
                fields.finish()
            }};
        }
        print!(
            name,
            family,
            num_layers,
            hidden_size,
            num_heads,
            num_kv_heads,
            head_dim,
            ffn_size,
            vocab_size,
            max_positions,
            norm_eps,
            activation,
            learned_positions,
            layers,
            experts,
            delta,
            output_gate,
            qkv_bias,
            out_bias,
            ffn_bias,
            tied_embeddings,
            qk_norm,
            post_norms,
            sinks,
            scales,
            bos_token_id,
            eos_token_ids
        )
    }
}

impl ModelConfig {
    /// Derives the model of each kind of layer if kinds differ in sizes or in the keys and values
    /// that they attend to.
    #[must_use]
    pub fn with_kind_models(mut self) -> ModelConfig {
        self.features.kind_models.clear();
        let kinds = self.layers.kinds();
        let differs = |kind: &LayerKind| {
            kind.sizes.is_some()
                || kind.caches != CacheSharing::Own
                || kind.selection == PositionSelection::Shared
                || kind.routing != ExpertRouting::ByScores
                || kind.compression.is_some()
        };
        let of_kind = |kind: &LayerKind| {
            let LayerSizes { num_heads, num_kv_heads, head_dim, ffn_size } =
                kind.sizes.unwrap_or_else(|| self.sizes());
            let num_heads = num_heads.unwrap_or(self.num_heads);
            let layers = Layers::uniform(kind.clone());
            ModelConfig { num_heads, num_kv_heads, head_dim, ffn_size, layers, ..self.clone() }
        };
        if kinds.iter().any(differs) {
            self.features.kind_models = kinds.iter().map(of_kind).collect();
        }
        self
    }

    /// Returns the sizes in which layers may differ.
    pub const fn sizes(&self) -> LayerSizes {
        let ModelConfig { num_kv_heads, head_dim, ffn_size, .. } = *self;
        LayerSizes { num_heads: None, num_kv_heads, head_dim, ffn_size }
    }

    /// Returns the model with the sizes of a layer, in which all layers are of its kind; the model
    /// itself if layers have equal sizes. The operations of the layer are those of this model.
    pub fn of_layer(&self, layer: usize) -> &ModelConfig {
        self.features.kind_models.get(self.layers.kind_index(layer)).unwrap_or(self)
    }

    /// Returns [`ModelConfig::of_layer`], or the model itself outside the layers.
    pub fn at(&self, layer: Option<u16>) -> &ModelConfig {
        layer.map_or(self, |layer| self.of_layer(layer.into()))
    }

    /// Returns [`ModelConfig::of_layer`] of the layers of each kind.
    pub fn kind_models(&self) -> impl Iterator<Item = &ModelConfig> {
        (0..self.layers.kinds().len())
            .map(|kind| self.features.kind_models.get(kind).unwrap_or(self))
    }

    /// Returns true if layers differ in sizes or in the keys and values that they attend to.
    pub fn has_kind_models(&self) -> bool {
        !self.features.kind_models.is_empty()
    }

    /// Returns the largest value of a size over all layers.
    pub fn max_of_layers(&self, size: impl Fn(&ModelConfig) -> usize) -> usize {
        self.kind_models().map(size).max().unwrap_or(0)
    }

    /// Returns the layer whose caches a layer attends to.
    pub fn cache_layer(&self, layer: usize) -> usize {
        let kind = self.layers.kind(layer);
        let is_source = |earlier: &usize| {
            let earlier = self.layers.kind(*earlier);
            earlier.caches == CacheSharing::Source && earlier.window == kind.window
        };
        match kind.caches {
            CacheSharing::Reader => (0..layer).rev().find(is_source).unwrap_or(layer),
            CacheSharing::Own | CacheSharing::Source => layer,
        }
    }

    /// Returns the factor of the embedding in a run with `dtype`.
    pub fn embedding_scale(&self, dtype: Dtype) -> f32 {
        match dtype {
            Dtype::Bf16 if self.features.rounds_embedding_scale => {
                half::bf16::from_f32(self.scales.embedding).to_f32()
            }
            _ => self.scales.embedding,
        }
    }

    /// Returns true if the matrix of keys of a layer is also that of values.
    pub fn computes_values_from_keys(&self, layer: usize) -> bool {
        self.features.values_from_keys && self.layers.kind(layer).window.is_none()
    }

    /// Returns true if experts compute next to a dense network with norms of its own.
    pub fn has_parallel_experts(&self) -> bool {
        let mut kinds = self.layers.kinds().iter();
        kinds.any(|kind| kind.feed_forward == FeedForward::ParallelExperts)
    }

    /// Returns true if the outputs of a layer's halves are added to the residual by operations of
    /// their own.
    pub const fn defers_residual(&self) -> bool {
        self.post_norms || self.features.streams.is_some()
    }

    /// Returns the number of query heads that share one KV head.
    pub fn group_size(&self) -> usize {
        self.num_heads / self.num_kv_heads
    }

    /// Returns the width of the widest network that computes every row of a layer.
    pub fn max_ffn_size(&self) -> usize {
        let of_dense = self.experts.map_or(0, |experts| experts.dense_ffn_size());
        self.max_of_layers(|model| model.ffn_size).max(of_dense)
    }

    /// Returns the size of a head of q and of the attention output, in elements: with latent
    /// attention, that of a query of latents, which an indexer's key may follow in the cache.
    pub fn attention_dim(&self) -> usize {
        self.latent.map_or(self.head_dim, |latent| latent.key_dim())
    }

    /// Returns the width of q and of the attention output, in elements. With latent attention,
    /// these are q in latents and the weighted sums of rotated keys and latents.
    pub fn q_size(&self) -> usize {
        self.num_heads * self.attention_dim()
    }

    /// Returns the number of gates of a row of attention's output, for models that have some.
    pub fn out_gate_size(&self) -> usize {
        if self.features.gates_heads { self.num_heads } else { self.q_size() }
    }

    /// Returns the width of k and of v, in elements.
    pub fn kv_size(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }

    /// Returns the width of a row of what is appended to a cache, in elements.
    pub fn cache_size(&self, kv: Kv) -> usize {
        self.num_kv_heads * self.cache_dim(kv)
    }

    /// Returns the sizes of the layers with a short convolution; `None` if there are none.
    pub fn short_conv(&self) -> Option<ShortConv> {
        let channels = self.hidden_size;
        self.layers.kinds().iter().find_map(|kind| match kind.mixing {
            TokenMixer::ShortConv { taps } => Some(ShortConv { channels, taps }),
            TokenMixer::Attention | TokenMixer::Delta | TokenMixer::Mamba => None,
        })
    }

    /// Returns true if each channel of a state decays by a factor of its own.
    pub fn decays_by_channel(&self) -> bool {
        self.delta.is_some_and(|delta| delta.decay_rank().is_some())
    }

    /// Returns the width of the input of the last linear of attention, in elements.
    pub fn out_input_size(&self) -> usize {
        match (self.latent, self.features.unified_kv) {
            (Some(latent), _) => self.num_heads * latent.value_dim,
            (None, Some(unified)) => unified.out_size(),
            (None, None) => self.q_size(),
        }
    }

    /// Returns true if values are the keys or a part of them, in a single cache.
    pub const fn has_single_cache(&self) -> bool {
        self.latent.is_some() || self.features.unified_kv.is_some()
    }

    /// Returns the size of the latent that queries are computed from; `None` if they are computed
    /// from the layer's input.
    pub fn query_rank(&self) -> Option<usize> {
        let of_latent = self.latent.and_then(|latent| latent.q_rank);
        of_latent.or_else(|| self.features.unified_kv.map(|unified| unified.q_rank))
    }

    /// Returns the number of streams of the residual.
    pub fn stream_count(&self) -> usize {
        self.features.streams.map_or(1, |streams| streams.count)
    }

    /// Returns the width of the residual, in elements.
    pub fn residual_size(&self) -> usize {
        self.stream_count() * self.hidden_size
    }

    /// Returns the caches of a layer: K alone where values are the keys or a part of them, unless
    /// there are compressed entries too, and for a short convolution, whose only state are its last
    /// inputs. A layer that reads the caches of another one has none.
    pub fn layer_caches(&self, layer: usize) -> &'static [Kv] {
        let kind = self.layers.kind(layer);
        if kind.caches == CacheSharing::Reader {
            return &[];
        }
        match kind.mixing {
            TokenMixer::Attention if kind.compression.is_some() => &[Kv::K, Kv::V],
            TokenMixer::Attention if self.has_single_cache() => &[Kv::K],
            TokenMixer::ShortConv { .. } => &[Kv::K],
            TokenMixer::Attention | TokenMixer::Delta | TokenMixer::Mamba => &[Kv::K, Kv::V],
        }
    }

    /// Returns the number of rows in the table of learned positions; 0 if there is none.
    pub fn learned_position_rows(&self) -> usize {
        self.learned_positions.map_or(0, |offset| self.max_positions + offset)
    }

    /// Returns true if layers with experts have a shared expert, which computes every row.
    pub fn has_shared_expert(&self) -> bool {
        let shared = [FeedForward::SharedExpert, FeedForward::UngatedSharedExpert];
        self.layers.kinds().iter().any(|kind| shared.contains(&kind.feed_forward))
    }

    /// Returns true if a gate weighs the output of the shared expert.
    pub fn has_shared_gate(&self) -> bool {
        self.layers.kinds().iter().any(|kind| kind.feed_forward == FeedForward::SharedExpert)
    }

    /// Returns the factor of every attention score.
    pub fn attention_scale(&self) -> f32 {
        self.scales.attention.unwrap_or_else(|| 1.0 / (self.head_dim as f32).sqrt())
    }

    /// Keeps only the first `layers` layers, to run original layers of a large model on a small
    /// machine.
    pub fn keep_layers(&mut self, layers: usize) {
        if layers < self.num_layers {
            // It predicts from the hidden states of the last layer.
            self.features.prediction_layer = None;
        }
        self.num_layers = self.num_layers.min(layers);
        self.layers.truncate(self.num_layers);
        // Models of kinds have all layers of the model that they are derived from.
        *self = self.clone().with_kind_models();
    }

    /// Returns the number of bytes of K and V of one position in one layer with attention.
    pub fn kv_bytes_per_position(&self, dtype: Dtype) -> usize {
        let size = |kv: Kv| self.cache_size(kv) * dtype.size_bytes();
        match (self.compression(), self.has_single_cache()) {
            (Some(compression), _) => size(Kv::K) + size(Kv::V).div_ceil(compression.rate),
            (None, true) => size(Kv::K),
            (None, false) => 2 * size(Kv::K),
        }
    }

    /// Returns the number of bytes of K and V of one position in the caches of all layers. Layers
    /// with a state count as if they attended.
    pub fn cache_bytes_per_position(&self, dtype: Dtype) -> usize {
        let has_caches = |layer: &usize| !self.layer_caches(*layer).is_empty();
        let layers = (0..self.num_layers).filter(has_caches);
        layers.map(|layer| self.of_layer(layer).kv_bytes_per_position(dtype)).sum()
    }
}
