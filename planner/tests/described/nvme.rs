//! Models that exceed memory, with drives for the rest.

use std::collections::BTreeSet;

use model::known::find_known;
use model::ops::Op;
use planner::budget::{Budget, StagedOps, Storage, step_read_bytes};
use planner::machine::{DriveSpec, Machine};
use planner::policy::name::PolicyName;
use planner::policy::{Placement, Policy};
use planner::search::{Pricing, SearchEffort, steady_step_ns};
use planner::split::Split;
use program::ir::Instruction;
use program::plan::Plan;
use program::shares::BLOCK_BYTES;
use program::simulate::Place;
use program::topology::{LaneKind, MemoryId};

use super::cases::{PlacementCase, layers_of, plain_machine};

fn with_drives(dram_gib: f64, drives: &[f64]) -> Machine {
    let mut machine = plain_machine();
    (machine.memory.dram_gib, machine.memory.os_reserve_gib) = (dram_gib, Some(0.0));
    machine.nvme =
        drives.iter().map(|read_gbps| DriveSpec { read_gbps: *read_gbps, direct: false }).collect();
    machine
}

/// Returns a case with seven layers of 96 MiB and the outer weights, on a machine with less memory
/// than that.
fn small(dram_gib: f64, drives: &[f64]) -> PlacementCase {
    let mut config = layers_of("opt-1.3b", 7);
    config.vocab_size = 1024;
    PlacementCase::new(with_drives(dram_gib, drives), config, (2, 4))
}

fn plan(case: &PlacementCase, policy: Policy) -> Plan {
    let (batches, batch_size) = case.batches;
    let placement = Placement::from_policy(policy);
    let plan = case.with_request(&placement, |request| request.plan(batches, batch_size));
    plan.unwrap_or_else(|error| panic!("{policy:?}: {error}"))
}

fn policies() -> [Policy; 3] {
    let split = Split { start: 7, end: 10 };
    [Policy::CpuOnly, Policy::GpuOnly, Policy::TwoSplit { split, chunking: None }]
}

/// Returns the durations of each lane's reads in a decode step, in ns.
fn reads_ns(plan: &Plan, machine: &Machine) -> Vec<Vec<f64>> {
    let program = plan.decode();
    let costs = machine.costs(plan, program, 64).expect("priced");
    let lists = program.lanes.iter();
    let lists = lists.filter(|list| plan.topology.lane(list.lane).kind == LaneKind::Read);
    let of_list = |list: &program::ir::LaneProgram| {
        let all = list.instructions.iter().enumerate();
        let reads = all.filter(|(_, work)| matches!(work, Instruction::Read(_)));
        let ns = reads.map(|(index, work)| {
            let instruction = index as u32;
            let place = Place { program: program.id, lane: list.lane, instruction };
            costs.work_ns(place, work, 0)
        });
        ns.collect()
    };
    lists.map(of_list).collect()
}

#[test]
fn drives_with_shares_of_their_rates_take_the_same_time() {
    for policy in policies() {
        let case = small(0.6, &[1.0, 3.0]);
        let plan = plan(&case, policy);
        let lanes = reads_ns(&plan, &case.machine);
        let [slow, fast] = &lanes[..] else { panic!("{} lanes", lanes.len()) };
        assert!(slow.len() > 3, "{policy:?}");
        // Shares of weights are rounded to blocks.
        let block_ns = BLOCK_BYTES as f64;
        for (slow_ns, fast_ns) in slow.iter().zip(fast) {
            assert!((slow_ns - fast_ns).abs() <= block_ns, "{policy:?}: {slow_ns} {fast_ns}");
        }
        // All bytes are read once, at 4 GB/s in total.
        let bytes: f64 = slow.iter().sum::<f64>() + 3.0 * fast.iter().sum::<f64>();
        assert!((bytes / step_read_bytes(&plan) as f64 - 1.0).abs() < 1e-9, "{policy:?}");
        assert!(slow.iter().all(|ns| *ns > 0.0));
    }
}

#[test]
fn a_step_that_reads_bound_takes_their_bytes_over_all_rates() {
    for policy in policies() {
        let case = small(0.6, &[0.25, 0.75]);
        let plan = plan(&case, policy);
        let step_ns = steady_step_ns(&plan, &case.machine, 72).expect("priced");
        let bound_ns = step_read_bytes(&plan) as f64 / 1.0;
        let share = step_ns / bound_ns;
        assert!((0.999..1.1).contains(&share), "{policy:?}: {share}");
        // Faster drives are hidden by the rest of the step.
        let fast = Machine {
            nvme: vec![DriveSpec { read_gbps: 1000.0, direct: false }; 2],
            ..case.machine.clone()
        };
        let fast_ns = steady_step_ns(&plan, &fast, 72).expect("priced");
        let plenty = PlacementCase { machine: with_drives(64.0, &[]), ..case.clone() };
        let unread = self::plan(&plenty, policy);
        let unread_ns = steady_step_ns(&unread, &plenty.machine, 72).expect("priced");
        assert!(fast_ns < 1.02 * unread_ns, "{policy:?}: {fast_ns} {unread_ns}");
    }
}

