//! Layers with a state: their programs are proved, each of their instructions is needed, and a map
//! that stores a state elsewhere than where it is updated is refused.

use crate::common::{
    Choices, PLAIN, chunked, each_is_needed, llama, proved, sampled_shapes, shape, split,
};
use model::config::{Family, ModelConfig};
use model::delta::{DeltaNet, StateDecay};
use model::layers::{FeedForward, LayerKind, Layers};
use model::mamba::Mamba;
use model::ops::{Kv, Op};
use program::compile::{CompileError, compile};
use program::ir::{Instruction, ProgramId};
use program::map::{ComputeDevice, DeviceMap, LayerKv, Schedule, layer_list};
use program::topology::MemoryId;
use program::validate::{ValidateError, validate};

/// A configuration in which all layers have a state.
fn delta() -> ModelConfig {
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
        name: "tiny-delta".to_owned(),
        family: Family::Qwen35,
        layers: Layers::uniform(LayerKind::delta(FeedForward::Dense)),
        delta: Some(net),
        output_gate: true,
        ..llama()
    }
}

/// Returns a configuration in which all layers have a state that decays by channel.
fn channel_delta() -> ModelConfig {
    let delta = delta();
    let decay = StateDecay::PerChannel { rank: 3 };
    ModelConfig {
        name: "tiny-channel-delta".to_owned(),
        family: Family::KimiLinear,
        delta: delta.delta.map(|net| DeltaNet { decay, ..net }),
        output_gate: false,
        ..delta
    }
}

/// Returns a configuration in which all layers have a short convolution.
fn convolving() -> ModelConfig {
    ModelConfig {
        name: "tiny-lfm2".to_owned(),
        family: Family::Lfm2,
        layers: Layers::uniform(LayerKind::short_conv(3)),
        ..llama()
    }
}

/// Returns a configuration in which all layers have Mamba2.
fn mamba() -> ModelConfig {
    let mamba = Mamba {
        heads: 2,
        head_dim: 6,
        groups: 1,
        state_dim: 4,
        taps: 4,
        conv_bias: true,
        min_step: 0.0,
        max_step: None,
    };
    ModelConfig {
        name: "tiny-granite4".to_owned(),
        family: Family::GraniteHybrid,
        layers: Layers::uniform(LayerKind::mamba(FeedForward::Dense)),
        mamba: Some(mamba),
        ..llama()
    }
}

/// Returns a map in which the GPU runs entries `from..to` of every layer in decode, and in prefill
/// what `choices` specifies, except for the states.
fn placed(config: &ModelConfig, from: usize, to: usize, choices: Choices) -> DeviceMap {
    let mut map = split(config, from, to, choices);
    for layer in 0..config.num_layers {
        let (mut k, mut v) = (Vec::new(), Vec::new());
        for (place, op) in config.layer_ops(layer).iter().enumerate() {
            let device = map.decode.layers[layer][place];
            let home = if device == ComputeDevice::Gpu { MemoryId::VRAM } else { MemoryId::DRAM };
            match op {
                Op::DeltaConv | Op::ShortConv | Op::MambaConv => k.push(home),
                Op::Delta | Op::Mamba => v.push(home),
                _ => continue,
            }
            map.prefill.layers[layer][place] = device;
        }
        if v.is_empty() {
            // A short convolution has no other state.
            v.push(MemoryId::DRAM);
        }
        map.kv[layer] = LayerKv { k, v, device_batches: 0 };
    }
    map
}

#[test]
fn every_interval_is_proved_and_of_some_each_instruction_is_needed() {
    for config in [delta(), channel_delta(), convolving(), mamba()] {
        let entries = layer_list(&config, 0, None).len();
        let (mut dropped, mut number) = (0, 0);
        for prefill in [ComputeDevice::Cpu, ComputeDevice::Gpu] {
            for from in 0..entries {
                for to in from..=entries {
                    let map = placed(&config, from, to, Choices { prefill, ..PLAIN });
                    for shape in sampled_shapes(from, to, prefill) {
                        let plan = proved(&config, &shape, &map);
                        number += 1;
                        if number % 31 == 0 {
                            dropped += each_is_needed(&plan);
                        }
                    }
                }
            }
        }
        assert!(dropped > 300, "{}: {dropped}", config.name);
    }
}

