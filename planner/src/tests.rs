//! Splits by name, policies as maps, and refusals with numbers.

use model::config::{Activation, Dtype, Family, Features, ModelConfig, Rope, RopeScaling, Scales};
use model::layers::{LayerKind, Layers};
use model::ops::Op;
use model::quantized_format::{Grouped, WeightFormat};
use program::formats::WeightFormats;
use program::ir::{Instruction, Moved};
use program::map::{ChunkOrder, Chunking, ComputeDevice};
use program::plan::Plan;
use program::topology::{LaneId, SegmentId};

use crate::budget::{MemoryLimits, PlacementRequest, PlanError};
use crate::policy::{Formats, Placement, Policy};
use crate::split::{Split, SplitError, parse_chunking, parse_split};

fn config() -> ModelConfig {
    ModelConfig {
        name: "tiny".into(),
        family: Family::Llama,
        num_layers: 3,
        hidden_size: 64,
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 16,
        ffn_size: 128,
        vocab_size: 256,
        max_positions: 64,
        norm_eps: 1e-5,
        activation: Activation::Silu,
        learned_positions: None,
        layers: Layers::uniform(LayerKind::dense(Some(Rope::new(1e4, RopeScaling::None)))),
        experts: None,
        qkv_bias: false,
        out_bias: false,
        ffn_bias: false,
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
        bos_token_id: None,
        eos_token_ids: vec![],
    }
}

const PLENTY: MemoryLimits = MemoryLimits {
    dram_bytes: 1 << 40,
    vram_bytes: None,
    vram_is_dram: true,
    slow_tier_bytes: MemoryLimits::NO_SLOW_TIER,
    device_scratch: None,
};

fn request<'a>(
    config: &'a ModelConfig,
    placement: &'a Placement,
    formats: &'a Formats,
    limits: &'a MemoryLimits,
) -> PlacementRequest<'a> {
    PlacementRequest {
        config,
        placement,
        formats,
        fuse_attention: true,
        dtype: Dtype::Bf16,
        max_prompt: 8,
        shared_prompt: 0,
        max_context: 16,
        max_new: 8,
        logprobs: 0,
        prefill_chunk: None,
        limits,
        storage: None,
        routing: None,
    }
}

fn two_split(text: &str, chunks: Option<&str>) -> Policy {
    let chunking = chunks.map(|text| parse_chunking(text).expect("chunks"));
    Policy::TwoSplit { split: parse_split(text, &config(), chunking).expect("split"), chunking }
}

fn plan(policy: &Policy) -> Plan {
    let config = config();
    request(&config, &Placement::from_policy(*policy), &Formats::plain(&config), &PLENTY)
        .plan(2, 3)
        .expect("plan")
}

#[test]
fn splits_by_name() {
    let config = config();
    let split = |text| parse_split(text, &config, None);
    assert_eq!(split("scores:out"), Ok(Split { start: 4, end: 7 }));
    assert_eq!(split(":out"), Ok(Split { start: 0, end: 7 }));
    assert_eq!(split("out:"), Ok(Split { start: 7, end: 12 }));
    assert_eq!(split(":"), Ok(Split { start: 0, end: 12 }));
    assert_eq!(split("q:q"), Ok(Split { start: 1, end: 1 }));
    assert!(matches!(split("out"), Err(SplitError::Syntax { .. })));
    assert!(matches!(split("a:b:c"), Err(SplitError::Syntax { .. })));
    assert!(matches!(split("fc0:out"), Err(SplitError::Unknown { .. })));
    assert!(matches!(split("out:q"), Err(SplitError::Order { .. })));
    assert!(matches!(split("scores.2:out"), Err(SplitError::NoChunks { .. })));
    let chunking = Some(Chunking { order: ChunkOrder::Scores, chunks: 4 });
    assert_eq!(parse_split("scores.2:out", &config, chunking), Ok(Split { start: 6, end: 10 }));
    assert!(matches!(
        parse_split("scores.4:out", &config, chunking),
        Err(SplitError::Unknown { .. })
    ));
    for wrong in ["scores", "scores=0", "scores=65", "wv=3", "attention=x"] {
        assert!(matches!(parse_chunking(wrong), Err(SplitError::Chunks { .. })), "{wrong}");
    }
}

#[test]
fn cpu_only_has_one_lane_and_no_waits() {
    let plan = plan(&Policy::CpuOnly);
    assert_eq!(plan.lanes(), [LaneId::CPU_COMPUTE]);
    assert_eq!(plan.segment_bytes(SegmentId::DEVICE), 0);
    for program in &plan.programs {
        let lane = program.lane(LaneId::CPU_COMPUTE).expect("lane");
        assert!(lane.instructions.iter().all(Instruction::is_work));
    }
}

#[test]
fn a_weight_is_streamed_once_per_step_however_many_batches() {
    for policy in [Policy::GpuOnly, two_split("q:up", None), two_split("gate:", None)] {
        let plan = plan(&policy);
        for program in &plan.programs {
            let mut seen = std::collections::HashSet::new();
            for instruction in
                program.lane(LaneId::H2D_WEIGHTS).map_or(&[][..], |l| &l.instructions)
            {
                if let Instruction::Copy(copy) = instruction
                    && let Moved::Weights(op) = copy.moved
                {
                    assert!(seen.insert((copy.at.layer, op)), "{policy:?} {copy:?}");
                }
            }
        }
    }
}

