//! Architectures by name: published models with known sizes, so that plans and benchmarks need no
//! download. Models that are fully described by their sizes are in a table in this file; all others
//! are stored as the fields of their `config.json` (`published`).

mod published;

use serde_json::{Map, Value};

use crate::config::{Activation, Family, Features, ModelConfig, Rope, RopeScaling, Scales};
use crate::config_json;
use crate::layers::{LayerKind, Layers};
use published::{PUBLISHED, Published};

/// A model with a short name.
#[derive(Debug, Clone, PartialEq)]
pub struct KnownModel {
    /// Hugging Face repository of the model.
    pub repository: &'static str,
    pub config: ModelConfig,
}

/// Sizes of a model: layers, hidden, heads, KV heads, head dimension, feed-forward, vocabulary,
/// positions.
type Sizes = (usize, usize, usize, usize, usize, usize, usize, usize);

struct Entry {
    name: &'static str,
    repository: &'static str,
    family: Family,
    sizes: Sizes,
    /// Rope base; 0 for learned positions.
    theta: f64,
    tied: bool,
    eos: &'static [u32],
}

const OPT_EOS: &[u32] = &[2];

macro_rules! opt {
    ($name:literal, $layers:literal, $hidden:literal, $heads:literal) => {
        Entry {
            name: $name,
            repository: concat!("facebook/", $name),
            family: Family::Opt,
            sizes: ($layers, $hidden, $heads, $heads, $hidden / $heads, 4 * $hidden, 50272, 2048),
            theta: 0.0,
            tied: true,
            eos: OPT_EOS,
        }
    };
}

macro_rules! rotary {
    ($name:literal, $repository:literal, $family:ident, $sizes:expr, $theta:expr, $tied:literal, $eos:expr) => {
        Entry {
            name: $name,
            repository: $repository,
            family: Family::$family,
            sizes: $sizes,
            theta: $theta,
            tied: $tied,
            eos: &$eos,
        }
    };
}

/// Models without scaled positions or other special features, sorted by family and size.
const ENTRIES: &[Entry] = &[
    opt!("opt-125m", 12, 768, 12),
    opt!("opt-1.3b", 24, 2048, 32),
    opt!("opt-2.7b", 32, 2560, 32),
    opt!("opt-6.7b", 32, 4096, 32),
    opt!("opt-13b", 40, 5120, 40),
    opt!("opt-30b", 48, 7168, 56),
    opt!("opt-66b", 64, 9216, 72),
    opt!("opt-175b", 96, 12288, 96),
    rotary!(
        "llama-2-7b",
        "meta-llama/Llama-2-7b-hf",
        Llama,
        (32, 4096, 32, 32, 128, 11008, 32000, 4096),
        1e4,
        false,
        [2]
    ),
    rotary!(
        "llama-2-13b",
        "meta-llama/Llama-2-13b-hf",
        Llama,
        (40, 5120, 40, 40, 128, 13824, 32000, 4096),
        1e4,
        false,
        [2]
    ),
    rotary!(
        "llama-2-34b",
        "codellama/CodeLlama-34b-hf",
        Llama,
        (48, 8192, 64, 8, 128, 22016, 32000, 16384),
        1e6,
        false,
        [2]
    ),
    rotary!(
        "llama-2-70b",
        "meta-llama/Llama-2-70b-hf",
        Llama,
        (80, 8192, 64, 8, 128, 28672, 32000, 4096),
        1e4,
        false,
        [2]
    ),
    rotary!(
        "llama-3-8b",
        "meta-llama/Meta-Llama-3-8B",
        Llama,
        (32, 4096, 32, 8, 128, 14336, 128256, 8192),
        5e5,
        false,
        [128001]
    ),
    rotary!(
        "llama-3-70b",
        "meta-llama/Meta-Llama-3-70B",
        Llama,
        (80, 8192, 64, 8, 128, 28672, 128256, 8192),
        5e5,
        false,
        [128001]
    ),
    rotary!(
        "mistral-7b",
        "mistralai/Mistral-7B-v0.3",
        Mistral,
        (32, 4096, 32, 8, 128, 14336, 32768, 32768),
        1e6,
        false,
        [2]
    ),
    rotary!(
        "qwen2.5-0.5b",
        "Qwen/Qwen2.5-0.5B-Instruct",
        Qwen2,
        (24, 896, 14, 2, 64, 4864, 151936, 32768),
        1e6,
        true,
        [151645, 151643]
    ),
    rotary!(
        "qwen2.5-1.5b",
        "Qwen/Qwen2.5-1.5B-Instruct",
        Qwen2,
        (28, 1536, 12, 2, 128, 8960, 151936, 32768),
        1e6,
        true,
        [151645, 151643]
    ),
    rotary!(
        "qwen2.5-7b",
        "Qwen/Qwen2.5-7B-Instruct",
        Qwen2,
        (28, 3584, 28, 4, 128, 18944, 152064, 32768),
        1e6,
        false,
        [151645, 151643]
    ),
    rotary!(
        "smollm2-135m",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        Llama,
        (30, 576, 9, 3, 64, 1536, 49152, 8192),
        1e5,
        true,
        [2]
    ),
    rotary!(
        "smollm2-360m",
        "HuggingFaceTB/SmolLM2-360M-Instruct",
        Llama,
        (32, 960, 15, 5, 64, 2560, 49152, 8192),
        1e5,
        true,
        [2]
    ),
    rotary!(
        "smollm2-1.7b",
        "HuggingFaceTB/SmolLM2-1.7B-Instruct",
        Llama,
        (24, 2048, 32, 32, 64, 8192, 49152, 8192),
        1.3e5,
        true,
        [2]
    ),
    rotary!(
        "tinyllama-1.1b",
        "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
        Llama,
        (22, 2048, 32, 4, 64, 5632, 32000, 2048),
        1e4,
        false,
        [2]
    ),
];

