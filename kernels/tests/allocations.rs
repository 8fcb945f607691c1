//! Tests that no kernel call allocates, on any thread: workers guarantee it from ready to drain.

mod common;
#[path = "common/counting.rs"]
mod counting;

use common::records::{formats, random_records};
use common::{Random, kernels, variants};
use counting::ALLOCATIONS;
use half::bf16;
use kernels::{
    AttentionOperands, AttentionShape, AttentionUnit, DeltaInputs, ExpertLimits, ExpertWeight,
    Kernels, KvCacheSlice, Linear, LinearOut, LinearQuant, LogitChange, Logprob,
    PartialKeyOperands, RopeTables, RoutedExpert, RoutedLinear, RouterRules, Routing, SampleDraw,
    SampleScratch, Sampling, SelectRule, Selection, StateRows, StateSlots,
};
use model::delta::{DeltaNet, StateDecay};
use model::experts::{ExpertGroups, ExpertScoring, ScoreSum};
use model::mamba::Mamba;
use model::quantized_format::Grouped;
use model::short_conv::ShortConv;
use shm::sync::Ordering;

struct Buffers {
    residual: Vec<f32>,
    gain: Vec<f32>,
    x: Vec<bf16>,
    weight: Vec<bf16>,
    out: Vec<bf16>,
    logits: Vec<f32>,
    scores: Vec<f32>,
    probabilities: Vec<f32>,
    cache: Vec<bf16>,
    selection: Selection,
    scratch: Vec<SampleScratch>,
    /// One matrix of every grouped format.
    records: Vec<(Grouped, Vec<u8>)>,
}

const ROWS: usize = 200;
const HIDDEN: usize = 512;
const HEAD_DIM: usize = 64;
/// Each expert has a quarter of the rows' values, so that all fit the same weight.
const EXPERTS: usize = 4;
const EXPERT_WIDTH: usize = HIDDEN / EXPERTS;

/// Columns of partial keys, and the rule that selects by them.
const COLUMNS: usize = 16;
const RULE: SelectRule = SelectRule { alpha: 2.0, max_thousandths: 300, recent: 8 };

