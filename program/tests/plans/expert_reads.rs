//! Experts on storages: the programs that read those that rows are routed to, and their caches.

use crate::common::{Choices, PLAIN, all_works, experts, on_storages, shape, split};
use model::ops::Op;
use program::compile::{CompileError, compile_on, machine_of};
use program::expert_reads::ExpertReads;
use program::ir::{Instruction, Program, ProgramId, Read, Rows};
use program::map::{ComputeDevice, DeviceMap, layer_list};
use program::plan::{Plan, RunShape};
use program::routing_counts::{PinnedExpert, RoutingCounts};
use program::topology::LaneKind;
use program::validate::{ValidateError, describe, validate};

/// Returns plans of a model with experts, of one batch: all weights on storages, with the expert
/// operations on the CPU, and with these and the router on either device.
fn expert_plans() -> Vec<(String, Plan)> {
    let config = experts();
    let list = layer_list(&config, 0, None);
    let router = list.iter().position(|one| one.op == Op::Router).expect("a router");
    let alone = Choices { prefill: ComputeDevice::Cpu, ..PLAIN };
    let serving = RunShape { serves: true, prefill_chunk: 16, ..shape(1, 1) };
    let cases = [
        ("alone", split(&config, 0, 0, alone), shape(1, 2)),
        ("attention", split(&config, 0, router, PLAIN), shape(1, 2)),
        ("attention and router", split(&config, 0, router + 1, PLAIN), shape(1, 2)),
        ("serving", split(&config, 0, 0, alone), serving),
    ];
    let cases = cases.into_iter().flat_map(|case| {
        let (name, map, shape) = case.clone();
        let cached = DeviceMap { expert_slots: 8, ..map };
        [case, (name, cached, shape)]
    });
    let plans = cases.map(|(name, map, shape)| {
        let map = on_storages(map);
        let name = format!("{name}, {} slots", map.expert_slots);
        let plan = compile_on(&machine_of(&map), &config, &shape, &map);
        let plan = plan.unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, plan)
    });
    plans.collect()
}

fn reads(program: &Program) -> impl Iterator<Item = &Read> {
    all_works(program).filter_map(|(_, work)| match work {
        Instruction::Read(read) => Some(read),
        _ => None,
    })
}

#[test]
fn only_routed_experts_are_read_for_few_rows() {
    for (name, plan) in expert_plans() {
        validate(&plan).unwrap_or_else(|error| panic!("{name} is refused: {error}"));
        for program in &plan.programs {
            let is_routed = program.shape.rows == Rows::Single || plan.shape.serves;
            let experts = reads(program).filter(|read| read.op.is_expert());
            let count = experts.inspect(|read| {
                assert_eq!(read.routing.is_some(), is_routed, "{name} {:?}", read.op);
                let ops = read.expert_ops();
                assert_eq!(ops.iter().count(), if is_routed { 3 } else { 1 }, "{name}");
            });
            // One read fetches a portion of a layer's experts; whole weights are read one by one.
            let reads_per_layer = if is_routed { 4 } else { 3 };
            assert_eq!(count.count(), 2 * reads_per_layer * plan.config.num_layers, "{name}");
            assert!(
                reads(program).all(|read| read.op.is_expert() || read.routing.is_none()),
                "{name}"
            );
        }
        let decode = plan.programs.last().expect("a program");
        // Four rows, each with two of eight experts.
        let share = 1.0 - 0.75f64.powi(4);
        for read in reads(decode).filter(|read| read.op.is_expert()) {
            let mut whole = read.clone();
            whole.routing = None;
            let (read, whole) = (plan.read_bytes(read), plan.read_bytes(&whole));
            assert_eq!(read, (whole as f64 * share / 4.0).ceil() as u64, "{name}");
        }
    }
}

#[test]
fn experts_are_read_whole_if_most_are_needed_or_the_map_says_so() {
    let config = experts();
    let map = on_storages(split(&config, 0, 0, Choices { prefill: ComputeDevice::Cpu, ..PLAIN }));
    let any_routed = |map: &DeviceMap, shape: &RunShape| {
        let plan = compile_on(&machine_of(map), &config, shape, map).expect("compiles");
        validate(&plan).expect("proved");
        reads(plan.decode()).any(|read| read.routing.is_some())
    };
    let with = |expert_reads| DeviceMap { expert_reads, ..map.clone() };
    let (few, many) = (shape(1, 2), RunShape { batch_size: 40, ..shape(1, 2) });
    assert!(any_routed(&map, &few) && !any_routed(&map, &many));
    assert!(!any_routed(&with(ExpertReads::All), &few));
    assert!(any_routed(&with(ExpertReads::Routed), &many));
    // The rows of the other batch are not routed yet.
    assert!(!any_routed(&with(ExpertReads::Routed), &shape(2, 2)));
    let gpu = split(&config, 0, layer_list(&config, 0, None).len(), PLAIN);
    assert!(!any_routed(&on_storages(gpu), &few), "the device multiplies them");
}

