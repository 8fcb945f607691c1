//! Compares costs with values computed by hand, and with those of figs. 6a, 7a and 8a of Park-Egger
//! on their machine.

use model::config::Dtype;
use model::known::find_known as model;
use model::ops::{Kv, Op};
use model::quantized_format::{Grouped, WeightFormat};
use program::formats::{KvFormat, WeightFormats};
use program::ir::{Instruction, Moved};
use program::plan::Plan;
use program::simulate::Place;
use program::topology::{LaneId, MemoryId};

use super::super::{DraftedDecode, Machine, OperandRates, SlowTierSpec, find_bundled};
use crate::budget::{MemoryLimits, PlacementRequest};
use crate::policy::{Formats, Placement, Policy, SlowTierLayers, SlowTierWeights};
use crate::search::{CostError, Pricing};
use crate::split::Split;

fn a4000() -> Machine {
    find_bundled("ryzen7950x-a4000").expect("a machine").expect("a valid file")
}

struct Case {
    batches: (u16, u16),
    /// Format of the layers' linears; if given, KV is stored in 4 bits.
    form: Option<Grouped>,
    policy: Policy,
    layers: usize,
    prompt: u32,
    prefill_chunk: Option<u32>,
    dtype: Dtype,
    far: SlowTierLayers,
}

const ON_THE_GPU: Policy = Policy::GpuOnly;
const ON_THE_CPU: Policy = Policy::TwoSplit { split: Split { start: 0, end: 0 }, chunking: None };

fn opt(batches: (u16, u16), policy: Policy) -> Case {
    let (form, layers, prompt, prefill_chunk) = (None, 2, 512, None);
    Case {
        batches,
        form,
        policy,
        layers,
        prompt,
        prefill_chunk,
        dtype: Dtype::Bf16,
        far: SlowTierLayers::NONE,
    }
}

impl Case {
    fn plan(&self) -> Plan {
        self.plan_of("opt-30b")
    }

    fn plan_of(&self, name: &str) -> Plan {
        let mut config = model(name).expect("known").config;
        config.keep_layers(self.layers);
        let mut formats = Formats::plain(&config);
        if let Some(form) = self.form {
            let form = WeightFormat::Grouped(form);
            formats.weights = WeightFormats::with_layers(&config, form);
            formats.kv = KvFormat::Four;
        }
        let limits = MemoryLimits {
            dram_bytes: u64::MAX,
            vram_bytes: None,
            vram_is_dram: false,
            slow_tier_bytes: [1 << 40, 0],
            device_scratch: None,
        };
        let (kv, slow_tier) = (Some(MemoryId::DRAM), self.far);
        let placement = Placement { kv, slow_tier, ..Placement::from_policy(self.policy) };
        let request = PlacementRequest {
            config: &config,
            placement: &placement,
            formats: &formats,
            fuse_attention: false,
            dtype: self.dtype,
            max_prompt: self.prompt,
            shared_prompt: 0,
            max_context: self.prompt + 32,
            max_new: 32,
            logprobs: 0,
            prefill_chunk: self.prefill_chunk,
            limits: &limits,
            storage: None,
            routing: None,
        };
        request.plan(self.batches.0, self.batches.1).expect("a plan")
    }
}

/// Returns the milliseconds of the first decode instruction that `of` accepts, in the first step.
fn ms(
    machine: &dyn Pricing,
    plan: &Plan,
    positions: u32,
    of: impl Fn(LaneId, &Instruction) -> bool,
) -> f64 {
    let costs = machine.costs(plan, plan.decode(), positions).expect("priced");
    let program = plan.decode();
    let mut all = program.lanes.iter().flat_map(|list| {
        list.instructions.iter().enumerate().map(|(index, one)| (list.lane, index as u32, one))
    });
    let (lane, instruction, work) =
        all.find(|(lane, _, work)| of(*lane, work)).expect("an instruction");
    costs.work_ns(Place { program: program.id, lane, instruction }, work, 0) / 1e6
}

fn computes(op: Op, on: LaneId) -> impl Fn(LaneId, &Instruction) -> bool {
    move |lane, work| matches!(work, Instruction::Compute(one) if one.op == op) && lane == on
}

fn copies(what: Moved) -> impl Fn(LaneId, &Instruction) -> bool {
    move |_, work| matches!(work, Instruction::Copy(one) if one.moved == what)
}

