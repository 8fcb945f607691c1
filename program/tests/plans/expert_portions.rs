//! Experts that are computed in portions while others are read.

use crate::common::{Choices, PLAIN, each_is_needed, experts, on_storages, shape, split};
use model::known::find_known;
use model::ops::Op;
use program::compile::{compile_on, machine_of};
use program::ir::{Compute, Instruction, Program, Read, Region};
use program::map::{Chunk, ComputeDevice, DeviceMap};
use program::plan::{Plan, RunShape};
use program::topology::LaneId;
use program::validate::validate;

/// Returns plans whose experts are read by routing, without a cache and with one.
fn plans() -> [Plan; 2] {
    [0, 8].map(|expert_slots| {
        let config = experts();
        let map = split(&config, 0, 0, Choices { prefill: ComputeDevice::Cpu, ..PLAIN });
        let map = DeviceMap { expert_slots, ..on_storages(map) };
        let plan = compile_on(&machine_of(&map), &config, &shape(1, 2), &map).expect("compiles");
        validate(&plan).expect("proved");
        plan
    })
}

fn instructions(program: &Program, lane: LaneId) -> &[Instruction] {
    &program.lane(lane).expect("a lane").instructions
}

/// Returns the plan with each instruction of its decode program changed.
fn changed(plan: &Plan, mut change: impl FnMut(&mut Instruction)) -> Plan {
    let mut plan = plan.clone();
    let lists = plan.programs.last_mut().expect("a program").lanes.iter_mut();
    lists.flat_map(|list| &mut list.instructions).for_each(&mut change);
    plan
}

fn expert(instruction: &mut Instruction) -> Option<&mut Compute> {
    match instruction {
        Instruction::Compute(compute) if compute.op.is_expert() => Some(compute),
        _ => None,
    }
}

/// The CPU waits for one portion at a time, and for none before it computes cached experts.
#[test]
fn a_portion_is_computed_as_soon_as_it_is_read() {
    for plan in plans() {
        let has_cache = plan.expert_cache.is_some();
        let program = plan.decode();
        let reads: Vec<LaneId> =
            plan.topology.storages().into_iter().map(|(_, lane)| lane).collect();
        let mut waited = vec![];
        let mut portions = vec![];
        for instruction in instructions(program, LaneId::CPU_COMPUTE) {
            match instruction {
                Instruction::Wait(wait) if reads.contains(&wait.lane) => waited.push(wait.offset),
                Instruction::Compute(compute) if compute.op == Op::ExpertGate => {
                    let chunk = compute.chunk.expect("a portion");
                    assert_eq!(chunk.of, if has_cache { 5 } else { 4 });
                    portions.push((chunk.index, std::mem::take(&mut waited).len()));
                }
                Instruction::Compute(compute) if compute.op == Op::ExpertCombine => {
                    let index = std::mem::take(&mut portions);
                    let storages = reads.len();
                    let each = |index| (index, if has_cache && index == 0 { 0 } else { storages });
                    let count = if has_cache { 5 } else { 4 };
                    assert_eq!(index, (0..count).map(each).collect::<Vec<_>>());
                }
                Instruction::Compute(_) => waited.clear(),
                _ => {}
            }
        }
    }
}

#[test]
fn each_wait_is_needed() {
    for plan in plans() {
        assert!(each_is_needed(&plan) > 50);
    }
}

#[test]
fn portions_other_than_those_that_are_read_are_refused() {
    let other = |chunk: Chunk| Chunk { index: (chunk.index + 1) % chunk.of, ..chunk };
    let moved = |region: &mut Region| region.portion = region.portion.map(other);
    let whole = |region: &mut Region| region.portion = None;
    for plan in plans() {
        let refused = |what: &str, plan: Plan| {
            assert!(validate(&plan).is_err(), "{what}, {} slots", plan.map.expert_slots);
        };
        let of_experts = |change: &dyn Fn(&mut Compute)| {
            changed(&plan, |instruction| expert(instruction).into_iter().for_each(change))
        };
        refused("weights", of_experts(&|one| one.weights.iter_mut().for_each(moved)));
        refused("all weights", of_experts(&|one| one.weights.iter_mut().for_each(whole)));
        refused("inputs", of_experts(&|one| one.inputs.iter_mut().for_each(moved)));
        refused("outputs", of_experts(&|one| one.output.iter_mut().for_each(moved)));
        refused("chunk", of_experts(&|one| one.chunk = one.chunk.map(other)));
        refused("no chunk", of_experts(&|one| one.chunk = None));
        let half = |region: &mut Region| region.chunk = Some(Chunk { index: 0, of: 2 });
        refused("half of the weights", of_experts(&|one| one.weights.iter_mut().for_each(half)));
        refused("half of the output", of_experts(&|one| one.output.iter_mut().for_each(half)));
        let of_reads = |change: &dyn Fn(&mut Read)| {
            changed(&plan, |instruction| {
                if let Instruction::Read(read) = instruction
                    && read.routing.is_some()
                {
                    change(read);
                }
            })
        };
        refused("reads", of_reads(&|read| moved(&mut read.to)));
        refused(
            "one portion twice",
            of_reads(&|read| {
                read.to.portion = read.to.portion.map(|chunk| Chunk { index: 2, ..chunk });
            }),
        );
        // Nothing orders accesses that follow different lists.
        let table = plan.decode().lanes.iter().flat_map(|list| &list.instructions);
        let table = table.into_iter().find_map(|instruction| match instruction {
            Instruction::Compute(compute) => Some(compute.table),
            _ => None,
        });
        let table = table.expect("a table");
        refused(
            "another list",
            of_reads(&|read| {
                if let Some(regions) = &mut read.routing {
                    regions.routing = table;
                }
            }),
        );
    }
}

