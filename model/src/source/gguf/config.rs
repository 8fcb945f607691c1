//! A [`ModelConfig`] from GGUF metadata, for the architectures llama (Mistral's files among them)
//! and qwen2.
//!
//! What would make a model compute something else than this program does (another rope scaling,
//! experts, layers that differ) is refused by name, never ignored.

use super::metadata::{Metadata, MetadataError, required};
use crate::config::{Activation, Family, ModelConfig, Rope, RopeScaling, Scales};
use crate::config_bounds::{self, TooLarge};
use crate::layers::{LayerKind, Layers};

/// No size of a model comes near it, and products of two sizes below it do not overflow.
const MAX_SIZE: u32 = 1 << 24;

/// LLaMA-3's rope scaling as conversions write it: factors of every frequency, made from `factor`
/// (8 or 32) and these constants.
const LLAMA3_LOW_FREQ_FACTOR: f64 = 1.0;
const LLAMA3_HIGH_FREQ_FACTOR: f64 = 4.0;
const LLAMA3_ORIGINAL_POSITIONS: u32 = 8192;
/// The file's factors are computed in f32 through a division by a small difference.
const ROPE_FACTOR_TOLERANCE: f32 = 1e-3;

/// Why the metadata does not describe a model that can run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(super) enum ConfigError {
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    #[error("architecture {0:?} is not supported in GGUF files (supported are llama and qwen2)")]
    Architecture(String),
    #[error("the metadata key {key} is {found}, but {expected} is needed")]
    Value { key: String, found: String, expected: &'static str },
    #[error("rope scaling {0} is not supported (supported are none, linear and LLaMA-3's)")]
    RopeScaling(String),
    #[error(
        "the tensor rope_freqs.weight holds other factors than LLaMA-3's rope scaling, which is \
         not supported"
    )]
    RopeFactors,
}

/// What only the tensors tell.
#[derive(Debug, Clone, Default)]
pub(super) struct TensorFacts {
    /// Rows of the embedding table, for files without a token list.
    pub embedding_rows: Option<usize>,
    pub has_output: bool,
    pub has_q_bias: bool,
    pub has_out_bias: bool,
    pub has_ffn_bias: bool,
    /// The tensor `rope_freqs.weight`, `[head_dim / 2]`.
    pub rope_factors: Option<Vec<f32>>,
}

/// Metadata under one architecture's prefix.
struct Keys<'a> {
    metadata: &'a Metadata,
    architecture: &'a str,
}

impl Keys<'_> {
    fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.architecture)
    }

    /// A size from 1 to [`MAX_SIZE`]; `None` when absent.
    fn size(&self, suffix: &str) -> Result<Option<usize>, ConfigError> {
        let key = self.key(suffix);
        match self.metadata.layer_integer(&key)? {
            None => Ok(None),
            Some(size @ 1..=MAX_SIZE) => Ok(Some(size as usize)),
            Some(other) => Err(wrong(key, other, "a size from 1 to 16777216")),
        }
    }

    fn required_size(&self, suffix: &str) -> Result<usize, ConfigError> {
        Ok(required(&self.key(suffix), self.size(suffix)?)?)
    }

    /// A positive number; `None` when absent.
    fn positive(&self, suffix: &str) -> Result<Option<f64>, ConfigError> {
        let key = self.key(suffix);
        match self.metadata.number(&key)? {
            Some(number) if number <= 0.0 => Err(wrong(key, number, "a positive number")),
            other => Ok(other),
        }
    }

    /// Refuses a size that is there and differs from `needed`.
    fn same_size(
        &self,
        suffix: &str,
        needed: usize,
        expected: &'static str,
    ) -> Result<(), ConfigError> {
        match self.size(suffix)? {
            Some(found) if found != needed => Err(wrong(self.key(suffix), found, expected)),
            _ => Ok(()),
        }
    }
}

