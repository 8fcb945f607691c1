//! Small models, runs and maps for the tests of compiled plans.
#![allow(dead_code, reason = "each test binary uses a part")]

use model::config::{Activation, Dtype, Family, Features, ModelConfig, Rope, RopeScaling, Scales};
use model::experts::{ExpertScoring, Experts};
use model::layers::{FeedForward, LayerKind, Layers};
use model::ops::Op;
use model::quantized_format::WeightFormat;
use program::compile::compile;
use program::expert_reads::ExpertReads;
use program::formats::{KvFormat, WeightFormats};
use program::ir::{Compute, Instruction, Program, ProgramId};
use program::map::{
    ChunkOrder, Chunking, ComputeDevice, DeviceMap, LayerKv, PhaseMap, Schedule, layer_list,
};
use program::plan::{Plan, RunShape};
use program::shares::ReadShares;
use program::topology::{LaneId, MemoryId};
use program::validate::validate;

/// The smallest number with an inner layer whose streamed weights reuse a slot.
pub const LAYERS: usize = 3;

/// Returns true if all cases run (`make fuzz`), not only the sample of `make test`.
pub fn runs_all_cases() -> bool {
    std::env::var_os("TANDEM_FUZZ_CASES").is_some()
}

pub fn opt() -> ModelConfig {
    ModelConfig {
        name: "tiny-opt".to_owned(),
        family: Family::Opt,
        num_layers: LAYERS,
        hidden_size: 16,
        num_heads: 4,
        num_kv_heads: 4,
        head_dim: 4,
        ffn_size: 32,
        vocab_size: 64,
        max_positions: 64,
        norm_eps: 1e-5,
        activation: Activation::Relu,
        learned_positions: Some(2),
        layers: Layers::uniform(LayerKind::dense(None)),
        experts: None,
        qkv_bias: true,
        out_bias: true,
        ffn_bias: true,
        tied_embeddings: true,
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
        bos_token_id: Some(2),
        eos_token_ids: vec![2],
    }
}

pub fn llama() -> ModelConfig {
    ModelConfig {
        name: "tiny-llama".to_owned(),
        family: Family::Llama,
        num_kv_heads: 2,
        activation: Activation::Silu,
        learned_positions: None,
        layers: Layers::uniform(LayerKind::dense(Some(Rope::new(10000.0, RopeScaling::None)))),
        experts: None,
        qkv_bias: false,
        out_bias: false,
        ffn_bias: false,
        tied_embeddings: false,
        ..opt()
    }
}

/// Returns a LLaMA whose layers have experts, two of eight for each row.
pub fn experts() -> ModelConfig {
    let llama = llama();
    let dense = llama.layers.kind(0).clone();
    let kind = LayerKind { feed_forward: FeedForward::Experts, ..dense };
    ModelConfig {
        name: "tiny-experts".to_owned(),
        layers: Layers::uniform(kind),
        experts: Some(Experts::new(8, 2, 16, ExpertScoring::TopKSoftmax)),
        ..llama
    }
}

/// Returns the shape of `batches` batches of 4 sequences, with prefill in streams of
/// `micro_sequences`.
pub fn shape(batches: u16, micro_sequences: u16) -> RunShape {
    RunShape {
        batches,
        batch_size: 4,
        max_prompt: 8,
        shared_prompt: 0,
        max_context: 16,
        max_new: 8,
        logprobs: 0,
        micro_sequences,
        prefill_chunk: 0,
        serves: false,
        page_positions: 0,
        kv_pages: 0,
        checkpoints: 0,
        logits_rows: 0,
        device_slots: 0,
        dtype: Dtype::F32,
    }
}

/// Choices of a map in addition to the split.
#[derive(Debug, Clone, Copy)]
pub struct Choices {
    pub chunking: Option<(ChunkOrder, u16)>,
    /// Device of prefill's layers and of the operations around the embedding.
    pub prefill: ComputeDevice,
    pub outer: ComputeDevice,
    pub weights: MemoryId,
    /// Memory of cache parts that only the GPU reads.
    pub gpu_kv: MemoryId,
    pub hidden: MemoryId,
    pub fuse: bool,
    pub slots: u16,
    /// Format of the layers' linears.
    pub format: WeightFormat,
    pub schedule: Schedule,
}

pub const PLAIN: Choices = Choices {
    chunking: None,
    prefill: ComputeDevice::Gpu,
    outer: ComputeDevice::Cpu,
    weights: MemoryId::DRAM,
    gpu_kv: MemoryId::DRAM,
    hidden: MemoryId::DRAM,
    fuse: true,
    slots: 2,
    format: WeightFormat::Plain,
    schedule: Schedule::Overlapped,
};

