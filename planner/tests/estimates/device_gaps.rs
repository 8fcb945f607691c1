//! Tests of placements on devices whose kernels lack an operation of the model.

use model::config::{Dtype, ModelConfig};
use model::known::find_known;
use model::layers::{LayerKind, Layers};
use model::ops::Op;
use model::rope::{AttentionTemperature, Rope};
use planner::budget::{MemoryLimits, PlacementRequest, PlanError};
use planner::policy::name::PolicyName;
use planner::policy::{Formats, Placement, Policy};
use planner::search::{
    CostError, Pricing, SearchEffort, SearchError, SearchRequest, SearchResult, choose,
    choose_placement, evaluate_placement,
};
use planner::split::parse_split;
use program::cuda_gaps::{CACHES_OF_8_BITS, is_gap, map_gap, model_gap};
use program::formats::KvFormat;
use program::ir::{Instruction, Program};
use program::map::{ComputeDevice, DeviceMap, layer_list};
use program::plan::Plan;
use program::simulate::{Place, SimulationCosts};
use program::topology::{LaneId, LaneSet};

/// Costs of a device that is much faster than the CPU.
#[derive(Debug, Clone, Copy)]
struct FastDevice;

impl SimulationCosts for FastDevice {
    fn work_ns(&self, place: Place, _: &Instruction, _: u32) -> f64 {
        match place.lane {
            LaneId::CPU_COMPUTE | LaneId::CPU_APPEND => 1000.0,
            LaneId::GPU_COMPUTE | LaneId::GPU_DECOMPRESS => 10.0,
            _ => 1.0,
        }
    }

    fn rate(&self, _: Place, _: LaneSet) -> f64 {
        1.0
    }

    fn wake_ns(&self) -> f64 {
        0.0
    }
}

impl Pricing for FastDevice {
    fn costs(&self, _: &Plan, _: &Program, _: u32) -> Result<Box<dyn SimulationCosts>, CostError> {
        Ok(Box::new(*self))
    }
}

/// Returns a model whose router selects experts by sigmoids and a bias: its first layer has no
/// experts.
fn config() -> ModelConfig {
    let mut config = find_known("glm-4.5-air").expect("known").config;
    config.keep_layers(3);
    config
}

fn limits(is_emulated: bool) -> MemoryLimits {
    MemoryLimits {
        dram_bytes: 1 << 40,
        vram_bytes: Some(1 << 38),
        vram_is_dram: is_emulated,
        slow_tier_bytes: MemoryLimits::NO_SLOW_TIER,
        device_scratch: None,
    }
}