/// The configuration of the model called `name`.
pub(super) fn model_config(
    metadata: &Metadata,
    name: String,
    facts: &TensorFacts,
) -> Result<ModelConfig, ConfigError> {
    let key = "general.architecture";
    let architecture = required(key, metadata.text(key)?)?;
    let family = match architecture {
        "llama" => Family::Llama,
        "qwen2" => Family::Qwen2,
        other => return Err(ConfigError::Architecture(other.chars().take(60).collect())),
    };
    let keys = Keys { metadata, architecture };
    refuse_variants(&keys)?;

    let hidden_size = keys.required_size("embedding_length")?;
    let num_heads = keys.required_size("attention.head_count")?;
    let num_kv_heads = keys.size("attention.head_count_kv")?.unwrap_or(num_heads);
    if num_heads % num_kv_heads != 0 {
        let key = keys.key("attention.head_count_kv");
        return Err(wrong(key, num_kv_heads, "a divisor of attention.head_count"));
    }
    let head_dim = match keys.size("attention.key_length")? {
        Some(size) => size,
        None if hidden_size.is_multiple_of(num_heads) => hidden_size / num_heads,
        None => {
            let key = keys.key("embedding_length");
            return Err(wrong(key, hidden_size, "a multiple of attention.head_count"));
        }
    };
    if !head_dim.is_multiple_of(2) {
        return Err(wrong(keys.key("attention.key_length"), head_dim, "an even size"));
    }
    keys.same_size("attention.value_length", head_dim, "the same as attention.key_length")?;
    keys.same_size("rope.dimension_count", head_dim, "the size of a head (partial rope is not)")?;

    let vocab_size = vocab_size(metadata, facts)?;
    let norm_key = "attention.layer_norm_rms_epsilon";
    let rope = rope(&keys, head_dim, facts.rope_factors.as_deref())?;
    let layer = LayerKind { window: sliding_window(&keys)?, ..LayerKind::dense(Some(rope)) };
    let config = ModelConfig {
        name,
        family,
        num_layers: keys.required_size("block_count")?,
        hidden_size,
        num_heads,
        num_kv_heads,
        head_dim,
        ffn_size: keys.required_size("feed_forward_length")?,
        vocab_size,
        max_positions: keys.required_size("context_length")?,
        norm_eps: required(&keys.key(norm_key), keys.positive(norm_key)?)? as f32,
        activation: Activation::Silu,
        learned_positions: None,
        layers: Layers::alike(layer),
        experts: None,
        qkv_bias: facts.has_q_bias,
        out_bias: facts.has_out_bias,
        ffn_bias: facts.has_ffn_bias,
        tied_embeddings: !facts.has_output,
        qk_norm: None,
        post_norms: false,
        sinks: false,
        scales: Scales::default(),
        bos_token_id: token_id(metadata, "tokenizer.ggml.bos_token_id", vocab_size)?,
        eos_token_ids: eos_token_ids(metadata, vocab_size)?,
    };
    config_bounds::check(&config)?;
    Ok(config)
}

/// Files of the two architectures that are not plain decoders of theirs.
fn refuse_variants(keys: &Keys<'_>) -> Result<(), ConfigError> {
    let key = keys.key("expert_count");
    match keys.metadata.integer(&key)? {
        Some(experts) if experts > 0 => Err(wrong(key, experts, "a model without experts")),
        _ => Ok(()),
    }
}

fn vocab_size(metadata: &Metadata, facts: &TensorFacts) -> Result<usize, ConfigError> {
    let key = "tokenizer.ggml.tokens";
    let tokens = metadata.texts(key)?.map(<[String]>::len).filter(|tokens| *tokens > 0);
    let size = required(key, tokens.or(facts.embedding_rows))?;
    if size == 0 || size > MAX_SIZE as usize {
        return Err(wrong(key.to_owned(), size, "a list of 1 to 16777216 tokens"));
    }
    Ok(size)
}

/// Zero is how some writers say "none".
fn sliding_window(keys: &Keys<'_>) -> Result<Option<usize>, ConfigError> {
    let window = keys.metadata.layer_integer(&keys.key("attention.sliding_window"))?;
    Ok(window.filter(|window| *window > 0).map(|window| window as usize))
}