/// Sums over experts need those of every portion.
#[test]
fn sums_follow_the_last_portion() {
    for plan in plans() {
        let mut early = plan.clone();
        let program = early.programs.last_mut().expect("a program");
        let list = program.lanes.iter_mut().find(|list| list.lane == LaneId::CPU_COMPUTE);
        let list = &mut list.expect("a lane").instructions;
        let is_op = |instruction: &Instruction, op| match instruction {
            Instruction::Compute(compute) => compute.op == op,
            _ => false,
        };
        let combine = list.iter().position(|one| is_op(one, Op::ExpertCombine)).expect("a sum");
        let last = list[..combine].iter().rposition(|one| is_op(one, Op::ExpertDown));
        list.swap(combine, last.expect("a linear"));
        let error = validate(&early).expect_err("refused").to_string();
        assert!(error.contains("ExpertOut"), "{error}");
    }
}

/// The shared expert of a model whose experts work in a latent adds to the residual stream before
/// the linear after the experts does, so it is computed while they are read.
#[test]
fn a_shared_expert_is_computed_during_reads() {
    let mut config = find_known("nemotron-3-super").expect("known").config;
    config.keep_layers(5);
    let map = split(&config, 0, 0, Choices { prefill: ComputeDevice::Cpu, ..PLAIN });
    let map = DeviceMap { expert_slots: 32, ..on_storages(map) };
    let shape = RunShape { max_prompt: 2, max_context: 4, max_new: 2, ..shape(1, 1) };
    let plan = compile_on(&machine_of(&map), &config, &shape, &map).expect("compiles");
    validate(&plan).expect("proved");
    let ops: Vec<(Op, Option<u16>)> = instructions(plan.decode(), LaneId::CPU_COMPUTE)
        .iter()
        .filter_map(|instruction| match instruction {
            Instruction::Compute(one) if one.at.layer == Some(0) => {
                Some((one.op, one.chunk.map(|chunk| chunk.index)))
            }
            _ => None,
        })
        .skip_while(|(op, _)| *op != Op::ExpertLatentDown)
        .collect();
    let portion = |index| [(Op::ExpertUp, Some(index)), (Op::ExpertDown, Some(index))];
    let mut expected = vec![(Op::ExpertLatentDown, None)];
    expected.extend(portion(0));
    expected.extend([(Op::Fc0, None), (Op::Fc1, None)]);
    expected.extend((1..5).flat_map(portion));
    expected.extend([(Op::ExpertCombine, None), (Op::ExpertLatentUp, None)]);
    assert_eq!(ops, expected);
}

/// A device, other batches and whole weights have no portions.
#[test]
fn other_experts_are_computed_at_once() {
    let config = experts();
    let alone = split(&config, 0, 0, Choices { prefill: ComputeDevice::Cpu, ..PLAIN });
    let prefill = plans().map(|plan| plan.programs[0].clone());
    let in_memory = compile_on(&machine_of(&alone), &config, &shape(1, 2), &alone);
    let two = on_storages(alone);
    let two = compile_on(&machine_of(&two), &config, &shape(2, 2), &two).expect("compiles");
    let programs = prefill.into_iter().chain(in_memory.expect("compiles").programs);
    for program in programs.chain(two.programs) {
        let works = program.lanes.iter().flat_map(|list| &list.instructions);
        for instruction in works {
            let all = instruction.accesses().into_iter();
            assert!(all.clone().all(|(region, _)| region.portion.is_none()));
            assert!(
                !matches!(instruction, Instruction::Compute(one) if one.op == Op::ExpertCombine)
            );
        }
    }
    // A server computes rows of prompts in portions as well.
    let serving = RunShape { serves: true, prefill_chunk: 16, ..shape(1, 1) };
    let map = on_storages(split(&config, 0, 0, Choices { prefill: ComputeDevice::Cpu, ..PLAIN }));
    let served = compile_on(&machine_of(&map), &config, &serving, &map).expect("compiles");
    validate(&served).expect("proved");
    let all = served.programs[0].lanes.iter().flat_map(|list| &list.instructions);
    let is_divided = |instruction: &&Instruction| {
        instruction.accesses().iter().any(|(region, _)| region.portion.is_some())
    };
    assert!(all.filter(is_divided).count() > 0);
}
