//! Plans of a tiny model with and without storages, and the tokens that they produce.

use std::collections::HashMap;
use std::ops::ControlFlow;

use engine::launch::{LaunchError, LaunchOptions};
use engine::{RunEngine, RunStats};
use engine_api::batch::BatchEngine;
use engine_api::event::{BatchSink, EngineEvent, FinishCause};
use engine_api::request::GenerationRequest;
use kernels::Variant;
use model::config::{Activation, Dtype, Family, Features, ModelConfig, Rope, RopeScaling, Scales};
use model::experts::{ExpertScoring, Experts};
use model::layers::{FeedForward, LayerKind, Layers};
use planner::policy::{DefaultTiers, Policy, device_map};
use planner::split::parse_split;
use program::compile::compile;
use program::map::DeviceMap;
use program::plan::{Plan, RunShape};
use program::shares::ReadShares;
use program::simulate::Span;
use program::topology::{LaneId, LaneKind, MemoryId};
use program::validate::validate;
use program::weights::Weights;
use protocol::messages::{SegmentNodes, StagedCopyConfig, WeightsOrigin};
use session::model::open_weights;
use weight_store::{AlignedBuffer, BlobSize, Identity, Writer};
use workers::load::BlobFormat;

pub fn config() -> ModelConfig {
    ModelConfig {
        name: "tiny".to_owned(),
        family: Family::Llama,
        num_layers: 5,
        hidden_size: 256,
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 64,
        ffn_size: 768,
        vocab_size: 200,
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

pub fn shape(dtype: Dtype) -> RunShape {
    RunShape {
        batches: 2,
        batch_size: 2,
        max_prompt: 8,
        shared_prompt: 0,
        max_context: 20,
        max_new: 12,
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

/// Returns three placements: the CPU alone, a split, and everything streamed to the device.
pub fn maps() -> Vec<DeviceMap> {
    let config = config();
    let split = parse_split("k:up", &config, None).expect("a split");
    let policies = [Policy::CpuOnly, Policy::TwoSplit { split, chunking: None }, Policy::GpuOnly];
    let homes = DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::DRAM };
    policies.iter().map(|policy| device_map(policy, &config, true, homes)).collect()
}

/// Returns the map's plan with this number of storages, which hold all weights, those outside of
/// layers included, and are read to the host or directly to the device.
pub fn on_storages(map: &DeviceMap, dtype: Dtype, storages: u32, to: ReadTarget) -> Plan {
    let mut map = map.clone();
    map.direct_reads = to == ReadTarget::Device;
    map.weights.iter_mut().flatten().for_each(|home| *home = MemoryId::STORAGES);
    map.outer_weights = MemoryId::STORAGES;
    map.shares = ReadShares::new((1..=storages).collect());
    let plan = compile(&config(), &shape(dtype), &map).expect("compiles");
    validate(&plan).expect("it is proved");
    plan
}

/// Returns plans of a model with experts for the CPU alone: with all weights in memory, and with
/// those of experts on storages, of which decode reads what rows are routed to. `expert_slots`
/// experts stay in memory.
pub fn routed_plans(
    dtype: Dtype,
    storages: u32,
    batch_size: u16,
    expert_slots: u32,
) -> (Plan, Plan) {
    let dense = config();
    let kind = LayerKind { feed_forward: FeedForward::Experts, ..dense.layers.kind(0).clone() };
    let config = ModelConfig {
        layers: Layers::uniform(kind),
        experts: Some(Experts::new(8, 2, 128, ExpertScoring::TopKSoftmax)),
        ..dense
    };
    let shape = RunShape { batches: 1, batch_size, micro_sequences: batch_size, ..shape(dtype) };
    let homes = DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::DRAM };
    let mut map = device_map(&Policy::CpuOnly, &config, true, homes);
    let plain = compile(&config, &shape, &map).expect("compiles");
    for (layer, tiers) in map.weights.iter_mut().enumerate() {
        for (tier, op) in tiers.iter_mut().zip(config.layer_ops(layer)) {
            if op.is_expert() {
                *tier = MemoryId::STORAGES;
            }
        }
    }
    map.shares = ReadShares::new((1..=storages).collect());
    map.expert_slots = expert_slots;
    let plan = compile(&config, &shape, &map).expect("compiles");
    validate(&plan).expect("it is proved");
    (plain, plan)
}

/// Destination of the reads of weights that the GPU multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadTarget {
    Host,
    Device,
}

/// Both destinations.
pub const READ_TARGETS: [ReadTarget; 2] = [ReadTarget::Host, ReadTarget::Device];

pub fn is_read_lane(plan: &Plan, lane: LaneId) -> bool {
    plan.topology.lane(lane).kind == LaneKind::Read
}

#[derive(Default)]
pub struct RecordedTokens {
    open: HashMap<usize, Vec<u32>>,
    /// Requests that have ended, in this order, and their tokens.
    pub finished: Vec<(usize, Vec<u32>)>,
}

impl BatchSink for RecordedTokens {
    fn on_event(&mut self, request: usize, event: EngineEvent) -> ControlFlow<()> {
        match event {
            EngineEvent::Token { token, .. } => self.open.entry(request).or_default().push(token),
            EngineEvent::Finished(cause) => {
                assert_eq!(cause, FinishCause::Length);
                let tokens = self.open.remove(&request).expect("tokens");
                self.finished.push((request, tokens));
            }
            EngineEvent::Prompt { .. }
            | EngineEvent::Pooled(_)
            | EngineEvent::Drafts(_)
            | EngineEvent::Failed(_) => {}
        }
        ControlFlow::Continue(())
    }
}

/// A staging of all stored weights of a plan for each of its storages.
pub struct TestStagings {
    pub directory: tempfile::TempDir,
    pub at: Vec<StagedCopyConfig>,
}

pub const SEED: u64 = 11;

impl TestStagings {
    pub fn for_plan(plan: &Plan) -> TestStagings {
        let directory = tempfile::tempdir().expect("a folder");
        let config = &plan.config;
        let formats = &plan.map.weight_formats;
        let encoded = BlobFormat { config, dtype: plan.shape.dtype, formats };
        let mut stored: Vec<Weights> = Vec::new();
        for placed in &plan.weights {
            let is_stored = plan.topology.is_storage(plan.buffer(placed.buffer).segment.memory);
            if is_stored && !stored.contains(&placed.weights) {
                stored.push(placed.weights);
            }
        }
        let stored = encoded.staged_blobs(stored);
        let blobs: Vec<BlobSize> = stored
            .iter()
            .map(|blob| BlobSize {
                name: encoded.staged_name(*blob),
                size_bytes: encoded.staged_bytes(*blob) as u64,
            })
            .collect();
        let identity = Identity {
            name: "tiny".to_owned(),
            model: "tiny".to_owned(),
            weights: "dummy".to_owned(),
            form: plan.shape.dtype.name().to_owned(),
            description: Vec::new(),
        };
        let source = open_weights(&WeightsOrigin::Dummy { seed: SEED }, config).expect("weights");
        let stage = |(number, _)| {
            let path = directory.path().join(format!("{number}"));
            std::fs::create_dir(&path).expect("a folder");
            let mut writer = Writer::begin(&path, &identity, &blobs).expect("a staging");
            for (index, blob) in stored.iter().enumerate() {
                let size_bytes = encoded.staged_bytes(*blob);
                let mut buffer = AlignedBuffer::new(size_bytes);
                let bytes = &mut buffer.bytes_mut()[..size_bytes];
                let variant = Variant::best();
                encoded.fill_staged(*blob, source.as_ref(), variant, 1, bytes).expect("a weight");
                writer.write(index, bytes).expect("it is written");
            }
            let staged = writer.finish().expect("it is whole");
            StagedCopyConfig {
                path: staged.path().display().to_string(),
                uses_threads: number % 2 == 1,
                silence_ms: 10_000,
                faults: String::new(),
            }
        };
        let at = plan.topology.storages().into_iter().enumerate().map(stage).collect();
        TestStagings { directory, at }
    }

    /// Returns the stagings with faults in some of them.
    pub fn with_faults(&self, faults: &[(usize, &str)]) -> Vec<StagedCopyConfig> {
        let mut at = self.at.clone();
        for (storage, faults) in faults {
            at[*storage].faults = (*faults).to_owned();
            if faults.contains("silence") {
                at[*storage].silence_ms = 300;
            }
        }
        at
    }
}

/// Returns true if all cases run (`make fuzz`), not only the sample of `make test`.
pub fn runs_all_cases() -> bool {
    std::env::var_os("TANDEM_FUZZ_CASES").is_some()
}

/// Starts real processes for a plan.
pub fn start(plan: Plan, staged: &[StagedCopyConfig]) -> Result<RunEngine, LaunchError> {
    let options = LaunchOptions {
        weights: WeightsOrigin::Dummy { seed: SEED },
        cpu_threads: 2,
        gpu_threads: 1,
        link_bytes_per_s: None,
        cpus: Vec::new(),
        spin_us: 0,
        durations: None,
        cuda: None,
        grammars: None,
        staged: staged.to_vec(),
        prompt_cache: None,
        memory_nodes: SegmentNodes::default(),
        select_text: Vec::new(),
        draft_model: None,
        quiet: false,
    };
    let interrupt = Box::new(|| false);
    RunEngine::start(plan, &options, None, interrupt, &mut |_, _| true)
}

pub fn prompts() -> Vec<Vec<u32>> {
    (0..4u32).map(|index| (0..2 * index + 1).map(|i| 11 * i + index).collect()).collect()
}

pub fn sequences(prompts: &[Vec<u32>]) -> Vec<GenerationRequest> {
    prompts
        .iter()
        .zip(0..)
        .map(|(prompt, index)| GenerationRequest {
            id_hash: index,
            any_logits: false,
            ..GenerationRequest::greedy(prompt.clone(), 3 + 3 * index as u32)
        })
        .collect()
}

/// Runs groups; returns their tokens, the spans of the last one, and the measurements.
pub fn run_groups(
    plan: Plan,
    staged: &[StagedCopyConfig],
    groups: usize,
) -> (Vec<Vec<u32>>, Vec<Span>, RunStats) {
    let slots = usize::from(plan.shape.batches * plan.shape.batch_size);
    let mut engine = start(plan, staged).expect("the workers start");
    let prompts: Vec<Vec<u32>> = prompts().into_iter().take(slots).collect();
    let mut tokens = RecordedTokens::default();
    for _ in 0..groups {
        engine.run(&sequences(&prompts), &mut tokens).expect("a group");
    }
    let spans = engine.spans();
    let measured = engine.finish().expect("no trace file");
    assert_eq!(measured.totals.lost_spans, 0);
    tokens.finished.sort();
    let tokens = tokens.finished.into_iter().map(|(_, tokens)| tokens).collect();
    (tokens, spans, measured)
}

/// Number of groups: the second one begins with the slots as the first one left them.
pub const GROUPS: usize = 2;

/// Returns the tokens that the map produces without storages.
pub fn expected(map: &DeviceMap, dtype: Dtype, groups: usize) -> Vec<Vec<u32>> {
    let plain = compile(&config(), &shape(dtype), map).expect("compiles");
    run_groups(plain, &[], groups).0
}