/// A byte read from a drive is written to memory, and read there as it would be anyway.
#[test]
fn what_drives_read_passes_host_memory_once_more() {
    for policy in policies() {
        let case = small(0.6, &[100.0]);
        let plenty = PlacementCase { machine: with_drives(64.0, &[]), ..case.clone() };
        let step_ns = |case: &PlacementCase| {
            let plan = plan(case, policy);
            let mut machine = case.machine.clone();
            machine.memory.dram_gbps = 1.0;
            (steady_step_ns(&plan, &machine, 72).expect("priced"), step_read_bytes(&plan))
        };
        let ((with_ns, bytes), (without_ns, none)) = (step_ns(&case), step_ns(&plenty));
        assert_eq!(none, 0);
        let passed_bytes = with_ns - without_ns;
        assert!((passed_bytes / bytes as f64 - 1.0).abs() < 0.02, "{policy:?}: {passed_bytes}");
    }
}

/// A byte that is read directly into device memory crosses the link once and host memory never.
#[test]
fn what_drives_read_straight_to_the_device_passes_the_link_alone() {
    let mut case = small(0.6, &[100.0]);
    let bounced = plan(&case, Policy::GpuOnly);
    case.machine.nvme[0].direct = true;
    let direct = plan(&case, Policy::GpuOnly);
    assert!(direct.map.direct_reads && !bounced.map.direct_reads);
    let lands = |plan: &Plan| {
        let lists = plan.programs.iter().flat_map(|program| &program.lanes);
        let reads = lists.flat_map(|list| &list.instructions).filter_map(|work| match work {
            Instruction::Read(read) => Some(plan.buffer(read.to.buffer).segment.memory),
            _ => None,
        });
        reads.collect::<BTreeSet<_>>()
    };
    assert_eq!(lands(&bounced), BTreeSet::from([MemoryId::DRAM]));
    assert_eq!(lands(&direct), BTreeSet::from([MemoryId::VRAM]));
    // Without slots on the host, fewer bytes have to be read.
    assert!(step_read_bytes(&direct) < step_read_bytes(&bounced));
    let case = PlacementCase { machine: with_drives(64.0, &[100.0]), ..case };
    let step_ns = |ops, direct, change: fn(&mut Machine)| {
        let storage = case.machine.read_shares().map(Storage::auto).expect("a drive");
        let storage = Storage { ops, direct, ..storage };
        let plan = case.with_request(&Placement::from_policy(Policy::GpuOnly), |request| {
            let request = planner::budget::PlacementRequest { storage: Some(&storage), ..*request };
            request.plan(2, 4).expect("it fits")
        });
        let mut machine = case.machine.clone();
        change(&mut machine);
        (steady_step_ns(&plan, &machine, 72).expect("priced"), step_read_bytes(&plan) as f64)
    };
    // If host memory is the only bottleneck, a direct read saves the read of a copy.
    let slow_memory: fn(&mut Machine) =
        |machine| (machine.memory.dram_gbps, machine.link.h2d_gbps) = (1.0, 400.0);
    let (none_ns, none) = step_ns(StagedOps::Auto, true, slow_memory);
    let (direct_ns, bytes) = step_ns(StagedOps::All, true, slow_memory);
    let (bounced_ns, _) = step_ns(StagedOps::All, false, slow_memory);
    assert_eq!(none, 0.0);
    for saved_bytes in [none_ns - direct_ns, (bounced_ns - direct_ns) / 2.0] {
        assert!((saved_bytes / bytes - 1.0).abs() < 0.02, "{saved_bytes} of {bytes}");
    }
    // If the link is the bottleneck, a direct read takes as long as a copy.
    let slow_link: fn(&mut Machine) = |machine| machine.link.h2d_gbps = 0.5;
    let (none_ns, _) = step_ns(StagedOps::Auto, true, slow_link);
    let (direct_ns, _) = step_ns(StagedOps::All, true, slow_link);
    assert!((direct_ns / none_ns - 1.0).abs() < 0.02, "{direct_ns} {none_ns}");
}

#[test]
fn a_plan_for_more_drives_than_there_are_is_not_priced() {
    let case = small(0.6, &[1.0, 1.0]);
    let plan = plan(&case, Policy::CpuOnly);
    let machine = with_drives(0.6, &[1.0]);
    let error = machine.costs(&plan, plan.decode(), 64).map(|_| ()).expect_err("one is missing");
    assert!(error.to_string().contains("1 NVMe drives, fewer than"), "{error}");
}

