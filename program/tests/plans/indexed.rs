//! Layers with indexers, and layers that attend to the selection of an earlier one: their programs
//! are proved, each of their instructions is needed, and a layer that finds another selection is
//! refused.

use crate::common::{
    Choices, PLAIN, attention, chunked, each_is_needed, proved, shape, split, without,
};
use model::config::ModelConfig;
use model::config_json::parse;
use model::ops::{Op, Value};
use program::compile::{CompileError, compile};
use program::formats::KvFormat;
use program::ir::{Instruction, ProgramId};
use program::map::{ChunkOrder, ComputeDevice, DeviceMap, layer_list};
use program::validate::validate;
use serde_json::{Map, json};

/// Returns a model of three layers, the last of which shares the selection of the one before it.
fn indexed() -> ModelConfig {
    let fields = json!({
        "model_type": "glm_moe_dsa", "architectures": ["GlmMoeDsaForCausalLM"],
        "hidden_size": 16, "intermediate_size": 32, "moe_intermediate_size": 16,
        "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 2,
        "q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4,
        "v_head_dim": 4, "max_position_embeddings": 64, "vocab_size": 64,
        "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
        "first_k_dense_replace": 3, "routed_scaling_factor": 1.0, "rope_theta": 10000.0,
        "index_topk": 4, "index_head_dim": 8, "index_n_heads": 2,
        "indexer_types": ["full", "full", "shared"],
    });
    parse("tiny-dsa", fields.as_object().expect("an object"), &Map::new()).expect("understood")
}

#[test]
fn every_interval_is_proved_and_of_some_each_instruction_is_needed() {
    let config = indexed();
    let entries = layer_list(&config, 0, None).len();
    let (mut dropped, mut number) = (0, 0);
    for (prefill, fuse) in [(ComputeDevice::Cpu, true), (ComputeDevice::Gpu, false)] {
        for from in 0..entries {
            for to in from..=entries {
                let map = split(&config, from, to, Choices { prefill, fuse, ..PLAIN });
                for shape in [shape(2, 2), chunked(shape(2, 2))] {
                    let plan = proved(&config, &shape, &map);
                    number += 1;
                    if number % 211 == 0 {
                        dropped += each_is_needed(&plan);
                    }
                }
            }
        }
    }
    assert!(dropped > 300, "{dropped}");
}

/// A layer attends to its own selection, or to the last one before it.
#[test]
fn a_layer_needs_the_selection_that_it_shares() {
    let config = indexed();
    let plan = proved(&config, &shape(1, 4), &split(&config, 0, 0, PLAIN));
    let of_layer = |layer| attention(&mut plan.clone(), layer).clone();
    assert_eq!(of_layer(2).inputs[2], of_layer(1).inputs[2]);
    let kinds = Op::Attention.reads(config.of_layer(2));
    assert_eq!(kinds[2], Value::Selection);
    // Without the second layer's selection, the one that is there is the first layer's.
    let is_second = |instruction: &Instruction| match instruction {
        Instruction::Compute(compute) => (compute.op, compute.at.layer) == (Op::Select, Some(1)),
        _ => false,
    };
    let lanes = plan.decode().lanes.iter();
    let mut places = lanes.enumerate().filter_map(|(lane, list)| {
        list.instructions.iter().position(is_second).map(|index| (lane, index))
    });
    let (lane, index) = places.next().expect("the second layer selects");
    let changed = without(&plan, ProgramId::DECODE, lane, index);
    let refusal = validate(&changed).expect_err("it is refused").to_string();
    assert!(refusal.contains("needs Selection of layer 1"), "{refusal}");
    assert!(refusal.contains("finds Selection of layer 0"), "{refusal}");
}

#[test]
fn split_attention_and_small_caches_are_refused() {
    let config = indexed();
    for order in [ChunkOrder::Scores, ChunkOrder::Attention] {
        let map = split(&config, 3, 9, Choices { chunking: Some((order, 2)), ..PLAIN });
        let error = compile(&config, &shape(1, 4), &map).expect_err("it is refused");
        let expected = match order {
            ChunkOrder::Scores => CompileError::LatentScores,
            _ => CompileError::IndexedParts,
        };
        assert_eq!(error, expected);
    }
    for (kv_format, bits) in [(KvFormat::Four, 4), (KvFormat::Eight, 8)] {
        let map = DeviceMap { kv_format, ..split(&config, 0, 0, PLAIN) };
        let error = compile(&config, &shape(1, 4), &map).expect_err("it is refused");
        assert_eq!(error, CompileError::IndexedKvFormat { bits });
    }
}
