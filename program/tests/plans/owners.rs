//! Sequences with owners: each kind of step, and migrations in both directions, are proved; if any
//! one of their copies, appends, signals and waits is removed, the validator refuses the plan.

use crate::common::{Choices, PLAIN, llama, opt, shape, split};
use model::config::ModelConfig;
use model::ops::{Op, Value};
use model::quantized_format::{Grouped, WeightFormat};
use program::compile::{CompileError, compile, footprint};
use program::deferred_rows::{can_defer_rows, kept, stream_after};
use program::ir::{Instruction, Moved, ProgramId, Rows};
use program::kv_owner::{AttentionSide, DEVICE, HOST, with_owners};
use program::map::{ComputeDevice, DeviceMap, layer_list};
use program::plan::{Plan, RunShape};
use program::topology::{LaneId, MemoryId};
use program::validate::{ValidateError, describe, validate};

fn owned(device_slots: u16) -> RunShape {
    RunShape { serves: true, prefill_chunk: 8, device_slots, ..shape(1, 1) }
}

fn map(config: &ModelConfig, choices: Choices) -> DeviceMap {
    let all = layer_list(config, 0, None).len();
    with_owners(&split(config, 0, all, choices), config)
}

/// Weights that are streamed, resident, and decompressed.
fn maps(config: &ModelConfig) -> Vec<(&'static str, DeviceMap)> {
    let gpu = Choices { outer: ComputeDevice::Gpu, ..PLAIN };
    let resident = Choices { weights: MemoryId::VRAM, hidden: MemoryId::VRAM, slots: 1, ..gpu };
    let q2_k = Choices { format: WeightFormat::Grouped(Grouped::GGUF_Q2_K), ..gpu };
    let cpu_head = Choices { outer: ComputeDevice::Cpu, ..resident };
    [("streamed", gpu), ("resident", resident), ("q2_k", q2_k), ("head on the CPU", cpu_head)]
        .map(|(name, choices)| (name, map(config, choices)))
        .into()
}

/// Returns the plan without one instruction; a lane without a signal declares one fewer.
fn without(plan: &Plan, program: ProgramId, lane: usize, index: usize) -> Plan {
    let mut plan = plan.clone();
    let list = &mut plan.program_mut(program).lanes[lane];
    let removed = list.instructions.remove(index);
    list.signals_per_step -= u32::from(removed == Instruction::Signal);
    plan
}

fn proved(name: &str, config: &ModelConfig, map: &DeviceMap) -> Plan {
    let shape = owned(2);
    let plan = compile(config, &shape, map).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(footprint(config, &shape, map, None), Ok(plan.footprint(None)), "{name}");
    validate(&plan).unwrap_or_else(|error| panic!("{name} is refused: {error}"));
    plan
}

#[test]
fn each_instruction_of_each_shape_is_needed() {
    for config in [opt(), llama()] {
        for (name, map) in maps(&config) {
            let plan = proved(name, &config, &map);
            let mut unneeded = Vec::new();
            let mut dropped = [0; 5];
            for program in &plan.programs {
                for (lane, list) in program.lanes.iter().enumerate() {
                    for (index, instruction) in list.instructions.iter().enumerate() {
                        dropped[program.id.index()] += 1;
                        if validate(&without(&plan, program.id, lane, index)).is_ok() {
                            let what = describe(instruction, config.family, &plan.topology);
                            let (name, lane) = (program.name(), plan.lane_name(list.lane));
                            unneeded.push(format!("{name} {lane} {index}: {what}"));
                        }
                    }
                }
            }
            assert!(unneeded.is_empty(), "{name}: these can be left out: {unneeded:#?}");
            assert!(dropped[0] > 20 && dropped[1] > dropped[0], "{name} {dropped:?}");
            assert!(dropped[4] > dropped[0], "{name} {dropped:?}");
            let caches = 2 * config.num_layers;
            assert_eq!(dropped[2..4], [caches, caches], "{name}: a copy of each cache");
        }
    }
}

fn instructions(plan: &Plan, id: ProgramId, lane: LaneId) -> Vec<&Instruction> {
    let list = plan.program(id).lane(lane);
    let work = list.into_iter().flat_map(|list| &list.instructions);
    work.filter(|instruction| instruction.is_work()).collect()
}

/// Returns the attention of a lane in a layer: stream and owner.
fn attention(plan: &Plan, id: ProgramId, lane: LaneId) -> Vec<(u16, u16)> {
    let of_layer = instructions(plan, id, lane).into_iter().filter_map(|instruction| {
        let Instruction::Compute(compute) = instruction else { return None };
        let is_it = compute.op == Op::Attention && compute.at.layer == Some(1);
        is_it.then(|| (compute.at.stream, compute.chunk.map_or(0, |chunk| chunk.index)))
    });
    of_layer.collect()
}

