//! Tests that the committed checkpoints are read as by Hugging Face's libraries: configuration and
//! every tensor.

use std::path::{Path, PathBuf};

use model::config::{Family, ModelConfig, RopeScaling};
use model::config_json;
use model::source::safetensors::SafetensorsSource;
use model::source::{TensorId, TensorPart, WeightSource};

const FIXTURES: [&str; 5] = ["llama", "llama3", "mistral", "opt", "qwen2"];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

fn config(name: &str) -> ModelConfig {
    config_json::load(&fixture(name), name).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns every tensor in the operation table.
fn tensors(config: &ModelConfig) -> Vec<TensorId> {
    let mut ids = vec![TensorId::Embedding, TensorId::Positions, TensorId::Head];
    for part in [TensorPart::Matrix, TensorPart::Gain, TensorPart::Bias] {
        ids.push(TensorId::FinalNorm { part });
        for layer in 0..config.num_layers {
            let ops = config.layer_ops(layer).iter();
            ids.extend(ops.map(|&op| TensorId::Layer { layer, op, part }));
        }
    }
    ids.retain(|id| id.expected_shape(config).is_some());
    ids
}

#[test]
fn every_tensor_of_every_checkpoint_is_read() {
    for name in FIXTURES {
        let config = config(name);
        let source = SafetensorsSource::open(&fixture(name), &config).expect(name);
        let ids = tensors(&config);
        let per_layer = ids.iter().filter(|id| matches!(id, TensorId::Layer { layer: 0, .. }));
        let expected = match config.family {
            Family::Opt => 16,
            Family::Qwen2 => 12,
            Family::Llama | Family::Mistral => 9,
            other => panic!("{name} is of {other:?}"),
        };
        assert_eq!(per_layer.count(), expected, "{name}");
        for id in ids {
            let (rows, columns) = source.shape(id).unwrap_or_else(|error| panic!("{error}"));
            let mut values = vec![f32::NAN; rows * columns];
            source.read_f32(id, 0, &mut values).unwrap_or_else(|error| panic!("{error}"));
            assert!(values.iter().all(|value| value.is_finite()), "{name} {id:?}");
            // Biases and gains of the fixtures are random too, so no tensor is constant.
            assert!(values.iter().any(|value| *value != values[0]), "{name} {id:?}");
            let mut last_row = vec![0.0; columns];
            source.read_f32(id, rows - 1, &mut last_row).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(last_row, values[(rows - 1) * columns..], "{name} {id:?}");
        }
    }
}

#[test]
fn configurations_say_what_the_scripts_made() {
    let mistral = config("mistral");
    assert_eq!((mistral.head_dim, mistral.num_kv_heads, mistral.q_size()), (14, 1, 56));
    assert!(mistral.layers.windows_below(u32::MAX).is_empty());
    assert_eq!(mistral.eos_token_ids, [259, 169]);
    let qwen2 = config("qwen2");
    assert!(qwen2.qkv_bias && qwen2.layers.windows_below(u32::MAX).is_empty());
    let rope = config("llama3").layers.kind(0).rope.clone().expect("rotary");
    assert!(matches!(rope.scaling, RopeScaling::Llama3 { original_max_positions: 32, .. }));
    assert_eq!(rope.theta, 500.0);
    let llama = config("llama");
    assert!(llama.tied_embeddings && llama.group_size() == 3);
}