#[test]
fn routed_reads_are_refused_where_they_would_leave_weights_out() {
    for (name, plan) in expert_plans() {
        let last = plan.programs.len() - 1;
        let changed = |change: &dyn Fn(&mut Read)| {
            let mut plan = plan.clone();
            let lists = plan.programs[last].lanes.iter_mut();
            for instruction in lists.flat_map(|list| &mut list.instructions) {
                if let Instruction::Read(read) = instruction {
                    change(read);
                }
            }
            validate(&plan)
        };
        let read = reads(&plan.programs[last]).find(|read| read.op.is_expert()).expect("a read");
        let (routing, joined) = (read.routing, read.joined.clone());
        assert!(!joined.is_empty(), "{name}");
        // A dense linear multiplies all of its weights.
        let error = changed(&|read| read.routing = routing).expect_err("refused");
        assert!(matches!(error, ValidateError::Malformed { .. }), "{name}: {error}");
        // A linear that is not read is missing.
        let error = changed(&|read| read.joined.truncate(1)).expect_err("refused");
        assert!(matches!(error, ValidateError::Stale { .. }), "{name}: {error}");
        // Other weights are not records of experts.
        let error = changed(&|read| {
            if !read.op.is_expert() {
                read.joined.clone_from(&joined);
            }
        });
        let error = error.expect_err("refused");
        assert!(matches!(error, ValidateError::Malformed { .. }), "{name}: {error}");
        // A slot that is too small would be written beyond its end.
        let mut small = plan.clone();
        let slot = reads(&small.programs[last]).find(|read| read.op.is_expert()).expect("a read");
        let slot = slot.to.buffer.0 as usize;
        small.buffers[slot].size_bytes -= 4096;
        let error = validate(&small).expect_err("refused").to_string();
        assert!(error.contains("too small for the experts"), "{name}: {error}");
        // Another value is not a routing.
        let weights = changed(&|read| {
            if let Some(regions) = &mut read.routing {
                regions.routing = read.to;
            }
        });
        assert!(weights.is_err(), "{name}");
    }
}

#[test]
fn cached_experts_outlast_programs_and_are_assigned_by_the_cpu() {
    let mut cached = 0;
    for (name, plan) in expert_plans() {
        let routed_on_gpu = name.starts_with("attention and router");
        let has_cache = plan.map.expert_slots > 0;
        assert_eq!(plan.expert_cache.is_some(), has_cache, "{name}");
        for read in plan.programs.iter().flat_map(reads) {
            let is_cached = plan.expert_cache_of(read.to.buffer).is_some();
            let expected = has_cache && read.routing.is_some() && !routed_on_gpu;
            assert_eq!(is_cached, expected, "{name} {:?}", read.op);
            cached += u32::from(is_cached);
        }
        // A slot shared with another program would lose what it holds.
        let Some(cache) = plan.expert_cache else { continue };
        let mut moved = plan.clone();
        let slot = reads(&moved.programs[0]).find(|read| read.to.buffer != cache.buffer);
        let slot = slot.expect("a read").to.buffer.0 as usize;
        moved.buffers[slot].offset_bytes = moved.buffer(cache.buffer).offset_bytes;
        let error = validate(&moved).expect_err("two buffers share bytes");
        assert!(matches!(error, ValidateError::Overlap { .. }), "{name}: {error}");
        if routed_on_gpu {
            continue;
        }
        // The whole blob does not fit, and nobody has assigned a slot.
        let mut whole = plan.clone();
        let lists = whole.programs.iter_mut().flat_map(|program| &mut program.lanes);
        for instruction in lists.flat_map(|list| &mut list.instructions) {
            if let Instruction::Read(read) = instruction {
                read.routing = None;
                read.joined.clear();
            }
        }
        let error = validate(&whole).expect_err("refused");
        assert!(matches!(error, ValidateError::Malformed { .. }), "{name}: {error}");
    }
    assert!(cached > 6, "{cached}");
}