/// Makes one call of every entry point, large enough that all threads of the pool take part.
fn every_call(kernels: &Kernels, buffers: &mut Buffers) {
    let Buffers { residual, gain, x, weight, out, logits, scores, probabilities, .. } = buffers;
    let Buffers { cache, selection, scratch, records, .. } = buffers;
    let tokens = [3u32; ROWS];
    kernels.embed(&tokens, weight, Some((&tokens, weight, 2)), 2.0, residual);
    every_norm_call(kernels, gain, x, residual);
    for kind in 0..9 {
        let target = match kind {
            0 => LinearOut::Store(&mut out[..]),
            1 => LinearOut::Relu(&mut out[..]),
            2 => LinearOut::Gelu(&mut out[..]),
            3 => LinearOut::SiluMul { gate: x, out: &mut out[..] },
            4 => LinearOut::GeluTanhMul { gate: x, out: &mut out[..] },
            5 => LinearOut::TimesSigmoid { x, out: &mut out[..] },
            6 => LinearOut::AddScaled { out: residual, factor: 0.1 },
            7 => LinearOut::LimitedSiluMul { gate: x, out: &mut out[..], limit: 0.5 },
            _ => LinearOut::StoreF32(&mut logits[..]),
        };
        let bias = Some(&gain[..]);
        kernels.linear(Linear { rows: ROWS, n: HIDDEN, k: HIDDEN, x, weight, bias, out: target });
    }
    every_expert_call(kernels, (residual, logits), x, weight, out);
    every_state_call(kernels, (gain, logits), x, weight, out);
    for (format, records) in records {
        let (format, rows, n, k) = (*format, ROWS, HIDDEN, HIDDEN);
        let target = LinearOut::StoreF32(&mut logits[..]);
        let linear = LinearQuant { rows, n, k, x, format, records, bias: None, out: target };
        kernels.linear_grouped(linear);
        kernels.embed_grouped(&tokens, format, records, 2.0, residual);
    }
    let heads = HIDDEN / HEAD_DIM;
    let frequencies = [0.5f32; HEAD_DIM / 2];
    kernels.head_norm(ROWS, heads, &gain[..HEAD_DIM], 1e-6, out);
    let tables = RopeTables {
        rotary_dim: HEAD_DIM / 2,
        table_of_row: Some(&[1; ROWS]),
        ..RopeTables::whole(&frequencies)
    };
    kernels.rope(ROWS, heads, HEAD_DIM, &tokens, &tables, out);
    let shape =
        AttentionShape { heads, kv_heads: heads, head_dim: HEAD_DIM, scale: 0.1, window: None };
    let units: [AttentionUnit; HIDDEN / HEAD_DIM] = std::array::from_fn(|head| AttentionUnit {
        row0: 0,
        rows: ROWS as u32,
        past: 10,
        shared_row: None,
        kv_head: head as u32,
        cache_offset: head * 300 * HEAD_DIM,
        cache_positions: 0,
        first_page: 0,
        scores_offset: head * ROWS * (ROWS + 10),
    });
    kernels.scores(&shape, &units, x, x, &*cache, scores);
    kernels.softmax(&shape, &units, scores, None, probabilities);
    kernels.weighted_values(&shape, &units, probabilities, x, &*cache, &mut *out);
    kernels.attention(&shape, &units, x, x, x, &*cache, &*cache, None, &mut *out);
    kernels.append(&shape, &units, x, cache);
    let one = &x[..HIDDEN];
    let rows = units.map(|unit| AttentionUnit { rows: 1, past: 290, ..unit });
    let partial =
        PartialKeyOperands { keys: weight, skew: &logits[..HIDDEN * COLUMNS], columns: COLUMNS };
    let cached = KvCacheSlice::from(&cache[..]);
    let operands =
        AttentionOperands { q: one, k_fresh: one, v_fresh: one, k_cache: cached, v_cache: cached };
    kernels.attention_selected(selection, &shape, &rows, operands, partial, &mut out[..HIDDEN]);
    every_window_call(kernels, shape, units, x, cache, out);
    every_sample_call(kernels, logits, scratch);
}

fn every_window_call(
    kernels: &Kernels,
    shape: AttentionShape,
    units: [AttentionUnit; HIDDEN / HEAD_DIM],
    x: &[bf16],
    cache: &mut [bf16],
    out: &mut [bf16],
) {
    let windowed = AttentionShape { window: Some(130), ..shape };
    let rings = units.map(|unit| AttentionUnit { past: 400, cache_positions: 290, ..unit });
    let sinks = [0.5; HIDDEN / HEAD_DIM];
    kernels.attention(&windowed, &rings, x, x, x, &*cache, &*cache, Some(&sinks), out);
    kernels.append(&windowed, &rings, x, cache);
}

fn every_norm_call(kernels: &Kernels, gain: &[f32], x: &mut [bf16], residual: &mut [f32]) {
    kernels.rms_norm(ROWS, HIDDEN, residual, gain, 1e-5, None, x);
    kernels.layer_norm(ROWS, HIDDEN, residual, gain, gain, 1e-5, None, x);
    kernels.add_rms_norm(ROWS, x, gain, 1e-5, residual);
}

fn every_sample_call(kernels: &Kernels, logits: &[f32], scratch: &mut [SampleScratch]) {
    let random = kernels::random_unit(1, 2, 3);
    let sampling =
        Sampling { temperature: 0.7, top_p: 0.9, top_k: 40, min_p: 0.01, ..Sampling::GREEDY };
    let draw = SampleDraw { sampling, random, masked: true, changes: (0, 1) };
    let masks = [0xffff_fff0; ROWS * HIDDEN / 32];
    let changes = [LogitChange::exclude(3)];
    kernels.sample_rows(logits, &[draw; ROWS], &masks, &changes, scratch, &mut [0; ROWS]);
    kernels.logprob_rows(logits, &[0; ROWS], &[3; ROWS], &mut [Logprob::NONE; 3 * ROWS]);
}

