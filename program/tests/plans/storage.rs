//! Weights on storages: the programs that the compiler makes for them, and that every part of these
//! is needed.

use std::collections::HashMap;

use crate::common::{Choices, PLAIN, all_works, llama, on_storages, opt, shape, split};
use model::config::ModelConfig;
use model::ops::Op;
use model::quantized_format::{Grouped, WeightFormat};
use program::compile::{CompileError, compile_on, footprint, machine_of, program_footprint};
use program::ir::{Copy, Instruction, Moved, Program, ProgramId, Region};
use program::map::{ComputeDevice, DeviceMap, Schedule, layer_list};
use program::plan::Plan;
use program::simulate::{Place, SimulationCosts, simulate};
use program::topology::{LaneId, LaneKind, LaneSet, MemoryId, Topology};
use program::validate::{ValidateError, describe, replay, validate};

/// All weights on storages, read directly to the device.
fn directly(map: DeviceMap) -> DeviceMap {
    DeviceMap { direct_reads: true, ..map }
}

/// Every other weight on storages, the rest on the host.
fn half_on_storages(map: DeviceMap) -> DeviceMap {
    let mut half = on_storages(map);
    for (layer, homes) in half.weights.iter_mut().enumerate() {
        homes.iter_mut().skip(layer % 2).step_by(2).for_each(|home| *home = MemoryId::DRAM);
    }
    half
}

fn with_storages(mut topology: Topology) -> (Topology, [MemoryId; 2]) {
    let storages = [topology.add_storage(), topology.add_storage()];
    (topology, storages)
}

fn with_direct_storages(mut topology: Topology) -> Topology {
    (0..2).for_each(|_| {
        topology.add_direct_storage();
    });
    topology
}

fn plans() -> Vec<(String, Plan)> {
    let all = |config: &ModelConfig| layer_list(config, 0, None).len();
    let gpu = Choices { outer: ComputeDevice::Gpu, ..PLAIN };
    let alone = Choices { prefill: ComputeDevice::Cpu, ..PLAIN };
    let barrier = Choices { schedule: Schedule::BarrierSpread, ..gpu };
    let grouped = |form| Choices { format: WeightFormat::Grouped(form), ..gpu };
    let (w4, q2_k) = (grouped(Grouped::W4), grouped(Grouped::GGUF_Q2_K));
    let mut plans = Vec::new();
    for config in [opt(), llama()] {
        let cases = [
            ("alone", Topology::cpu_alone(), split(&config, 0, 0, alone)),
            ("split", Topology::with_device(), split(&config, 1, 4, PLAIN)),
            ("gpu", Topology::with_device(), split(&config, 0, all(&config), gpu)),
            ("barrier", Topology::with_device(), split(&config, 0, all(&config), barrier)),
            ("w4", Topology::with_device(), split(&config, 0, all(&config), w4)),
            ("q2_k", Topology::with_device(), split(&config, 0, all(&config), q2_k)),
        ];
        for (name, machine, map) in cases {
            for (kind, map) in [
                ("all", on_storages(map.clone())),
                ("half", half_on_storages(map.clone())),
                ("all, direct", directly(on_storages(map.clone()))),
                ("half, direct", directly(half_on_storages(map.clone()))),
            ] {
                let topology = match map.direct_reads {
                    true => with_direct_storages(machine.clone()),
                    false => with_storages(machine.clone()).0,
                };
                assert_eq!(machine_of(&map), topology, "{name} {kind}");
                let plan = compile_on(&topology, &config, &shape(2, 2), &map);
                let name = format!("{} {name} {kind}", config.name);
                plans.push((name.clone(), plan.unwrap_or_else(|error| panic!("{name}: {error}"))));
            }
        }
    }
    plans
}

struct One;

impl SimulationCosts for One {
    fn work_ns(&self, place: Place, _: &Instruction, step: u32) -> f64 {
        f64::from(1 + (place.instruction * 7 + step) % 5) * 100.0
    }

    fn rate(&self, _: Place, _: LaneSet) -> f64 {
        1.0
    }

    fn wake_ns(&self) -> f64 {
        3.0
    }
}

#[test]
fn plans_are_proved_and_both_storages_are_read() {
    for (name, plan) in plans() {
        validate(&plan).unwrap_or_else(|error| panic!("{name} is refused: {error}"));
        let lanes = plan.lanes();
        let reading: Vec<LaneId> = lanes
            .iter()
            .copied()
            .filter(|lane| plan.topology.lane(*lane).kind == LaneKind::Read)
            .collect();
        assert_eq!(reading.len(), 2, "{name}");
        let mut spans = simulate(plan.prefill(), &One, 1).expect("prefill").spans;
        let decode = simulate(plan.decode(), &One, 4).expect("decode");
        let end_ns = spans.iter().map(|span| span.end_ns).max().unwrap_or(0);
        spans.extend(decode.spans.into_iter().map(|mut span| {
            (span.start_ns, span.end_ns) = (span.start_ns + end_ns, span.end_ns + end_ns);
            span
        }));
        let replayed = replay(&plan, &spans).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(replayed.waits > 0 && replayed.separated > 0, "{name}");
        // No blob of a storage is in host memory outside of slots.
        let host = plan.segment_bytes(program::topology::SegmentId::HOST_WEIGHTS);
        let blobs = plan.weights.iter().map(|w| (w.weights, plan.buffer(w.buffer).size_bytes));
        let all: u64 = blobs.collect::<HashMap<_, _>>().values().sum();
        let slots = plan.buffers.iter().filter(|buffer| buffer.name.contains("readslot"));
        let slots: u64 = slots.map(|buffer| buffer.size_bytes).sum();
        assert!(host < all + slots, "{name}: {host} of {all} bytes on the host");
    }
}

