//! The real model that `scripts/model.sh` fetches, where it was fetched.

use super::*;
use crate::config::{Rope, RopeScaling};

#[test]
fn every_tensor_of_the_real_model_can_be_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../.cache/models/smollm2-135m-instruct-q4_1.gguf");
    if !path.exists() {
        println!(
            "SKIP every_tensor_of_the_real_model_can_be_read: no model; scripts/model.sh fetches it"
        );
        return;
    }
    let source = GgufSource::open(&path).expect("the file is good");
    let config = source.config();
    assert_eq!(config.family, Family::Llama);
    assert_eq!((config.num_layers, config.hidden_size, config.ffn_size), (30, 576, 1536));
    assert_eq!((config.num_heads, config.num_kv_heads, config.head_dim), (9, 3, 64));
    assert_eq!((config.vocab_size, config.max_positions), (49_152, 8192));
    assert_eq!(config.rope, Some(Rope { theta: 1e5, scaling: RopeScaling::None }));
    assert!(config.tied_embeddings && !config.qkv_bias);
    assert_eq!((config.bos_token_id, config.eos_token_ids.as_slice()), (Some(1), &[2][..]));
    assert_eq!(source.stored_type(TensorId::Embedding).expect("there"), StoredType::Q8_0);
    for id in layout::tensor_ids(config) {
        let values = read_f32(&source, id);
        let largest = values.iter().fold(0f32, |largest, value| largest.max(value.abs()));
        assert!(largest.is_finite() && largest > 0.0, "{id:?}");
        assert!(values.iter().all(|value| value.is_finite()), "{id:?}");
    }
}
