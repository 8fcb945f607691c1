//! Tests with the real model that `scripts/model.sh` fetches, if it was fetched.

use super::*;
use crate::config::{Rope, RopeScaling};
use crate::ops::Op;
use crate::source::TensorPart;

/// Returns the FNV-1a hash of f32 values as little-endian bytes.
fn hash(values: &[f32]) -> u64 {
    values.iter().flat_map(|value| value.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Returns the path of the file; prints a message and returns `None` if it was not fetched.
fn real_model(test: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../.cache/models/smollm2-135m-instruct-q4_1.gguf");
    if !path.exists() {
        println!("SKIP {test}: no model; scripts/model.sh fetches it");
        return None;
    }
    Some(path)
}

/// Tests that values are bit-identical to those of the `gguf` Python package, with q and k
/// reordered as in transformers: a Q8_0 row range, a Q4_1 matrix, and permuted matrices with 3 and
/// 9 heads.
#[test]
fn values_of_the_real_model_equal_another_reader() {
    let Some(path) = real_model("values_of_the_real_model_equal_another_reader") else {
        return;
    };
    let source = GgufSource::open(&path).expect("the file is good");
    let mut rows = vec![0.0; 100 * 576];
    source.read_f32(TensorId::Embedding, 1000, &mut rows).expect("readable");
    assert_eq!(hash(&rows), 0x2cff_fe8a_c7a1_faae);
    for (layer, op, expected) in [
        (3, Op::Down, 0x7782_3014_c577_66ea),
        (5, Op::K, 0x8039_9ace_bf46_51be),
        (29, Op::Q, 0x79e0_0de4_2ce5_876d),
    ] {
        let id = TensorId::Layer { layer, op, part: TensorPart::Matrix };
        assert_eq!(hash(&read_f32(&source, id)), expected, "{id:?}");
    }
}

#[test]
fn every_tensor_of_the_real_model_can_be_read() {
    let Some(path) = real_model("every_tensor_of_the_real_model_can_be_read") else {
        return;
    };
    let source = GgufSource::open(&path).expect("the file is good");
    let config = source.config();
    assert_eq!(config.family, Family::Llama);
    assert_eq!((config.num_layers, config.hidden_size, config.ffn_size), (30, 576, 1536));
    assert_eq!((config.num_heads, config.num_kv_heads, config.head_dim), (9, 3, 64));
    assert_eq!((config.vocab_size, config.max_positions), (49_152, 8192));
    assert_eq!(config.layers.kind(0).rope, Some(Rope::new(1e5, RopeScaling::None)));
    assert!(config.tied_embeddings && !config.qkv_bias);
    // `<|im_end|>` by its key, `<|endoftext|>` and `<reponame>` by their spelling.
    assert_eq!((config.bos_token_id, config.eos_token_ids.as_slice()), (Some(1), &[2, 0, 4][..]));
    assert_eq!(source.stored_type(TensorId::Embedding).expect("there"), StoredType::Q8_0);
    for id in layout::tensor_ids(config) {
        let values = read_f32(&source, id);
        let largest = values.iter().fold(0f32, |largest, value| largest.max(value.abs()));
        assert!(largest.is_finite() && largest > 0.0, "{id:?}");
        assert!(values.iter().all(|value| value.is_finite()), "{id:?}");
    }
}
