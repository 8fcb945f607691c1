//! Metadata of a GGUF file from a model's configuration, under the keys of llama.cpp's converter.

use model::config::{Family, ModelConfig, Rope, RopeScaling};
use model::layers::FeedForward;
use model::rope::{longrope_attention_factor, yarn_attention_factor};
use model::source::gguf::export::{ROPE_FACTORS, architecture};

use crate::config_check::llama3_factors;
use crate::error::QuantizeError;
use crate::header::{FileHeader, HeaderValue};

/// Version of the block formats, of `general.quantization_version`.
pub(crate) const QUANTIZATION_VERSION: u32 = 2;

/// A table of rope factors, which files store as a tensor.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RopeFactors {
    pub name: &'static str,
    pub factors: Vec<f32>,
}

/// Keys under the prefix of an architecture.
struct Keys<'a> {
    header: &'a mut FileHeader,
    architecture: &'static str,
}

impl Keys<'_> {
    fn set(&mut self, suffix: &str, value: HeaderValue) {
        self.header.set(&format!("{}.{suffix}", self.architecture), &value);
    }

    fn size(&mut self, suffix: &str, size: usize) {
        // Sizes of a configuration are at most 2^24.
        self.set(suffix, HeaderValue::U32(size as u32));
    }

    fn number(&mut self, suffix: &str, number: f64) {
        self.set(suffix, HeaderValue::F32(number as f32));
    }
}

/// Adds the keys of a configuration, and returns the tables of its rope.
///
/// # Errors
/// A family or rope that files cannot express.
pub(super) fn add_config(
    header: &mut FileHeader,
    config: &ModelConfig,
) -> Result<Vec<RopeFactors>, QuantizeError> {
    let Some(architecture) = architecture(config) else {
        return Err(unsupported(config, "its files have no architecture"));
    };
    header.set("general.architecture", &HeaderValue::Text(architecture.to_owned()));
    header.set("general.type", &HeaderValue::Text("model".to_owned()));
    header.set("general.name", &HeaderValue::Text(config.name.clone()));
    let mut keys = Keys { header, architecture };
    keys.size("block_count", config.num_layers);
    keys.size("context_length", config.max_positions);
    keys.size("embedding_length", config.hidden_size);
    keys.size("vocab_size", config.vocab_size);
    keys.size("attention.head_count", config.num_heads);
    keys.size("attention.head_count_kv", config.num_kv_heads);
    keys.size("attention.key_length", config.head_dim);
    keys.size("attention.value_length", config.head_dim);
    keys.number("attention.layer_norm_rms_epsilon", f64::from(config.norm_eps));
    add_feed_forward(&mut keys, config);
    add_scales(&mut keys, config);
    add_windows(&mut keys, config);
    add_rope(&mut keys, config)
}

fn add_feed_forward(keys: &mut Keys<'_>, config: &ModelConfig) {
    let Some(experts) = config.experts else {
        keys.size("feed_forward_length", config.ffn_size);
        return;
    };
    let dense = experts.dense_ffn_size();
    keys.size("feed_forward_length", if dense > 0 { dense } else { config.ffn_size });
    keys.size("expert_count", experts.count);
    keys.size("expert_used_count", experts.per_token);
    keys.size("expert_feed_forward_length", experts.ffn_size);
    let is_dense = |layer: &usize| config.layers.kind(*layer).feed_forward == FeedForward::Dense;
    let leading = (0..config.num_layers).take_while(is_dense).count();
    if leading > 0 {
        keys.size("leading_dense_block_count", leading);
    }
    if experts.selection.scale != 1.0 {
        keys.number("expert_weights_scale", f64::from(experts.selection.scale));
    }
    if config.has_shared_expert() {
        keys.size("expert_shared_feed_forward_length", config.ffn_size);
    }
}

fn add_scales(keys: &mut Keys<'_>, config: &ModelConfig) {
    let scales = config.scales;
    let usual = 1.0 / (config.head_dim as f32).sqrt();
    if let Some(attention) = scales.attention.filter(|attention| *attention != usual) {
        keys.number("attention.scale", f64::from(attention));
    }
    // Gemma's factor of the embedding follows from its size.
    if config.family == Family::Gemma3 {
        return;
    }
    let factors = [
        ("embedding_scale", scales.embedding),
        ("residual_scale", scales.residual),
        ("logit_scale", 1.0 / scales.logits),
    ];
    for (suffix, factor) in factors.into_iter().filter(|(_, factor)| *factor != 1.0) {
        keys.number(suffix, f64::from(factor));
    }
}

