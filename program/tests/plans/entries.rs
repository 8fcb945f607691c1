//! Layers with compressed entries: their programs are proved, each of their instructions is needed,
//! and parts of attention, quantised caches and pages of unfinished groups are refused.

use crate::common::{Choices, PLAIN, chunked, each_is_needed, proved, shape, split};
use model::config::ModelConfig;
use model::config_json::parse;
use model::ops::{Kv, Op, Value};
use program::compile::{CompileError, compile};
use program::formats::KvFormat;
use program::map::{ChunkOrder, ComputeDevice, DeviceMap, layer_list};
use program::plan::RunShape;
use program::sizes::Sizes;
use serde_json::{Map, json};

/// Returns a model of three layers: with all entries, with those that an indexer selects, and with
/// a window alone.
fn compressing() -> ModelConfig {
    let fields = json!({
        "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4",
        "hidden_size": 16, "moe_intermediate_size": 16, "num_hidden_layers": 3,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "qk_rope_head_dim": 4,
        "q_lora_rank": 8, "o_groups": 2, "o_lora_rank": 8, "vocab_size": 64,
        "max_position_embeddings": 64, "sliding_window": 4, "num_hash_layers": 0,
        "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "hc_mult": 2,
        "index_topk": 2, "index_head_dim": 4, "index_n_heads": 2,
        "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 3},
        "layer_types": [
            "heavily_compressed_attention", "compressed_sparse_attention", "sliding_attention",
        ],
    });
    parse("tiny-v4", fields.as_object().expect("an object"), &Map::new()).expect("understood")
}

#[test]
fn every_interval_is_proved_and_of_some_each_instruction_is_needed() {
    let config = compressing();
    let entries = layer_list(&config, 1, None).len();
    let (mut dropped, mut number) = (0, 0);
    for (prefill, fuse) in [(ComputeDevice::Cpu, true), (ComputeDevice::Gpu, false)] {
        for from in 0..entries {
            for to in from..=entries {
                let map = split(&config, from, to, Choices { prefill, fuse, ..PLAIN });
                for shape in [shape(2, 2), chunked(shape(2, 2))] {
                    let plan = proved(&config, &shape, &map);
                    number += 1;
                    if number % 401 == 0 {
                        dropped += each_is_needed(&plan);
                    }
                }
            }
        }
    }
    assert!(dropped > 300, "{dropped}");
}

#[test]
fn attention_reads_both_caches_and_the_selection() {
    let config = compressing();
    let [heavy, sparse] = [0, 1].map(|layer| config.of_layer(layer));
    assert_eq!(Op::Attention.reads(heavy), [Value::Query, Value::Key, Value::Entry]);
    let of_sparse = [Value::Query, Value::Key, Value::Entry, Value::Selection];
    assert_eq!(Op::Attention.reads(sparse), of_sparse);
    assert_eq!(Op::Attention.caches(sparse), [Kv::K, Kv::V]);
    assert_eq!(Op::Select.caches(sparse), [Kv::V]);
    assert_eq!(config.layer_caches(2), [Kv::K]);
    // A position's vector, and of each series values and gates; an entry has an indexer's key.
    assert_eq!([Kv::K, Kv::V].map(|kv| heavy.cache_dim(kv)), [8 + 2 * 8, 8]);
    assert_eq!([Kv::K, Kv::V].map(|kv| sparse.cache_dim(kv)), [8 + 4 * 12, 12]);
}

/// A ring of the window, and a place for each group of positions.
#[test]
fn caches_have_the_places_of_windows_and_groups() {
    let config = compressing();
    let shape = shape(1, 2);
    let map = split(&config, 0, 0, PLAIN);
    let sizes = Sizes::new(&config, &shape, &map);
    let context = shape.max_context as usize;
    let element = shape.dtype.size_bytes();
    let bytes = |layer, kv| sizes.cache_bytes(layer, kv, 1);
    assert_eq!(bytes(0, Kv::K), 4 * 4 * 24 * element);
    assert_eq!(bytes(0, Kv::V), 4 * context / 3 * 8 * element);
    assert_eq!(bytes(1, Kv::V), 4 * context / 2 * 12 * element);
    assert_eq!(sizes.slot_bytes(0, Kv::K), Some(4 * 24 * element));
    assert_eq!(sizes.slot_bytes(0, Kv::V), None);
}

#[test]
fn split_attention_and_small_caches_are_refused() {
    let config = compressing();
    let chunking = Some((ChunkOrder::Attention, 2));
    let map = split(&config, 3, 9, Choices { chunking, ..PLAIN });
    let error = compile(&config, &shape(1, 4), &map).expect_err("it is refused");
    assert_eq!(error, CompileError::IndexedParts);
    for (kv_format, bits) in [(KvFormat::Four, 4), (KvFormat::Eight, 8)] {
        let map = DeviceMap { kv_format, ..split(&config, 0, 0, PLAIN) };
        let error = compile(&config, &shape(1, 4), &map).expect_err("it is refused");
        assert_eq!(error, CompileError::IndexedKvFormat { bits });
    }
}

/// The groups of two and of three positions fit whole into pages of 48, which the error names.
#[test]
fn pages_of_unfinished_groups_are_refused_with_their_multiple() {
    let config = compressing();
    assert_eq!(config.page_multiple(), 48);
    let map = split(&config, 0, 0, PLAIN);
    let paged = |page_positions| {
        let shape = RunShape { page_positions, kv_pages: 4, ..chunked(shape(1, 4)) };
        compile(&config, &shape, &map)
    };
    for page_positions in [16, 32, 256] {
        let error = paged(page_positions).expect_err("it is refused");
        let expected = CompileError::Pages { kv_pages: 4, page_positions, multiple: 48 };
        assert_eq!(error, expected);
        assert!(error.to_string().contains("a multiple of 48 positions"), "{error}");
    }
    for page_positions in [48, 288] {
        let refused = paged(page_positions).err();
        assert!(!matches!(refused, Some(CompileError::Pages { .. })), "{refused:?}");
    }
}