/// Channels of q, k and v that are as wide as a row.
const NET: DeltaNet = DeltaNet {
    key_heads: 2,
    value_heads: 4,
    takes_turns: false,
    key_dim: 64,
    value_dim: 64,
    taps: 2,
    decay: StateDecay::PerHead,
};

/// Widths that are at most those of a row.
const MAMBA: Mamba = Mamba {
    heads: 4,
    head_dim: 16,
    groups: 2,
    state_dim: 8,
    taps: 2,
    conv_bias: true,
    min_step: 0.0,
    max_step: None,
};

fn every_mamba_call(
    kernels: &Kernels,
    sequences: &[StateRows],
    (weight, states): (&[f32], &mut [f32]),
    x: &[bf16],
    out: &mut [bf16],
) {
    let (channels, inner) = (MAMBA.channels(), MAMBA.inner_size());
    let (input, mixed) = (&x[..ROWS * MAMBA.input_size()], &x[..ROWS * channels]);
    let (weight, bias) = (&weight[..2 * channels], Some(&weight[..channels]));
    let (inputs, states) = states.split_at_mut(2 * MAMBA.inputs_len(0));
    let (inputs, convolved) = (StateSlots::new(inputs, 0), &mut out[..ROWS * channels]);
    kernels.mamba_convolution(&MAMBA, sequences, input, weight, bias, inputs, convolved);
    let (states, out) = (&mut states[..2 * MAMBA.state_len()], &mut out[..ROWS * inner]);
    let states = StateSlots::new(states, 0);
    kernels.mamba_scan(&MAMBA, sequences, mixed, input, &weight[..12], states, out);
    kernels.group_norm(ROWS, 2, &weight[..inner], 1e-5, out);
}

fn every_state_call(
    kernels: &Kernels,
    (weight, states): (&[f32], &mut [f32]),
    x: &[bf16],
    ba: &[bf16],
    out: &mut [bf16],
) {
    let rows = ROWS as u32 / 2;
    let sequences =
        [0, 1].map(|slot| StateRows { row0: slot * rows, rows, slot, past: 0, drafts: 0 });
    every_mamba_call(kernels, &sequences, (weight, &mut *states), x, out);
    let (inputs, states) = states.split_at_mut(2 * NET.inputs_len(0));
    let weight: [f32; 2 * HIDDEN] = std::array::from_fn(|place| weight[place % HIDDEN]);
    let slots = StateSlots::new(&mut *inputs, 0);
    kernels.delta_convolution(&NET, &sequences, x, &weight, slots, out);
    let conv = ShortConv { channels: HIDDEN / 3, taps: 2 };
    let (rows, products) = (ROWS * conv.channels, 2 * conv.inputs_len(0));
    let (x3, weight3) = (&x[..ROWS * conv.input_size()], &weight[..2 * conv.channels]);
    kernels.short_convolution(
        &conv,
        &sequences,
        x3,
        weight3,
        StateSlots::new(&mut inputs[..products], 0),
        &mut out[..rows],
    );
    let (ba, states) = (&ba[..ROWS * 8], &mut states[..2 * NET.state_len()]);
    let out = &mut out[..ROWS * NET.value_size()];
    let inputs = DeltaInputs { mixed: x, ba, decays: &[], rates: &[0.1; 8] };
    kernels.delta_rule(&NET, &sequences, inputs, StateSlots::new(&mut *states, 0), out);
    let by_channel = DeltaNet { decay: StateDecay::PerChannel { rank: 8 }, ..NET };
    let decays = &x[..ROWS * by_channel.decays_len()];
    let b = &ba[..ROWS * by_channel.rates_size()];
    let inputs = DeltaInputs { mixed: x, ba: b, decays, rates: &[0.1; 4 + 4 * 64] };
    kernels.delta_rule(&by_channel, &sequences, inputs, StateSlots::new(states, 0), out);
    kernels.shared_gate(ROWS, x, &weight[..HIDDEN], ba, &mut out[..ROWS * 8]);
}

