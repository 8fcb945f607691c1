//! Tests of files with latent attention, and of queries with a factor of their position.

use super::super::config::model_config;
use super::super::metadata::{Metadata, MetadataArray, MetadataValue};
use super::*;
use crate::config::ModelConfig;
use crate::config_json;
use crate::experts::{ExcludedExperts, ExpertScoring, GroupScore};
use crate::ops::Op;
use crate::rope::AttentionTemperature;
use crate::source::safetensors::SafetensorsSource;

fn fixture(name: &str, file: &str) -> GgufSource {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name);
    GgufSource::open(&folder.join(file)).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the configuration of a fixture with changed metadata, or the error message.
fn changed_keys(name: &str, change: &dyn Fn(&mut Metadata)) -> Result<ModelConfig, String> {
    let source = fixture(name, "model.gguf");
    let mut metadata = source.parts.metadata.clone();
    change(&mut metadata);
    let facts = TensorFacts::read(&source.parts, name).expect("facts");
    let config = model_config(&metadata, name.to_owned(), &facts);
    config.map_err(|error| error.to_string())
}

fn temperature(config: &ModelConfig) -> Option<AttentionTemperature> {
    config.layers.kind(0).rope.as_ref().expect("a rope").temperature
}

/// Old files store the matrices of keys and values in one tensor, with keys that are transposed
/// when they are read, and describe the heads that latents are expanded to.
#[test]
fn an_old_file_holds_what_a_new_one_holds() {
    let (old, new) = (fixture("deepseek_v2", "old.gguf"), fixture("deepseek_v2", "model.gguf"));
    let expected = ModelConfig { name: old.config().name.clone(), ..new.config().clone() };
    assert_eq!(*old.config(), expected);
    let mut transposed = 0;
    for id in layout::tensor_ids(new.config()) {
        let (rows, elements) = new.shape(id).expect("there");
        assert_eq!(old.shape(id).expect("there"), (rows, elements), "{id:?}");
        let whole = read_f32(&new, id);
        assert!(read_f32(&old, id) == whole, "{id:?}");
        if id.is_vector() {
            continue;
        }
        // Ranges that begin and end within a head, in both number formats.
        let (first, last) = (rows / 5, rows - rows / 7);
        let expected = &whole[first * elements..last * elements];
        let mut exact = vec![f32::NAN; expected.len()];
        old.read_f32(id, first, &mut exact).expect("readable");
        assert!(exact == expected, "{id:?}");
        let mut rounded = vec![bf16::NAN; expected.len()];
        old.read_bf16(id, first, &mut rounded).expect("readable");
        let rounded = rounded.iter().map(|value| value.to_f32());
        assert!(rounded.eq(expected.iter().map(|value| bf16::from_f32(*value).to_f32())));
        if old.stored_type(id).expect("there") != new.stored_type(id).expect("there") {
            assert_eq!(old.stored_type(id).expect("there"), StoredType::F32);
            transposed += 1;
        }
    }
    assert_eq!(transposed, new.config().num_layers, "the keys of each layer");
}

/// A file with indexers stores rotated rows of their queries and keys, and the gains and biases of
/// the keys' norm, as the checkpoint does.
#[test]
fn a_file_with_indexers_holds_what_the_checkpoint_holds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/glm_moe_dsa");
    let config = config_json::load(&folder, "glm_moe_dsa").expect("a checkpoint");
    let checkpoint = SafetensorsSource::open(&folder, &config).expect("a checkpoint");
    let file = fixture("glm_moe_dsa", "model.gguf");
    let found = file.config();
    assert_eq!((found.family, &found.layers), (config.family, &config.layers));
    assert_eq!((found.latent, &found.features), (config.latent, &config.features));
    assert_eq!((found.head_dim, found.experts), (config.head_dim, config.experts));
    let mut indexed = 0;
    for id in layout::tensor_ids(found) {
        assert!(read_f32(&file, id) == read_f32(&checkpoint, id), "{id:?}");
        let ops = [Op::IndexQuery, Op::IndexWeights];
        indexed += usize::from(matches!(id, TensorId::Layer { op, .. } if ops.contains(&op)));
    }
    assert_eq!(indexed, 2 * config.num_layers);
    for key in ["head_count", "key_length", "top_k"] {
        let key = format!("glm-dsa.attention.indexer.{key}");
        let message = changed_keys("glm_moe_dsa", &|keys| keys.remove(&key));
        let message = message.expect_err("it is needed");
        assert!(message.contains(&key), "{message}");
    }
}

