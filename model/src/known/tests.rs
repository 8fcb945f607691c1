use super::*;
use crate::config::Dtype;
use crate::layers::ExpertRouting;
use crate::ops::{Kv, Op};

/// Published numbers of parameters in billions, without vision towers.
const BILLIONS: &[(&str, f64)] = &[
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
    ("llama-3.1-8b", 8.03),
    ("llama-3.1-70b", 70.6),
    ("llama-3.2-1b", 1.24),
    ("llama-3.2-3b", 3.21),
    ("llama-3.3-70b", 70.6),
    ("mistral-7b", 7.25),
    ("qwen2.5-0.5b", 0.494),
    ("qwen2.5-1.5b", 1.54),
    ("qwen2.5-7b", 7.62),
    ("smollm2-135m", 0.1345),
    ("smollm2-360m", 0.362),
    ("smollm2-1.7b", 1.71),
    ("tinyllama-1.1b", 1.1),
    ("qwen3-0.6b", 0.596),
    ("qwen3-1.7b", 1.72),
    ("qwen3-4b", 4.02),
    ("qwen3-8b", 8.19),
    ("qwen3-14b", 14.8),
    ("qwen3-32b", 32.8),
    ("phi-4", 14.66),
    ("phi-4-mini", 3.84),
    ("mistral-small-3.2-24b", 23.6),
    ("smollm3-3b", 3.08),
    ("granite-3.3-8b", 8.17),
    ("gemma-3-1b", 1.0),
    ("gemma-3-4b", 3.88),
    ("gemma-3-12b", 11.77),
    ("gemma-3-27b", 27.0),
    ("gemma-4-26b-a4b", 25.2),
    ("qwen3-30b-a3b", 30.5),
    ("qwen3-235b-a22b", 235.0),
    ("qwen3-next-80b-a3b", 79.7),
    ("qwen3.5-9b", 9.0),
    ("qwen3.5-35b-a3b", 35.0),
    ("qwen3.6-35b-a3b", 35.0),
    // Without the layer for multi-token prediction.
    ("glm-4.5-air", 106.9),
    ("glm-4.6", 352.8),
    ("glm-4.7-flash", 29.9),
    ("deepseek-v3", 671.0),
    // 671 billion, and the indexers.
    ("deepseek-v3.2", 671.9),
    ("glm-5", 744.0),
    // Without the layer for multi-token prediction.
    ("deepseek-v4-flash", 284.0),
    // Published as 1.6 trillion; the experts of 61 layers alone are 1547 billion.
    ("deepseek-v4-pro", 1573.0),
    ("kimi-k2", 1026.4),
    ("kimi-linear-48b-a3b", 49.1),
    ("minimax-m2", 229.0),
    ("step-3.5-flash", 196.0),
    ("mistral-small-4", 119.0),
    ("nemotron-3-nano", 31.6),
    // Without the layers for multi-token prediction.
    ("nemotron-3-super", 120.6),
    ("mixtral-8x7b", 46.7),
    ("olmoe-1b-7b", 6.92),
    ("granite-3.1-1b-a400m", 1.33),
    ("granite-3.1-3b-a800m", 3.3),
    ("gpt-oss-20b", 20.9),
    ("gpt-oss-120b", 116.8),
];

/// Returns the number of parameters in billions, according to the operation table's weights.
fn billions(config: &ModelConfig) -> f64 {
    let layers = 0..config.num_layers;
    let bytes: usize = layers.map(|layer| config.layer_weight_bytes(layer, Dtype::Bf16)).sum();
    let tables =
        config.vocab_size * config.hidden_size * if config.tied_embeddings { 1 } else { 2 };
    bytes as f64 / 2e9 + tables as f64 / 1e9
}

#[test]
fn sizes_agree_with_names() {
    let mut checked = 0;
    for name in names() {
        let config = find_known(name).unwrap_or_else(|| panic!("{name} is not read")).config;
        let (_, expected) = BILLIONS
            .iter()
            .find(|(listed, _)| *listed == name)
            .unwrap_or_else(|| panic!("how many parameters {name} has is not listed"));
        let counted = billions(&config);
        assert!(
            (counted / expected - 1.0).abs() < 0.015,
            "{name}: {counted:.3} billion parameters"
        );
        assert_eq!(config.name, name);
        checked += 1;
    }
    assert!(checked >= 27, "{checked} known models");
}