#[test]
fn a_cache_has_memory_for_the_experts_of_a_step() {
    let config = experts();
    let map = on_storages(split(&config, 0, 0, Choices { prefill: ComputeDevice::Cpu, ..PLAIN }));
    let slots = |expert_slots, batch_size| {
        let map = DeviceMap { expert_slots, ..map.clone() };
        let shape = RunShape { batch_size, ..shape(1, 1) };
        let plan = compile_on(&machine_of(&map), &config, &shape, &map).expect("compiles");
        validate(&plan).expect("proved");
        let cache = plan.expert_cache.expect("a cache");
        plan.buffer(cache.buffer).size_bytes / cache.slot_bytes
    };
    // A row is routed to two of eight experts of a layer.
    assert_eq!([slots(1, 1), slots(2, 1), slots(3, 1)], [2, 2, 3]);
    assert_eq!([slots(1, 4), slots(7, 4), slots(16, 4)], [8, 8, 16]);
}

#[test]
fn pinned_experts_exist_and_have_slots() {
    let config = experts();
    let map = on_storages(split(&config, 0, 0, Choices { prefill: ComputeDevice::Cpu, ..PLAIN }));
    let pinned = |layer, expert| PinnedExpert { layer, expert };
    let compiled = |pinned_experts: &[PinnedExpert], expert_slots| {
        let pinned_experts = pinned_experts.to_vec();
        let map = DeviceMap { expert_slots, pinned_experts, ..map.clone() };
        compile_on(&machine_of(&map), &config, &shape(1, 1), &map)
    };
    let plan = compiled(&[pinned(0, 1), pinned(1, 7)], 2).expect("compiles");
    validate(&plan).expect("proved");
    // The experts of a step need slots that are not pinned.
    let cache = plan.expert_cache.expect("a cache");
    assert_eq!(plan.buffer(cache.buffer).size_bytes, 10 * cache.slot_bytes);
    let beyond = config.num_layers as u16;
    for (wrong, slots) in [
        (vec![pinned(0, 1), pinned(1, 7)], 1),
        (vec![pinned(1, 7), pinned(0, 1)], 2),
        (vec![pinned(0, 1), pinned(0, 1)], 2),
        (vec![pinned(0, 8)], 2),
        (vec![pinned(beyond, 0)], 2),
    ] {
        let refused = compiled(&wrong, slots).expect_err("refused");
        assert!(matches!(refused, CompileError::PinnedExperts { .. }), "{wrong:?}: {refused}");
        let mut changed = plan.clone();
        changed.map.pinned_experts = wrong;
        changed.map.expert_slots = slots;
        let refused = validate(&changed).expect_err("refused");
        assert!(matches!(refused, ValidateError::PinnedExperts { .. }), "{refused}");
    }
}

#[test]
fn measured_routing_is_that_of_the_experts_and_determines_what_is_read() {
    let config = experts();
    let map = on_storages(split(&config, 0, 0, Choices { prefill: ComputeDevice::Cpu, ..PLAIN }));
    let compiled = |rows: &[u64]| {
        let counts = RoutingCounts { layers: vec![rows.to_vec(); config.num_layers] };
        let map = DeviceMap { routing: counts.skew(2), ..map.clone() };
        compile_on(&machine_of(&map), &config, &shape(1, 2), &map)
    };
    let read_bytes = |plan: &Plan| -> u64 {
        let routed = reads(plan.decode()).filter(|read| read.routing.is_some());
        routed.map(|read| plan.read_bytes(read)).sum()
    };
    // All rows go to the same two of eight experts, or to each as often.
    let skewed = read_bytes(&compiled(&[9, 9, 0, 0, 0, 0, 0, 0]).expect("compiles"));
    let even = read_bytes(&compiled(&[5; 8]).expect("compiles"));
    let share = 1.0 - 0.75f64.powi(4);
    let ratio = skewed as f64 / even as f64;
    assert!((ratio - 0.25 / share).abs() < 1e-3, "{skewed} {even}");
    let refused = compiled(&[1; 7]).expect_err("another model's");
    assert_eq!(refused, CompileError::Routing { counted: 7, count: 8 });
}

#[test]
fn without_any_instruction_around_routed_reads_the_plan_is_refused() {
    for (name, plan) in expert_plans() {
        for (id, program) in (0..).map(ProgramId).zip(&plan.programs) {
            for (place, list) in program.lanes.iter().enumerate() {
                if plan.topology.lane(list.lane).kind != LaneKind::Read {
                    continue;
                }
                for index in 0..list.instructions.len() {
                    let mut changed = plan.clone();
                    let list = &mut changed.program_mut(id).lanes[place];
                    let removed = list.instructions.remove(index);
                    list.signals_per_step -= u32::from(removed == Instruction::Signal);
                    let what = describe(&removed, plan.config.family, &plan.topology);
                    assert!(validate(&changed).is_err(), "{name} {id:?} {index}: {what}");
                }
            }
        }
    }
}
