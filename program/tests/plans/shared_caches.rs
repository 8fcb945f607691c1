//! Layers of different sizes, layers that attend to the caches of earlier ones, and inputs of each
//! layer: their programs are proved, each of their instructions is needed, and a reader that finds
//! another layer's rows is refused.

use crate::common::{
    Choices, PLAIN, attention, each_is_needed, llama, proved, sampled_shapes, shape, split,
};
use model::config::{Family, Features, ModelConfig, PerLayerInputs};
use model::layers::{CacheSharing, LayerKind, LayerSizes, Layers};
use model::ops::{Op, Value};
use program::compile::{CompileError, compile};
use program::ir::{Compute, Instruction, Moved};
use program::map::{ChunkOrder, ComputeDevice, layer_list};
use program::topology::MemoryId;
use program::validate::validate;

/// Index of the first layer that reads caches of others: those of layers 1 and 2.
const READER: u16 = 3;

fn sharing() -> ModelConfig {
    let model = llama();
    let wide = LayerSizes { num_kv_heads: 1, head_dim: 6, ..model.sizes() };
    let kind = |window: Option<usize>, caches| {
        let sizes = Some(wide).filter(|_| window.is_none());
        LayerKind { window, caches, sizes, ..model.layers.kind(0).clone() }
    };
    let kinds = [
        kind(Some(5), CacheSharing::Own),
        kind(Some(5), CacheSharing::Source),
        kind(None, CacheSharing::Source),
        kind(Some(5), CacheSharing::Reader),
        kind(None, CacheSharing::Reader),
    ];
    let inputs = PerLayerInputs { size: 2, layers: kinds.len(), vocab_size: 64 };
    ModelConfig {
        name: "tiny-gemma4".to_owned(),
        family: Family::Gemma4,
        num_layers: kinds.len(),
        layers: Layers::from_kinds(kinds),
        post_norms: true,
        features: Features {
            layer_scale: true,
            per_layer_inputs: Some(inputs),
            ..Features::default()
        },
        ..model
    }
    .with_kind_models()
}

#[test]
fn every_interval_is_proved_and_of_some_each_instruction_is_needed() {
    let config = sharing();
    let entries = layer_list(&config, 0, None).len();
    let (mut dropped, mut number) = (0, 0);
    for prefill in [ComputeDevice::Cpu, ComputeDevice::Gpu] {
        for from in 0..entries {
            for to in from..=entries {
                let map = split(&config, from, to, Choices { prefill, ..PLAIN });
                for shape in sampled_shapes(from, to, prefill) {
                    let plan = proved(&config, &shape, &map);
                    number += 1;
                    if number % 87 == 0 {
                        dropped += each_is_needed(&plan);
                    }
                }
            }
        }
    }
    assert!(dropped > 300, "{dropped}");
}

#[test]
fn attention_in_parts_has_the_parts_of_the_caches_that_it_reads() {
    let config = sharing();
    let chunking = Some((ChunkOrder::Attention, 2));
    let list = layer_list(&config, READER.into(), None);
    let scores = list.iter().position(|entry| entry.op == Op::Scores).expect("attention");
    for to in scores..scores + 7 {
        // The GPU has the first part of readers alone, since their lists are shorter.
        let map = split(&config, 0, to, Choices { chunking, ..PLAIN });
        match compile(&config, &shape(2, 2), &map) {
            Ok(plan) => drop(validate(&plan).unwrap_or_else(|error| panic!("{error}"))),
            Err(CompileError::SharedParts { layer, source_layer }) => {
                assert_eq!((layer, source_layer), (3, 1));
            }
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn a_reader_needs_the_rows_of_its_own_source() {
    let config = sharing();
    let plan = proved(&config, &shape(1, 4), &split(&config, 0, 0, PLAIN));
    let of_layer = |layer| attention(&mut plan.clone(), layer).clone();
    assert_eq!(of_layer(READER).caches, of_layer(1).caches);
    assert_eq!(of_layer(READER).inputs[1..], of_layer(1).inputs[1..]);
    let refused = |change: &dyn Fn(&mut Compute)| {
        let mut changed = plan.clone();
        change(attention(&mut changed, READER));
        validate(&changed).expect_err("it is refused").to_string()
    };
    let text = refused(&|compute| compute.caches = of_layer(0).caches);
    assert!(text.contains("needs the K cache of layer 1"), "{text}");
    let text = refused(&|compute| compute.inputs[1] = of_layer(2).inputs[1]);
    assert!(text.contains("needs WindowKey of layer 1"), "{text}");
    assert!(text.contains("finds SharedKey of layer 2"), "{text}");
}

/// Rows of the sources are copied once to a device that attends to them in later layers.
#[test]
fn keys_cross_the_link_once_for_all_readers() {
    let config = sharing();
    let list = layer_list(&config, READER.into(), None);
    let at = |op| list.iter().position(|entry| entry.op == op).expect("an operation");
    // The CPU computes q, k and v; the GPU attends in readers alone, whose lists are shorter.
    let mut map = split(&config, 0, 0, PLAIN);
    for layer in [3, 4] {
        map.decode.layers[layer][at(Op::Scores)..=at(Op::Wv)].fill(ComputeDevice::Gpu);
    }
    let plan = proved(&config, &shape(1, 4), &map);
    let copies = plan.decode().lanes.iter().flat_map(|list| &list.instructions);
    let moved = |value| {
        let is_moved = |instruction: &&Instruction| match instruction {
            Instruction::Copy(copy) => copy.moved == Moved::Value(value),
            _ => false,
        };
        copies.clone().filter(is_moved).count()
    };
    let values = [Value::WindowKey, Value::WindowValue, Value::SharedKey, Value::SharedValue];
    assert_eq!(values.map(moved), [1; 4]);
    assert_eq!([Value::Key, Value::Value].map(moved), [0; 2]);
}

#[test]
fn a_reader_on_the_cpu_has_no_source_in_device_memory() {
    let config = sharing();
    let mut map = split(&config, 0, 0, PLAIN);
    for layer in [1, 2] {
        map.decode.layers[layer].fill(ComputeDevice::Gpu);
        map.kv[layer].k = vec![MemoryId::VRAM];
        map.kv[layer].v = vec![MemoryId::VRAM];
    }
    let error = compile(&config, &shape(1, 4), &map).expect_err("it is refused");
    assert!(matches!(error, CompileError::CpuReadsVram { layer: 3, .. }), "{error}");
}