#[test]
fn opt_30b_is_planned_for_32_gb_and_two_drives() {
    let mut machine =
        planner::machine::find_bundled("ryzen7950x-a4000").expect("there").expect("valid");
    machine.memory.dram_gib = 32.0;
    machine.nvme = vec![
        DriveSpec { read_gbps: 5.0, direct: false },
        DriveSpec { read_gbps: 7.0, direct: false },
    ];
    let config = find_known("opt-30b").expect("known").config;
    let case = PlacementCase::new(machine, config, (1, 8));
    let alone = PlacementCase {
        machine: Machine { nvme: Vec::new(), ..case.machine.clone() },
        ..case.clone()
    };
    let refused =
        alone.choose_with(PolicyName::Auto, SearchEffort::Quick).expect_err("60 GB in 32");
    assert!(refused.to_string().contains("GiB"), "{refused}");
    let chosen = case.choose_with(PolicyName::Auto, SearchEffort::Quick).expect("the rest is read");
    let plan = &chosen.plan;
    let budget = Budget::from_plan(plan).dram_bytes(&case.limits());
    assert!(budget <= case.machine.dram_bytes());
    // Bounds: what neither memory could have, and besides it the slots of a layer on the host, and
    // on the device those of two and caches.
    let layer_bytes = case.config.layer_weight_bytes(0, model::config::Dtype::Bf16) as u64;
    let largest_bytes = Op::Fc0.weight_bytes(&case.config, model::config::Dtype::Bf16) as u64;
    assert!(case.machine.dram_bytes() - budget < largest_bytes);
    let all_bytes = 48 * layer_bytes;
    let vram_bytes = case.limits().vram_bytes.expect("a device");
    let least_bytes = all_bytes - case.machine.dram_bytes() - vram_bytes;
    let most_bytes = least_bytes + (2 << 30) + 5 * layer_bytes;
    let bytes = step_read_bytes(plan);
    assert!((least_bytes..most_bytes).contains(&bytes), "{bytes}: {least_bytes}, {most_bytes}");
    // Drives with a total of 12 GB/s are the bottleneck.
    let bound_ns = bytes as f64 / 12.0;
    let share = chosen.steady.step_ns() / bound_ns;
    assert!((0.999..1.1).contains(&share), "{share}");
    assert!((chosen.candidates[0].step_ns() / chosen.steady.step_ns() - 1.0).abs() < 0.01);
    assert_eq!(chosen.candidates[0].map, plan.map);
}

#[test]
fn more_memory_and_faster_drives_are_not_slower() {
    let total_ns = |dram_gib: f64, drives: &[f64]| {
        let mut case = small(dram_gib, drives);
        // Otherwise all layers would stay on the device.
        case.machine.memory.vram_gib = 0.1;
        case.choose(PolicyName::Auto).expect("the rest is read").predicted.total_ns()
    };
    let by_memory: Vec<f64> = [0.5, 0.7, 1.2].map(|gib| total_ns(gib, &[0.5, 1.0])).into();
    let by_drives: Vec<f64> =
        [[0.1, 0.1], [0.4, 0.1], [8.0, 8.0]].map(|one| total_ns(0.6, &one)).into();
    for all in [by_memory, by_drives] {
        assert!(all.windows(2).all(|pair| pair[1] <= pair[0] * 1.01), "{all:?}");
        assert!(all[0] > 1.5 * all[all.len() - 1], "{all:?}");
    }
}

#[test]
fn asked_for_all_is_read_and_the_policy_is_searched_as_ever() {
    let case = small(8.0, &[1.0, 1.0]);
    let chosen = case.with_request(&Placement::from_policy(Policy::GpuOnly), |request| {
        let storage = case.machine.read_shares().map(Storage::auto).expect("drives");
        let storage = Storage { ops: StagedOps::All, ..storage };
        let request = planner::budget::PlacementRequest { storage: Some(&storage), ..*request };
        planner::search::choose(&planner::search::SearchRequest {
            request: &request,
            batches: 2,
            batch_size: 4,
            policy: PolicyName::TwoSplit,
            chunkings: &[None],
            pricing: &case.machine,
            effort: SearchEffort::Full,
            rehearser: None,
        })
    });
    let chosen = chosen.expect("it fits");
    let resident = &chosen.placement.residency.layers;
    let homes = chosen.plan.map.weights.iter().enumerate();
    for (layer, homes) in homes {
        let read = homes.iter().filter(|home| **home == MemoryId::STORAGES).count();
        assert_eq!(read, if resident.contains(&layer) { 0 } else { 6 }, "layer {layer}");
    }
}
