use safetensors::tensor::TensorView;

use super::*;
use crate::known::find_known;
use crate::ops::Op;
use crate::source::TensorPart;

/// A LLaMA that is small enough to generate whole checkpoints in a test.
fn config() -> ModelConfig {
    let mut config = find_known("smollm2-135m").expect("known").config;
    (config.hidden_size, config.ffn_size, config.vocab_size) = (8, 12, 10);
    (config.num_heads, config.num_kv_heads, config.head_dim, config.num_layers) = (2, 1, 4, 1);
    config
}

const DOWN: TensorId = TensorId::Layer { layer: 0, op: Op::Down, part: TensorPart::Matrix };
const DOWN_NAME: &str = "model.layers.0.mlp.down_proj.weight";
const EMBEDDING_NAME: &str = "model.embed_tokens.weight";

fn value(index: usize) -> f32 {
    (index as f32 - 40.3) * 0.37
}

fn bytes(stored: Stored, count: usize) -> Vec<u8> {
    (0..count)
        .flat_map(|i| match stored {
            Stored::F32 => value(i).to_le_bytes().to_vec(),
            Stored::F16 => f16::from_f32(value(i)).to_le_bytes().to_vec(),
            Stored::BF16 => bf16::from_f32(value(i)).to_le_bytes().to_vec(),
            _ => vec![i as u8; 8],
        })
        .collect()
}

fn write(path: &Path, tensors: &[(&str, Stored, Vec<usize>)]) {
    let data: Vec<Vec<u8>> =
        tensors.iter().map(|(_, stored, shape)| bytes(*stored, shape.iter().product())).collect();
    let views = tensors.iter().zip(&data).map(|((name, stored, shape), data)| {
        (*name, TensorView::new(*stored, shape.clone(), data).expect("a tensor"))
    });
    safetensors::serialize_to_file(views, None, path).expect("written");
}

#[test]
fn every_stored_type_is_read_by_rows() {
    let folder = tempfile::tempdir().expect("folder");
    for stored in [Stored::F32, Stored::F16, Stored::BF16] {
        write(&folder.path().join("model.safetensors"), &[(DOWN_NAME, stored, vec![8, 12])]);
        let source = SafetensorsSource::open(folder.path(), &config()).expect("opens");
        assert_eq!(source.shape(DOWN).expect("there"), (8, 12));
        let exact = |i: usize| match stored {
            Stored::F16 => f16::from_f32(value(i)).to_f32(),
            Stored::BF16 => bf16::from_f32(value(i)).to_f32(),
            _ => value(i),
        };
        let mut rows = [0.0f32; 24];
        source.read_f32(DOWN, 3, &mut rows).expect("read");
        assert!(rows.iter().enumerate().all(|(i, v)| *v == exact(36 + i)), "{stored:?}");
        let mut rows = [bf16::ZERO; 24];
        source.read_bf16(DOWN, 3, &mut rows).expect("read");
        let expected = |i: usize| bf16::from_f32(exact(36 + i));
        assert!(rows.iter().enumerate().all(|(i, v)| *v == expected(i)), "{stored:?}");
        assert!(source.read_f32(DOWN, 7, &mut [0.0; 24]).is_err());
    }
}

#[test]
fn shards_are_found_through_the_index() {
    let folder = tempfile::tempdir().expect("folder");
    let at = |name: &str| folder.path().join(name);
    write(&at("a.safetensors"), &[(DOWN_NAME, Stored::F32, vec![8, 12])]);
    write(&at("b.safetensors"), &[(EMBEDDING_NAME, Stored::F32, vec![10, 8])]);
    let index = format!(
        r#"{{"weight_map": {{"{DOWN_NAME}": "a.safetensors", "{EMBEDDING_NAME}": "b.safetensors"}}}}"#
    );
    std::fs::write(at("model.safetensors.index.json"), &index).expect("written");
    let source = SafetensorsSource::open(folder.path(), &config()).expect("opens");
    assert_eq!(source.shape(TensorId::Embedding).expect("there"), (10, 8));
    assert_eq!(source.shape(DOWN).expect("there"), (8, 12));
    std::fs::remove_file(at("b.safetensors")).expect("there");
    let error = SafetensorsSource::open(folder.path(), &config()).expect_err("missing shard");
    assert!(error.to_string().contains("b.safetensors"), "{error}");
    std::fs::write(at("model.safetensors.index.json"), index.replace("a.safe", "../a.safe"))
        .expect("written");
    assert!(SafetensorsSource::open(folder.path(), &config()).is_err());
}