fn add_windows(keys: &mut Keys<'_>, config: &ModelConfig) {
    let windows: Vec<Option<usize>> =
        (0..config.num_layers).map(|layer| config.layers.kind(layer).window).collect();
    let Some(window) = windows.iter().flatten().next() else { return };
    keys.size("attention.sliding_window", *window);
    if windows.contains(&None) {
        let flags = windows.iter().map(Option::is_some).collect();
        keys.set("attention.sliding_window_pattern", HeaderValue::Bools(flags));
    }
}

/// Returns the rope of the first layer that rotates and has a window or not, as given.
fn rope_of(config: &ModelConfig, windowed: bool) -> Option<&Rope> {
    let kinds = (0..config.num_layers).map(|layer| config.layers.kind(layer));
    kinds.filter(|kind| kind.window.is_some() == windowed).find_map(|kind| kind.rope.as_ref())
}

fn add_rope(keys: &mut Keys<'_>, config: &ModelConfig) -> Result<Vec<RopeFactors>, QuantizeError> {
    let (global, local) = (rope_of(config, false), rope_of(config, true));
    let Some(rope) = global.or(local) else {
        return Err(unsupported(config, "it has no rotary positions"));
    };
    let dim = rope.rotary_dim(config.head_dim);
    keys.size("rope.dimension_count", dim);
    keys.number("rope.freq_base", rope.theta);
    if let Some(local) = local.filter(|local| local.theta != rope.theta) {
        keys.number("rope.freq_base_swa", local.theta);
    }
    if let Some(temperature) = rope.temperature {
        keys.number("attention.temperature_scale", temperature.beta);
        keys.size("attention.temperature_length", temperature.interval as usize);
    }
    add_scaling(keys, config, rope)
}

/// Adds the keys of a rope's scaling, and returns its tables.
fn add_scaling(
    keys: &mut Keys<'_>,
    config: &ModelConfig,
    rope: &Rope,
) -> Result<Vec<RopeFactors>, QuantizeError> {
    let kind = |name: &str| HeaderValue::Text(name.to_owned());
    let table = |name, factors: &[f64]| RopeFactors {
        name,
        factors: factors.iter().map(|factor| *factor as f32).collect(),
    };
    let [all, long, short] = ROPE_FACTORS;
    match &rope.scaling {
        RopeScaling::None => Ok(Vec::new()),
        RopeScaling::Linear { factor } => {
            keys.set("rope.scaling.type", kind("linear"));
            keys.number("rope.scaling.factor", *factor);
            Ok(Vec::new())
        }
        RopeScaling::Yarn {
            factor,
            original_max_positions,
            beta_fast,
            beta_slow,
            attention_factor,
            truncate: _,
        } => {
            keys.set("rope.scaling.type", kind("yarn"));
            keys.number("rope.scaling.factor", *factor);
            keys.size("rope.scaling.original_context_length", *original_max_positions as usize);
            keys.number("rope.scaling.yarn_beta_fast", *beta_fast);
            keys.number("rope.scaling.yarn_beta_slow", *beta_slow);
            // Readers multiply by the usual factor.
            let relative = attention_factor / yarn_attention_factor(*factor, None, None);
            if (relative - 1.0).abs() > 1e-9 {
                keys.number("rope.scaling.attn_factor", relative);
            }
            Ok(Vec::new())
        }
        RopeScaling::Llama3 { .. } => {
            let factors = llama3_factors(rope, config.head_dim);
            Ok(vec![RopeFactors { name: all, factors }])
        }
        RopeScaling::Factors { factors } => Ok(vec![table(all, factors)]),
        RopeScaling::Longrope {
            short_factors,
            long_factors,
            original_max_positions,
            attention_factor,
        } => {
            let stretched = config.max_positions as f64 / f64::from(*original_max_positions);
            let usual = longrope_attention_factor(stretched, *original_max_positions);
            keys.size("rope.scaling.original_context_length", *original_max_positions as usize);
            if (attention_factor - usual).abs() > 1e-9 {
                keys.number("rope.scaling.attn_factor", *attention_factor);
            }
            Ok(vec![table(long, long_factors), table(short, short_factors)])
        }
        RopeScaling::Dynamic { .. } => Err(unsupported(config, "its rope scaling is dynamic NTK")),
        RopeScaling::Proportional { .. } => {
            Err(unsupported(config, "its rope rotates some of a head's pairs"))
        }
    }
}

pub(super) fn unsupported(config: &ModelConfig, reason: &str) -> QuantizeError {
    QuantizeError::Family { family: format!("{:?}", config.family), reason: reason.to_owned() }
}