/// The GPU runs entries `from..to` of every layer's decode list.
pub fn split(config: &ModelConfig, from: usize, to: usize, choices: Choices) -> DeviceMap {
    let chunking = choices.chunking.map(|(order, chunks)| Chunking { order, chunks });
    let device = |i| if (from..to).contains(&i) { ComputeDevice::Gpu } else { ComputeDevice::Cpu };
    let decode = |layer: usize| -> Vec<ComputeDevice> {
        (0..layer_list(config, layer, chunking).len()).map(device).collect()
    };
    let ops = |layer: usize| config.layer_ops(layer).len();
    let phase = |layers: Vec<Vec<ComputeDevice>>| PhaseMap {
        embed: ComputeDevice::Cpu,
        layers,
        final_norm: choices.outer,
        head: choices.outer,
    };
    let all = || 0..config.num_layers;
    let mut map = DeviceMap {
        policy: "test".to_owned(),
        chunking,
        prefill: phase(all().map(|layer| vec![choices.prefill; ops(layer)]).collect()),
        decode: phase(all().map(decode).collect()),
        weights: all().map(|layer| vec![choices.weights; ops(layer)]).collect(),
        outer_weights: choices.weights,
        kv: Vec::new(),
        fuse_attention: choices.fuse,
        weight_slots: choices.slots,
        direct_reads: false,
        shares: ReadShares::default(),
        expert_reads: ExpertReads::default(),
        expert_slots: 0,
        pinned_experts: Vec::new(),
        routing: program::routing_counts::RoutingSkew::default(),
        kv_slots: choices.slots,
        prefill_hidden: choices.hidden,
        weight_formats: WeightFormats::with_layers(config, choices.format),
        kv_format: KvFormat::Plain,
        kv_select: None,
        schedule: choices.schedule,
    };
    map.kv = (0..config.num_layers).map(|layer| layer_kv(config, &map, layer, choices)).collect();
    map
}

/// Returns a plan without one of its instructions.
pub fn without(plan: &Plan, program: ProgramId, lane: usize, index: usize) -> Plan {
    let mut plan = plan.clone();
    let list = &mut plan.program_mut(program).lanes[lane];
    let removed = list.instructions.remove(index);
    list.signals_per_step -= u32::from(removed == Instruction::Signal);
    plan
}

/// Asserts that the validator refuses a plan without any one of its instructions, and returns their
/// number.
pub fn each_is_needed(plan: &Plan) -> usize {
    let mut dropped = 0;
    for program in &plan.programs {
        for (lane, list) in program.lanes.iter().enumerate() {
            for (index, instruction) in list.instructions.iter().enumerate() {
                let refused = validate(&without(plan, program.id, lane, index)).is_err();
                assert!(refused, "{instruction:?} can be left out");
                dropped += 1;
            }
        }
    }
    dropped
}

fn layer_kv(config: &ModelConfig, map: &DeviceMap, layer: usize, choices: Choices) -> LayerKv {
    use model::ops::{Kv, Op};
    let chunking = map.layer_chunking(config, layer);
    let homes = |kv: Kv, op: Op| {
        let parts = chunking.map_or(1, |chunking| chunking.parts(kv));
        (0..parts)
            .map(|part| {
                let cpu = map.decode_layer(config, layer).into_iter().any(|(entry, device)| {
                    let same = entry.op == op && entry.chunk.is_none_or(|c| c.index == part);
                    same && device == ComputeDevice::Cpu
                });
                if cpu { MemoryId::DRAM } else { choices.gpu_kv }
            })
            .collect()
    };
    LayerKv { k: homes(Kv::K, Op::Scores), v: homes(Kv::V, Op::Wv), device_batches: 0 }
}

/// Returns the map with all weights on storages, two of which read unequal shares.
pub fn on_storages(mut map: DeviceMap) -> DeviceMap {
    map.weights.iter_mut().flatten().for_each(|home| *home = MemoryId::STORAGES);
    map.outer_weights = MemoryId::STORAGES;
    map.shares = ReadShares::new(vec![1, 3]);
    map
}

/// Returns all instructions of a program with their lanes.
pub fn all_works(program: &Program) -> impl Iterator<Item = (LaneId, &Instruction)> {
    let lists = program.lanes.iter();
    lists.flat_map(|list| list.instructions.iter().map(|work| (list.lane, work)))
}

/// Compiles and proves a map.
pub fn proved(config: &ModelConfig, shape: &RunShape, map: &DeviceMap) -> Plan {
    let plan = compile(config, shape, map).expect("it compiles");
    validate(&plan).unwrap_or_else(|error| panic!("{error}"));
    plan
}

/// Returns the shapes with which an interval of operations is compiled: a plain one and one with
/// prompts in chunks, or one of the two, which neighbours do not share, unless all cases run.
pub fn sampled_shapes(from: usize, to: usize, prefill: ComputeDevice) -> Vec<RunShape> {
    let mut shapes = vec![shape(2, 2), chunked(shape(2, 2))];
    if !runs_all_cases() {
        shapes.remove((from + to + usize::from(prefill == ComputeDevice::Gpu)) % 2);
    }
    shapes
}

/// Returns a shape whose prompts are computed in chunks.
pub fn chunked(shape: RunShape) -> RunShape {
    RunShape { prefill_chunk: 8, ..shape }
}

/// Returns the attention of a layer in decode.
pub fn attention(plan: &mut Plan, layer: u16) -> &mut Compute {
    let lanes = &mut plan.program_mut(ProgramId::DECODE).lanes;
    let mut all = lanes.iter_mut().flat_map(|list| &mut list.instructions);
    let found = all.find_map(|instruction| match instruction {
        Instruction::Compute(compute)
            if compute.op == Op::Attention && compute.at.layer == Some(layer) =>
        {
            Some(compute)
        }
        _ => None,
    });
    found.expect("a layer attends")
}