#[test]
fn the_router_tells_deepseek_v2_from_v3() {
    let key = "deepseek2.expert_gating_func";
    let with = |name: &str, function: u64| {
        changed_keys(name, &|keys| {
            keys.insert(key.to_owned(), MetadataValue::Unsigned(function));
        })
    };
    let without = |name: &str| changed_keys(name, &|keys| keys.remove(key));
    for config in [without("deepseek_v2"), with("deepseek_v2", 0), with("deepseek_v2", 1)] {
        let config = config.expect("valid");
        assert_eq!(config.family, Family::DeepseekV2);
        let experts = config.experts.expect("experts");
        assert_eq!(experts.scoring, ExpertScoring::SoftmaxTopK { renormalise: false });
        assert!(experts.selection.is_f32 && !experts.selection.bias);
        let groups = experts.selection.groups.expect("groups");
        let rules = (groups.score, groups.excluded);
        assert_eq!(rules, (GroupScore::Largest, ExcludedExperts::ZeroScore));
    }
    // Files from before the key existed, and GLM-4.7-Flash's: they have a bias for the selection.
    for config in [without("deepseek_v3"), with("deepseek_v3", 2), without("glm4_moe_lite")] {
        let config = config.expect("valid");
        assert_eq!(config.family, Family::DeepseekV3);
        assert!(config.experts.expect("experts").selection.bias);
    }
}

#[test]
fn sizes_of_cached_and_expanded_heads_are_checked() {
    for (key, value, expected) in [
        ("attention.key_length", 20, "the sum of the rotated part and the latent"),
        ("attention.head_count_kv", 4, "one cached head"),
        ("rope.dimension_count", 20, "an even part of a head"),
    ] {
        let key = format!("mistral4.{key}");
        let message = changed_keys("mistral4", &|keys| {
            keys.insert(key.clone(), MetadataValue::Unsigned(value));
        });
        let message = message.expect_err("refused");
        assert!(message.contains(expected) && message.contains(&key), "{message}");
    }
    let message = changed_keys("mistral4", &|keys| {
        keys.remove("mistral4.attention.key_length_mla");
    });
    let message = message.expect_err("one cached head is no expanded one");
    assert!(message.contains("the number of heads of q"), "{message}");
}

#[test]
fn factors_of_queries_are_read_or_implied() {
    let expected = |beta, interval| Some(AttentionTemperature { beta, interval });
    let with = |name: &str, change: &dyn Fn(&mut Metadata)| {
        temperature(&changed_keys(name, change).expect("valid"))
    };
    let set = |keys: &mut Metadata, key: &str, value| {
        keys.insert(key.to_owned(), value);
    };
    assert_eq!(with("mistral4", &|_| {}), expected(0.4, 16));
    assert_eq!(with("ministral3", &|_| {}), expected(0.3, 16));
    // Converters leave the factor of Mistral Small 4 out.
    let scale = "mistral4.attention.temperature_scale";
    assert_eq!(with("mistral4", &|keys| keys.remove(scale)), expected(0.1, 16));
    assert_eq!(with("mistral4", &|keys| set(keys, scale, MetadataValue::Float(0.0))), None);
    let length = "mistral4.attention.temperature_length";
    let longer = with("mistral4", &|keys| set(keys, length, MetadataValue::Unsigned(32)));
    assert_eq!(longer, expected(0.4, 32));
    let scale = "mistral3.attention.temperature_scale";
    assert_eq!(with("ministral3", &|keys| keys.remove(scale)), None);
    // Mistral Large 3 has the layers of DeepSeek V2.
    let scale = "deepseek2.attention.temperature_scale";
    let large = with("deepseek_v2", &|keys| set(keys, scale, MetadataValue::Float(0.1)));
    assert_eq!(large, expected(0.1, 32));
    let refused = changed_keys("deepseek_v3", &|keys| set(keys, scale, MetadataValue::Float(0.1)));
    let message = refused.expect_err("no such model");
    assert!(message.contains(scale), "{message}");
}

#[test]
fn layers_without_heads_of_keys_have_convolutions() {
    let key = "lfm2.attention.head_count_kv";
    let with = |counts: &[u64]| {
        changed_keys("lfm2", &|keys| {
            let counts = MetadataArray::Unsigned(counts.to_vec());
            keys.insert(key.to_owned(), MetadataValue::Array(counts));
        })
    };
    let states = |config: &ModelConfig| {
        (0..3).map(|layer| config.layers.kind(layer).has_state()).collect::<Vec<_>>()
    };
    assert_eq!(states(&with(&[0, 2, 0]).expect("valid")), [true, false, true]);
    assert_eq!(states(&with(&[2, 2, 0]).expect("valid")), [false, false, true]);
    for (counts, expected) in [
        (&[0, 2, 4][..], "the same number of heads"),
        (&[0, 0, 0], "the same number of heads"),
        (&[0, 2], "a number of heads for each layer"),
        (&[0, 3, 0], "a divisor of attention.head_count"),
        (&[0, 1 << 25, 0], "the same number of heads"),
    ] {
        let message = with(counts).expect_err("refused");
        assert!(message.contains(expected), "{counts:?}: {message}");
    }
    let same = changed_keys("lfm2", &|keys| {
        keys.insert(key.to_owned(), MetadataValue::Unsigned(2));
    });
    assert_eq!(states(&same.expect("valid")), [false; 3]);
}
