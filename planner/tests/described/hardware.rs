//! A model that fits on a card runs at the card's speed.

use model::known::find_known;
use planner::budget::{Budget, PROCESS_OVERHEAD_BYTES};
use planner::machine::{Machine, find_bundled as known_machine};
use planner::policy::name::PolicyName;
use planner::search::{SearchEffort, steady_step_ns};
use program::plan::ResidentSource;

use super::cases::{PlacementCase, layers_of, plain_machine};

/// Returns a machine with a card of `gbps` and `vram_gib` and a link of `link_gbps`.
fn card(gbps: f64, vram_gib: f64, link_gbps: f64) -> Machine {
    let mut machine = plain_machine();
    let rates = &mut machine.gpu.bf16;
    (rates.linear_gbps, rates.attention_gbps) = (gbps, gbps);
    machine.memory.vram_gib = vram_gib;
    (machine.link.h2d_gbps, machine.link.d2h_gbps) = (link_gbps, link_gbps);
    machine
}

#[test]
fn a_model_that_fits_reaches_the_bandwidth_of_the_card() {
    let h100 = known_machine("spr-h100").expect("there").expect("valid");
    let cards = [
        (card(250.0, 8.0, 12.0), "llama-3.2-3b"),
        (card(900.0, 24.0, 24.0), "llama-3.2-3b"),
        (h100, "llama-3.2-1b"),
    ];
    for (machine, model) in cards {
        let config = find_known(model).expect("known").config;
        let gbps = machine.gpu.bf16.linear_gbps;
        let name = machine.memory.vram_gib;
        let case = PlacementCase::new(machine, config, (1, 1));
        let chosen = case.choose(PolicyName::Auto).expect("it fits");
        assert_eq!(chosen.name, PolicyName::Resident, "{name} GiB");
        let plan = &chosen.plan;
        assert!(plan.map.weights.iter().flatten().all(|home| plan.topology.is_vram(*home)));
        // The weights of the layers and of the head are read once per token.
        let bytes: u64 = plan.resident.iter().map(|one| plan.buffer(one.to).size_bytes).sum();
        let bound_tokens_per_s = gbps * 1e9 / bytes as f64;
        let tokens_per_s = 1e9 / chosen.steady.step_ns();
        let share = tokens_per_s / bound_tokens_per_s;
        assert!((0.8..=1.0).contains(&share), "{model}, {name} GiB: {share}");
    }
}

#[test]
fn what_streams_is_named_for_the_card_that_is_too_small() {
    let config = find_known("llama-3-8b").expect("known").config;
    let case = PlacementCase::new(card(250.0, 8.0, 12.0), config, (1, 4));
    let chosen = case.choose(PolicyName::Auto).expect("it fits the host");
    let layers = chosen.placement.residency.layers.len();
    assert!(layers > 0 && layers < 32, "{:?}", chosen.placement);
    let refused = case.choose(PolicyName::Resident).expect_err("16 GB of weights").to_string();
    assert!(refused.contains("but the device has 8.00 GiB"), "{refused}");
}

/// Attention of four batches on the CPU takes about as long as the weights of two layers on the
/// link. If every other layer is resident, the link has the time of two layers for each streamed
/// one.
#[test]
fn layers_that_stay_are_spread_where_that_keeps_the_link_busy() {
    let mut machine = known_machine("spr-h100").expect("there").expect("valid");
    machine.memory.vram_gib = 20.0;
    let case = PlacementCase {
        prompt: 512,
        new: 32,
        ..PlacementCase::new(machine, layers_of("opt-66b", 16), (4, 64))
    };
    let step_ms = |policy| case.choose(policy).expect("it fits").steady.step_ns() / 1e6;
    let (first, spread) = (step_ms(PolicyName::Lia), step_ms(PolicyName::LiaSpread));
    assert!(spread < 0.95 * first, "{spread} {first}");
    let auto = case.choose(PolicyName::Auto).expect("it fits");
    assert_eq!(auto.name, PolicyName::LiaSpread);
}