fn rope(keys: &Keys<'_>, head_dim: usize, factors: Option<&[f32]>) -> Result<Rope, ConfigError> {
    let theta = keys.positive("rope.freq_base")?.unwrap_or(10_000.0);
    let kind = keys.metadata.text(&keys.key("rope.scaling.type"))?;
    // The key without a type is how files were written before there were types.
    let factor = match keys.positive("rope.scaling.factor")? {
        Some(factor) => Some(factor),
        None => keys.positive("rope.scale_linear")?,
    };
    let attention_factor = keys.positive("rope.scaling.attn_factor")?.unwrap_or(1.0);
    if attention_factor != 1.0 {
        return Err(ConfigError::RopeScaling("with an attention factor".to_owned()));
    }
    let scaling = match (kind, factor) {
        (Some("none"), _) => RopeScaling::None,
        (Some("linear") | None, Some(factor)) if factor != 1.0 => RopeScaling::Linear { factor },
        (Some("linear") | None, _) => RopeScaling::None,
        (Some(other), _) => {
            return Err(ConfigError::RopeScaling(other.chars().take(60).collect()));
        }
    };
    let Some(factors) = factors else {
        return Ok(Rope::new(theta, scaling));
    };
    if scaling != RopeScaling::None {
        return Err(ConfigError::RopeScaling("linear together with rope_freqs.weight".to_owned()));
    }
    let scaling = llama3_scaling(theta, head_dim, factors).ok_or(ConfigError::RopeFactors)?;
    Ok(Rope::new(theta, scaling))
}

/// The scaling that divides every inverse frequency by its factor; `None` when it is not LLaMA-3's
/// with the published constants.
fn llama3_scaling(theta: f64, head_dim: usize, factors: &[f32]) -> Option<RopeScaling> {
    // The longest wavelength has the full factor.
    let factor = f64::from(*factors.last()?);
    if factors.len() != head_dim / 2 || !factor.is_finite() || factor < 1.0 {
        return None;
    }
    let plain = Rope::new(theta, RopeScaling::None);
    let scaling = RopeScaling::Llama3 {
        factor,
        low_freq_factor: LLAMA3_LOW_FREQ_FACTOR,
        high_freq_factor: LLAMA3_HIGH_FREQ_FACTOR,
        original_max_positions: LLAMA3_ORIGINAL_POSITIONS,
    };
    if factors.iter().all(|factor| *factor == 1.0) {
        return Some(RopeScaling::None);
    }
    let scaled = Rope::new(theta, scaling.clone());
    let expected = plain.inverse_frequencies(head_dim);
    let matches = expected.iter().zip(scaled.inverse_frequencies(head_dim)).zip(factors).all(
        |((plain, scaled), found)| {
            let needed = plain / scaled;
            (found - needed).abs() <= ROPE_FACTOR_TOLERANCE * needed
        },
    );
    matches.then_some(scaling)
}

/// A token id inside the vocabulary; `None` when the key is absent.
fn token_id(metadata: &Metadata, key: &str, vocab: usize) -> Result<Option<u32>, ConfigError> {
    match metadata.integer(key)? {
        Some(id) if id as usize >= vocab => {
            Err(wrong(key.to_owned(), id, "a token id inside the vocabulary"))
        }
        other => Ok(other),
    }
}

/// End of sequence, of turn and of message. Conversions of LLaMA-3 from before there was a key for
/// the last two have the tokens all the same.
fn eos_token_ids(metadata: &Metadata, vocab: usize) -> Result<Vec<u32>, ConfigError> {
    let mut ids = Vec::new();
    for name in ["eos", "eot", "eom"] {
        ids.extend(token_id(metadata, &format!("tokenizer.ggml.{name}_token_id"), vocab)?);
    }
    if metadata.text("tokenizer.ggml.pre")? == Some("llama-bpe") {
        let tokens = metadata.texts("tokenizer.ggml.tokens")?.unwrap_or_default();
        let ends = (0u32..)
            .zip(tokens)
            .filter(|(_, token)| matches!(token.as_str(), "<|eot_id|>" | "<|eom_id|>"));
        ids.extend(ends.map(|(id, _)| id));
    }
    let mut seen = std::collections::HashSet::new();
    ids.retain(|id| seen.insert(*id));
    Ok(ids)
}

fn wrong(key: String, found: impl ToString, expected: &'static str) -> ConfigError {
    ConfigError::Value { key, found: found.to_string(), expected }
}
