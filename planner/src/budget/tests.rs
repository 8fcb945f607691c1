//! No more is read from storages than memory requires, and nothing if everything fits.

use model::config::{Dtype, ModelConfig};
use model::known::find_known;
use model::ops::Op;
use program::compile::footprint;
use program::ir::Instruction;
use program::map::DeviceMap;
use program::plan::Plan;
use program::shares::ReadShares;
use program::topology::MemoryId;

use super::{
    Budget, MemoryLimits, PlacementRequest, PlanError, StagedOps, Storage, step_read_bytes,
};
use crate::policy::{Formats, Placement, Policy, Residency};
use crate::split::Split;

const PLENTY_BYTES: u64 = 1 << 40;
const MIB: u64 = 1 << 20;

fn layers_of(name: &str, layers: usize) -> ModelConfig {
    let mut config = find_known(name).expect("known").config;
    config.num_layers = layers;
    config.vocab_size = 1024;
    config
}

/// Returns a model whose matrices have few different sizes, and one with many.
fn configs() -> [ModelConfig; 2] {
    [layers_of("opt-125m", 8), layers_of("llama-3-8b", 6)]
}

fn placements(config: &ModelConfig) -> Vec<Placement> {
    let split = Policy::TwoSplit { split: Split { start: 4, end: 7 }, chunking: None };
    let residency = Residency { layers: vec![0, 3], ..Residency::NONE };
    let kept = config.num_layers > 4;
    let mut all =
        vec![Placement::from_policy(Policy::CpuOnly), Placement::from_policy(Policy::GpuOnly)];
    all.extend(kept.then(|| Placement { residency, ..Placement::from_policy(split) }));
    all
}

fn storage(ops: StagedOps) -> Storage {
    Storage { ops, ..Storage::auto(ReadShares::new(vec![1, 3])) }
}

struct Case<'a> {
    config: &'a ModelConfig,
    placement: &'a Placement,
    storage: Option<Storage>,
}

impl Case<'_> {
    fn with<T>(&self, dram_bytes: u64, then: impl FnOnce(&PlacementRequest<'_>) -> T) -> T {
        let limits = limits(dram_bytes);
        then(&PlacementRequest {
            config: self.config,
            placement: self.placement,
            formats: &Formats::plain(self.config),
            fuse_attention: true,
            dtype: Dtype::Bf16,
            max_prompt: 256,
            shared_prompt: 0,
            max_context: 264,
            max_new: 8,
            logprobs: 0,
            prefill_chunk: None,
            limits: &limits,
            storage: self.storage.as_ref(),
            routing: None,
        })
    }

    fn plan(&self, dram_bytes: u64) -> Result<Plan, PlanError> {
        self.with(dram_bytes, |request| request.plan(2, 8))
    }

    fn needs(&self, plan: &Plan, map: &DeviceMap) -> u64 {
        let needs = footprint(self.config, &plan.shape, map, None).expect("compiles");
        Budget::from(needs).dram_bytes(&limits(0))
    }

    /// Returns the minimum host memory without storages.
    fn unread_bytes(&self) -> u64 {
        let none = Case { storage: None, ..*self };
        let fits = |bytes| none.with(bytes, |request| request.fits(2, 8).expect("compiles"));
        let (mut too_few, mut enough) = (0, PLENTY_BYTES);
        while enough - too_few > 1 {
            let middle = too_few + (enough - too_few) / 2;
            if fits(middle) { enough = middle } else { too_few = middle }
        }
        enough
    }
}

fn limits(dram_bytes: u64) -> MemoryLimits {
    MemoryLimits {
        dram_bytes,
        vram_bytes: None,
        vram_is_dram: false,
        slow_tier_bytes: MemoryLimits::NO_SLOW_TIER,
        device_scratch: None,
    }
}

/// Returns the matrices on storages, by layer.
fn read_of(map: &DeviceMap, config: &ModelConfig) -> Vec<Vec<Op>> {
    let of_layer = |homes: &Vec<MemoryId>| {
        let homes = homes.iter().zip(config.layer_ops(0));
        homes.filter(|(home, _)| **home == MemoryId::STORAGES).map(|(_, op)| *op).collect()
    };
    map.weights.iter().map(of_layer).collect()
}