fn near(value: f64, printed: f64, what: &str) {
    let error = value / printed - 1.0;
    assert!(error.abs() < 0.16, "{what}: {value} against {printed}");
}

/// The description summarises the figures in few numbers; its times stay close to them.
#[test]
fn times_resemble_the_figures_that_they_were_read_from() {
    let machine = a4000();
    let (cpu, gpu) = (opt((2, 25), ON_THE_CPU).plan(), opt((2, 25), ON_THE_GPU).plan());
    let on_cpu = |op| ms(&machine, &cpu, 528, computes(op, LaneId::CPU_COMPUTE));
    let on_gpu = |op| ms(&machine, &gpu, 528, computes(op, LaneId::GPU_COMPUTE));
    near(on_cpu(Op::Q), 5.030, "q");
    near(on_cpu(Op::Fc0), 18.910, "fc0");
    near(on_cpu(Op::Scores), 36.450, "scores");
    near(on_gpu(Op::Q), 0.323, "q on the GPU");
    near(on_gpu(Op::Fc1), 1.174, "fc1 on the GPU");
    near(ms(&machine, &gpu, 528, copies(Moved::Cache(Kv::K))), 7.884, "KV");
    near(ms(&machine, &gpu, 528, copies(Moved::Weights(Op::Fc0))), 16.856, "weights");
    let widened = Case { form: Some(Grouped::GGUF_Q2_K), ..opt((1, 50), ON_THE_GPU) }.plan();
    let decompresses =
        |_, work: &Instruction| matches!(work, Instruction::Decompress(one) if one.op == Op::Q);
    near(ms(&machine, &widened, 528, decompresses), 6.623, "decompression of q");
    let four_bit = Case { form: Some(Grouped::W4), ..opt((1, 50), ON_THE_GPU) }.plan();
    // 4.5 bits per element here, 4.1 in fig. 8a.
    near(ms(&machine, &four_bit, 528, copies(Moved::Weights(Op::Q))), 1.083, "compressed q");
}

/// In decode a device multiplies 4-bit weights directly; in prefill it writes the expanded matrix
/// and reads that.
#[test]
fn a_device_reads_four_bits_or_makes_them_plain() {
    let machine = a4000();
    let rates = machine.gpu.bf16;
    let plan = Case { form: Some(Grouped::W4), ..opt((1, 8), ON_THE_GPU) }.plan();
    let (hidden, ffn) = (7168.0, 28672.0);
    let (stored, plain) = (hidden * ffn * 4.5 / 8.0 + 4.0 * ffn, hidden * ffn * 2.0);
    let by_hand_ms = |operands: f64, rows: f64| {
        let activations = rows * 2.0 * (hidden + ffn);
        let flops = 2.0 * rows * hidden * ffn;
        (operands + activations) / rates.linear_gbps / 1e6 + flops / rates.linear_tflops / 1e9
    };
    let fc0 = computes(Op::Fc0, LaneId::GPU_COMPUTE);
    let said_ms = ms(&machine, &plan, 512, &fc0);
    let expected_ms = by_hand_ms(stored, 8.0);
    assert!((said_ms / expected_ms - 1.0).abs() < 1e-6, "decode: {said_ms} {expected_ms}");
    let prefill = plan.prefill();
    let costs = machine.costs(&plan, prefill, 512).expect("priced");
    let list = &prefill.lane(LaneId::GPU_COMPUTE).expect("a lane").instructions;
    let index = list.iter().position(|one| fc0(LaneId::GPU_COMPUTE, one)).expect("there");
    let place = Place { program: prefill.id, lane: LaneId::GPU_COMPUTE, instruction: index as u32 };
    let said_ms = costs.work_ns(place, &list[index], 0) / 1e6;
    let rows = plan.shape.stream_rows() as f64;
    let expected_ms = by_hand_ms(stored + 2.0 * plain, rows);
    assert!((said_ms / expected_ms - 1.0).abs() < 1e-6, "prefill: {said_ms} {expected_ms}");
}

