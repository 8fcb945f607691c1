//! Checkpoints of sequences: what the compiler lets samples read and write for them, and that the
//! validator refuses any that are incomplete or out of order.

use crate::common::{Choices, PLAIN, each_is_needed, llama, proved, shape, split};
use model::config::{Family, ModelConfig};
use model::delta::{DeltaNet, StateDecay};
use model::layers::{FeedForward, LayerKind, Layers};
use model::ops::{Kv, Op};
use program::checkpoints::CheckpointLayout;
use program::compile::{CompileError, compile};
use program::ir::{Compute, Instruction, ProgramId, Region};
use program::map::{ComputeDevice, DeviceMap};
use program::plan::{Plan, RunShape};
use program::topology::MemoryId;
use program::validate::{ValidateError, validate};

/// Returns a model with a layer that has a window, one that keeps all positions, and one that has a
/// state.
fn mixed() -> ModelConfig {
    let attending = llama().layers.kind(0).clone();
    let windowed = LayerKind { window: Some(5), ..attending.clone() };
    let delta = LayerKind::delta(FeedForward::Dense);
    let net = DeltaNet {
        key_heads: 1,
        value_heads: 2,
        takes_turns: false,
        key_dim: 4,
        value_dim: 6,
        taps: 4,
        decay: StateDecay::PerHead,
    };
    ModelConfig {
        family: Family::Qwen35,
        layers: Layers::from_kinds([windowed, attending, delta]),
        delta: Some(net),
        output_gate: true,
        ..llama()
    }
}

fn serving(batches: u16) -> RunShape {
    RunShape {
        serves: true,
        prefill_chunk: 8,
        page_positions: 16,
        kv_pages: 6,
        checkpoints: 3,
        ..shape(batches, 1)
    }
}

/// Returns a map in which the device computes these operations of every layer.
fn with_device(config: &ModelConfig, on_device: impl Fn(Op) -> bool) -> DeviceMap {
    let cpu = Choices { prefill: ComputeDevice::Cpu, ..PLAIN };
    let mut map = split(config, 0, 0, cpu);
    for layer in 0..config.num_layers {
        for (place, op) in config.layer_ops(layer).iter().enumerate() {
            if on_device(*op) {
                map.prefill.layers[layer][place] = ComputeDevice::Gpu;
            }
        }
    }
    map
}

fn sample_of(plan: &mut Plan) -> &mut Compute {
    let lists = &mut plan.program_mut(ProgramId::STEP).lanes;
    let all = lists.iter_mut().flat_map(|list| &mut list.instructions);
    let mut samples = all.filter_map(|instruction| match instruction {
        Instruction::Compute(compute) if compute.op == Op::Sample => Some(compute),
        _ => None,
    });
    samples.next().expect("it samples")
}

#[test]
fn a_checkpoint_has_a_slot_of_every_cache_that_is_overwritten() {
    let config = mixed();
    let plan = proved(&config, &serving(2), &with_device(&config, |_| false));
    let net = config.delta.expect("states");
    let ring = 5 * config.num_kv_heads * config.head_dim * 4;
    for batch in 0..2 {
        let layout = CheckpointLayout::of(&plan, batch).expect("it has checkpoints");
        let slots: Vec<(&str, usize)> = layout
            .caches
            .iter()
            .map(|cache| (plan.buffer(cache.cache).name.as_str(), cache.slot_bytes))
            .collect();
        let name = |kv: Kv, layer| format!("cache.{kv:?}.layer{layer}.batch{batch}.0of1");
        assert_eq!(
            slots,
            [
                (&*name(Kv::K, 0), ring),
                (&*name(Kv::V, 0), ring),
                (&*name(Kv::K, 2), 4 * net.inputs_len(0)),
                (&*name(Kv::V, 2), 4 * net.state_len()),
            ]
        );
        let bytes: usize = slots.iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(layout.size_bytes, bytes.next_multiple_of(64));
        assert_eq!(plan.buffer(layout.buffer).size_bytes, 3 * layout.size_bytes as u64);
    }
    let without = proved(
        &config,
        &RunShape { checkpoints: 0, ..serving(2) },
        &with_device(&config, |_| false),
    );
    assert_eq!(CheckpointLayout::of(&without, 0), None);
    let kv_bytes = |plan: &Plan| plan.footprint(None).host_kv_bytes;
    assert!(kv_bytes(&plan) > kv_bytes(&without), "they are in the budget");
}