fn with_request<T>(
    config: &ModelConfig,
    is_emulated: bool,
    policy: PolicyName,
    then: impl FnOnce(&SearchRequest<'_>) -> T,
) -> T {
    let limits = limits(is_emulated);
    let request = PlacementRequest {
        config,
        placement: &Placement::from_policy(Policy::GpuOnly),
        formats: &Formats::plain(config),
        fuse_attention: true,
        dtype: Dtype::Bf16,
        max_prompt: 8,
        shared_prompt: 0,
        max_context: 16,
        max_new: 8,
        logprobs: 0,
        prefill_chunk: None,
        limits: &limits,
        storage: None,
        routing: None,
    };
    then(&SearchRequest {
        request: &request,
        batches: 2,
        batch_size: 2,
        policy,
        chunkings: &[None],
        pricing: &FastDevice,
        effort: SearchEffort::Full,
        rehearser: None,
    })
}

/// Returns the devices of the routers of all layers, in decode and prefill.
fn routers(config: &ModelConfig, map: &DeviceMap) -> Vec<ComputeDevice> {
    let of_layer = |layer: usize| {
        let list = layer_list(config, layer, None);
        let routers = list.into_iter().enumerate().filter(|(_, entry)| entry.op == Op::Router);
        let (prefill, decode) = (&map.prefill.layers[layer], &map.decode.layers[layer]);
        routers.flat_map(|(at, _)| [prefill[at], decode[at]]).collect::<Vec<_>>()
    };
    (0..config.num_layers).flat_map(of_layer).collect()
}

fn assert_not_on_device(result: Result<SearchResult, SearchError>) {
    match result {
        Err(SearchError::Plan(error @ PlanError::NotOnDevice { .. })) => {
            let text = error.to_string();
            for word in ["glm-4.5-air", "(router)", "--device none", "--split"] {
                assert!(text.contains(word), "{text}");
            }
        }
        Err(other) => panic!("{other}"),
        Ok(chosen) => panic!("{:?}", chosen.placement),
    }
}

#[test]
fn searches_leave_to_the_cpu_what_the_device_lacks() {
    let config = config();
    for name in [PolicyName::Auto, PolicyName::TwoSplit] {
        let chosen = with_request(&config, false, name, choose).expect("a placement");
        let map = &chosen.plan.map;
        assert!(map.uses_gpu(), "{name:?}: the device is faster at everything else");
        assert_eq!(routers(&config, map), [ComputeDevice::Cpu; 4], "{name:?}");
        for other in &chosen.candidates {
            assert_eq!(map_gap(&config, &other.map), None, "{name:?} {:?}", other.placement);
        }
        let placement = with_request(&config, false, name, choose_placement).expect("a placement");
        assert_eq!(placement, chosen.placement, "{name:?}");
    }
    // The emulated device has all operations.
    let chosen = with_request(&config, true, PolicyName::Auto, choose).expect("a placement");
    assert!(routers(&config, &chosen.plan.map).contains(&ComputeDevice::Gpu));
}

#[test]
fn placements_that_run_it_on_the_device_are_refused_by_name() {
    let config = config();
    for name in [PolicyName::GpuOnly, PolicyName::Resident] {
        assert_not_on_device(with_request(&config, false, name, choose));
        with_request(&config, true, name, choose).expect("the emulated device has all operations");
    }
    let evaluate = |split: &str| {
        let split = parse_split(split, &config, None).expect("a split");
        let placement = Placement::from_policy(Policy::TwoSplit { split, chunking: None });
        with_request(&config, false, PolicyName::TwoSplit, |question| {
            evaluate_placement(question, PolicyName::TwoSplit, &placement)
        })
    };
    assert_not_on_device(evaluate("router:"));
    let chosen = evaluate("q:norm1").expect("the router is on the CPU");
    assert_eq!(routers(&config, &chosen.plan.map), [ComputeDevice::Cpu; 4]);
}

/// Attention over latents, of which a split could leave a part on the device, stays on the CPU with
/// everything around it; experts run on the device.
#[test]
fn latent_attention_stays_on_the_cpu() {
    let mut config = find_known("glm-4.7-flash").expect("known").config;
    config.keep_layers(2);
    for name in [PolicyName::Auto, PolicyName::TwoSplit] {
        let chosen = with_request(&config, false, name, choose).expect("a placement");
        let map = &chosen.plan.map;
        assert!(map.uses_gpu(), "{name:?}: the device is faster at everything else");
        assert_eq!(map_gap(&config, map), None, "{name:?}");
    }
    // The emulated device attends.
    let chosen = with_request(&config, true, PolicyName::GpuOnly, choose).expect("a placement");
    assert!(chosen.plan.map.uses_gpu());
}

/// Layers with Mamba2 and experts, with Mamba2 alone, and with attention and experts: what updates
/// states, and the squared ReLU, stay on the CPU.
#[test]
fn mamba_stays_on_the_cpu() {
    let mut config = find_known("nemotron-3-nano").expect("known").config;
    config.keep_layers(4);
    assert_eq!(config.layers.kinds().len(), 3);
    for name in [PolicyName::Auto, PolicyName::TwoSplit] {
        let chosen = with_request(&config, false, name, choose).expect("a placement");
        let map = &chosen.plan.map;
        assert!(map.uses_gpu(), "{name:?}: the device is faster at everything else");
        assert_eq!(map_gap(&config, map), None, "{name:?}");
    }
    // The emulated device has all operations.
    let chosen = with_request(&config, true, PolicyName::GpuOnly, choose).expect("a placement");
    assert!(chosen.plan.map.uses_gpu());
}

/// The device multiplies the linear before experts in a latent, but neither the linears of these
/// experts nor the one after their sum.
#[test]
fn experts_in_a_latent_stay_on_the_cpu() {
    let mut config = find_known("nemotron-3-super").expect("known").config;
    config.keep_layers(5);
    let missing = [Op::ExpertUp, Op::ExpertDown, Op::ExpertLatentUp];
    for op in config.leading_ops() {
        if op.is_expert() || matches!(op, Op::ExpertLatentDown | Op::ExpertLatentUp) {
            let is_missing = is_gap(&config, KvFormat::Plain, *op);
            assert_eq!(is_missing, missing.contains(op), "{op:?}");
        }
    }
    let chosen = with_request(&config, false, PolicyName::Auto, choose).expect("a placement");
    assert!(chosen.plan.map.uses_gpu(), "the device is faster at everything else");
    assert_eq!(map_gap(&config, &chosen.plan.map), None);
    let refused = with_request(&config, false, PolicyName::GpuOnly, choose);
    assert!(refused.is_err(), "the device lacks operations");
    let chosen = with_request(&config, true, PolicyName::GpuOnly, choose).expect("a placement");
    assert!(chosen.plan.map.uses_gpu());
}

#[test]
fn models_without_gaps_use_the_whole_device() {
    let mut config = find_known("olmoe-1b-7b").expect("known").config;
    config.keep_layers(2);
    let chosen = with_request(&config, false, PolicyName::Auto, choose).expect("a placement");
    assert!(routers(&config, &chosen.plan.map).contains(&ComputeDevice::Gpu));
}

#[test]
fn queries_with_a_factor_of_their_position_do_not_run_on_the_device() {
    let plain = find_known("mistral-7b").expect("known").config;
    assert_eq!(model_gap(&plain, KvFormat::Plain), None);
    let kind = plain.layers.kind(0).clone();
    let temperature = Some(AttentionTemperature { beta: 0.1, interval: 16_384 });
    let rope = kind.rope.clone().map(|rope| Rope { temperature, ..rope });
    let layers = Layers::uniform(LayerKind { rope, ..kind });
    let ministral = ModelConfig { layers, ..plain };
    assert_eq!(model_gap(&ministral, KvFormat::Plain), Some(Op::Q));
    assert!(!is_gap(&ministral, KvFormat::Plain, Op::K), "keys have no factor");
    let small_4 = find_known("mistral-small-4").expect("known").config;
    assert!(
        is_gap(&small_4, KvFormat::Plain, Op::Q) && !is_gap(&small_4, KvFormat::Plain, Op::Router)
    );
}

/// Kernels of devices take the sizes of the model for all layers.
#[test]
fn models_whose_layers_differ_in_size_stay_on_the_cpu() {
    let mut config = find_known("gemma-4-26b-a4b").expect("known").config;
    config.keep_layers(6);
    assert!(
        model_gap(&config, KvFormat::Plain).is_some() && is_gap(&config, KvFormat::Plain, Op::Gate)
    );
    let chosen = with_request(&config, false, PolicyName::Auto, choose).expect("a placement");
    assert!(!chosen.plan.map.uses_gpu());
    let refused = with_request(&config, false, PolicyName::GpuOnly, choose).err();
    let error = refused.expect("refused");
    assert!(error.to_string().contains("norm0"), "{error}");
}

/// Logits are not capped by the kernels of devices, in a model whose layers are of one size too.
#[test]
fn heads_with_capped_logits_do_not_run_on_the_device() {
    let mut config = find_known("mistral-7b").expect("known").config;
    config.features.logit_cap = Some(30.0);
    assert_eq!(model_gap(&config, KvFormat::Plain), Some(Op::Head));
    config.features.value_norm = true;
    assert_eq!(model_gap(&config, KvFormat::Plain), Some(Op::V));
}

/// The kernels of devices read no caches of 8 bits: attention, and nothing else, stays on the CPU.
#[test]
fn attention_over_caches_of_8_bits_does_not_run_on_the_device() {
    let mut config = find_known("olmoe-1b-7b").expect("known").config;
    config.keep_layers(2);
    let formats = Formats { kv: KvFormat::Eight, ..Formats::plain(&config) };
    let with_caches = |is_emulated: bool, policy: PolicyName| {
        with_request(&config, is_emulated, policy, |question| {
            let request = PlacementRequest { formats: &formats, ..*question.request };
            choose(&SearchRequest { request: &request, ..*question })
        })
    };
    let of_devices = |map: &DeviceMap| {
        let layers = (0..config.num_layers).flat_map(|layer| map.decode_layer(&config, layer));
        let on_device = layers.filter(|(_, on)| *on == ComputeDevice::Gpu);
        let mut attends: Vec<bool> = on_device.map(|(entry, _)| entry.op.is_attention()).collect();
        attends.sort_unstable();
        attends.dedup();
        attends
    };
    let chosen = with_caches(false, PolicyName::Auto).expect("a placement");
    assert_eq!(of_devices(&chosen.plan.map), [false], "only linears and norms are the device's");
    assert_eq!(map_gap(&config, &chosen.plan.map), None);
    let refused = with_caches(false, PolicyName::GpuOnly).err();
    let refused = refused.expect("refused").to_string();
    assert!(refused.contains(CACHES_OF_8_BITS) && refused.contains("--split"), "{refused}");
    let emulated = with_caches(true, PolicyName::GpuOnly).expect("the emulated device reads them");
    assert_eq!(of_devices(&emulated.plan.map), [false, true]);
}
