//! Small models and plans, and their results on the CPU.

use kernels::{PoolOptions, Variant};
use model::config::{Activation, Dtype, Family, Features, ModelConfig, Rope, RopeScaling, Scales};
use model::layers::{LayerKind, Layers};
use model::source::dummy::DummySource;
use planner::policy::{DefaultTiers, Policy, device_map};
use planner::split::parse_split;
use program::compile::compile;
use program::map::{Chunking, DeviceMap};
use program::plan::{Plan, RunShape};
use program::topology::MemoryId;
use workers::setup::LaneOptions;
use workers::testing::{GenerationRequest, InProcess, Outcome, PlacedRequest};

use crate::harness::{LIMIT, SEED};

/// Returns a model with grouped-query attention and rope, without biases.
/// Returns true if all cases run (`make fuzz`), not only the sample of `make test`.
pub(crate) fn runs_all_cases() -> bool {
    std::env::var_os("TANDEM_FUZZ_CASES").is_some()
}

pub(crate) fn llama() -> ModelConfig {
    ModelConfig {
        name: "tiny".to_owned(),
        family: Family::Llama,
        num_layers: 2,
        hidden_size: 32,
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 8,
        ffn_size: 48,
        vocab_size: 96,
        max_positions: 64,
        norm_eps: 1e-5,
        activation: Activation::Silu,
        learned_positions: None,
        layers: Layers::uniform(LayerKind::dense(Some(Rope::new(10_000.0, RopeScaling::None)))),
        experts: None,
        qkv_bias: false,
        out_bias: false,
        ffn_bias: false,
        tied_embeddings: false,
        qk_norm: None,
        pre_norms: true,
        post_norms: false,
        delta: None,
        latent: None,
        mamba: None,
        features: Features::default(),
        output_gate: false,
        sinks: false,
        scales: Scales::default(),
        bos_token_id: None,
        eos_token_ids: vec![],
    }
}

/// Returns a model with one head per KV head, learned positions, biases everywhere and tied
/// embeddings.
pub(crate) fn opt() -> ModelConfig {
    ModelConfig {
        family: Family::Opt,
        num_kv_heads: 4,
        activation: Activation::Relu,
        learned_positions: Some(2),
        layers: Layers::uniform(LayerKind::dense(None)),
        experts: None,
        qkv_bias: true,
        out_bias: true,
        ffn_bias: true,
        tied_embeddings: true,
        ..llama()
    }
}

/// Returns a shape with two batches of two.
pub(crate) fn shape(dtype: Dtype) -> RunShape {
    RunShape {
        batches: 2,
        batch_size: 2,
        max_prompt: 8,
        shared_prompt: 0,
        max_context: 14,
        max_new: 6,
        logprobs: 0,
        micro_sequences: 2,
        prefill_chunk: 0,
        serves: false,
        page_positions: 0,
        kv_pages: 0,
        checkpoints: 0,
        logits_rows: 0,
        device_slots: 0,
        dtype,
    }
}

/// Returns a plan of two batches of two; `None` for `split` places everything on the CPU.
pub(crate) fn plan(
    config: &ModelConfig,
    dtype: Dtype,
    split: Option<&str>,
    chunking: Option<Chunking>,
    kv: MemoryId,
) -> Plan {
    plan_of(config, &shape(dtype), split, chunking, kv)
}

/// Returns a plan like [`plan`], for another shape.
pub(crate) fn plan_of(
    config: &ModelConfig,
    shape: &RunShape,
    split: Option<&str>,
    chunking: Option<Chunking>,
    kv: MemoryId,
) -> Plan {
    compile(config, shape, &map_of(config, split, chunking, kv)).expect("compiles")
}

/// Returns the device map of such a plan.
pub(crate) fn map_of(
    config: &ModelConfig,
    split: Option<&str>,
    chunking: Option<Chunking>,
    kv: MemoryId,
) -> DeviceMap {
    let homes = DefaultTiers { kv, prefill_hidden: MemoryId::VRAM };
    let policy = match split {
        None => Policy::CpuOnly,
        Some("gpu-only") => Policy::GpuOnly,
        Some(text) => Policy::TwoSplit {
            split: parse_split(text, config, chunking).expect("a split"),
            chunking,
        },
    };
    device_map(&policy, config, true, homes)
}

/// Returns four sequences of different lengths that end at different steps. The two of a batch
/// share a prefix.
pub(crate) fn group() -> Vec<PlacedRequest> {
    let placed = |index: usize| {
        let prompt = (0..2 * index as u32 + 1).map(|i| 11 * i + index as u32 / 2).collect();
        let request = GenerationRequest::greedy(prompt, 3 + index as u32);
        PlacedRequest { batch: index / 2, slot: index % 2, request }
    };
    (0..4).map(placed).collect()
}

/// Returns the tokens of the CPU's kernels.
pub(crate) fn on_cpu(config: &ModelConfig, dtype: Dtype) -> Vec<Outcome> {
    on_cpu_with(config, plan(config, dtype, None, None, MemoryId::DRAM))
}

/// Returns the tokens for the given plan, which uses no device.
pub(crate) fn on_cpu_with(config: &ModelConfig, plan: Plan) -> Vec<Outcome> {
    on_cpu_of(config, plan, &group())
}

/// Returns the tokens for the given plan and group.
pub(crate) fn on_cpu_of(config: &ModelConfig, plan: Plan, group: &[PlacedRequest]) -> Vec<Outcome> {
    let options = LaneOptions {
        variant: Variant::from_env().expect("a variant"),
        pool: PoolOptions::unpinned(1),
        link_bytes_per_s: None,
        wait_timeout: LIMIT,
        grammars: None,
        routes_randomly: false,
        select_text: Vec::new(),
        drafter: None,
    };
    let source = DummySource::new(config.clone(), SEED);
    let mut lanes = InProcess::start(plan, &source, options).expect("the lanes start");
    let outcomes = lanes.run_group(group);
    assert!(lanes.finish().iter().all(Result::is_ok));
    outcomes
}