/// Makes expert calls in two passes, of which the second has fewer rows.
fn every_expert_call(
    kernels: &Kernels,
    (residual, logits): (&mut [f32], &[f32]),
    x: &[bf16],
    weight: &[bf16],
    out: &mut [bf16],
) {
    let mut routed = [RoutedExpert::default(); ROWS * 2];
    let logits = &logits[..ROWS * EXPERTS];
    let sigmoid = ExpertScoring::SigmoidTopK { sum: ScoreSum::Plus(1e-20) };
    let softplus = ExpertScoring::SqrtSoftplusTopK { sum: ScoreSum::Plus(1e-20) };
    let (groups, bias) = (ExpertGroups::new(2, 1), [0.5; EXPERTS]);
    let renormalised = ExpertScoring::SoftmaxTopK { renormalise: true };
    for scoring in [ExpertScoring::TopKSoftmax, renormalised, sigmoid, softplus] {
        let plain = RouterRules::plain(EXPERTS, 2, scoring);
        let other = RouterRules { bias: Some(&bias), groups: Some(groups), ..plain };
        for rules in [plain, other] {
            kernels.route(&rules, logits, &mut routed);
        }
    }
    let routing = Routing { experts: EXPERTS, top_k: 2, routed: &routed };
    let weight = ExpertWeight::Plain(weight);
    let experts = RoutedLinear {
        routing,
        n: EXPERT_WIDTH,
        k: HIDDEN,
        weight,
        bias: None,
        places: None,
        included: None,
    };
    let out = &mut out[..ROWS * 2 * EXPERT_WIDTH];
    kernels.expert_linear(&experts, x, LinearOut::Store(out));
    let experts = RoutedLinear {
        routing,
        n: HIDDEN,
        k: EXPERT_WIDTH,
        weight,
        bias: None,
        places: None,
        included: None,
    };
    kernels.expert_down(&experts, out, residual);
}

#[test]
fn no_call_allocates_after_the_kernels_are_built() {
    let mut random = Random::new(12);
    let heads = HIDDEN / HEAD_DIM;
    let mut buffers = Buffers {
        residual: random.vector(ROWS * HIDDEN),
        gain: random.vector(HIDDEN),
        x: random.vector(ROWS * HIDDEN),
        weight: random.vector(HIDDEN * HIDDEN),
        out: random.vector(ROWS * HIDDEN),
        logits: random.vector(ROWS * HIDDEN),
        scores: random.vector(heads * ROWS * (ROWS + 10)),
        probabilities: random.vector(heads * ROWS * (ROWS + 10)),
        cache: random.vector(heads * 300 * HEAD_DIM),
        selection: Selection::new(RULE, 3, &common::LIMITS, 2 * HEAD_DIM),
        scratch: (0..3).map(|_| SampleScratch::new(HIDDEN)).collect(),
        records: formats()
            .into_iter()
            .map(|format| (format, random_records(&mut random, format, HIDDEN, HIDDEN)))
            .collect(),
    };
    for variant in variants("no_call_allocates_after_the_kernels_are_built") {
        let experts =
            ExpertLimits { rows: 150, top_k: 2, experts: EXPERTS, inputs: HIDDEN, hidden: HIDDEN };
        let kernels = kernels(variant, 3).with_experts(experts);
        // Spinning threads are given small work too, and then fall asleep.
        kernels.set_spin(std::time::Duration::from_micros(20));
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for _ in 0..3 {
            every_call(&kernels, &mut buffers);
        }
        let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
        assert_eq!(allocations, 0, "{variant:?}");
    }
}