#[test]
fn nothing_is_read_where_all_fits_even_with_smaller_streams() {
    for config in &configs() {
        for placement in &placements(config) {
            let case = Case { config, placement, storage: Some(storage(StagedOps::Auto)) };
            let none = Case { storage: None, ..case };
            let unread_bytes = case.unread_bytes();
            for dram_bytes in [PLENTY_BYTES, unread_bytes] {
                let plans = [&case, &none].map(|case| case.plan(dram_bytes).expect("it fits"));
                assert_eq!(plans[0], plans[1]);
            }
            let usual = case.plan(PLENTY_BYTES).expect("it fits");
            let least = case.plan(unread_bytes).expect("it fits");
            let streams = [least, usual].map(|plan| plan.shape.micro_sequences);
            assert!(streams[0] < streams[1] || placement.policy != Policy::CpuOnly);
            assert!(case.plan(unread_bytes - 1).expect("it is read").map.uses_storages());
        }
    }
}

#[test]
fn as_little_is_read_as_memory_requires() {
    for config in &configs() {
        for placement in &placements(config) {
            let case = Case { config, placement, storage: Some(storage(StagedOps::Auto)) };
            let unread_bytes = case.unread_bytes();
            let mut before = 0;
            for step in 1..60 {
                let dram_bytes = unread_bytes - step * 5 * MIB * config.hidden_size as u64 / 768;
                let Ok(plan) = case.plan(dram_bytes) else { break };
                assert_eq!(case.with(dram_bytes, |request| request.fits(2, 8).ok()), Some(true));
                assert!(case.needs(&plan, &plan.map) <= dram_bytes);
                let bytes = step_read_bytes(&plan);
                assert!(bytes >= before, "{bytes} after {before}");
                before = bytes;
                is_least(&case, &plan, dram_bytes);
            }
            let layer_bytes = config.layer_weight_bytes(0, Dtype::Bf16) as u64;
            assert!(before > 2 * layer_bytes, "{before} bytes of layers of {layer_bytes}");
        }
    }
}

/// Checks that reads are minimal: the plan does not fit without the read of any operation that not
/// all layers read, nor without that of the largest one of any layer.
fn is_least(case: &Case<'_>, plan: &Plan, dram_bytes: u64) {
    let read = read_of(&plan.map, case.config);
    let most = read.iter().map(Vec::len).max().unwrap_or(0);
    let is_whole = |ops: &[Op]| ops.len() == most && read.iter().any(|ops| ops.len() < most);
    let bytes = |op: &Op| op.weight_bytes(case.config, Dtype::Bf16);
    for (layer, ops) in read.iter().enumerate() {
        let largest = ops.iter().copied().max_by_key(bytes);
        for op in ops.iter().filter(|op| !is_whole(ops) || Some(**op) == largest) {
            let mut fewer = plan.map.clone();
            let all = case.config.layer_ops(0);
            let place = all.iter().position(|other| other == op).expect("of the layer");
            fewer.weights[layer][place] = MemoryId::DRAM;
            let needed = case.needs(plan, &fewer);
            assert!(needed > dram_bytes, "{op:?} of layer {layer} need not be read of {read:?}");
        }
    }
}

#[test]
fn what_fits_with_no_read_is_refused_with_what_stays() {
    let config = &layers_of("opt-125m", 8);
    let placement = &Placement::from_policy(Policy::CpuOnly);
    let case = Case { config, placement, storage: Some(storage(StagedOps::Auto)) };
    let error = case.plan(super::PROCESS_OVERHEAD_BYTES + 80 * MIB).expect_err("too large");
    let text = error.to_string();
    assert!(text.contains("even where weights are read from storages"), "{text}");
    let PlanError::DoesNotFit { budget, limits, fitting: Some(fitting), .. } = error else {
        panic!("{text}")
    };
    // The slots of one layer, and the weights that are never read.
    assert!(budget.weights_bytes < 2 * config.layer_weight_bytes(0, Dtype::Bf16) as u64);
    assert!(budget.dram_bytes(&limits) > limits.dram_bytes);
    let largest = case.with(limits.dram_bytes, |request| request.plan(2, fitting));
    assert!(largest.expect("it fits").map.uses_storages());
}

