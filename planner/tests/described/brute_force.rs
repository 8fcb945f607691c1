//! Compares the chosen placement with all placements of small models, compiled and simulated one by
//! one, including machines with a drive whose memory lacks space for a layer.

use model::ops::Op;
use planner::budget::PROCESS_OVERHEAD_BYTES;
use planner::lia::OffloadVector;
use planner::machine::{DriveSpec, SlowTierSpec};
use planner::policy::name::PolicyName;
use planner::policy::{
    Flexgen, Placement, Policy, Residency, ResidentAttention, SlowTierLayers, SlowTierWeights,
    StagedMatrices, spread_evenly,
};
use planner::search::predict;
use planner::split::Split;
use program::map::{ChunkOrder, Chunking, layer_list};
use program::topology::MemoryId;

use super::cases::{PlacementCase, layers_of, plain_machine, runs_all_cases};

/// Returns the predicted time of a placement; `None` if it does not fit.
fn total_ns(case: &PlacementCase, placement: &Placement) -> Option<f64> {
    case.with_request(placement, |request| {
        let plan = request.plan_if_fits(case.batches.0, case.batches.1).expect("compiles")?;
        Some(predict(&plan, &case.machine).expect("priced").total_ns())
    })
}

/// Compiling all placements takes minutes, so each case has a sample: every third one if all cases
/// run, and else every ninth.
fn sampled() -> usize {
    if runs_all_cases() { 3 } else { 9 }
}

/// Returns every policy with every choice of what it leaves open.
fn all(case: &PlacementCase) -> Vec<Placement> {
    let layers = case.config.num_layers;
    let count = layer_list(&case.config, 0, None).len();
    let intervals = (0..count).flat_map(|start| (start + 1..=count).map(move |end| (start, end)));
    let split = |(start, end)| Policy::TwoSplit { split: Split { start, end }, chunking: None };
    let flexgen = |spread, cpu_attention| Policy::Flexgen(Flexgen { spread, cpu_attention });
    let mut policies: Vec<Policy> = std::iter::once((0, 0)).chain(intervals).map(split).collect();
    policies.extend([flexgen(false, false), flexgen(false, true)]);
    policies.extend([flexgen(true, false), flexgen(true, true)]);
    for prefill in [OffloadVector::FULL_GPU, OffloadVector::FULL_CPU] {
        let named = OffloadVector::NAMED.into_iter();
        policies.extend(named.map(|decode| Policy::Lia { prefill, decode, spread: true }));
    }
    let mut residencies = Vec::new();
    for head in [false, true] {
        residencies.push(Residency { head, ..Residency::NONE });
        for attention in ResidentAttention::ALL {
            residencies.extend((1..=layers).map(|count| Residency {
                layers: spread_evenly(count, layers),
                attention,
                head,
            }));
        }
    }
    // Weights in an additional memory: as little as fits, or any number of layers.
    let mut fars = vec![SlowTierLayers::NONE];
    if !case.machine.tier.is_empty() {
        for weights in [SlowTierWeights::Streamed, SlowTierWeights::All] {
            fars.extend((1..=layers).map(|count| SlowTierLayers { layers: [count, 0], weights }));
        }
    }
    let mut all: Vec<Placement> =
        [Policy::CpuOnly, Policy::GpuOnly, Policy::Resident].map(Placement::from_policy).into();
    for policy in policies {
        for (kv, device_batches) in [(MemoryId::DRAM, 0), (MemoryId::DRAM, 1), (MemoryId::VRAM, 0)]
        {
            for residency in &residencies {
                let of = |slow_tier: SlowTierLayers, prefill_on_cpu| Placement {
                    policy,
                    prefill_on_cpu,
                    kv: Some(kv),
                    device_batches,
                    residency: residency.clone(),
                    slow_tier,
                    staged: StagedMatrices::NONE,
                };
                all.extend(
                    fars.iter().flat_map(|slow_tier| [of(*slow_tier, false), of(*slow_tier, true)]),
                );
            }
        }
    }
    all
}

