//! Rotary positions of the layers without a window.

use super::super::facts::RopeFactors;
use super::super::metadata::required;
use super::keys::{ConfigError, Keys, wrong};
use super::latent;
use crate::config::{Family, Rope, RopeScaling};
use crate::family::description;
use crate::rope::{
    AttentionTemperature, YARN_BETA_FAST, YARN_BETA_SLOW, longrope_attention_factor,
    yarn_attention_factor,
};

/// Parameters of LLaMA-3's rope scaling. Conversion writes it as a factor per frequency, computed
/// from `factor` (8 or 32) and, in Meta's published models, these constants.
const LLAMA3_LOW_FREQ_FACTOR: f64 = 1.0;
const LLAMA3_HIGH_FREQ_FACTOR: f64 = 4.0;
const LLAMA3_ORIGINAL_POSITIONS: u32 = 8192;
/// Factor of the logarithm of positions in Mistral Small 4.
const MISTRAL4_BETA: f64 = 0.1;
/// Factor from which a pair is not rotated, of those that files contain for such pairs.
const NOT_ROTATED: f32 = 1e30;
/// Tolerance for comparisons of factors, since those in files are computed in f32 with a division
/// by a small difference.
const ROPE_FACTOR_TOLERANCE: f32 = 1e-3;

/// Returns the rope of a model for `context` positions.
///
/// # Errors
/// An unknown scaling, or missing parameters.
pub(super) fn rope(
    keys: &Keys<'_>,
    family: Family,
    head_dim: usize,
    context: usize,
    factors: &RopeFactors,
) -> Result<Rope, ConfigError> {
    let theta = keys.positive("rope.freq_base")?.unwrap_or(10_000.0);
    let rotary_dim = rotary_dim(keys, family, head_dim)?;
    let dim = rotary_dim.unwrap_or(head_dim);
    let scaling = match (&factors.long, &factors.short, &factors.all) {
        (None, None, None) => scaling_of_keys(keys, family, context)?,
        (Some(long), Some(short), None) => longrope(keys, dim, context, long, short)?,
        (None, None, Some(all)) => {
            let scaling = scaling_of_keys(keys, family, context)?;
            if scaling != RopeScaling::None {
                let kind = keys.metadata.text(&keys.key("rope.scaling.type"))?.unwrap_or("linear");
                return Err(unsupported(&format!("{kind} together with rope_freqs.weight")));
            }
            scaling_of_factors(theta, dim, without_padding(family, dim, all))?
        }
        (_, _, Some(_)) => {
            return Err(unsupported("longrope together with rope_freqs.weight"));
        }
        _ => return Err(unsupported("longrope with only one of its two lists of factors")),
    };
    let temperature = temperature(keys, family, context)?;
    Ok(Rope { rotary_dim, temperature, ..Rope::new(theta, scaling) })
}

/// Returns the factor of queries by their position; `None` without one.
///
/// # Errors
/// An invalid number.
fn temperature(
    keys: &Keys<'_>,
    family: Family,
    context: usize,
) -> Result<Option<AttentionTemperature>, ConfigError> {
    if !description(family).gguf.has_temperature {
        return Ok(None);
    }
    let suffix = "attention.temperature_scale";
    let beta = match keys.metadata.number(&keys.key(suffix))? {
        // Converters leave the key out.
        None if family == Family::Mistral4 => Some(MISTRAL4_BETA),
        // Zero expresses "none".
        _ => keys.positive_or_none(suffix)?,
    };
    let interval = match keys.size("attention.temperature_length")? {
        // The cast is lossless, since sizes are at most 2^24.
        Some(interval) => interval as u32,
        None => original_positions(keys, context)?,
    };
    Ok(beta.map(|beta| AttentionTemperature { beta: shortest(beta), interval }))
}

/// Returns the shortest decimal fraction that is stored as the given f32, for numbers that files
/// contain as f32 and configurations as decimal fractions.
fn shortest(stored: f64) -> f64 {
    let digits = (stored as f32).to_string();
    digits.parse().unwrap_or(stored)
}

