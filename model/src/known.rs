//! Architectures by name: published models whose sizes are facts, so that a plan or a benchmark
//! needs no download.

use crate::config::{Activation, Family, ModelConfig, Rope, RopeScaling};

/// A model known by a short name.
#[derive(Debug, Clone, PartialEq)]
pub struct Known {
    /// Its Hugging Face repository.
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

/// Every known model, by family and size.
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
        "llama-3.2-1b",
        "meta-llama/Llama-3.2-1B",
        Llama,
        (16, 2048, 32, 8, 64, 8192, 128256, 131072),
        5e5,
        true,
        [128001]
    ),
    rotary!(
        "llama-3.2-3b",
        "meta-llama/Llama-3.2-3B",
        Llama,
        (28, 3072, 24, 8, 128, 8192, 128256, 131072),
        5e5,
        true,
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

/// The model of that name, upper or lower case.
pub fn known(name: &str) -> Option<Known> {
    let entry = ENTRIES.iter().find(|entry| entry.name.eq_ignore_ascii_case(name))?;
    Some(Known { repository: entry.repository, config: entry.config() })
}

/// All names, for error messages.
pub fn names() -> impl Iterator<Item = &'static str> {
    ENTRIES.iter().map(|entry| entry.name)
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
        // LLaMA-3.2 stretches the 8192 positions it was trained on.
        let scaling = if self.name.starts_with("llama-3.2") {
            RopeScaling::Llama3 {
                factor: 32.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_max_positions: 8192,
            }
        } else {
            RopeScaling::None
        };
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
            rope: (!opt).then_some(Rope::new(self.theta, scaling)),
            position_offset: if opt { 2 } else { 0 },
            qkv_bias: opt || self.family == Family::Qwen2,
            out_bias: opt,
            ffn_bias: opt,
            tied_embeddings: self.tied,
            sliding_window: None,
            bos_token_id: None,
            eos_token_ids: self.eos.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Dtype;

    /// Parameters in billions, from the weights that the operation table asks for.
    fn billions(name: &str) -> f64 {
        let config = known(name).expect("known").config;
        let bytes = config.layer_weight_bytes(Dtype::Bf16) * config.num_layers;
        let tables =
            config.vocab_size * config.hidden_size * if config.tied_embeddings { 1 } else { 2 };
        bytes as f64 / 2e9 + tables as f64 / 1e9
    }

    #[test]
    fn sizes_agree_with_names() {
        for (name, expected) in [
            ("opt-125m", 0.125),
            ("opt-1.3b", 1.3),
            ("opt-2.7b", 2.65),
            ("opt-6.7b", 6.66),
            ("opt-13b", 12.9),
            ("opt-30b", 30.0),
            ("opt-66b", 65.7),
            ("opt-175b", 174.6),
            ("llama-2-7b", 6.74),
            ("llama-2-13b", 13.0),
            ("llama-2-34b", 33.7),
            ("llama-2-70b", 69.0),
            ("llama-3-8b", 8.03),
            ("llama-3-70b", 70.6),
            ("llama-3.2-1b", 1.24),
            ("llama-3.2-3b", 3.21),
            ("mistral-7b", 7.25),
            ("qwen2.5-0.5b", 0.494),
            ("qwen2.5-1.5b", 1.54),
            ("qwen2.5-7b", 7.62),
            ("smollm2-135m", 0.1345),
            ("smollm2-360m", 0.362),
            ("smollm2-1.7b", 1.71),
            ("tinyllama-1.1b", 1.1),
        ] {
            let found = billions(name);
            assert!(
                (found / expected - 1.0).abs() < 0.015,
                "{name}: {found:.3} billion parameters"
            );
        }
        assert_eq!(names().count(), 24);
    }

    #[test]
    fn names_are_found_in_any_case() {
        assert_eq!(known("OPT-30B").map(|k| k.repository), Some("facebook/opt-30b"));
        assert!(known("opt-350m").is_none());
    }
}
