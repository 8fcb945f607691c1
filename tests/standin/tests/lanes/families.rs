//! Newer model families on device lanes: tokens equal the CPU's, and log-probabilities differ only
//! by the order of sums.

use model::config::{Dtype, ModelConfig, QkNorm, Rope, RopeScaling, Scales};
use model::experts::{ExpertScoring, Experts};
use model::layers::{LayerKind, Layers};
use model::quantized_format::{Grouped, WeightFormat};
use planner::policy::Formats;
use program::compile::compile;
use program::cuda_gaps::{CACHES_OF_8_BITS, leave_prefill_gaps_to_cpu};
use program::formats::{KvFormat, WeightFormats};
use program::plan::{Plan, RunShape};
use program::topology::MemoryId;
use workers::testing::{GenerationRequest, Outcome, PlacedRequest};

use crate::case::{group, llama, map_of, on_cpu_of, plan_of, shape};
use crate::harness::{Setting, Workers};
use crate::models;

/// Maximum difference of log-probabilities of equal models. Any other computation changes them by
/// tens of times as much (asserted for each feature).
const TOLERANCE: f32 = 4e-6;

/// Returns the sequences of [`group`], with requests for log-probabilities.
fn likely() -> Vec<PlacedRequest> {
    let mut group = group();
    group.iter_mut().for_each(|placed| placed.request.logprobs = 2);
    group
}

fn plan(
    config: &ModelConfig,
    split: Option<&str>,
    kv: MemoryId,
    prefill_chunk: u32,
    form: Option<Grouped>,
) -> Plan {
    let mut map = map_of(config, split, None, kv);
    if let Some(form) = form {
        let weights = WeightFormats::with_layers(config, WeightFormat::Grouped(form));
        Formats { weights, kv: KvFormat::Plain, kv_select: None }.apply(&mut map);
    }
    let shape = RunShape { prefill_chunk, logprobs: 2, ..shape(Dtype::F32) };
    compile(config, &shape, &map).expect("compiles")
}

fn on_cpu(config: &ModelConfig, form: Option<Grouped>) -> Vec<Outcome> {
    let plan = plan(config, None, MemoryId::DRAM, 0, form);
    on_cpu_of(config, plan, &likely())
}

/// Returns the largest difference of log-probabilities; `None` if tokens differ.
fn difference(a: &[Outcome], b: &[Outcome]) -> Option<f32> {
    let mut most = 0.0f32;
    for (a, b) in a.iter().zip(b) {
        if a.tokens != b.tokens || a.finish != b.finish {
            return None;
        }
        for ((token, own), (other, others)) in a.logprobs.iter().zip(&b.logprobs) {
            if token != other {
                return None;
            }
            most = most.max((f32::from_bits(*own) - f32::from_bits(*others)).abs());
        }
    }
    Some(most)
}

/// Checks that all placements give the CPU's results, and that these differ from those of
/// `plainer`, the model without its features.
fn check(config: &ModelConfig, plainer: &[ModelConfig], splits: &[&str]) {
    let expected = on_cpu(config, None);
    for plainer in plainer {
        let apart = difference(&expected, &on_cpu(plainer, None));
        assert!(apart.is_none_or(|apart| apart > 10.0 * TOLERANCE), "{plainer:?}: {apart:?}");
    }
    let whole = [
        ("gpu-only", MemoryId::VRAM, 0),
        ("gpu-only", MemoryId::DRAM, 0),
        ("gpu-only", MemoryId::VRAM, 3),
        ("gpu-only", MemoryId::DRAM, 3),
    ];
    let parts = splits.iter().map(|split| (*split, MemoryId::DRAM, 0));
    for (split, kv, prefill_chunk) in whole.into_iter().chain(parts) {
        let plan = plan(config, Some(split), kv, prefill_chunk, None);
        let context = format!("{:?} {split} {kv:?} in {prefill_chunk}", config.family);
        same(&plan, &expected, &context);
    }
}