/// Returns the model of the given name, ignoring case.
pub fn find_known(name: &str) -> Option<KnownModel> {
    if let Some(entry) = ENTRIES.iter().find(|entry| entry.name.eq_ignore_ascii_case(name)) {
        return Some(KnownModel { repository: entry.repository, config: entry.config() });
    }
    let is_named = |published: &&Published| published.name.eq_ignore_ascii_case(name);
    let published = PUBLISHED.iter().find(is_named)?;
    let config = config_json::parse(published.name, &fields(published), &Map::new());
    let config = config.expect("a model's fields are understood, which tests hold");
    Some(KnownModel { repository: published.repository, config })
}

/// Returns all names, for error messages.
pub fn names() -> impl Iterator<Item = &'static str> {
    ENTRIES.iter().map(|entry| entry.name).chain(PUBLISHED.iter().map(|published| published.name))
}

fn fields(published: &Published) -> Map<String, Value> {
    serde_json::from_str(published.config).expect("a JSON object, which tests hold")
}

impl Entry {
    fn config(&self) -> ModelConfig {
        let (
            num_layers,
            hidden_size,
            num_heads,
            num_kv_heads,
            head_dim,
            ffn_size,
            vocab_size,
            max_positions,
        ) = self.sizes;
        let opt = self.family == Family::Opt;
        ModelConfig {
            name: self.name.to_owned(),
            family: self.family,
            num_layers,
            hidden_size,
            num_heads,
            num_kv_heads,
            head_dim,
            ffn_size,
            vocab_size,
            max_positions,
            norm_eps: if self.family == Family::Qwen2 { 1e-6 } else { 1e-5 },
            activation: if opt { Activation::Relu } else { Activation::Silu },
            learned_positions: opt.then_some(2),
            layers: Layers::uniform(LayerKind::dense(
                (!opt).then_some(Rope::new(self.theta, RopeScaling::None)),
            )),
            experts: None,
            qkv_bias: opt || self.family == Family::Qwen2,
            out_bias: opt,
            ffn_bias: opt,
            tied_embeddings: self.tied,
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
            eos_token_ids: self.eos.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests;