#[test]
fn barriers_are_proved() {
    let config = delta();
    let entries = layer_list(&config, 0, None).len();
    for schedule in [Schedule::Barrier, Schedule::BarrierSpread] {
        let choices = Choices { schedule, outer: ComputeDevice::Gpu, ..PLAIN };
        proved(&config, &shape(3, 2), &placed(&config, 0, entries, choices));
    }
}

/// The memory of a state, as requested from the compiler.
#[test]
fn a_state_elsewhere_is_refused() {
    let config = delta();
    let refused = |change: &dyn Fn(&mut DeviceMap)| {
        let mut map = placed(&config, 0, 3, PLAIN);
        change(&mut map);
        let found = compile(&config, &shape(2, 2), &map).expect_err("a state elsewhere");
        assert_eq!(found, CompileError::StateElsewhere { layer: 1 });
        assert!(found.to_string().contains("delta_conv"), "{found}");
    };
    refused(&|map| map.kv[1].v = vec![MemoryId::VRAM]);
    refused(&|map| map.kv[1].device_batches = 1);
    let place = config.index_in_layer(1, Op::Delta).expect("a layer with a state");
    refused(&|map| map.prefill.layers[1][place] = ComputeDevice::Gpu);
    refused(&|map| map.decode.layers[1][place] = ComputeDevice::Gpu);
}

/// A chunk whose state is not that of the rows before it.
#[test]
fn chunks_out_of_order_are_refused() {
    let config = delta();
    let cpu = Choices { prefill: ComputeDevice::Cpu, ..PLAIN };
    let plan = proved(&config, &chunked(shape(1, 2)), &placed(&config, 0, 0, cpu));
    assert!(plan.prefill().shape.streams > 1, "prompts are cut");
    let mut swapped = plan.clone();
    let list = &mut swapped.program_mut(ProgramId::PREFILL).lanes[0].instructions;
    let updates = |instruction: &&mut Instruction| match instruction {
        Instruction::Compute(one) => one.op == Op::Delta && one.at.layer == Some(0),
        _ => false,
    };
    let mut updates: Vec<&mut Instruction> = list.iter_mut().filter(updates).collect();
    let streams = updates.iter().map(|one| one.at().map(|at| at.stream)).collect::<Vec<_>>();
    assert_eq!(streams[..2], [Some(0), Some(1)]);
    let (first, second) = updates.split_at_mut(1);
    std::mem::swap(first[0], second[0]);
    let error = validate(&swapped).expect_err("the second chunk comes first");
    assert!(
        matches!(error, ValidateError::Stale { .. } | ValidateError::Unwritten { .. }),
        "{error}"
    );
}

#[test]
fn caches_of_a_layer_with_a_state_have_its_size() {
    let net = delta().delta.expect("states");
    let sizes = mamba().mamba.expect("states");
    for (config, inputs_bytes, state_bytes) in [
        (delta(), 4 * net.inputs_len(0), 4 * net.state_len()),
        (mamba(), 4 * sizes.inputs_len(0), 4 * sizes.state_len()),
    ] {
        let plan = proved(&config, &shape(1, 2), &placed(&config, 0, 0, PLAIN));
        for (kv, bytes) in [(Kv::K, inputs_bytes), (Kv::V, state_bytes)] {
            let name = format!("cache.{kv:?}.layer2.batch0.0of1");
            let buffer = plan.buffers.iter().find(|buffer| buffer.name == name).expect("a cache");
            assert_eq!(buffer.size_bytes, (4 * bytes).next_multiple_of(64) as u64, "{name}");
        }
    }
}