/// Returns the number of elements of a head that are rotated; `None` if all are. In files whose
/// rows are not permuted, these are the first elements of the head.
fn rotary_dim(
    keys: &Keys<'_>,
    family: Family,
    head_dim: usize,
) -> Result<Option<usize>, ConfigError> {
    let suffix = "rope.dimension_count";
    if description(family).gguf.has_layer_heads {
        return halved_rotary_dim(keys, head_dim);
    }
    if !description(family).gguf.can_rotate_part {
        keys.same_size(suffix, head_dim, "the size of a head (partial rope is not)")?;
        return Ok(None);
    }
    even_part(keys, suffix, keys.size(suffix)?, head_dim)
}

/// Returns the number of elements of a head that layers without a window rotate, half of those of a
/// file that states the elements of the others.
fn halved_rotary_dim(keys: &Keys<'_>, head_dim: usize) -> Result<Option<usize>, ConfigError> {
    let suffix = "rope.dimension_count";
    let dim = keys.size(suffix)?.unwrap_or(head_dim) / 2;
    even_part(keys, suffix, Some(dim), head_dim)
}

/// Returns the number of elements of a head that layers with a window rotate, where those without
/// one rotate half of them; `None` if all are.
///
/// # Errors
/// A number that is no part of a head.
pub(super) fn local_rotary_dim(keys: &Keys<'_>) -> Result<Option<usize>, ConfigError> {
    let head_dim = keys.required_size("attention.key_length")?;
    let [of_all, own] = ["rope.dimension_count", "rope.dimension_count_swa"];
    match keys.size(own)? {
        None => even_part(keys, of_all, keys.size(of_all)?, head_dim),
        dim => even_part(keys, own, dim, head_dim),
    }
}

fn even_part(
    keys: &Keys<'_>,
    suffix: &str,
    dim: Option<usize>,
    head_dim: usize,
) -> Result<Option<usize>, ConfigError> {
    match dim {
        Some(dim) if dim == 0 || dim > head_dim || dim % 2 != 0 => {
            Err(wrong(keys.key(suffix), dim, "an even part of a head"))
        }
        dim => Ok(dim.filter(|dim| *dim != head_dim)),
    }
}

/// Returns the factors of the pairs that are rotated. Files of families whose layers rotate parts
/// of different sizes have factors of whole heads, of which the last are 1.
fn without_padding(family: Family, dim: usize, factors: &[f32]) -> &[f32] {
    let has_padding = description(family).gguf.has_layer_heads
        && factors.get(dim / 2..).is_some_and(|rest| rest.iter().all(|factor| *factor == 1.0));
    if has_padding { &factors[..dim / 2] } else { factors }
}

/// Returns the scaling that the keys alone describe.
fn scaling_of_keys(
    keys: &Keys<'_>,
    family: Family,
    context: usize,
) -> Result<RopeScaling, ConfigError> {
    let kind = keys.metadata.text(&keys.key("rope.scaling.type"))?;
    // Files from before scaling types were introduced contain the second key.
    let factor = match keys.positive("rope.scaling.factor")? {
        Some(factor) => Some(factor),
        None => keys.positive("rope.scale_linear")?,
    };
    if kind == Some("yarn") {
        return yarn(keys, family, context);
    }
    if attention_factor(keys)?.is_some_and(|factor| factor != 1.0) {
        return Err(unsupported("with an attention factor"));
    }
    match (kind, factor) {
        (Some("none"), _) => Ok(RopeScaling::None),
        (Some("linear") | None, Some(factor)) if factor != 1.0 => {
            Ok(RopeScaling::Linear { factor })
        }
        (Some("linear") | None, _) => Ok(RopeScaling::None),
        (Some("longrope"), _) => Err(unsupported("longrope without lists of factors")),
        (Some(other), _) => Err(unsupported(other)),
    }
}

fn attention_factor(keys: &Keys<'_>) -> Result<Option<f64>, ConfigError> {
    keys.positive("rope.scaling.attn_factor")
}

/// Returns the number of positions before the context was extended.
fn original_positions(keys: &Keys<'_>, context: usize) -> Result<u32, ConfigError> {
    let original = keys.size("rope.scaling.original_context_length")?.unwrap_or(context);
    // The cast is lossless, since sizes are at most 2^24.
    Ok(original as u32)
}

