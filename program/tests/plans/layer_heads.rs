//! Layers that differ in the heads of their queries, with gates of heads: their programs are
//! proved, and each of their instructions is needed.

use crate::common::{Choices, PLAIN, chunked, each_is_needed, llama, proved, shape, split};
use model::config::{Dtype, Family, Features, ModelConfig};
use model::layers::{ActivationLimits, LayerKind, LayerSizes, Layers};
use model::ops::{Op, Value};
use program::cuda_gaps::{is_gap, model_gap};
use program::formats::KvFormat;
use program::map::{ChunkOrder, ComputeDevice, layer_list};
use program::sizes::Sizes;

/// Returns a model whose layers with a window have twice as many heads of q.
fn step() -> ModelConfig {
    let model = llama();
    let kind = |window: Option<usize>, limit: Option<f32>| {
        let heads = Some(2 * model.num_heads);
        let sizes = window.map(|_| LayerSizes { num_heads: heads, ..model.sizes() });
        let limits = ActivationLimits { experts: None, network: limit };
        LayerKind { window, sizes, limits, ..model.layers.kind(0).clone() }
    };
    let kinds = [kind(None, None), kind(Some(5), None), kind(Some(5), Some(0.5))];
    ModelConfig {
        name: "tiny-step".to_owned(),
        family: Family::Step3p5,
        num_layers: kinds.len(),
        layers: Layers::from_kinds(kinds),
        output_gate: true,
        features: Features { gates_heads: true, ..Features::default() },
        ..model
    }
    .with_kind_models()
}

#[test]
fn every_interval_is_proved_and_of_some_each_instruction_is_needed() {
    let config = step();
    let entries = layer_list(&config, 0, None).len();
    let (mut dropped, mut number) = (0, 0);
    for prefill in [ComputeDevice::Cpu, ComputeDevice::Gpu] {
        for from in 0..entries {
            for to in from..=entries {
                let map = split(&config, from, to, Choices { prefill, ..PLAIN });
                for shape in [shape(2, 2), chunked(shape(2, 2))] {
                    let plan = proved(&config, &shape, &map);
                    number += 1;
                    if number % 173 == 0 {
                        dropped += each_is_needed(&plan);
                    }
                }
            }
        }
    }
    assert!(dropped > 200, "{dropped}");
}

#[test]
fn attention_in_parts_is_proved() {
    let config = step();
    let chunking = Some((ChunkOrder::Attention, 2));
    let entries =
        layer_list(&config, 0, split(&config, 0, 0, Choices { chunking, ..PLAIN }).chunking);
    for to in 0..=entries.len() {
        let map = split(&config, 0, to, Choices { chunking, ..PLAIN });
        proved(&config, &shape(2, 2), &map);
    }
}

#[test]
fn buffers_hold_the_rows_of_the_layer_with_most_heads() {
    let config = step();
    let map = split(&config, 0, 0, PLAIN);
    let shape = shape(2, 2);
    let sizes = Sizes::new(&config, &shape, &map);
    let narrow = llama();
    let narrow_sizes = Sizes::new(&narrow, &shape, &map);
    for value in [Value::Query, Value::Attended, Value::Scores, Value::Probabilities] {
        let bytes = |sizes: &Sizes<'_>| sizes.value_bytes(value, 3, 2);
        assert_eq!(bytes(&sizes), 2 * bytes(&narrow_sizes), "{value:?}");
    }
    // Caches do not depend on the heads of q, so they are stored by pages like others.
    assert_eq!(
        config.cache_bytes_per_position(Dtype::Bf16),
        3 * narrow.kv_bytes_per_position(Dtype::Bf16)
    );
}

/// Kernels for CUDA devices take the sizes of the model, and have neither gates nor limits.
#[test]
fn devices_lack_gates_and_limits() {
    let config = step();
    assert_eq!(model_gap(&config, KvFormat::Plain), Some(Op::Norm0));
    let same_heads = |changes: &dyn Fn(&mut LayerKind)| {
        let kinds = (0..3).map(|layer| {
            let mut kind = LayerKind { sizes: None, ..config.layers.kind(layer).clone() };
            changes(&mut kind);
            kind
        });
        ModelConfig { layers: Layers::from_kinds(kinds), ..config.clone() }.with_kind_models()
    };
    let gated = same_heads(&|kind| kind.limits = ActivationLimits::default());
    assert_eq!(model_gap(&gated, KvFormat::Plain), Some(Op::OutGate));
    assert!(!is_gap(&gated, KvFormat::Plain, Op::Up));
    let limited = same_heads(&|_| ());
    assert!(is_gap(&limited, KvFormat::Plain, Op::Up));
}