#[test]
fn owners_attend_for_their_own() {
    let config = llama();
    let plan = proved("", &config, &maps(&config)[1].1);
    let attend = |id, lane| attention(&plan, id, lane);
    assert_eq!(attend(ProgramId::STEP, LaneId::GPU_COMPUTE), [(0, DEVICE.index)]);
    assert_eq!(attend(ProgramId::STEP, LaneId::CPU_COMPUTE), []);
    assert_eq!(attend(ProgramId::PIPELINED, LaneId::GPU_COMPUTE), [(0, DEVICE.index)]);
    let host = [(0, HOST.index), (1, HOST.index)];
    assert_eq!(attend(ProgramId::PIPELINED, LaneId::CPU_COMPUTE), host);
    let shapes: Vec<_> = plan.programs.iter().map(|program| program.shape).collect();
    assert_eq!(shapes[1].attention_side, AttentionSide::Owners);
    assert_eq!(shapes[2].rows, Rows::Moves(ComputeDevice::Cpu));
    assert_eq!(shapes[3].rows, Rows::Moves(ComputeDevice::Gpu));
    assert_eq!(shapes[4].attention_side, AttentionSide::Deferred);
}

/// NEO's order (section 3.1): the device passes the linears of both streams before its attention,
/// so that the host computes attention for one stream concurrently with the linears of the other.
#[test]
fn the_device_attends_behind_the_linears_of_both_streams() {
    let config = llama();
    let plan = proved("", &config, &maps(&config)[1].1);
    let all = instructions(&plan, ProgramId::PIPELINED, LaneId::GPU_COMPUTE);
    let place = |op: Op, layer: u16, stream: u16| {
        let is_it = |instruction: &&Instruction| {
            let Instruction::Compute(compute) = instruction else { return false };
            let at = (compute.at.layer, compute.at.stream);
            (compute.op, at) == (op, (Some(layer), stream))
        };
        all.iter().position(is_it).unwrap_or_else(|| panic!("{op:?} of {layer}.{stream}"))
    };
    let order = [
        place(Op::Out, 0, 0),
        place(Op::V, 1, 0),
        place(Op::Out, 0, 1),
        place(Op::V, 1, 1),
        place(Op::Attention, 1, 0),
        place(Op::Out, 1, 0),
    ];
    assert!(order.is_sorted(), "{order:?}");
}

/// In each layer, everything that the first stream sends, including its queries, precedes what the
/// second sends, whose linears are later.
#[test]
fn queries_leave_before_what_the_next_stream_sends() {
    for config in [opt(), llama()] {
        let plan = proved("resident", &config, &maps(&config)[1].1);
        let sent = instructions(&plan, ProgramId::PIPELINED, LaneId::D2H).into_iter();
        let sent = sent.filter_map(|one| match one {
            Instruction::Copy(copy) => match copy.moved {
                Moved::Value(Value::Query | Value::Key | Value::Value) => copy.at.layer,
                _ => None,
            }
            .map(|layer| (layer, copy.at.stream)),
            _ => None,
        });
        let sent: Vec<(u16, u16)> = sent.collect();
        assert!(sent.is_sorted(), "{sent:?}");
        assert_eq!(sent.len(), config.num_layers * 2 * 3, "{sent:?}");
    }
}

/// Only rows of the host's sequences leave the device.
#[test]
fn rows_of_the_device_stay_there() {
    let config = llama();
    let plan = proved("", &config, &maps(&config)[1].1);
    for (id, streams) in [(ProgramId::STEP, 1), (ProgramId::PIPELINED, 2)] {
        for instruction in instructions(&plan, id, LaneId::D2H) {
            let Instruction::Copy(copy) = instruction else { continue };
            let Moved::Value(value @ (Value::Query | Value::Key | Value::Value)) = copy.moved
            else {
                continue;
            };
            let is_all_hosts = copy.at.stream == 1 && streams == 2;
            let part = (!is_all_hosts).then_some(HOST);
            assert_eq!(copy.from.chunk, part, "{value:?} of stream {}", copy.at.stream);
        }
    }
}