#[test]
fn chunks_on_one_device_are_not_cut() {
    let plan = plan(&two_split("out:", Some("scores=3")));
    let lane = plan.decode().lane(LaneId::CPU_COMPUTE).expect("lane");
    let attention = lane.instructions.iter().filter_map(|instruction| match instruction {
        Instruction::Compute(compute) if compute.op.is_attention() => {
            Some((compute.op, compute.chunk))
        }
        _ => None,
    });
    assert!(attention.into_iter().all(|found| found == (Op::Attention, None)));
}

#[test]
fn every_interval_gives_each_device_its_operations() {
    for chunks in [None, Some("scores=3"), Some("attention=3")] {
        let config = config();
        let chunking = chunks.map(|text| parse_chunking(text).expect("chunks"));
        let entries = program::map::layer_list(&config, 0, chunking).len();
        for start in 0..=entries {
            for end in start..=entries {
                let policy = Policy::TwoSplit { split: Split { start, end }, chunking };
                let plan = plan(&policy);
                let on_gpu = plan.map.decode.layers[1]
                    .iter()
                    .filter(|device| **device == ComputeDevice::Gpu)
                    .count();
                assert_eq!(on_gpu, end - start);
                assert_eq!(plan.decode().lane(LaneId::GPU_COMPUTE).is_some(), end > start);
            }
        }
    }
}

#[test]
fn a_model_that_does_not_fit_is_refused_with_numbers() {
    let config = config();
    let small =
        MemoryLimits { dram_bytes: crate::budget::PROCESS_OVERHEAD_BYTES + (1 << 20), ..PLENTY };
    let error = request(
        &config,
        &Placement::from_policy(Policy::CpuOnly),
        &Formats::plain(&config),
        &small,
    )
    .plan(4, 400)
    .expect_err("too large");
    let text = error.to_string();
    assert!(
        matches!(error, PlanError::DoesNotFit { fitting: Some(fitting), .. } if fitting > 0),
        "{text}"
    );
    assert!(text.contains("GiB") && text.contains("--batches 4x"), "{text}");
    let none = MemoryLimits { dram_bytes: 1, ..PLENTY };
    let error =
        request(&config, &Placement::from_policy(Policy::CpuOnly), &Formats::plain(&config), &none)
            .plan(1, 1)
            .expect_err("too large");
    assert!(error.to_string().contains("not even one sequence fits"), "{error}");
}

#[test]
fn the_largest_batch_is_at_the_edge() {
    let config = config();
    let placement = Placement::from_policy(Policy::CpuOnly);
    let limits =
        MemoryLimits { dram_bytes: crate::budget::PROCESS_OVERHEAD_BYTES + (600 << 10), ..PLENTY };
    let formats = Formats::plain(&config);
    let request = request(&config, &placement, &formats, &limits);
    let largest = request.largest_batch(1, 256).expect("compiles").expect("one fits");
    assert!(request.plan(1, largest).is_ok());
    assert!(largest == 256 || request.plan(1, largest + 1).is_err());
}

/// A device expands a matrix for every stream.
#[test]
fn a_micro_batch_holds_more_prompts_of_grouped_weights_on_a_device() {
    let config = config();
    let form = WeightFormat::Grouped(Grouped::W4);
    let weights = WeightFormats::with_layers(&config, form);
    let grouped = Formats { weights, ..Formats::plain(&config) };
    let sequences = |formats: &Formats, vram_bytes, dtype| {
        let (placement, limits) =
            (Placement::from_policy(Policy::CpuOnly), MemoryLimits { vram_bytes, ..PLENTY });
        let request = request(&config, &placement, formats, &limits);
        let request = PlacementRequest { max_prompt: 100, dtype, ..request };
        let usual = request.shape(1, 60);
        let small = request.small_streams(usual).into_iter().map(|one| one.micro_sequences);
        let small: Vec<u16> = small.collect();
        assert_eq!(small.last(), Some(&request.smallest_streams(usual).micro_sequences));
        (usual.micro_sequences, small)
    };
    let (vram, bf16) = (Some(1 << 40), Dtype::Bf16);
    assert_eq!(sequences(&grouped, vram, bf16), (40, vec![5, 2]));
    assert_eq!(sequences(&Formats::plain(&config), vram, bf16), (10, vec![2]));
    assert_eq!(sequences(&grouped, None, bf16), (10, vec![2]));
    assert_eq!(sequences(&grouped, vram, Dtype::F32), (10, vec![2]));
}

#[test]
fn a_micro_batch_holds_more_prompts_where_all_begin_alike() {
    let (config, formats) = (config(), Formats::plain(&config()));
    let shape = |max_prompt, shared_prompt| {
        let placement = Placement::from_policy(Policy::CpuOnly);
        let request = request(&config, &placement, &formats, &PLENTY);
        let shape = PlacementRequest { max_prompt, shared_prompt, ..request }.shape(1, 60);
        (shape.micro_sequences, shape.stream_rows())
    };
    assert_eq!(shape(100, 0), (10, 1000));
    assert_eq!(shape(1024, 0), (1, 1024));
    assert_eq!(shape(4000, 0), (1, 4000));
    assert_eq!(shape(4000, 3800), (6, 5000));
    assert_eq!(shape(100, 60), (26, 1100));
    // Equal prompts still compute their last token separately.
    assert_eq!(shape(100, 100), (60, 159));
}
