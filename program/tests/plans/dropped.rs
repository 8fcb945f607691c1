//! Compiled programs are proved, and each of their copies, signals and waits is needed: if any one
//! of them is removed, the validator refuses the plan.

use crate::common::{Choices, PLAIN, llama, opt, shape, split};
use model::config::ModelConfig;
use model::hidden_states::HiddenStates;
use model::ops::Op;
use model::quantized_format::{Grouped, WeightFormat};
use program::compile::{compile, compile_program, footprint};
use program::ir::{Compute, Instruction, LaneProgram, Program, ProgramId, Region};
use program::map::{Chunk, ChunkOrder, Chunking, ComputeDevice, DeviceMap, layer_list};
use program::plan::{DeviceScratch, Plan, RunShape};
use program::topology::{LaneId, MemoryId};
use program::validate::{describe, validate, validate_program};

const W4: WeightFormat = WeightFormat::Grouped(Grouped::W4);
/// A format that a device expands first.
const Q2_K: WeightFormat = WeightFormat::Grouped(Grouped::GGUF_Q2_K);

/// Returns true if the plan is refused without one instruction. Without a signal, its lane declares
/// one signal fewer, as if it had never been planned.
fn is_needed(plan: &Plan, program: ProgramId, lane: usize, index: usize) -> bool {
    let mut changed = plan.program(program).clone();
    let list = &mut changed.lanes[lane];
    let removed = list.instructions.remove(index);
    list.signals_per_step -= u32::from(removed == Instruction::Signal);
    // The proof of a plan begins with that of each program, and most changes end it there.
    if validate_program(&changed, &plan.buffers, &plan.topology, &plan.config).is_err() {
        return true;
    }
    let mut plan = plan.clone();
    *plan.program_mut(program) = changed;
    validate(&plan).is_err()
}

/// Returns the instructions of each lane without their buffers.
fn kinds(program: &Program) -> Vec<(LaneId, u32, Vec<String>)> {
    let kind = |instruction: &Instruction| match instruction {
        Instruction::Compute(compute) => format!("{:?}", (compute.op, compute.at, compute.chunk)),
        Instruction::Copy(copy) => format!("{:?}", (copy.moved, copy.at, copy.chunk)),
        Instruction::Append(append) => format!("{:?}", (append.kv, append.at, append.chunk)),
        Instruction::Decompress(one) => format!("decompress {:?}", (one.op, one.at)),
        Instruction::Read(read) => format!("read {:?}", (read.op, read.at)),
        Instruction::Wait(_) | Instruction::Signal => format!("{instruction:?}"),
    };
    let of_lane = |list: &LaneProgram| {
        (list.lane, list.signals_per_step, list.instructions.iter().map(kind).collect())
    };
    program.lanes.iter().map(of_lane).collect()
}

fn proved(name: &str, config: &ModelConfig, shape: &RunShape, map: &DeviceMap) -> Plan {
    let plan = compile(config, shape, map).unwrap_or_else(|error| panic!("{name}: {error}"));
    // The inputs of the scratch size are identical too.
    let scratch: DeviceScratch = |work| {
        let computed =
            work.programs[0].instructions.len() + 1000 * work.programs[1].instructions.len();
        work.buffers_bytes + computed as u64
    };
    for scratch in [None, Some(scratch)] {
        let listed = footprint(config, shape, map, scratch);
        assert_eq!(listed, Ok(plan.footprint(scratch)), "{name}");
    }
    // A program alone has the same instructions, in other buffers.
    for program in &plan.programs {
        let alone = compile_program(config, shape, map, program.id).expect("it compiles");
        for other in &alone.programs {
            let is_compiled = other.id == program.id;
            assert_eq!(!other.lanes.is_empty(), is_compiled, "{name}");
        }
        assert_eq!(kinds(alone.program(program.id)), kinds(program), "{name}");
    }
    let proof = validate(&plan).unwrap_or_else(|error| panic!("{name} is refused: {error}"));
    assert!(
        proof.programs.iter().all(|program| program.work > 0)
            && proof.of(ProgramId::DECODE).conflicts > 0,
        "{name}"
    );
    plan
}