fn same(plan: &Plan, expected: &[Outcome], context: &str) {
    let workers = Workers::start(plan, &Setting::default()).expect(context);
    let outcomes = workers.run_group(&likely()).expect(context);
    let apart = difference(expected, &outcomes);
    assert!(apart.is_some_and(|apart| apart <= TOLERANCE), "{context}: {apart:?}");
    workers.finish().expect(context);
}

fn with_kinds(config: &ModelConfig, change: impl Fn(&mut LayerKind)) -> ModelConfig {
    let kinds = (0..config.num_layers).map(|layer| {
        let mut kind = config.layers.kind(layer).clone();
        change(&mut kind);
        kind
    });
    ModelConfig { layers: Layers::from_kinds(kinds), ..config.clone() }
}

#[test]
fn windows_over_rings_and_layers_without_rope() {
    let config = models::windowed();
    let plainer = with_kinds(&config, |kind| kind.window = None);
    check(&config, &[plainer], &["k:up", "scores:out", "norm0:k"]);
}

#[test]
fn sinks_of_attention() {
    let config = models::sinks();
    let plainer = ModelConfig { sinks: false, ..config.clone() };
    check(&config, &[plainer], &["softmax:wv", "scores:out", "q:softmax"]);
}

#[test]
fn norms_of_heads_and_of_whole_rows() {
    let (heads, rows) =
        (models::normed_heads(QkNorm::PerHead), models::normed_heads(QkNorm::FullWidth));
    check(&heads, &[llama(), rows.clone()], &["q:k", "k:up"]);
    check(&rows, &[llama()], &["q:k", "k:up"]);
}

#[test]
fn norms_behind_halves_gelu_by_tanh_and_scales() {
    let config = models::post_normed();
    let unscaled = ModelConfig { scales: Scales::default(), ..config.clone() };
    let silu = ModelConfig { activation: llama().activation, ..config.clone() };
    let cuts = ["out:norm1", "post_norm0:post_norm1", "up:", "post_norm1:"];
    check(&config, &[unscaled, silu], &cuts);
}

/// Removes the dependence of rope on the length.
fn of_short_texts(kind: &mut LayerKind) {
    let Some(rope) = &mut kind.rope else { return };
    if let RopeScaling::Longrope { original_max_positions, .. }
    | RopeScaling::Dynamic { original_max_positions, .. } = &mut rope.scaling
    {
        *original_max_positions = 1000;
    }
}

#[test]
fn rope_of_two_tables_over_a_part_of_the_head() {
    let config = models::longrope();
    let short = with_kinds(&config, of_short_texts);
    let of_whole_heads =
        with_kinds(&config, |kind| kind.rope = Some(Rope::new(10_000.0, RopeScaling::None)));
    check(&config, &[short, of_whole_heads], &["q:k", "k:up"]);
}

#[test]
fn rope_of_a_table_for_each_sequence() {
    let config = models::dynamic();
    let short = with_kinds(&config, of_short_texts);
    check(&config, &[short], &["q:k", "k:up"]);
}

/// Every cut of a layer at or between its operations on experts.
const EXPERT_CUTS: [&str; 8] = [
    "router:",
    "router:expert_gate",
    "expert_gate:expert_down",
    "expert_gate:expert_up",
    "expert_up:expert_down",
    "expert_up:",
    "expert_down:",
    "norm0:expert_up",
];

fn with_experts(config: &ModelConfig, change: impl Fn(&mut Experts)) -> ModelConfig {
    let mut config = config.clone();
    change(config.experts.as_mut().expect("experts"));
    config
}

#[test]
fn experts_of_every_scoring_wherever_their_operations_run() {
    let (all, renormalised) = (models::experts_of_all(), models::experts_renormalised());
    let one = with_experts(&all, |experts| experts.per_token = 1);
    let other = with_experts(&all, |experts| experts.scoring = ExpertScoring::TopKSoftmax);
    check(&all, &[one, other], &EXPERT_CUTS);
    let unscaled = ModelConfig { scales: Scales::default(), ..renormalised.clone() };
    check(&renormalised, &[unscaled], &EXPERT_CUTS);
}