/// Every copy of weights to the device reads a slot into which they were read.
#[test]
fn reads_come_before_what_they_are_for() {
    for (name, plan) in plans().into_iter().filter(|(_, plan)| !plan.map.direct_reads) {
        for program in &plan.programs {
            let slots = slots_of_reads(program);
            let mut copies = 0;
            for (work, copy, op) in copied_weights(program) {
                let tied = op == Op::Head && plan.config.tied_embeddings;
                copies += 1;
                let home = plan.map.weights_of(&plan.config, copy.at.layer, op);
                assert!(
                    tied || home == MemoryId::DRAM
                        || slots.contains(&(op, copy.at.layer, copy.from)),
                    "{name} {:?}: {}",
                    program.id,
                    describe(work, plan.config.family, &plan.topology)
                );
            }
            assert_eq!(copies > 0, plan.map.uses_gpu(), "{name}");
        }
    }
}

/// Weights that the device multiplies are in the slots into which storages read, and never on the
/// host; weights that the host multiplies are read to the host.
#[test]
fn direct_reads_pass_the_host_by() {
    for (name, plan) in plans().into_iter().filter(|(_, plan)| plan.map.direct_reads) {
        for program in &plan.programs {
            let slots = slots_of_reads(program);
            for (work, copy, op) in copied_weights(program) {
                let tied = op == Op::Head && plan.config.tied_embeddings;
                let home = plan.map.weights_of(&plan.config, copy.at.layer, op);
                let what = describe(work, plan.config.family, &plan.topology);
                assert!(tied || home == MemoryId::DRAM, "{name} {:?}: {what}", program.id);
            }
            let mut directly = 0;
            for (lane, work) in all_works(program) {
                let on_device = plan.topology.device_computes().contains(lane);
                let (op, at, from) = match work {
                    Instruction::Decompress(work) => (work.op, work.at, work.from),
                    Instruction::Compute(work) => match work.weights[..] {
                        [from] => (work.op, work.at, from),
                        _ => continue,
                    },
                    _ => continue,
                };
                let tied = op == Op::Head && plan.config.tied_embeddings;
                let home = plan.map.weights_of(&plan.config, at.layer, op);
                if tied || op == Op::Embed || home != MemoryId::STORAGES {
                    continue;
                }
                let is_wide = plan.buffer(from.buffer).name.contains("wideslot");
                if is_wide && matches!(work, Instruction::Compute(_)) {
                    continue;
                }
                let what = describe(work, plan.config.family, &plan.topology);
                assert!(slots.contains(&(op, at.layer, from)), "{name}: {what}");
                let slot = plan.buffer(from.buffer);
                let is_near = plan.topology.is_vram(slot.segment.memory);
                let decompresses = matches!(work, Instruction::Decompress(_));
                assert_eq!(is_near, on_device || decompresses, "{name}: {what}");
                let is_whole = slot.offset_bytes % 4096 == 0 && slot.size_bytes % 4096 == 0;
                assert!(is_whole, "{name}: {slot:?}");
                directly += usize::from(is_near);
            }
            assert_eq!(directly > 0, plan.map.uses_gpu(), "{name} {:?}", program.id);
        }
    }
}

/// The device memory of a single program is at least what it takes in addition to resident data.
#[test]
fn footprints_have_room_for_whole_pages() {
    for (name, plan) in plans() {
        let (config, shape, map) = (&plan.config, &plan.shape, &plan.map);
        let whole = footprint(config, shape, map, None).expect("it was compiled");
        assert_eq!(whole, plan.footprint(None), "{name}");
        let programs = [ProgramId::PREFILL, ProgramId::DECODE];
        let of = |id| program_footprint(config, shape, map, None, id).expect("it was compiled");
        let one = programs.map(of);
        let most = one.iter().map(|one| one.own_bytes).max().unwrap_or(0);
        let counted = one[0].kept_bytes + most;
        assert!(counted >= whole.device_bytes, "{name}: {counted} of {}", whole.device_bytes);
        assert!(counted <= whole.device_bytes + 4096, "{name}: {counted}");
    }
}