/// Latent attention caches a rotated key and a latent per position, for all heads.
#[test]
fn latent_attention_caches_one_vector_per_position() {
    for (name, expected_bytes) in [
        ("deepseek-v3", 70_272),
        // The key of an indexer follows the latent.
        ("deepseek-v3.2", 70_272 + 61 * 128 * 2),
        ("glm-5", 89_856 + 78 * 128 * 2),
        ("kimi-k2", 70_272),
        ("glm-4.7-flash", 54_144),
        ("mistral-small-4", 23_040),
    ] {
        let config = find_known(name).expect("known").config;
        let bytes = config.num_layers * config.kv_bytes_per_position(Dtype::Bf16);
        assert_eq!(bytes, expected_bytes, "{name}");
    }
}

/// DeepSeek V4 caches, of a sequence, the vectors of a window and the values and gates that follow
/// them, and of each position a share of entries.
#[test]
fn compressed_caches_take_their_windows_and_a_share_of_entries() {
    for (name, selecting, attending, windowed) in
        [("deepseek-v4-flash", 21, 20, 2), ("deepseek-v4-pro", 30, 31, 0)]
    {
        let config = find_known(name).expect("known").config;
        let places = |layer: usize, kv: &Kv, positions: usize| {
            let size_bytes = config.of_layer(layer).cache_size(*kv) * Dtype::Bf16.size_bytes();
            config.layers.kind(layer).kept_places(*kv, positions) * size_bytes
        };
        let bytes = |positions: usize| -> usize {
            let layers = 0..config.num_layers;
            let caches = layers
                .flat_map(|layer| config.layer_caches(layer).iter().map(move |kv| (layer, kv)));
            caches.map(|(layer, kv)| places(layer, kv, positions)).sum()
        };
        // Of each position of a window: its vector, and two or four vectors of values and gates, of
        // an entry of 512 elements and of an indexer's key of 128.
        let window = 128 * 2 * (windowed * 512 + attending * 3 * 512 + selecting * (512 + 4 * 640));
        let position = selecting * 640 * 2 / 4 + attending * 512 * 2 / 128;
        for positions in [128, 4096, config.max_positions] {
            assert_eq!(bytes(positions), window + positions * position, "{name}, {positions}");
        }
        assert_eq!(config.page_multiple(), 128);
    }
    let flash = find_known("deepseek-v4-flash").expect("known").config;
    assert_eq!((flash.num_layers, flash.max_positions), (43, 1 << 20));
    let by_token = |layer: usize| flash.layers.kind(layer).routing == ExpertRouting::ByToken;
    assert_eq!([0, 2, 3, 42].map(by_token), [true, true, false, false]);
}

/// Scores of DeepSeek V3 have a factor because of its long context; those of GLM-4.7-Flash do not.
#[test]
fn scores_of_latent_attention_are_scaled_by_the_size_of_a_query() {
    let scale = |name: &str| find_known(name).expect("known").config.attention_scale();
    let of_context = 0.1 * 40f32.ln() + 1.0;
    let expected = of_context * of_context / 192f32.sqrt();
    assert!((scale("deepseek-v3") / expected - 1.0).abs() < 1e-6);
    assert_eq!(scale("glm-4.7-flash"), 1.0 / 16.0);
}

/// A row of a layer of Nemotron 3 Super reads 22 of 512 experts, whose matrices have a quarter of
/// the columns that the model's width would need.
#[test]
fn experts_of_nemotron_3_super_have_the_sizes_of_their_latent() {
    let config = find_known("nemotron-3-super").expect("known").config;
    let layer = config.leading_layer();
    let bytes = |op: Op| op.weight_bytes(config.of_layer(layer), Dtype::Bf16);
    let one_linear = 2688 * 1024 * 2;
    for op in [Op::ExpertUp, Op::ExpertDown] {
        assert_eq!(bytes(op), 512 * one_linear, "{op:?}");
        assert_eq!(op.flops(&config, 3, 0), 3 * 22 * one_linear as u64, "{op:?}");
    }
    for op in [Op::ExpertLatentDown, Op::ExpertLatentUp] {
        assert_eq!(bytes(op), 4096 * 1024 * 2, "{op:?}");
    }
    assert_eq!(bytes(Op::Fc0), 4096 * 5376 * 2);
    assert_eq!(Op::ExpertCombine.flops(&config, 3, 0), 3 * 22 * 2 * 1024);
    assert_eq!(config.num_layers, 48);
}