#[test]
fn what_is_to_be_read_is_read_with_plenty_of_memory() {
    let mut config = layers_of("llama-3-8b", 4);
    for tied in [false, true] {
        config.tied_embeddings = tied;
        let placement = &Placement::from_policy(Policy::GpuOnly);
        let read = |ops| {
            let case = Case { config: &config, placement, storage: Some(storage(ops)) };
            let map = case.plan(PLENTY_BYTES).expect("it fits").map;
            assert_eq!(map.shares.storages(), 2);
            (read_of(&map, &config), map.outer_weights == MemoryId::STORAGES)
        };
        let all = vec![Op::Q, Op::K, Op::V, Op::Out, Op::Gate, Op::Up, Op::Down];
        assert_eq!(read(StagedOps::All), (vec![all; 4], !tied));
        let some = vec![Op::K, Op::Up];
        assert_eq!(read(StagedOps::Selected(vec![Op::Up, Op::K])), (vec![some; 4], false));
        let head = StagedOps::Selected(vec![Op::Head, Op::Down]);
        assert_eq!(read(head), (vec![vec![Op::Down]; 4], !tied));
    }
}

#[test]
fn as_few_layers_as_fit_live_in_further_memories() {
    let config = &layers_of("opt-125m", 8);
    let layer_bytes = config.layer_weight_bytes(0, Dtype::Bf16) as u64;
    let split = Policy::TwoSplit { split: Split { start: 8, end: 10 }, chunking: None };
    for policy in [Policy::CpuOnly, Policy::GpuOnly, split] {
        let placement = &Placement::from_policy(policy);
        let case = Case { config, placement, storage: None };
        let needed = case.unread_bytes();
        let plan = |missing: u64, slow_tier_bytes: [u64; 2]| {
            case.with(needed - missing, |request| {
                let limits = MemoryLimits { slow_tier_bytes, ..*request.limits };
                PlacementRequest { limits: &limits, ..*request }.plan(2, 8)
            })
        };
        let in_far = |plan: &Plan| Budget::from_plan(plan).slow_tier_bytes;
        assert_eq!(in_far(&plan(0, [PLENTY_BYTES, 0]).expect("it fits")), [0, 0]);
        for missing in [1, layer_bytes / 2, 3 * layer_bytes + 1] {
            let one = plan(missing, [PLENTY_BYTES, 0]).expect("it fits");
            let [bytes, second] = in_far(&one);
            let most = missing + layer_bytes;
            assert!((missing..=most).contains(&bytes) && second == 0, "{bytes} of {missing}");
            assert!(Budget::from_plan(&one).dram_bytes(&limits(0)) <= needed - missing);
            program::validate::validate(&one).expect("safe");
            // Two smaller memories take equally many bytes together, and neither more than its
            // capacity.
            let room = [2 * layer_bytes, PLENTY_BYTES];
            let two = in_far(&plan(missing, room).expect("it fits"));
            assert!(two[0] <= room[0] && two.iter().sum::<u64>() == bytes, "{two:?} {bytes}");
        }
        let refused = plan(3 * layer_bytes, [layer_bytes, 0]).expect_err("no room");
        let PlanError::DoesNotFit { budget, .. } = refused else { panic!("{refused}") };
        assert!(budget.slow_tier_bytes[0] > 0 && budget.slow_tier_bytes[0] <= layer_bytes);
    }
}

#[test]
fn what_the_gpu_multiplies_goes_first() {
    let config = &layers_of("opt-125m", 8);
    let split = Policy::TwoSplit { split: Split { start: 8, end: 11 }, chunking: None };
    let placement = &Placement::from_policy(split);
    let case = Case { config, placement, storage: None };
    let missing = 2 * config.layer_weight_bytes(0, Dtype::Bf16) as u64;
    let plan = case.with(case.unread_bytes() - missing, |request| {
        let limits = MemoryLimits { slow_tier_bytes: [PLENTY_BYTES, 0], ..*request.limits };
        PlacementRequest { limits: &limits, ..*request }.plan(2, 8)
    });
    let map = plan.expect("it fits").map;
    let far = map.weights.iter().map(|homes| {
        let ops = config.layer_ops(0).iter().zip(homes);
        ops.filter(|(_, home)| home.slow_tier_index().is_some())
            .map(|(op, _)| *op)
            .collect::<Vec<Op>>()
    });
    let far: Vec<Vec<Op>> = far.filter(|ops| !ops.is_empty()).collect();
    assert!(
        far.len() > 2 && far.iter().all(|ops| *ops == [Op::Norm1, Op::Fc0, Op::Fc1]),
        "{far:?}"
    );
}

