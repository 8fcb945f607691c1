//! Names of architectures in files, and the differences between families.

use super::super::facts::TensorFacts;
use super::super::metadata::{MetadataArray, MetadataValue};
use super::keys::{ConfigError, Keys, wrong};
use super::rope::local_rotary_dim;
use super::{experts, states};
use crate::architecture::missing_features;
use crate::config::{Family, QkNorm, Rope, RopeScaling, Scales};
use crate::family::{FamilyDescription, GgufFamily, description, descriptions};
use crate::layers::{FeedForward, LayerKind, Layers, TokenMixer};

/// Default rope base of Gemma's layers with a window.
const GEMMA3_LOCAL_THETA: f64 = 1e4;
/// Interval of Gemma's layers without a window.
const GEMMA3_PATTERN: usize = 6;
/// Number of layers of Gemma 3 27B, which scales attention scores by a different size than the
/// others.
const GEMMA3_27B_LAYERS: usize = 62;
/// Interval of gpt-oss's layers without a window.
const GPT_OSS_PATTERN: usize = 2;
/// Interval of SmolLM3's layers without rotation.
const SMOLLM3_INTERVAL: usize = 4;

/// Returns the family of a file. A name that is also used with experts is of the family without
/// them: Mixtral's files use llama's name, and have experts. DeepSeek V3's files use V2's name, and
/// have another router.
///
/// # Errors
/// An architecture that is not supported.
pub(super) fn family(keys: &Keys<'_>, facts: &TensorFacts) -> Result<Family, ConfigError> {
    let is_named =
        |description: &FamilyDescription| description.gguf.names.contains(&keys.architecture);
    let known = descriptions().find(|(_, description)| is_named(description));
    match known {
        Some((Family::Llama | Family::Mistral, _))
            if keys.size_or_none("expert_count")?.is_some() =>
        {
            Ok(Family::Mixtral)
        }
        Some((Family::DeepseekV2, _)) if experts::has_sigmoid_router(keys, facts)? => {
            Ok(Family::DeepseekV3)
        }
        Some((family, _)) => Ok(family),
        None => {
            let mut names: Vec<&str> = descriptions()
                .flat_map(|(_, description)| description.gguf.names)
                .copied()
                .collect();
            names.sort_unstable();
            Err(ConfigError::Architecture {
                name: keys.architecture.chars().take(60).collect(),
                lacking: missing_features(keys.architecture),
                supported: names.join(", "),
            })
        }
    }
}

/// Returns the norm of q and k.
pub(super) fn qk_norm(gguf: &GgufFamily, facts: &TensorFacts) -> Option<QkNorm> {
    gguf.qk_norm.filter(|_| !gguf.qk_norm_is_optional || facts.has_q_norm)
}

/// Returns the kinds of `count` layers. Layers without a window rotate by `rope`.
///
/// # Errors
/// A rope for layers with windows that the family does not support, or an invalid pattern of
/// windows.
pub(super) fn layers(
    keys: &Keys<'_>,
    family: Family,
    count: usize,
    rope: &Rope,
    feed_forward: &dyn Fn(usize) -> FeedForward,
) -> Result<Layers, ConfigError> {
    let window = keys.size_or_none("attention.sliding_window")?;
    let windowed = windowed_layers(keys, family, count)?;
    let local = local_rope(keys, family, rope)?;
    let rotates = rotating_layers(keys, family)?;
    let attends = states::attending_layers(keys, family, count)?;
    let taps = states::convolution_taps(keys, family)?;
    let has_mamba = description(family).gguf.has_mamba;
    let kind = |layer: usize| {
        if !attends[layer] {
            let feed_forward = feed_forward(layer);
            return match taps {
                Some(taps) => LayerKind { feed_forward, ..LayerKind::short_conv(taps) },
                None if has_mamba => LayerKind::mamba(feed_forward),
                None => LayerKind::delta(feed_forward),
            };
        }
        let window = window.filter(|_| windowed(layer));
        let rope = if window.is_some() { &local } else { rope };
        let (mixing, rope) = (TokenMixer::Attention, rotates(layer).then(|| rope.clone()));
        let attending = LayerKind { mixing, window, ..LayerKind::dense(rope) };
        LayerKind { feed_forward: feed_forward(layer), ..attending }
    };
    Ok(Layers::from_kinds((0..count).map(kind)))
}