fn cases() -> Vec<PlacementCase> {
    let small = |layers| {
        let mut config = layers_of("opt-125m", layers);
        config.vocab_size = 1024;
        config
    };
    let layer_gib = |config: &model::config::ModelConfig| {
        let ops = config.layer_ops(0).iter();
        let bytes: usize =
            ops.map(|op: &Op| op.weight_bytes(config, model::config::Dtype::Bf16)).sum();
        bytes as f64 / f64::from(1 << 30)
    };
    let with_vram = |layers_of_room: f64, batches, slow_link: bool| {
        let mut machine = plain_machine();
        let config = small(2);
        machine.memory.vram_gib = layers_of_room * layer_gib(&config);
        if slow_link {
            (machine.link.h2d_gbps, machine.link.d2h_gbps) = (4.0, 4.0);
        }
        PlacementCase { prompt: 48, new: 24, ..PlacementCase::new(machine, config, batches) }
    };
    let with_drive = |layers_of_room: f64, missing_layers: f64| {
        let mut case = with_vram(layers_of_room, (1, 8), false);
        let layers_gib = (3.0 - missing_layers) * layer_gib(&small(1));
        let others_gib = PROCESS_OVERHEAD_BYTES as f64 / f64::from(1 << 30) + 0.004;
        let memory = &mut case.machine.memory;
        (memory.dram_gib, memory.os_reserve_gib) = (layers_gib + others_gib, Some(0.0));
        case.machine.nvme = vec![DriveSpec { read_gbps: 2.0, direct: false }];
        PlacementCase { config: small(3), ..case }
    };
    // Either the near memory lacks space for some layers, or all fit and its bandwidth is low.
    let with_tier = |missing_layers: f64, dram_gbps: f64, cpu_gbps: f64| {
        let mut case = with_drive(1.5, missing_layers);
        case.machine.nvme.clear();
        case.machine.memory.dram_gbps = dram_gbps;
        let name = "CXL".to_owned();
        case.machine.tier =
            vec![SlowTierSpec { name, capacity_gib: 1.0, cpu_gbps, link_gbps: 10.0 }];
        case
    };
    vec![
        with_tier(1.6, 80.0, 12.0),
        with_tier(-1.0, 25.0, 20.0),
        with_drive(1.5, 0.6),
        with_vram(1.5, (1, 8), false),
        with_vram(2.6, (2, 4), true),
        with_vram(3.5, (1, 32), true).compressed(),
        with_vram(5.0, (2, 16), false),
    ]
}

/// Returns the permitted ratio of the chosen time to the minimum. If bandwidth that lanes share
/// bounds most placements, their steady steps are equal and the time to fill the lanes at first
/// decides, which estimates do not model.
fn times(case: &PlacementCase) -> f64 {
    if case.machine.tier.is_empty() { 1.002 } else { 1.02 }
}

#[test]
fn the_choice_is_the_least_of_all_placements() {
    for (number, case) in cases().into_iter().enumerate() {
        let chosen = case.choose(PolicyName::Auto).expect("something fits");
        let all = all(&case).into_iter().skip(number % sampled()).step_by(sampled());
        let priced = all.filter_map(|one| Some((total_ns(&case, &one)?, one)));
        let (least_ns, least) = priced.min_by(|a, b| a.0.total_cmp(&b.0)).expect("something fits");
        let chosen_ns = chosen.predicted.total_ns();
        println!("{} of the least", chosen_ns / least_ns);
        assert!(
            chosen_ns <= least_ns * times(&case),
            "{chosen_ns} of {:?} above {least_ns} of {least:?}",
            chosen.placement
        );
    }
}

/// The best boundary within a linear is found, given all other choices: on machines on which it
/// gains much, a little, and nothing for lack of memory.
#[test]
fn splits_within_linears_are_the_least_of_all() {
    let linears = Chunking { order: ChunkOrder::Linears, chunks: 4 };
    let mut gains = 0;
    for (link_gbps, layers_of_room) in [(12.0, 2.25), (9.0, 1.3), (9.0, 2.6), (9.0, 0.9)] {
        let slow_link = cases().into_iter().find(|case| case.machine.link.h2d_gbps == 4.0);
        let mut whole = PlacementCase { batches: (1, 8), ..slow_link.expect("a slow link") };
        whole.machine.memory.vram_gib *= layers_of_room / 2.6;
        whole.config.num_layers = 4;
        let link = &mut whole.machine.link;
        (link.h2d_gbps, link.d2h_gbps) = (link_gbps, link_gbps);
        let case = PlacementCase { chunking: Some(linears), ..whole.clone() };
        let chosen = case.choose(PolicyName::TwoSplit).expect("something fits");
        let count = layer_list(&case.config, 0, case.chunking).len();
        let ends = (0..count).flat_map(|start| (start + 1..=count).map(move |end| (start, end)));
        let all = ends.map(|(start, end)| {
            let policy = Policy::TwoSplit { split: Split { start, end }, chunking: case.chunking };
            Placement { policy, ..chosen.placement.clone() }
        });
        let least_ns = all.filter_map(|one| total_ns(&case, &one)).fold(f64::INFINITY, f64::min);
        let chosen_ns = chosen.predicted.total_ns();
        println!("{} of the least", chosen_ns / least_ns);
        assert!(chosen_ns <= least_ns * 1.006, "{chosen_ns} of {:?}", chosen.placement);
        let whole_ns = whole.choose(PolicyName::TwoSplit).expect("fits").predicted.total_ns();
        assert!(chosen_ns <= whole_ns * 1.0001, "{chosen_ns} {whole_ns}");
        println!("{} of the best that is whole", chosen_ns / whole_ns);
        gains += u32::from(chosen_ns < whole_ns * 0.98);
    }
    assert_eq!(gains, 2, "2% and more");
}

#[test]
fn what_a_policy_chooses_alone_is_among_what_auto_compares() {
    for case in cases() {
        let auto_ns = case.choose(PolicyName::Auto).expect("fits").predicted.total_ns();
        for policy in PolicyName::ALL {
            if let Ok(alone) = case.choose(policy) {
                let alone_ns = alone.predicted.total_ns();
                let what = format!("{policy:?}: {auto_ns} {alone_ns}");
                assert!(auto_ns <= alone_ns * times(&case), "{what}");
            }
        }
    }
}