#[test]
fn experts_with_biases_and_a_clamped_activation() {
    let config = models::experts_with_biases();
    let unbiased = with_experts(&config, |experts| experts.bias = false);
    let silu = ModelConfig { activation: llama().activation, ..config.clone() };
    check(&config, &[unbiased, silu], &["router:expert_up", "expert_down:"]);
}

#[test]
fn experts_of_grouped_weights_give_the_same_as_they_are_and_widened() {
    let config = models::wide_experts();
    for form in [
        Grouped::W4,
        Grouped::GGUF_Q8,
        Grouped::GGUF_Q4_K,
        Grouped::GGUF_Q6_K,
        Grouped::GGUF_MXFP4,
        Grouped::GGUF_Q2_K,
    ] {
        let expected = on_cpu(&config, Some(form));
        for (split, kv) in [
            ("gpu-only", MemoryId::VRAM),
            ("gpu-only", MemoryId::DRAM),
            ("router:expert_down", MemoryId::DRAM),
            ("expert_down:", MemoryId::DRAM),
        ] {
            let plan = plan(&config, Some(split), kv, 0, Some(form));
            same(&plan, &expected, &format!("{form} {split} {kv:?}"));
        }
    }
}

#[test]
fn a_model_beyond_the_kernels_is_refused_in_a_sentence() {
    let many = with_experts(&models::experts_of_all(), |experts| {
        (experts.count, experts.per_token) = (40, 33);
    });
    let long = ModelConfig { head_dim: 258, ..llama() };
    for (config, said) in [(many, "33 experts of a row"), (long, "258 values of a head")] {
        let plan = plan(&config, Some("gpu-only"), MemoryId::VRAM, 0, None);
        let refused = Workers::start(&plan, &Setting::default()).err().expect(said);
        assert!(refused.contains(said) && refused.contains("--device none."), "{refused}");
    }
}

/// The kernels read no caches of 8 bits: attention stays on the host, and the linears run on the
/// device.
#[test]
fn linears_run_beside_caches_of_8_bits() {
    let config = llama();
    let plan = |split: Option<&str>| {
        let mut map = map_of(&config, split, None, MemoryId::DRAM);
        Formats { kv: KvFormat::Eight, ..Formats::plain(&config) }.apply(&mut map);
        leave_prefill_gaps_to_cpu(&config, &mut map);
        compile(&config, &RunShape { logprobs: 2, ..shape(Dtype::F32) }, &map).expect("compiles")
    };
    let expected = on_cpu_of(&config, plan(None), &likely());
    assert!(difference(&expected, &on_cpu(&config, None)).is_none_or(|apart| apart > TOLERANCE));
    for split in ["out:", "norm0:scores"] {
        same(&plan(Some(split)), &expected, split);
    }
    let refused = Workers::start(&plan(Some("gpu-only")), &Setting::default()).err();
    let refused = refused.expect("attention is the device's");
    assert!(refused.contains(CACHES_OF_8_BITS), "{refused}");
}

#[test]
fn more_rows_than_a_pass_of_experts_has_give_the_same() {
    let config = models::experts_with_biases();
    let shape = RunShape {
        batches: 1,
        batch_size: 72,
        micro_sequences: 72,
        max_prompt: 30,
        max_context: 32,
        max_new: 2,
        logprobs: 2,
        ..shape(Dtype::F32)
    };
    assert!(shape.stream_rows() > 2048);
    let placed = |slot: usize| {
        let prompt = (0..30).map(|i| (slot as u32 + 7 * i) % 96).collect();
        let request = GenerationRequest { logprobs: 2, ..GenerationRequest::greedy(prompt, 2) };
        PlacedRequest { batch: 0, slot, request }
    };
    let group: Vec<PlacedRequest> = (0..72).map(placed).collect();
    let compiled = |split| plan_of(&config, &shape, split, None, MemoryId::DRAM);
    let expected = on_cpu_of(&config, compiled(None), &group);
    let workers = Workers::start(&compiled(Some("gpu-only")), &Setting::default()).expect("starts");
    let outcomes = workers.run_group(&group).expect("runs");
    let apart = difference(&expected, &outcomes);
    assert!(apart.is_some_and(|apart| apart <= TOLERANCE), "{apart:?}");
    workers.finish().expect("ends well");
}