/// With K and V of the device, another lane than that of the samples appends to the caches.
#[test]
fn samples_wait_for_the_rows_of_their_step() {
    let config = mixed();
    let map = with_device(&config, |op| matches!(op, Op::Q | Op::K | Op::V));
    let plan = proved(&config, &serving(1), &map);
    assert!(each_is_needed(&plan) > 50);
}

#[test]
fn incomplete_checkpoints_are_refused() {
    let config = mixed();
    let plan = proved(&config, &serving(1), &with_device(&config, |_| false));
    let refused = |change: &dyn Fn(&mut Plan)| {
        let mut changed = plan.clone();
        change(&mut changed);
        validate(&changed).expect_err("a defect")
    };
    let malformed = |change: &dyn Fn(&mut Plan), words: &str| {
        let error = refused(change);
        assert!(matches!(error, ValidateError::Malformed { .. }), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    };
    malformed(&|plan| sample_of(plan).output = None, "no checkpoints");
    malformed(&|plan| sample_of(plan).caches.truncate(3), "do not consist of");
    malformed(&|plan| plan.shape.checkpoints = 4, "leave their buffer");
    malformed(&|plan| plan.shape.batch_size = 3, "slots of a cache");
    malformed(
        &|plan| {
            let checkpoints = sample_of(plan).output.expect("checkpoints");
            let lists = &mut plan.program_mut(ProgramId::STEP).lanes;
            let mut all = lists.iter_mut().flat_map(|list| &mut list.instructions);
            let append = all.find_map(|instruction| match instruction {
                Instruction::Append(append) => Some(append),
                _ => None,
            });
            append.expect("it appends").to = Region::whole(checkpoints.buffer);
        },
        "touches checkpoints",
    );
    let error = refused(&|plan| sample_of(plan).caches.swap(0, 1));
    assert!(matches!(error, ValidateError::Stale { .. }), "{error}");
    // A sample before the last append.
    let error = refused(&|plan| {
        let list = &mut plan.program_mut(ProgramId::STEP).lanes[0].instructions;
        let is_first = |work: &Instruction| match work {
            Instruction::Append(append) => append.at.layer == Some(0),
            _ => false,
        };
        let append = list.iter().position(is_first).expect("it appends");
        let append = list.remove(append);
        list.push(append);
    });
    assert!(matches!(error, ValidateError::Stale { .. }), "{error}");
}

#[test]
fn checkpoints_that_cannot_be_taken_are_refused() {
    let config = mixed();
    let cpu = with_device(&config, |_| false);
    let refused = |config: &ModelConfig, shape: &RunShape, map: &DeviceMap, words: &str| {
        let error = compile(config, shape, map).expect_err("no checkpoints");
        assert!(matches!(error, CompileError::Checkpoints { .. }), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    };
    let no_pages = RunShape { page_positions: 0, kv_pages: 0, ..serving(1) };
    refused(&config, &no_pages, &cpu, "serves pages");
    refused(&llama(), &serving(1), &with_device(&llama(), |_| false), "keeps all positions");
    let mut head = cpu.clone();
    head.prefill.head = ComputeDevice::Gpu;
    refused(&config, &serving(1), &head, "computes the logits");
    let mut caches = cpu;
    caches.kv[2].k = vec![MemoryId::VRAM];
    let error = compile(&config, &serving(1), &caches).expect_err("caches of the device");
    assert_eq!(error, CompileError::PagesOnDevice { layer: 2 });
}