/// Tests that a tensor in two shards is read from the one that the index names, and that a tensor
/// that the index assigns to the wrong file is found nevertheless.
#[test]
fn the_index_decides_between_shards_that_both_have_a_tensor() {
    let folder = tempfile::tempdir().expect("folder");
    let at = |name: &str| folder.path().join(name);
    let down = |stored| (DOWN_NAME, stored, vec![8, 12]);
    write(&at("a.safetensors"), &[down(Stored::F32)]);
    write(&at("b.safetensors"), &[down(Stored::F16), (EMBEDDING_NAME, Stored::F32, vec![10, 8])]);
    for (file, stored) in [("a", StoredType::F32), ("b", StoredType::F16)] {
        let index = format!(
            r#"{{"weight_map": {{"{DOWN_NAME}": "{file}.safetensors", "x": "b.safetensors",
                "{EMBEDDING_NAME}": "a.safetensors"}}}}"#
        );
        std::fs::write(at("model.safetensors.index.json"), &index).expect("written");
        let source = SafetensorsSource::open(folder.path(), &config()).expect("opens");
        assert_eq!(source.stored_type(DOWN).expect("there"), stored);
        assert_eq!(source.shape(TensorId::Embedding).expect("there"), (10, 8));
    }
}

#[test]
fn what_does_not_fit_the_configuration_is_refused() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("model.safetensors");
    write(
        &path,
        &[(DOWN_NAME, Stored::F32, vec![12, 8]), (EMBEDDING_NAME, Stored::I64, vec![10, 8])],
    );
    let source = SafetensorsSource::open(folder.path(), &config()).expect("opens");
    assert!(matches!(source.shape(DOWN), Err(SourceError::Shape { .. })));
    let read = source.read_f32(TensorId::Embedding, 0, &mut [0.0; 8]);
    assert!(matches!(read, Err(SourceError::Type { .. })));
    let missing = TensorId::Layer { layer: 0, op: Op::Q, part: TensorPart::Matrix };
    assert!(matches!(source.shape(missing), Err(SourceError::Missing { .. })));
}

#[test]
fn a_file_cut_anywhere_is_an_error() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("model.safetensors");
    write(&path, &[(DOWN_NAME, Stored::F32, vec![8, 12])]);
    let whole = std::fs::read(&path).expect("read");
    for length in 0..whole.len() {
        std::fs::write(&path, &whole[..length]).expect("written");
        let error = SafetensorsSource::open(folder.path(), &config()).expect_err("cut off");
        assert!(error.to_string().contains("model.safetensors"), "{error}");
    }
    // Changes each byte of the header in turn, which may cause an error or a different header, but
    // never a panic.
    for position in 0..whole.len().min(200) {
        let mut changed = whole.clone();
        changed[position] ^= 0x55;
        std::fs::write(&path, &changed).expect("written");
        if let Ok(source) = SafetensorsSource::open(folder.path(), &config()) {
            let _ = source.read_f32(DOWN, 0, &mut [0.0; 12]);
        }
    }
}

/// Names without their prefix are those of a model without its head, but not if there is a head:
/// its logits would silently be those of the embedding.
#[test]
fn models_without_a_head_have_names_without_their_prefix() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("model.safetensors");
    let model = [
        ("embed_tokens.weight", Stored::F32, vec![10, 8]),
        ("norm.weight", Stored::F32, vec![8]),
        ("layers.0.mlp.down_proj.weight", Stored::F32, vec![8, 12]),
    ];
    write(&path, &model);
    let source = SafetensorsSource::open(folder.path(), &config()).expect("opens");
    assert_eq!(source.shape(DOWN).expect("there"), (8, 12));
    assert_eq!(source.shape(TensorId::Head).expect("the embedding"), (10, 8));
    let head = ("lm_head.weight", Stored::F32, vec![10, 8]);
    write(&path, &[&model[..], &[head]].concat());
    let source = SafetensorsSource::open(folder.path(), &config()).expect("opens");
    let refused = source.shape(TensorId::Embedding).expect_err("no such name").to_string();
    assert!(refused.contains(EMBEDDING_NAME), "{refused}");
}