/// Returns a function that is true for the layers that have a window, provided that the model has
/// windows.
fn windowed_layers(
    keys: &Keys<'_>,
    family: Family,
    count: usize,
) -> Result<impl Fn(usize) -> bool, ConfigError> {
    let suffix = "attention.sliding_window_pattern";
    let key = keys.key(suffix);
    let (flags, pattern) = match keys.metadata.value(&key) {
        Some(MetadataValue::Array(MetadataArray::Bools(flags))) if flags.len() >= count => {
            (Some(flags), None)
        }
        Some(MetadataValue::Array(array)) => {
            return Err(wrong(key, array.len(), "a flag for each layer"));
        }
        _ => (None, keys.size(suffix)?),
    };
    let of_family = match family {
        Family::Gemma3 => Some(GEMMA3_PATTERN),
        Family::GptOss => Some(GPT_OSS_PATTERN),
        _ => None,
    };
    let flags = flags.cloned();
    let pattern = pattern.or(of_family);
    Ok(move |layer: usize| match &flags {
        Some(flags) => flags[layer],
        None => pattern.is_none_or(|pattern| !(layer + 1).is_multiple_of(pattern)),
    })
}

/// Returns the rope of layers with a window.
fn local_rope(keys: &Keys<'_>, family: Family, rope: &Rope) -> Result<Rope, ConfigError> {
    let suffix = "rope.freq_base_swa";
    match keys.positive(suffix)? {
        theta if matches!(family, Family::Gemma3 | Family::Gemma4) => {
            Ok(Rope::new(theta.unwrap_or(GEMMA3_LOCAL_THETA), RopeScaling::None))
        }
        theta if description(family).gguf.has_layer_heads => {
            let rotary_dim = local_rotary_dim(keys)?;
            let theta = theta.unwrap_or(rope.theta);
            Ok(Rope { rotary_dim, ..Rope::new(theta, RopeScaling::None) })
        }
        // OLMo 3, whose scaling applies to the layers without a window.
        None if family == Family::Olmo2 => Ok(Rope::new(rope.theta, RopeScaling::None)),
        Some(theta) if theta != rope.theta => {
            Err(wrong(keys.key(suffix), theta, "the base of the other layers"))
        }
        _ => Ok(rope.clone()),
    }
}

fn is_granite(family: Family) -> bool {
    matches!(family, Family::Granite | Family::GraniteHybrid | Family::GraniteMoe)
}

/// Returns a function that is true for the layers that rotate q and k. Granite's files contain a
/// flag for all layers, under a key with another meaning in other families.
fn rotating_layers(keys: &Keys<'_>, family: Family) -> Result<impl Fn(usize) -> bool, ConfigError> {
    let granite = is_granite(family);
    let flag = keys.metadata.boolean(&keys.key("rope.scaling.finetuned"))?;
    let any = !granite || flag.unwrap_or(true);
    Ok(move |layer: usize| match family {
        Family::SmolLm3 => !(layer + 1).is_multiple_of(SMOLLM3_INTERVAL),
        Family::KimiLinear => false,
        _ => any,
    })
}

/// Returns the factors of a model of `layers` layers with `heads` heads and a hidden state of
/// `hidden` elements.
///
/// # Errors
/// A factor that the family does not support.
pub(super) fn scales(
    keys: &Keys<'_>,
    family: Family,
    layers: usize,
    hidden: usize,
    heads: usize,
) -> Result<Scales, ConfigError> {
    let granite = is_granite(family);
    let factor = |suffix: &str| -> Result<f32, ConfigError> {
        match keys.positive_or_none(suffix)? {
            Some(factor) if factor != 1.0 && !granite => {
                Err(wrong(keys.key(suffix), factor, "1, as in this architecture,"))
            }
            factor => Ok(factor.unwrap_or(1.0) as f32),
        }
    };
    let embedding = factor("embedding_scale")?;
    let gemma_27b = family == Family::Gemma3 && layers == GEMMA3_27B_LAYERS;
    let default = gemma_27b.then(|| (hidden as f64 / heads as f64).powf(-0.5) as f32);
    let declared = keys.positive_or_none("attention.scale")?;
    Ok(Scales {
        embedding: if family == Family::Gemma3 { (hidden as f32).sqrt() } else { embedding },
        attention: declared.map(|scale| scale as f32).or(default),
        residual: factor("residual_scale")?,
        logits: 1.0 / factor("logit_scale")?,
    })
}