fn yarn(keys: &Keys<'_>, family: Family, context: usize) -> Result<RopeScaling, ConfigError> {
    let suffix = "rope.scaling.factor";
    let factor = required(&keys.key(suffix), keys.positive(suffix)?)?;
    let beta = |name: &str, default| -> Result<f64, ConfigError> {
        Ok(keys.positive(&format!("rope.scaling.yarn_beta_{name}"))?.unwrap_or(default))
    };
    // `mscale_all_dim` of DeepSeek and Mistral, and `mscale`, which files do not have.
    // Models with latent attention have the same number as `mscale`: 1, or 0.707 in DeepSeek V2.
    let (mscale, all_dim) = match description(family).gguf.has_latent_attention {
        true => {
            let all_dim = latent::all_dim(keys)?;
            (all_dim, all_dim)
        }
        false => {
            let all_dim = keys.positive_or_none("rope.scaling.yarn_log_multiplier")?;
            (all_dim.map(|_| 1.0), all_dim)
        }
    };
    let yarn_factor = yarn_attention_factor(factor, mscale, all_dim);
    Ok(RopeScaling::Yarn {
        factor,
        original_max_positions: original_positions(keys, context)?,
        beta_fast: beta("fast", YARN_BETA_FAST)?,
        beta_slow: beta("slow", YARN_BETA_SLOW)?,
        attention_factor: yarn_factor * attention_factor(keys)?.unwrap_or(1.0),
        // There is no key for rounding, which only gpt-oss omits.
        truncate: family != Family::GptOss,
    })
}

fn longrope(
    keys: &Keys<'_>,
    dim: usize,
    context: usize,
    long: &[f32],
    short: &[f32],
) -> Result<RopeScaling, ConfigError> {
    match keys.metadata.text(&keys.key("rope.scaling.type"))? {
        None | Some("longrope") => {}
        Some(other) => {
            return Err(unsupported(&format!("{other} together with longrope's factors")));
        }
    }
    let original = original_positions(keys, context)?;
    let stretched = context as f64 / f64::from(original);
    let own = || longrope_attention_factor(stretched, original);
    Ok(RopeScaling::Longrope {
        short_factors: usable("rope_factors_short.weight", dim, short)?,
        long_factors: usable("rope_factors_long.weight", dim, long)?,
        original_max_positions: original,
        attention_factor: attention_factor(keys)?.unwrap_or_else(own),
    })
}

/// Returns the factors if there is a positive one for each pair.
fn usable(tensor: &'static str, dim: usize, factors: &[f32]) -> Result<Vec<f64>, ConfigError> {
    let positive = factors.iter().all(|factor| factor.is_finite() && *factor > 0.0);
    if factors.len() != dim / 2 || !positive {
        return Err(ConfigError::RopeFactors { tensor, count: dim / 2 });
    }
    Ok(factors.iter().copied().map(f64::from).collect())
}

/// Returns the scaling that divides each inverse frequency by its factor, regardless of the length.
/// If the factors match LLaMA-3's published constants, returns that scaling, since the factors in
/// the file have only f32 precision.
fn scaling_of_factors(theta: f64, dim: usize, factors: &[f32]) -> Result<RopeScaling, ConfigError> {
    let exact = usable("rope_freqs.weight", dim, factors)?;
    if factors.iter().all(|factor| *factor == 1.0) {
        return Ok(RopeScaling::None);
    }
    let rotated_pairs = factors.iter().take_while(|factor| **factor == 1.0).count();
    if factors[rotated_pairs..].iter().all(|factor| *factor >= NOT_ROTATED) {
        return Ok(RopeScaling::Proportional { rotated_pairs });
    }
    // The longest wavelength has the full factor.
    let factor = exact.last().copied().unwrap_or(1.0);
    let published = RopeScaling::Llama3 {
        factor,
        low_freq_factor: LLAMA3_LOW_FREQ_FACTOR,
        high_freq_factor: LLAMA3_HIGH_FREQ_FACTOR,
        original_max_positions: LLAMA3_ORIGINAL_POSITIONS,
    };
    let plain = Rope::new(theta, RopeScaling::None).inverse_frequencies(dim);
    let scaled = Rope::new(theta, published.clone()).inverse_frequencies(dim);
    let matches = plain.iter().zip(scaled).zip(factors).all(|((plain, scaled), found)| {
        let needed = plain / scaled;
        (found - needed).abs() <= ROPE_FACTOR_TOLERANCE * needed
    });
    Ok(if matches && factor > 1.0 { published } else { RopeScaling::Factors { factors: exact } })
}

fn unsupported(what: &str) -> ConfigError {
    ConfigError::RopeScaling(what.chars().take(60).collect())
}