/// Compiles and proves a map, then drops each instruction in turn. Returns how many were dropped.
fn each_is_needed(name: &str, config: &ModelConfig, shape: &RunShape, map: &DeviceMap) -> usize {
    let plan = proved(name, config, shape, map);
    let mut unneeded = Vec::new();
    let mut dropped = 0;
    for program in &plan.programs {
        for (lane, list) in program.lanes.iter().enumerate() {
            for (index, instruction) in list.instructions.iter().enumerate() {
                dropped += 1;
                if !is_needed(&plan, program.id, lane, index) {
                    let what = describe(instruction, config.family, &plan.topology);
                    let (name, lane) = (program.name(), plan.lane_name(list.lane));
                    unneeded.push(format!("{name} {lane} {index}: {what}"));
                }
            }
        }
    }
    assert!(unneeded.is_empty(), "{name}: these can be left out: {unneeded:#?}");
    dropped
}

/// Hidden states that `Sample` reads wherever operations are, and those that a layer for
/// multi-token prediction joins with embeddings.
#[test]
fn hidden_states() {
    let mut config = llama();
    config.features.prediction_layer = Some(config.layers.kind(0).clone());
    config.features.hidden_states = HiddenStates::Sampled;
    let layer = config.prediction_model().expect("a layer");
    let all = layer_list(&config, 0, None).len();
    let gpu = Choices { outer: ComputeDevice::Gpu, ..PLAIN };
    let cpu = Choices { prefill: ComputeDevice::Cpu, ..PLAIN };
    each_is_needed("sampled, cpu-only", &config, &shape(2, 2), &split(&config, 0, 0, cpu));
    each_is_needed("sampled, gpu-only", &config, &shape(2, 2), &split(&config, 0, all, gpu));
    each_is_needed("sampled, split", &config, &shape(2, 2), &split(&config, 3, 8, PLAIN));
    each_is_needed("joined", &layer, &shape(1, 4), &split(&layer, 0, 0, cpu));
}

#[test]
fn one_device() {
    let (opt, llama) = (opt(), llama());
    let all = layer_list(&opt, 0, None).len();
    let gpu = Choices { outer: ComputeDevice::Gpu, ..PLAIN };
    let resident = Choices {
        weights: MemoryId::VRAM,
        gpu_kv: MemoryId::VRAM,
        hidden: MemoryId::VRAM,
        slots: 1,
        ..gpu
    };
    let cpu = Choices { prefill: ComputeDevice::Cpu, ..PLAIN };
    each_is_needed("cpu-only", &opt, &shape(2, 2), &split(&opt, 0, 0, cpu));
    each_is_needed("cpu-only llama", &llama, &shape(1, 4), &split(&llama, 0, 0, cpu));
    each_is_needed("gpu-only", &opt, &shape(2, 2), &split(&opt, 0, all, gpu));
    each_is_needed("gpu-only resident", &opt, &shape(2, 2), &split(&opt, 0, all, resident));
    let w4 = Choices { format: W4, ..gpu };
    each_is_needed("gpu-only w4", &opt, &shape(2, 2), &split(&opt, 0, all, w4));
    let q2_k = Choices { format: Q2_K, ..gpu };
    each_is_needed("gpu-only q2_k", &opt, &shape(2, 2), &split(&opt, 0, all, q2_k));
    let resident = Choices { weights: MemoryId::VRAM, slots: 1, ..q2_k };
    each_is_needed("gpu-only q2_k resident", &opt, &shape(1, 2), &split(&opt, 0, all, resident));
    let unfused = Choices { fuse: false, slots: 1, ..gpu };
    each_is_needed("gpu-only unfused", &llama, &shape(3, 2), &split(&llama, 0, all + 1, unfused));
}

#[test]
fn every_interval() {
    let (opt, llama) = (opt(), llama());
    let chunked =
        |order| Choices { chunking: Some((order, 4)), outer: ComputeDevice::Gpu, ..PLAIN };
    let cases = [
        (&opt, PLAIN),
        (&llama, Choices { slots: 1, fuse: false, ..PLAIN }),
        (&opt, chunked(ChunkOrder::Scores)),
        (&llama, chunked(ChunkOrder::Attention)),
        (&opt, Choices { format: W4, ..PLAIN }),
        (&opt, Choices { format: Q2_K, ..PLAIN }),
    ];
    let mut dropped = 0;
    for (config, choices) in cases {
        let entries = split(config, 0, 0, choices).decode.layers[0].len();
        for from in 0..entries {
            for to in from + 1..=entries {
                let map = split(config, from, to, choices);
                let name = format!("{} {from}..{to} {choices:?}", config.name);
                // Each interval is proved; for some of them every instruction is dropped.
                if (7 * from + to) % 83 == 0 {
                    dropped += each_is_needed(&name, config, &shape(2, 2), &map);
                } else {
                    proved(&name, config, &shape(2, 2), &map);
                }
            }
        }
    }
    assert!(dropped > 1000, "{dropped}");
}