#[test]
fn a_linear_takes_its_bytes_and_its_operations() {
    let machine = a4000();
    let rates = machine.cpu.bf16;
    let plan = opt((1, 8), ON_THE_CPU).plan();
    let (hidden, ffn, rows) = (7168.0, 28672.0, 8.0);
    // Matrix and bias; the activations of input and output.
    let bytes = 2.0 * hidden * ffn + 4.0 * ffn;
    let activations = rows * 2.0 * (hidden + ffn);
    let flops = 2.0 * rows * hidden * ffn;
    let by_hand_ms =
        (bytes + activations) / rates.linear_gbps / 1e6 + flops / rates.linear_tflops / 1e9;
    let said_ms = ms(&machine, &plan, 512, computes(Op::Fc0, LaneId::CPU_COMPUTE));
    assert!((said_ms / by_hand_ms - 1.0).abs() < 1e-6, "{said_ms} {by_hand_ms}");
}

#[test]
fn of_experts_those_that_are_hit_are_read_and_all_are_moved() {
    let machine = a4000();
    let rates = machine.cpu.bf16;
    let (hidden, ffn, experts) = (2048.0, 768.0, 128.0);
    for (batch, distinct) in [(1, 8.0), (8, 51.6), (60, 125.3)] {
        let plan = opt((1, batch), ON_THE_CPU).plan_of("qwen3-30b-a3b");
        let rows = f64::from(batch);
        let operands = 2.0 * distinct * hidden * ffn;
        // The normed input, the routing, and the gate that is written.
        let activations = rows * (2.0 * hidden + 4.0 * 16.0 + 2.0 * 8.0 * ffn);
        let flops = 2.0 * rows * 8.0 * hidden * ffn;
        let by_hand_ms =
            (operands + activations) / rates.linear_gbps / 1e6 + flops / rates.linear_tflops / 1e9;
        let said_ms = ms(&machine, &plan, 512, computes(Op::ExpertGate, LaneId::CPU_COMPUTE));
        assert!((said_ms / by_hand_ms - 1.0).abs() < 1e-3, "{batch}: {said_ms} {by_hand_ms}");
        let plan = opt((1, batch), ON_THE_GPU).plan_of("qwen3-30b-a3b");
        let copied_ms = ms(&machine, &plan, 512, copies(Moved::Weights(Op::ExpertGate)));
        let all_ms = 2.0 * experts * hidden * ffn / machine.link.h2d_gbps / 1e6;
        assert!((copied_ms / all_ms - 1.0).abs() < 1e-6, "{batch}: {copied_ms} {all_ms}");
    }
}

/// A sequence's newest token and three drafts are four rows, for which weights and caches are read
/// once, and from each of which a token is drawn.
#[test]
fn drafts_are_rows_that_read_the_caches_of_their_sequence() {
    let machine = a4000();
    let (four, sixteen) = (opt((1, 4), ON_THE_CPU).plan(), opt((1, 16), ON_THE_CPU).plan());
    let drafted = DraftedDecode { machine: &machine, drafts: 3 };
    for op in [Op::Fc0, Op::Norm0, Op::Head, Op::Sample] {
        let computed = computes(op, LaneId::CPU_COMPUTE);
        let drafted_ms = ms(&drafted, &four, 512, &computed);
        let expected_ms = ms(&machine, &sixteen, 512, &computed);
        assert!((drafted_ms / expected_ms - 1.0).abs() < 1e-9, "{op:?}");
    }
    let rates = machine.cpu.bf16;
    let (hidden, heads, positions) = (7168.0, 56.0, 512.0);
    // Four sequences with rows that attend to 513 to 516 positions.
    let pairs = 4.0 * (4.0 * positions + 10.0);
    let bytes = 4.0 * positions * 2.0 * hidden;
    let flops = 2.0 * pairs * hidden;
    // Rows of q and k, and scores.
    let activations = 16.0 * 4.0 * hidden + 4.0 * pairs * heads;
    let by_hand_ms = bytes / rates.attention_gbps / 1e6
        + activations / rates.linear_gbps / 1e6
        + flops / rates.attention_tflops / 1e9;
    let said_ms = ms(&drafted, &four, 512, computes(Op::Scores, LaneId::CPU_COMPUTE));
    assert!((said_ms / by_hand_ms - 1.0).abs() < 1e-6, "{said_ms} {by_hand_ms}");
    let cache = |machine: &dyn Pricing| {
        ms(machine, &opt((1, 4), ON_THE_GPU).plan(), 512, copies(Moved::Cache(Kv::K)))
    };
    assert_eq!(cache(&drafted), cache(&machine), "caches are copied once");
}

