//! Description of a family: what is specific to its files, in terms of kinds that others share.

use super::tensors::Layouts;
use crate::config::{Activation, ModelConfig, QkNorm};
use crate::config_fields::{ConfigError, ConfigFields};
use crate::experts::{ExcludedExperts, ExpertScoring, GroupScore};
use crate::layers::FeedForward;
use crate::ops::Op;
use crate::source::{TensorId, TensorPart};

/// Everything that is specific to a family.
#[derive(Debug)]
pub(crate) struct FamilyDescription {
    /// Architectures in `config.json`, of which a multimodal one may be the second.
    pub(crate) architectures: &'static [Architecture],
    /// Returns the possible layouts of a tensor in safetensors files, the usual one first.
    pub(crate) layouts: fn(&ModelConfig, TensorId) -> Layouts,
    /// Text models of the family are also published as a part of multimodal ones.
    pub(crate) is_multimodal: bool,
    /// Returns true if the gains of an operation are stored less 1.
    pub(crate) lacks_one: fn(Op) -> bool,
    /// GGUF files of the family.
    pub(crate) gguf: GgufFamily,
}

/// An architecture in `config.json`.
#[derive(Debug)]
pub(crate) struct Architecture {
    /// Value in `architectures`.
    pub(crate) name: &'static str,
    pub(crate) model_type: &'static str,
    /// Parses the fields of a model with the given name.
    pub(crate) config: fn(&str, &ConfigFields<'_>) -> Result<ModelConfig, ConfigError>,
}

/// GGUF files of a family.
#[derive(Debug)]
pub(crate) struct GgufFamily {
    /// Values of `general.architecture`; none if no file of the family can be read, or if the
    /// family is recognised by other keys.
    pub(crate) names: &'static [&'static str],
    pub(crate) activation: Activation,
    pub(crate) qk_norm: Option<QkNorm>,
    /// Models without the tensors of the norms of q and k have none.
    pub(crate) qk_norm_is_optional: bool,
    /// Each half of a layer has a norm before it.
    pub(crate) has_pre_norms: bool,
    /// Each half of a layer has a norm after it.
    pub(crate) has_post_norms: bool,
    /// Rows of q and k are stored in the order of a rope that rotates neighbours.
    pub(crate) rotates_neighbours: bool,
    /// The first elements of a head alone may be rotated.
    pub(crate) can_rotate_part: bool,
    /// Layers have latent attention.
    pub(crate) has_latent_attention: bool,
    /// Layers have indexers, whose rotated rows are stored in the order of a rope that rotates
    /// neighbours.
    pub(crate) has_indexers: bool,
    /// Queries may be multiplied by a factor of their position.
    pub(crate) has_temperature: bool,
    /// Layers without heads of k and v have a short convolution.
    pub(crate) has_short_convolutions: bool,
    /// Layers that do not attend have Mamba2.
    pub(crate) has_mamba: bool,
    /// Layers without heads of k and v have a state that decays by channel.
    pub(crate) has_channel_decay: bool,
    /// A block of the file is a single mixer. Networks and experts are the second halves of the
    /// layers of the blocks before them.
    pub(crate) has_single_mixers: bool,
    /// Layers differ in the sizes of their heads and networks, and may share caches.
    pub(crate) has_layer_sizes: bool,
    /// Attention's output has a gate for each head.
    pub(crate) gates_heads: bool,
    /// Layers differ in the number of their heads and in the limits of their activations, and those
    /// without a window rotate half of what others do.
    pub(crate) has_layer_heads: bool,
    /// Experts of the family; `None` for dense families.
    pub(crate) experts: Option<GgufExperts>,
    /// Models without a number of experts are dense.
    pub(crate) experts_are_optional: bool,
    /// Keys that are read in files of this family, and whose values must be neutral in others.
    pub(crate) keys: &'static [&'static str],
    /// Returns the name of a tensor within a layer if it differs from other families'. A name with
    /// a dot includes the ending, which is `weight` or `bias` for others.
    pub(crate) stem: fn(Op, TensorPart) -> Option<&'static str>,
}

/// Experts in GGUF files of a family.
#[derive(Debug)]
pub(crate) struct GgufExperts {
    pub(crate) scoring: ExpertScoring,
    /// The router and the three linears of an expert have biases.
    pub(crate) bias: bool,
    /// The router adds a number to the score of each expert for the selection.
    pub(crate) selection_bias: bool,
    /// The router's matrix is kept in f32.
    pub(crate) is_f32: bool,
    /// Rules for groups of experts, if a file has some.
    pub(crate) group_score: GroupScore,
    pub(crate) excluded: ExcludedExperts,
    /// Second half of the layers with experts.
    pub(crate) feed_forward: FeedForward,
}

impl GgufFamily {
    /// Files that cannot be read, or are recognised by other keys than their architecture.
    pub(crate) const NONE: GgufFamily = GgufFamily::named(&[]);

    /// Returns a description of files like LLaMA's, but whose rows are in the model's order.
    pub(crate) const fn named(names: &'static [&'static str]) -> GgufFamily {
        GgufFamily {
            names,
            activation: Activation::Silu,
            qk_norm: None,
            qk_norm_is_optional: false,
            has_pre_norms: true,
            has_post_norms: false,
            rotates_neighbours: false,
            can_rotate_part: false,
            has_latent_attention: false,
            has_indexers: false,
            has_temperature: false,
            has_short_convolutions: false,
            has_mamba: false,
            has_channel_decay: false,
            has_single_mixers: false,
            has_layer_sizes: false,
            gates_heads: false,
            has_layer_heads: false,
            experts: None,
            experts_are_optional: false,
            keys: &[],
            stem: |_, _| None,
        }
    }

    /// Returns true if the key is read in files of this family.
    pub(crate) fn reads(&self, suffix: &str) -> bool {
        self.keys.contains(&suffix)
    }
}

impl GgufExperts {
    /// Returns experts without biases or a shared expert.
    pub(crate) const fn scored(scoring: ExpertScoring) -> GgufExperts {
        GgufExperts {
            scoring,
            bias: false,
            selection_bias: false,
            is_f32: false,
            group_score: GroupScore::SumOfTwo,
            excluded: ExcludedExperts::Ineligible,
            feed_forward: FeedForward::Experts,
        }
    }

    /// Returns experts that are selected by their scores plus a bias, by a router in f32.
    pub(crate) const fn biased(scoring: ExpertScoring) -> GgufExperts {
        GgufExperts { selection_bias: true, is_f32: true, ..GgufExperts::scored(scoring) }
    }
}

impl FamilyDescription {
    /// Returns a description of a text model whose gains are stored as they are used.
    pub(crate) const fn new(
        architectures: &'static [Architecture],
        layouts: fn(&ModelConfig, TensorId) -> Layouts,
        gguf: GgufFamily,
    ) -> FamilyDescription {
        FamilyDescription {
            architectures,
            layouts,
            is_multimodal: false,
            lacks_one: |_| false,
            gguf,
        }
    }
}