/// Queries of Mistral Small 4 grow from the first position beyond the original context on.
#[test]
fn queries_of_mistral_small_4_have_a_factor_of_their_position() {
    let config = find_known("mistral-small-4").expect("known").config;
    let rope = config.layers.kind(0).rope.clone().expect("a rope");
    let temperature = rope.temperature.expect("a factor");
    let factors = [0, 8191, 8192, 16_383, 16_384].map(|position| temperature.factor(position));
    let expected = |interval: f32| 1.0 + 0.1 * (1.0 + interval).ln();
    assert_eq!(factors[..2], [1.0, 1.0]);
    for (factor, interval) in factors[2..].iter().zip([1.0, 1.0, 2.0]) {
        assert!((factor / expected(interval) - 1.0).abs() < 1e-6, "{factor}");
    }
    assert_eq!((rope.rotary_dim(config.head_dim), config.max_positions), (64, 1 << 20));
}

#[test]
fn every_published_file_is_a_configuration() {
    for published in PUBLISHED {
        let name = published.name;
        let fields = fields(published);
        assert!(fields["architectures"][0].is_string(), "{name}");
        // In a multimodal model, the text model's fields are nested.
        let text = fields.get("text_config").and_then(Value::as_object).unwrap_or(&fields);
        for field in ["hidden_size", "num_hidden_layers", "vocab_size"] {
            assert!(text[field].as_u64() > Some(0), "{name}: {field}");
        }
        let positions = ["max_position_embeddings", "model_max_length"];
        let positions = positions.into_iter().find_map(|field| text.get(field)?.as_u64());
        assert!(positions > Some(0), "{name}: positions");
        assert!(fields.contains_key("eos_token_id"), "{name}");
        assert!(BILLIONS.iter().any(|(listed, _)| *listed == name), "{name}");
        assert!(published.repository.split_once('/').is_some(), "{name}");
    }
}

#[test]
fn llama_3_stretches_the_positions_it_was_trained_on() {
    for (name, expected, tied) in [
        ("llama-3.1-8b", 8.0, false),
        ("llama-3.1-70b", 8.0, false),
        ("llama-3.2-1b", 32.0, true),
        ("llama-3.2-3b", 32.0, true),
        ("llama-3.3-70b", 8.0, false),
    ] {
        let config = find_known(name).expect("known").config;
        let rope = config.layers.kind(0).rope.clone().expect("rotary");
        assert_eq!(rope.theta, 5e5, "{name}");
        let scaling = RopeScaling::Llama3 {
            factor: expected,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_positions: 8192,
        };
        assert_eq!(rope.scaling, scaling, "{name}");
        assert_eq!((config.max_positions, config.tied_embeddings), (131_072, tied), "{name}");
        assert_eq!((config.vocab_size, config.num_kv_heads), (128_256, 8), "{name}");
    }
    let ends = find_known("llama-3.3-70b").expect("known").config.eos_token_ids;
    assert_eq!(ends, [128_001, 128_008, 128_009]);
}

#[test]
fn names_are_found_in_any_case() {
    assert_eq!(find_known("OPT-30B").map(|k| k.repository), Some("facebook/opt-30b"));
    let llama = find_known("LLaMA-3.1-8B").map(|k| k.repository);
    assert_eq!(llama, Some("meta-llama/Llama-3.1-8B"));
    assert!(find_known("opt-350m").is_none());
    let mut all: Vec<&str> = names().chain(PUBLISHED.iter().map(|p| p.name)).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), ENTRIES.len() + PUBLISHED.len(), "a name stands for one model");
}