/// APEX's asynchronous overlap (section 3.3): one batch for the linears, as many operations as if
/// the device computed attention for all rows, and the host's attention concurrently with them.
#[test]
fn rows_that_lag_join_the_linears_of_the_others() {
    let config = llama();
    let layers = config.num_layers as u16;
    let plan = proved("", &config, &maps(&config)[1].1);
    let computed = |id| {
        let all = instructions(&plan, id, LaneId::GPU_COMPUTE).into_iter();
        let of = |instruction: &Instruction| match instruction {
            Instruction::Compute(compute) => Some((compute.op, compute.at.layer, compute.chunk)),
            _ => None,
        };
        all.filter_map(of).collect::<Vec<_>>()
    };
    assert_eq!(computed(ProgramId::ASYNC), computed(ProgramId::STEP));
    for instruction in instructions(&plan, ProgramId::ASYNC, LaneId::GPU_COMPUTE) {
        let Instruction::Compute(compute) = instruction else { continue };
        let behind = match (compute.op, compute.at.layer) {
            (Op::Norm0 | Op::Q | Op::K | Op::V | Op::Attention, Some(layer)) => layer,
            (_, Some(layer)) => layer + 1,
            (_, None) => layers,
        };
        assert_eq!(compute.at.stream, stream_after(behind), "{:?}", compute.op);
    }
    let mut attended = 0;
    for instruction in instructions(&plan, ProgramId::ASYNC, LaneId::CPU_COMPUTE) {
        let Instruction::Compute(compute) = instruction else { continue };
        let Some(layer) = compute.at.layer else { continue };
        assert_eq!((compute.op, compute.chunk), (Op::Attention, Some(HOST)));
        let part = Some(kept(layer + 1, layers));
        assert!(compute.inputs.iter().all(|input| input.chunk == part), "{:?}", compute.inputs);
        attended += 1;
    }
    assert_eq!(attended, layers);
}

/// The host keeps for the next step only values of the rows of that layer.
#[test]
fn what_is_kept_of_other_rows_is_refused() {
    let config = llama();
    let layers = config.num_layers as u16;
    let plan = proved("", &config, &maps(&config)[1].1);
    let mut tried = 0;
    let lists = &plan.program(ProgramId::ASYNC).lanes;
    for (lane, list) in lists.iter().enumerate() {
        for (index, instruction) in list.instructions.iter().enumerate() {
            let Instruction::Copy(copy) = instruction else { continue };
            let Moved::Deferred(_) = copy.moved else { continue };
            let mut other = plan.clone();
            let list = &mut other.program_mut(ProgramId::ASYNC).lanes[lane].instructions;
            let Instruction::Copy(copy) = &mut list[index] else { unreachable!() };
            let layer = copy.at.layer.expect("it is of a layer");
            let (end, behind) = match copy.to.chunk == Some(HOST) {
                true => (&mut copy.from, layer + 1),
                false => (&mut copy.to, layer),
            };
            end.chunk = Some(kept((behind + 1) % (layers + 1), layers));
            assert!(matches!(validate(&other), Err(ValidateError::Malformed { .. })));
            // The same rows at another place in the model.
            let Instruction::Copy(copy) =
                &mut other.program_mut(ProgramId::ASYNC).lanes[lane].instructions[index]
            else {
                unreachable!()
            };
            copy.at.stream = copy.at.stream % (layers + 1) + 1;
            assert!(validate(&other).is_err());
            tried += 1;
        }
    }
    assert_eq!(tried, 6 * layers, "four values leave, and two come");
    let is_kept = |name: &str| name.starts_with("kept.");
    let inner = |name: &str| name.starts_with("pipelined.") && name.contains("cpu");
    let find = |of: &dyn Fn(&str) -> bool| {
        plan.buffers.iter().position(|buffer| of(&buffer.name)).expect("there is one")
    };
    let (kept, other) = (find(&is_kept), find(&inner));
    let mut shared = plan.clone();
    shared.buffers[kept].offset_bytes = shared.buffers[other].offset_bytes;
    assert!(matches!(validate(&shared), Err(ValidateError::Overlap { .. })));
}

/// If a gate of the attended values is computed from a value that precedes attention, rows that
/// join after attention would have no gate.
#[test]
fn rows_of_models_with_a_gate_of_attention_do_not_lag() {
    let gated = ModelConfig { output_gate: true, ..llama() };
    assert!(can_defer_rows(&llama()) && can_defer_rows(&opt()) && !can_defer_rows(&gated));
    let plan = proved("gated", &gated, &maps(&gated)[1].1);
    assert_eq!(plan.programs.len(), 4);
}

#[test]
fn what_owners_cannot_have_is_refused() {
    let config = llama();
    let whole = maps(&config)[1].1.clone();
    let refused = |shape: &RunShape, map: &DeviceMap| match compile(&config, shape, map) {
        Err(CompileError::Owners { problem }) => problem,
        other => panic!("{other:?}"),
    };
    refused(&RunShape { serves: false, ..owned(2) }, &whole);
    refused(&RunShape { batches: 2, ..owned(2) }, &whole);
    refused(&owned(5), &whole);
    let all = layer_list(&config, 0, None).len();
    refused(&owned(2), &split(&config, 0, all, PLAIN));
    let mut linears = whole;
    linears.prefill.layers.iter_mut().flatten().for_each(|device| *device = ComputeDevice::Cpu);
    refused(&owned(2), &linears);
}