/// A weight is in one memory, so that device and host memory add up: 40 GB of weights fit 24 GiB of
/// one and 32 GiB of the other.
#[test]
fn device_and_host_memory_add_up() {
    let mut machine = card(400.0, 24.0, 20.0);
    (machine.memory.dram_gib, machine.memory.os_reserve_gib) = (32.0, Some(1.0));
    let case = PlacementCase::new(machine, layers_of("opt-30b", 32), (1, 4));
    let limits = case.limits();
    let (dram, vram) = (limits.dram_bytes, limits.vram_bytes.expect("a card"));
    for policy in [PolicyName::Auto, PolicyName::Flexgen, PolicyName::Lia] {
        let plan = case.choose(policy).expect("it fits both together").plan;
        let budget = Budget::from_plan(&plan);
        let used = budget.dram_bytes(&limits);
        assert!(used <= dram && budget.device_bytes <= vram, "{policy:?}: {budget:?}");
        let resident = plan.resident.iter();
        let of_model = resident.filter(|one| matches!(one.source, ResidentSource::Model(_)));
        let on_device: u64 = of_model.map(|one| plan.buffer(one.to).size_bytes).sum();
        let on_host: u64 = plan.weights.iter().map(|one| plan.buffer(one.buffer).size_bytes).sum();
        let all = on_device + on_host;
        assert!((40_000_000_000..41_000_000_000).contains(&all), "{on_device} {on_host}");
        assert!(on_host < dram - PROCESS_OVERHEAD_BYTES, "{policy:?}: {on_host}");
    }
    // Neither memory has capacity for all of them.
    for policy in [PolicyName::CpuOnly, PolicyName::Resident] {
        assert!(case.choose(policy).is_err(), "{policy:?}");
    }
}

/// A card larger than host memory takes a model that host memory could not.
#[test]
fn a_card_takes_what_host_memory_could_not() {
    let mut machine = card(400.0, 24.0, 20.0);
    (machine.memory.dram_gib, machine.memory.os_reserve_gib) = (10.0, Some(1.0));
    let config = find_known("opt-6.7b").expect("known").config;
    let case = PlacementCase::new(machine, config, (1, 1));
    let chosen = case.choose(PolicyName::Auto).expect("it fits the card");
    assert_eq!(chosen.name, PolicyName::Resident);
    let embedding = Budget::from_plan(&chosen.plan).weights_bytes;
    assert!(embedding < 1 << 30, "only the embedding stays on the host: {embedding}");
}

/// eLLM §7.1: the mean time of a position, e + (p + 1) / 2 * a, is linear in p, so each step is
/// too, up to a million positions, for which its CPU server has capacity.
#[test]
fn steps_on_the_cpu_alone_grow_linearly_to_a_million_positions() {
    let machine = known_machine("xeon8488c").expect("there").expect("valid");
    let (config, new) = (layers_of("llama-3-70b", 8), 998_976);
    let case = PlacementCase { prompt: 1024, new, ..PlacementCase::new(machine, config, (1, 1)) };
    let chosen = case.choose_with(PolicyName::Ellm, SearchEffort::Quick).expect("it fits");
    assert_eq!(chosen.plan.map.policy, "ellm");
    assert!(!chosen.plan.map.uses_gpu());
    let step_ns =
        |positions| steady_step_ns(&chosen.plan, &case.machine, positions).expect("priced");
    let (first, last) = (step_ns(1_000), step_ns(999_000));
    let slope = (last - first) / 998_000.0;
    for positions in [10_000, 100_000, 500_000] {
        let line = first + slope * f64::from(positions - 1_000);
        let ratio = step_ns(positions) / line;
        assert!((ratio - 1.0).abs() < 0.01, "{positions}: {ratio}");
    }
    // In each of 8 layers a position takes the time of reading 4 KiB of keys and values, and of
    // 4 operations for each of 64 heads of 128 elements.
    let (read_ns, compute_ns) = (8.0 * 4096.0 / 500.0, 8.0 * 4.0 * 64.0 * 128.0 / 13_300.0);
    let expected = read_ns + compute_ns;
    assert!((slope / expected - 1.0).abs() < 0.01, "{slope} {expected}");
}