#[test]
fn a_slot_of_part_of_a_page_is_refused() {
    let direct = |(_, plan): &(String, Plan)| plan.map.direct_reads && plan.map.uses_gpu();
    let (name, mut plan) = plans().into_iter().find(direct).expect("there are some");
    let near = |buffer: &program::plan::Buffer| plan.topology.is_vram(buffer.segment.memory);
    let slot = plan.buffers.iter().position(|one| near(one) && one.name.contains("weightslot"));
    plan.buffers[slot.expect("a slot")].size_bytes -= 64;
    let error = validate(&plan).expect_err("the read reaches behind it").to_string();
    assert!(error.contains("end with a page"), "{name}: {error}");
}

/// Returns the slots into which a program's reads go, and what is read.
fn slots_of_reads(program: &Program) -> Vec<(Op, Option<u16>, Region)> {
    let reads = all_works(program).filter_map(|(_, work)| match work {
        Instruction::Read(read) => Some((read.op, read.at.layer, Region::whole(read.to.buffer))),
        _ => None,
    });
    reads.collect()
}

fn copied_weights(program: &Program) -> impl Iterator<Item = (&Instruction, &Copy, Op)> {
    all_works(program).filter_map(|(_, work)| match work {
        Instruction::Copy(copy) => match copy.moved {
            Moved::Weights(op) => Some((work, copy, op)),
            _ => None,
        },
        _ => None,
    })
}

#[test]
fn without_any_instruction_of_a_storage_the_plan_is_refused() {
    for (name, plan) in plans() {
        let mut dropped = 0;
        for id in [ProgramId::PREFILL, ProgramId::DECODE] {
            let program = plan.program(id);
            for (place, list) in program.lanes.iter().enumerate() {
                if plan.topology.lane(list.lane).kind != LaneKind::Read {
                    continue;
                }
                // Barriers impose more order than the data requires.
                let ordered = plan.map.schedule == Schedule::Overlapped;
                for index in 0..list.instructions.len() {
                    if !ordered && !list.instructions[index].is_work() {
                        continue;
                    }
                    let mut changed = plan.clone();
                    let program = changed.program_mut(id);
                    let list = &mut program.lanes[place];
                    let removed = list.instructions.remove(index);
                    list.signals_per_step -= u32::from(removed == Instruction::Signal);
                    dropped += 1;
                    let what = describe(&removed, plan.config.family, &plan.topology);
                    assert!(validate(&changed).is_err(), "{name} {id:?} {index}: {what}");
                }
            }
        }
        assert!(dropped > 20, "{name}: {dropped}");
    }
}

#[test]
fn a_read_by_another_storages_worker_is_refused() {
    let (name, mut plan) = plans().remove(0);
    let reads = |lane: LaneId, plan: &Plan| plan.topology.lane(lane).kind == LaneKind::Read;
    let lanes: Vec<LaneId> = plan.lanes().into_iter().filter(|lane| reads(*lane, &plan)).collect();
    // The lists are swapped, and waits for them too, so that only the memory is wrong.
    let [first, second] = lanes[..] else { panic!("{name}: {lanes:?}") };
    let other = |lane: LaneId| match lane {
        lane if lane == first => second,
        lane if lane == second => first,
        lane => lane,
    };
    for program in &mut plan.programs {
        for list in &mut program.lanes {
            list.lane = other(list.lane);
            for instruction in &mut list.instructions {
                if let Instruction::Wait(wait) = instruction {
                    wait.lane = other(wait.lane);
                }
            }
        }
    }
    let error = validate(&plan).expect_err("a worker reads its own storage only");
    let ValidateError::Malformed { problem, .. } = &error else { panic!("{error}") };
    assert!(problem.contains("its worker maps"), "{problem}");
}

#[test]
fn homes_that_the_machine_lacks_are_refused() {
    let config = llama();
    let (topology, storages) = with_storages(Topology::cpu_alone());
    let alone = split(&config, 0, 0, Choices { prefill: ComputeDevice::Cpu, ..PLAIN });
    let refused = |map: &DeviceMap, topology: &Topology| {
        compile_on(topology, &config, &shape(2, 2), map).expect_err("it cannot be compiled")
    };
    let mut map = alone.clone();
    map.kv[1].v[0] = storages[0];
    assert_eq!(
        refused(&map, &topology),
        CompileError::NoMemory { what: "KV caches", memory: storages[0].0 }
    );
    let mut map = alone.clone();
    map.outer_weights = MemoryId(8);
    assert_eq!(refused(&map, &topology), CompileError::NoMemory { what: "weights", memory: 8 });
    // A single storage is not a tier: everything on storages is on each of them.
    map.outer_weights = storages[0];
    let memory = storages[0].0;
    assert_eq!(refused(&map, &topology), CompileError::NoMemory { what: "weights", memory });
    assert_eq!(
        refused(&on_storages(alone), &Topology::cpu_alone()),
        CompileError::NoLane { what: "reads the storage of weights" }
    );
    let map = split(&config, 1, 4, PLAIN);
    let error = refused(&map, &Topology::cpu_alone());
    assert!(matches!(error, CompileError::NoLane { .. }), "{error}");
    // Storages that read only to the host.
    let error = refused(&directly(on_storages(map)), &with_storages(Topology::with_device()).0);
    assert_eq!(error, CompileError::NoLane { what: "reads the storage of weights to the device" });
}