/// Only experts are read if a step reads some of a layer, and those of no more layers than
/// necessary; a cache of experts takes the memory that it was given.
#[test]
fn of_experts_those_of_as_few_layers_as_suffice_are_read() {
    let config = &layers_of("qwen3-30b-a3b", 6);
    let placement = &Placement::from_policy(Policy::CpuOnly);
    // Three matrices of 128 experts, 768 wide, in bf16.
    let layer_bytes = 3 * 128 * 768 * 2048 * 2;
    let plan = |storage: Storage, dram_bytes: u64, batch_size: u16| {
        let case = Case { config, placement, storage: Some(storage) };
        let plan = case.with(dram_bytes, |request| request.plan(1, batch_size)).expect("it fits");
        assert!(case.needs(&plan, &plan.map) <= dram_bytes);
        plan
    };
    let auto = || storage(StagedOps::Auto);
    let whole = plan(auto(), PLENTY_BYTES, 4);
    assert!(!whole.map.uses_storages());
    let bytes = Budget::from_plan(&whole).dram_bytes(&limits(0));
    // One layer's slots are needed to read the experts of three.
    let few = plan(auto(), bytes - 3 * layer_bytes / 2, 4);
    let read = read_of(&few.map, config);
    let experts = [Op::ExpertGate, Op::ExpertUp, Op::ExpertDown];
    assert_eq!(read.iter().filter(|ops| ops[..] == experts).count(), 3, "{read:?}");
    assert_eq!(read.iter().filter(|ops| ops.is_empty()).count(), 3, "{read:?}");
    assert_eq!(few.map.expert_slots, 0);
    let share = 1.0 - (1.0f64 - 8.0 / 128.0).powi(4);
    let ratio = step_read_bytes(&few) as f64 / (3 * layer_bytes) as f64;
    assert!((ratio / share - 1.0).abs() < 1e-3, "{ratio} {share}");
    let cached = Storage { expert_cache_bytes: layer_bytes, ..auto() };
    let cached = plan(cached, bytes - 3 * layer_bytes / 2, 4);
    assert_eq!(read_of(&cached.map, config).iter().filter(|ops| ops[..] == experts).count(), 4);
    assert_eq!(cached.map.expert_slots, 128);
    // A cache of fewer experts than four rows need keeps these, and the others pass through memory.
    let small = Storage { expert_cache_bytes: 16 * layer_bytes / 128, ..auto() };
    let small = plan(small, bytes - 3 * layer_bytes / 2, 4);
    assert_eq!(small.map.expert_slots, 16);
    let cache = small.expert_cache.expect("a cache");
    assert_eq!(small.buffer(cache.buffer).size_bytes, 32 * cache.slot_bytes);
    // Almost all experts are needed, so they are read whole and the smallest layers' parts suffice.
    let many = plan(auto(), bytes - 3 * layer_bytes / 2, 64);
    let reads = many.decode().lanes.iter().flat_map(|list| &list.instructions);
    let is_routed =
        |work: &Instruction| matches!(work, Instruction::Read(read) if read.routing.is_some());
    assert!(many.map.uses_storages() && !reads.into_iter().any(is_routed));
}

/// The activations of the whole prompt would take 7 GiB.
#[test]
fn a_long_prompt_takes_little_beside_its_cache() {
    let config = find_known("llama-3.2-1b").expect("known").config;
    let placement = Placement::from_policy(Policy::CpuOnly);
    let case = Case { config: &config, placement: &placement, storage: None };
    let plan = case.with(PLENTY_BYTES, |request| {
        PlacementRequest { max_prompt: 131_040, max_context: 131_072, max_new: 32, ..*request }
            .plan(1, 1)
    });
    let activations_bytes = Budget::from_plan(&plan.expect("it fits")).activations_bytes;
    assert!(activations_bytes <= 1536 * MIB, "{activations_bytes}");
}