/// A boundary within a linear: each piece's copies, signals and waits are needed.
#[test]
fn pieces_of_linears() {
    let wide =
        |config: ModelConfig| ModelConfig { hidden_size: 32, head_dim: 8, ffn_size: 64, ..config };
    let linears = Choices { chunking: Some((ChunkOrder::Linears, 2)), ..PLAIN };
    let cases = [
        (wide(opt()), linears),
        (wide(llama()), Choices { slots: 1, weights: MemoryId::VRAM, ..linears }),
        (wide(llama()), Choices { outer: ComputeDevice::Gpu, format: W4, ..linears }),
    ];
    let mut dropped = 0;
    for (config, choices) in cases {
        let list = layer_list(&config, 0, Some(Chunking { order: ChunkOrder::Linears, chunks: 2 }));
        let is_within = |at: usize| (1..list.len()).contains(&at) && list[at - 1].op == list[at].op;
        for from in 0..list.len() {
            for to in from + 1..=list.len() {
                let map = split(&config, from, to, choices);
                let name = format!("{} {from}..{to} {choices:?}", config.name);
                let shape = shape(2, 2);
                if is_within(from) && is_within(to) && (from + to) % 2 == 0 {
                    dropped += each_is_needed(&name, &config, &shape, &map);
                } else {
                    proved(&name, &config, &shape, &map);
                }
            }
        }
    }
    assert!(dropped > 1000, "{dropped}");
}

/// A piece must refer to its own rows.
#[test]
fn pieces_name_their_own_rows() {
    let config = ModelConfig { hidden_size: 32, head_dim: 8, ffn_size: 64, ..llama() };
    let linears = Choices { chunking: Some((ChunkOrder::Linears, 2)), ..PLAIN };
    let list = layer_list(&config, 0, Some(Chunking { order: ChunkOrder::Linears, chunks: 2 }));
    let up = list.iter().position(|entry| entry.op == Op::Up).expect("up");
    let plan = compile(&config, &shape(1, 4), &split(&config, up + 1, list.len(), linears));
    let plan = plan.expect("compiles");
    assert_eq!(validate(&plan).err(), None);
    let changed = |change: &dyn Fn(&mut Compute)| {
        let mut plan = plan.clone();
        let lists = plan.program_mut(ProgramId::DECODE).lanes.iter_mut();
        let mut all = lists.flat_map(|list| &mut list.instructions);
        let piece = all.find_map(|instruction| match instruction {
            Instruction::Compute(compute) if compute.chunk.is_some() => Some(compute),
            _ => None,
        });
        change(piece.expect("a piece"));
        validate(&plan)
    };
    let other = Some(Chunk { index: 1, of: 2 });
    let third = Some(Chunk { index: 0, of: 3 });
    assert!(changed(&|_| {}).is_ok());
    assert!(changed(&|piece| piece.weights[0].chunk = other).is_err());
    assert!(changed(&|piece| piece.weights[0].chunk = None).is_err());
    assert!(
        changed(&|piece| piece.output = piece.output.map(|of| Region { chunk: other, ..of }))
            .is_err()
    );
    assert!(changed(&|piece| piece.inputs[0].chunk = piece.chunk).is_err());
    assert!(changed(&|piece| piece.inputs[1].chunk = other).is_err());
    assert!(changed(&|piece| piece.chunk = other).is_err());
    assert!(changed(&|piece| piece.chunk = third).is_err());
    assert!(changed(&|piece| piece.chunk = None).is_err());
}

#[test]
fn choices_of_a_split() {
    let (opt, llama) = (opt(), llama());
    // As a sample, every choice is combined with one of the shapes.
    let runs_all_cases = crate::common::runs_all_cases();
    let mut number = 0;
    for prefill in [ComputeDevice::Cpu, ComputeDevice::Gpu] {
        for weights in [MemoryId::DRAM, MemoryId::VRAM] {
            for (hidden, slots) in [(MemoryId::DRAM, 1), (MemoryId::VRAM, 3)] {
                let choices = Choices { prefill, weights, hidden, slots, gpu_kv: weights, ..PLAIN };
                let name = format!("{choices:?}");
                let cases = [
                    (&opt, shape(2, 2), (2, 7)),
                    (&llama, shape(1, 1), (5, 9)),
                    (&opt, shape(3, 1), (2, 7)),
                ];
                for (index, (config, shape, (start, end))) in cases.into_iter().enumerate() {
                    if runs_all_cases || number % cases.len() == index {
                        let map = split(config, start, end, choices);
                        each_is_needed(&name, config, &shape, &map);
                    }
                }
                number += 1;
            }
        }
    }
}