/// Gemma's sixth layer attends to all positions, the layers before it to 1024.
#[test]
fn attention_looks_back_no_further_than_its_window() {
    let machine = a4000();
    let case = |prompt| Case { layers: 6, prompt, ..opt((1, 2), ON_THE_CPU) };
    let of_layer = |prompt, layer| {
        let plan = case(prompt).plan_of("gemma-3-12b");
        let scores = |lane: LaneId, work: &Instruction| {
            let of_layer = work.at().and_then(|at| at.layer) == Some(layer);
            computes(Op::Scores, LaneId::CPU_COMPUTE)(lane, work) && of_layer
        };
        ms(&machine, &plan, prompt, scores)
    };
    assert_eq!(of_layer(512, 0), of_layer(512, 5), "within the window");
    assert_eq!(of_layer(1100, 0), of_layer(4000, 0), "behind it nothing is added");
    assert!(of_layer(1100, 0) < of_layer(1100, 5));
    assert!((of_layer(4000, 5) / of_layer(2000, 5) - 2.0).abs() < 0.01);
    assert!((of_layer(4000, 5) / of_layer(4000, 0) - 4000.0 / 1024.0).abs() < 0.05);
}

#[test]
fn four_bits_have_rates_of_their_own() {
    let mut machine = a4000();
    let plan = Case { form: Some(Grouped::W4), ..opt((1, 8), ON_THE_CPU) }.plan();
    let said = |machine: &Machine, op| ms(machine, &plan, 512, computes(op, LaneId::CPU_COMPUTE));
    let (linear_ms, scores_ms) = (said(&machine, Op::Fc0), said(&machine, Op::Scores));
    machine.cpu.bf16.four_bit = Some(OperandRates {
        linear_gbps: machine.cpu.bf16.linear_gbps / 2.0,
        linear_tflops: machine.cpu.bf16.linear_tflops / 2.0,
        attention_gbps: machine.cpu.bf16.attention_gbps / 4.0,
        attention_tflops: machine.cpu.bf16.attention_tflops / 4.0,
    });
    let slower = |op, before_ms: f64| said(&machine, op) / before_ms;
    // Everything except the activations.
    assert!((1.9..=2.0).contains(&slower(Op::Fc0, linear_ms)));
    assert!((3.8..=4.0).contains(&slower(Op::Scores, scores_ms)));
}

/// However prompts are cut into chunks, they have equal numbers of rows and attend to equal numbers
/// of positions.
#[test]
fn chunks_add_up_to_whole_prompts() {
    let machine = Machine { link: a4000().link, ..a4000() };
    let sum_ns = |prefill_chunk| {
        let case = Case { prefill_chunk, prompt: 600, ..opt((1, 4), Policy::CpuOnly) };
        let plan = case.plan();
        let costs = machine.costs(&plan, plan.prefill(), 600).expect("priced");
        let program = plan.prefill();
        let list = program.lane(LaneId::CPU_COMPUTE).expect("a lane");
        let of = |wanted: fn(Op) -> bool| {
            let all = list.instructions.iter().enumerate();
            let computed =
                all.filter(|(_, work)| matches!(work, Instruction::Compute(one) if wanted(one.op)));
            computed
                .map(|(index, work)| {
                    let instruction = index as u32;
                    let lane = LaneId::CPU_COMPUTE;
                    costs.work_ns(Place { program: program.id, lane, instruction }, work, 0)
                })
                .sum::<f64>()
        };
        (of(|op| op == Op::Norm1), of(|op| op == Op::Sample))
    };
    let (whole, chunks) = (sum_ns(None), sum_ns(Some(256)));
    assert!((whole.0 / chunks.0 - 1.0).abs() < 0.01, "{whole:?} {chunks:?}");
    assert!((whole.1 / chunks.1 - 1.0).abs() < 0.01, "{whole:?} {chunks:?}");
}

#[test]
fn host_memory_is_shared_by_cpu_and_link() {
    use crate::search::steady_step_ns;
    let split = Policy::TwoSplit { split: Split { start: 9, end: 11 }, chunking: None };
    let plan = Case { layers: 4, ..opt((1, 8), split) }.plan();
    let step_ns = |dram_gbps| {
        let mut machine = a4000();
        machine.memory.dram_gbps = dram_gbps;
        steady_step_ns(&plan, &machine, 512).expect("priced")
    };
    let alone_ns = step_ns(1000.0);
    assert_eq!(step_ns(89.6), alone_ns, "49 GB/s of 89.6 disturb nobody");
    // Every byte is transferred at 10 GB/s.
    let (ten, five) = (step_ns(10.0), step_ns(5.0));
    assert!(ten > 1.5 * alone_ns, "{ten} {alone_ns}");
    assert!((five / ten - 2.0).abs() < 0.01, "{five} {ten}");
}

#[test]
fn weights_in_further_memory_take_its_bandwidths() {
    let mut machine = a4000();
    let tier = |cpu_gbps, link_gbps| SlowTierSpec {
        name: "CXL".to_owned(),
        capacity_gib: 100.0,
        cpu_gbps,
        link_gbps,
    };
    machine.tier = vec![tier(machine.cpu.bf16.linear_gbps / 4.0, machine.link.h2d_gbps / 2.0)];
    let far = SlowTierLayers { layers: [2, 0], weights: SlowTierWeights::All };
    let plans = |policy| {
        let case = opt((1, 8), policy);
        [SlowTierLayers::NONE, far].map(|far| Case { far, ..case }.plan())
    };
    let [near, far_away] = plans(ON_THE_CPU);
    let said = |machine: &Machine, plan: &Plan, op| {
        ms(machine, plan, 512, computes(op, LaneId::CPU_COMPUTE))
    };
    let slower = said(&machine, &far_away, Op::Fc0) / said(&machine, &near, Op::Fc0);
    assert!((3.5..=4.0).contains(&slower), "its weights, not its activations: {slower}");
    assert_eq!(
        said(&machine, &far_away, Op::Scores),
        said(&machine, &near, Op::Scores),
        "KV stays"
    );
    let [near, far_away] = plans(ON_THE_GPU);
    let copied = |plan: &Plan| ms(&machine, plan, 512, copies(Moved::Weights(Op::Fc0)));
    assert!((copied(&far_away) / copied(&near) - 2.0).abs() < 1e-9);
    // A memory faster than DRAM and the link is limited by these.
    let mut fast = machine.clone();
    fast.tier = vec![tier(1000.0, 1000.0)];
    assert_eq!(ms(&fast, &far_away, 512, copies(Moved::Weights(Op::Fc0))), copied(&near));
    machine.tier.clear();
    let refused = machine.costs(&far_away, far_away.decode(), 512).map(|_| ()).expect_err("none");
    assert!(refused.0.contains("0 [[tier]], fewer than the plan uses"), "{refused}");
}

#[test]
fn further_memory_leaves_dram_to_others_and_has_a_bandwidth_of_its_own() {
    use crate::search::steady_step_ns;
    let mut machine = a4000();
    machine.memory.dram_gbps = 10.0;
    let tier = |gbps| {
        let name = "CXL".to_owned();
        vec![SlowTierSpec { name, capacity_gib: 100.0, cpu_gbps: gbps, link_gbps: gbps }]
    };
    let step_ns = |machine: &Machine, far| {
        let plan = Case { far, layers: 4, ..opt((1, 8), ON_THE_GPU) }.plan();
        steady_step_ns(&plan, machine, 512).expect("priced")
    };
    machine.tier = tier(50.0);
    let far = SlowTierLayers { layers: [4, 0], weights: SlowTierWeights::All };
    let (near_ns, far_ns) = (step_ns(&machine, SlowTierLayers::NONE), step_ns(&machine, far));
    assert!(far_ns < 0.7 * near_ns, "{far_ns} {near_ns}");
    machine.tier = tier(2.0);
    let bytes = 4.0 * f64::from(2 * 7168) * f64::from(12 * 7168);
    assert!(step_ns(&machine, far) > bytes / 2.0, "no step is shorter than its bytes");
}

#[test]
fn what_a_description_leaves_out_is_said() {
    let spr = find_bundled("spr-a100").expect("a machine").expect("a valid file");
    let refused = |case: Case| -> CostError {
        let plan = case.plan();
        spr.costs(&plan, plan.decode(), 512).map(|_| ()).expect_err("no rate")
    };
    let widened = refused(Case { form: Some(Grouped::GGUF_Q2_K), ..opt((1, 1), ON_THE_GPU) });
    assert!(widened.0.contains("widens"), "{widened}");
    let f32 = refused(Case { dtype: Dtype::F32, ..opt((1, 1), ON_THE_CPU) });
    assert!(f32.0.contains("--dtype f32"), "{f32}");
}
