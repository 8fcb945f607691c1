//! A plan of a described machine as programs in which only time passes. The plan's own buffers are
//! as large as its model, so the same placement is compiled for the same model with narrow layers;
//! both decode programs have the same lists, and each instruction takes the time of its
//! counterpart.

use model::config::{Features, ModelConfig, PerLayerInputs};
use model::experts::{DenseLayers, Experts};
use model::layers::{LayerKind, Layers};
use program::compile::compile;
use program::ir::{Instruction, LaneProgram};
use program::map::{Chunking, leading_list};
use program::plan::{Plan, RunShape};
use program::simulate::{Place, SimulationCosts};
use program::validate::validate;

use super::bounds::{GEN_LEN_MAX, LAYERS_MAX, TIME_MAX_MS};
use super::error::TimedError;
use super::instruction_times::InstructionTimes;
use crate::search::Pricing;

/// Size of the small model's heads: rotary embeddings need pairs.
const HEAD_DIM: usize = 2;
const VOCAB_SIZE: usize = 2;
/// Number of widths that are tried until all linears can be split into the pieces of the larger
/// model.
const MORE_HEADS_MAX: usize = 64;

/// Programs in the placement of a larger plan, and the times of that plan's instructions.
#[derive(Debug, Clone)]
pub struct TimedPlan {
    pub plan: Plan,
    pub times: InstructionTimes,
}

impl TimedPlan {
    /// Returns the programs of `large`, with the times that `pricing` gives its decode in the
    /// middle of the output.
    ///
    /// # Errors
    /// More layers or tokens than a run supports, an instruction that takes too long or that the
    /// machine does not price.
    pub fn from_plan(large: &Plan, pricing: &dyn Pricing) -> Result<TimedPlan, TimedError> {
        let (layers, gen_len) = (large.config.num_layers, large.shape.max_new);
        if !(1..=LAYERS_MAX).contains(&layers) {
            return Err(TimedError::Layers { layers });
        }
        if !(1..=GEN_LEN_MAX).contains(&gen_len) {
            return Err(TimedError::GenLen { gen_len });
        }
        let plan = shrink_plan(large)?;
        validate(&plan)?;
        check_same(large, &plan)?;
        let middle = large.shape.max_prompt + gen_len / 2;
        let costs = pricing.costs(large, large.decode(), middle)?;
        let times = times(large, costs.as_ref())?;
        Ok(TimedPlan { plan, times })
    }
}

/// Returns the same map for batches of one short sequence, and a small model.
fn shrink_plan(large: &Plan) -> Result<Plan, TimedError> {
    let gen_len = large.shape.max_new;
    let max_context = gen_len + 1;
    let config = ModelConfig {
        vocab_size: VOCAB_SIZE,
        max_positions: max_context as usize,
        bos_token_id: None,
        eos_token_ids: Vec::new(),
        ..shrink_config(&large.config, large.map.chunking)
    };
    let shape = RunShape {
        batch_size: 1,
        max_prompt: 1,
        shared_prompt: 0,
        max_context,
        micro_sequences: 1,
        prefill_chunk: 0,
        serves: false,
        page_positions: 0,
        kv_pages: 0,
        logits_rows: 0,
        device_slots: 0,
        ..large.shape
    };
    Ok(compile(&config, &shape, &large.map)?)
}

/// Scales down every width of a model by the same factor, since some schedules distribute weights
/// by their bytes. Each chunk of attention has its own KV head, and linears in pieces are wide
/// enough for them.
fn shrink_config(config: &ModelConfig, chunking: Option<Chunking>) -> ModelConfig {
    let of_attention = chunking.and_then(Chunking::of_attention);
    let chunks = of_attention.map_or(1, |one| usize::from(one.chunks));
    let min_width = chunks.div_ceil(config.num_kv_heads).max(1);
    let list = leading_list(config, chunking);
    let small = |more_heads| narrow(config, more_heads);
    let has_pieces = |small: &ModelConfig| leading_list(small, chunking) == list;
    let wide_enough = (min_width..=min_width * MORE_HEADS_MAX).map(small).find(has_pieces);
    wide_enough.unwrap_or_else(|| small(min_width))
}

/// Scales down a model with `more_heads` heads for each one.
fn narrow(config: &ModelConfig, more_heads: usize) -> ModelConfig {
    let width = |width: usize| (width * more_heads * HEAD_DIM).div_ceil(config.head_dim);
    // Small layers of a model have equal sizes.
    let kind = |layer| LayerKind { sizes: None, ..config.layers.kind(layer).clone() };
    let small = ModelConfig {
        hidden_size: width(config.hidden_size),
        num_heads: config.num_heads * more_heads,
        num_kv_heads: config.num_kv_heads * more_heads,
        head_dim: HEAD_DIM,
        ffn_size: width(config.ffn_size),
        experts: config.experts.map(|experts| Experts {
            ffn_size: width(experts.ffn_size),
            latent_size: experts.latent_size.map(width),
            dense: experts
                .dense
                .map(|dense| DenseLayers { ffn_size: width(dense.ffn_size), ..dense }),
            ..experts
        }),
        layers: Layers::from_kinds((0..config.num_layers).map(kind)),
        features: Features {
            per_layer_inputs: config.features.per_layer_inputs.map(|inputs| PerLayerInputs {
                size: HEAD_DIM,
                vocab_size: VOCAB_SIZE,
                ..inputs
            }),
            ..config.features.clone()
        },
        ..config.clone()
    };
    small.with_kind_models()
}

/// Checks that the lists have the same instructions in the same order; only buffers may differ.
fn check_same(large: &Plan, small: &Plan) -> Result<(), TimedError> {
    let other = |plan: &Plan, lane| TimedError::OtherPrograms {
        model: plan.config.name.clone(),
        lane: plan.lane_name(lane).to_owned(),
    };
    let have_same_work = |a: &LaneProgram, b: &LaneProgram| {
        let works = a.instructions.iter().zip(&b.instructions);
        a.lane == b.lane
            && a.instructions.len() == b.instructions.len()
            && works.into_iter().all(|(a, b)| is_same_instruction(a, b))
    };
    let (lists, others) = (&large.decode().lanes, &small.decode().lanes);
    for (place, list) in lists.iter().enumerate() {
        if !others.get(place).is_some_and(|one| have_same_work(list, one)) {
            return Err(other(large, list.lane));
        }
    }
    match others.get(lists.len()) {
        Some(list) => Err(other(large, list.lane)),
        None => Ok(()),
    }
}

/// Returns true if two instructions do the same, regardless of their buffers.
fn is_same_instruction(a: &Instruction, b: &Instruction) -> bool {
    match (a, b) {
        (Instruction::Compute(a), Instruction::Compute(b)) => {
            (a.op, a.at, a.chunk) == (b.op, b.at, b.chunk)
        }
        (Instruction::Copy(a), Instruction::Copy(b)) => {
            (a.moved, a.at, a.chunk) == (b.moved, b.at, b.chunk)
        }
        (Instruction::Append(a), Instruction::Append(b)) => {
            (a.kv, a.at, a.chunk) == (b.kv, b.at, b.chunk)
        }
        (Instruction::Decompress(a), Instruction::Decompress(b)) => (a.op, a.at) == (b.op, b.at),
        (Instruction::Read(a), Instruction::Read(b)) => (a.op, a.at) == (b.op, b.at),
        (Instruction::Wait(a), Instruction::Wait(b)) => a == b,
        (Instruction::Signal, Instruction::Signal) => true,
        _ => false,
    }
}

fn times(plan: &Plan, costs: &dyn SimulationCosts) -> Result<InstructionTimes, TimedError> {
    let program = plan.decode();
    let mut lanes = Vec::with_capacity(program.lanes.len());
    for list in &program.lanes {
        let mut times = Vec::with_capacity(list.instructions.len());
        for (index, work) in list.instructions.iter().enumerate() {
            if !work.is_work() {
                times.push(0);
                continue;
            }
            let instruction = index as u32;
            let place = Place { program: program.id, lane: list.lane, instruction };
            let work_ns = costs.work_ns(place, work, 0);
            if work_ns > TIME_MAX_MS * 1e6 {
                let lane = plan.lane_name(list.lane).to_owned();
                return Err(TimedError::TooLongFor { lane, value_ms: work_ns / 1e6 });
            }
            times.push(work_ns.round() as u64);
        }
        lanes.push((list.lane, times));
    }
    Ok(InstructionTimes::by_lane(lanes))
}

#[cfg(test)]
mod tests {
    use model::config::Dtype;
    use model::known::find_known as known_model;
    use model::quantized_format::{Grouped, WeightFormat};
    use program::formats::{KvFormat, WeightFormats};
    use program::map::{ChunkOrder, Chunking};
    use program::simulate::simulate;
    use program::topology::LaneSet;

    use super::*;
    use crate::budget::{MemoryLimits, PlacementRequest, PlanError};
    use crate::machine::Machine;
    use crate::machine::find_bundled;
    use crate::policy::name::PolicyName;
    use crate::policy::{Formats, Placement, Policy};
    use crate::search::{
        SearchEffort, SearchError, SearchRequest, SearchResult, choose, evaluate_placement,
        steady_step_ns,
    };
    use crate::split::Split;

    const STEPS: u32 = 6;
    const PROMPT: u32 = 40;
    const NEW: u32 = 8;

    /// A machine, whether everything is compressed on it, and the split of attention.
    struct Case {
        model: &'static str,
        machine: Machine,
        four_bit: bool,
        chunking: Option<Chunking>,
    }

    fn cases() -> Vec<Case> {
        let machine = |vram_gib| {
            let mut machine = find_bundled("ryzen7950x-a4000").expect("there").expect("valid");
            machine.memory.vram_gib = vram_gib;
            machine
        };
        let chunks = |order, chunks| Some(Chunking { order, chunks });
        let opt = |vram_gib, four_bit, chunking| Case {
            model: "opt-125m",
            machine: machine(vram_gib),
            four_bit,
            chunking,
        };
        vec![
            // Capacity for everything, and for a part.
            opt(16.0, false, None),
            opt(0.12, false, None),
            opt(0.12, true, None),
            opt(0.12, false, chunks(ChunkOrder::Scores, 4)),
            opt(0.12, true, chunks(ChunkOrder::Attention, 6)),
            Case { model: "olmoe-1b-7b", ..opt(2.2, false, None) },
        ]
    }

    impl Case {
        fn choose(&self, policy: PolicyName) -> Result<SearchResult, SearchError> {
            self.with_question(policy, choose)
        }

        /// The device runs the last chunks of attention.
        fn cut(&self, split: Split) -> SearchResult {
            let policy = Policy::TwoSplit { split, chunking: self.chunking };
            let placement = Placement::from_policy(policy);
            let name = PolicyName::TwoSplit;
            self.with_question(name, |question| evaluate_placement(question, name, &placement))
                .expect("fits")
        }

        fn with_question<T>(
            &self,
            policy: PolicyName,
            then: impl FnOnce(&SearchRequest<'_>) -> T,
        ) -> T {
            let mut config = known_model(self.model).expect("known").config;
            config.keep_layers(3);
            let mut formats = Formats::plain(&config);
            if self.four_bit {
                let w4 = WeightFormat::Grouped(Grouped::W4);
                formats.weights = WeightFormats::with_layers(&config, w4);
                formats.kv = KvFormat::Four;
            }
            let limits = MemoryLimits {
                dram_bytes: self.machine.dram_bytes(),
                vram_bytes: Some(self.machine.vram_bytes()),
                vram_is_dram: false,
                slow_tier_bytes: MemoryLimits::NO_SLOW_TIER,
                device_scratch: None,
            };
            let request = PlacementRequest {
                config: &config,
                placement: &Placement::from_policy(Policy::GpuOnly),
                formats: &formats,
                fuse_attention: true,
                dtype: Dtype::Bf16,
                max_prompt: PROMPT,
                shared_prompt: 0,
                max_context: PROMPT + NEW,
                max_new: NEW,
                logprobs: 0,
                prefill_chunk: None,
                limits: &limits,
                storage: None,
                routing: None,
            };
            then(&SearchRequest {
                request: &request,
                batches: 2,
                batch_size: 6,
                policy,
                chunkings: &[None, self.chunking],
                pricing: &self.machine,
                effort: SearchEffort::Quick,
                rehearser: None,
            })
        }
    }

    /// Costs at one fixed step.
    struct FrozenCosts<'a>(&'a dyn SimulationCosts);

    impl SimulationCosts for FrozenCosts<'_> {
        fn work_ns(&self, place: Place, work: &Instruction, _: u32) -> f64 {
            self.0.work_ns(place, work, 0)
        }

        fn rate(&self, place: Place, busy: LaneSet) -> f64 {
            self.0.rate(place, busy)
        }

        fn wake_ns(&self) -> f64 {
            self.0.wake_ns()
        }
    }

    /// Compares the small programs with their times to the plan with its costs.
    fn compare(case: &Case, chosen: &SearchResult) {
        let (large, name) = (&chosen.plan, chosen.name);
        let timed = TimedPlan::from_plan(large, &case.machine).expect("the same programs");
        let bytes = |plan: &Plan| plan.buffers.iter().map(|one| one.size_bytes).sum::<u64>();
        assert!(bytes(&timed.plan) * 20 < bytes(large), "{name:?}");
        let middle = PROMPT + NEW / 2;
        let costs = case.machine.costs(large, large.decode(), middle).expect("priced");
        let expected =
            simulate(large.decode(), &FrozenCosts(costs.as_ref()), STEPS).expect("simulates");
        let small = simulate(timed.plan.decode(), &timed.times, STEPS).expect("simulates");
        assert_eq!(small.spans.len(), expected.spans.len(), "{name:?}");
        // Every instruction is rounded to a nanosecond.
        let rounding_ns = expected.spans.len() as f64;
        for (small_ns, large_ns) in small.step_end_ns.iter().zip(&expected.step_end_ns) {
            let apart_ns = (small_ns - large_ns).abs();
            assert!(apart_ns <= rounding_ns, "{name:?}: {small_ns} {large_ns}");
        }
        let steady_ns = steady_step_ns(large, &case.machine, middle).expect("priced");
        let last_ns = (small.step_end_ns[5] - small.step_end_ns[3]) / 2.0;
        assert!((last_ns / steady_ns - 1.0).abs() < 0.01, "{name:?}: {last_ns} {steady_ns}");
    }

    #[test]
    fn the_small_programs_take_what_the_plan_takes() {
        let (mut ran, mut resident) = ([0; PolicyName::ALL.len()], 0);
        for case in cases() {
            for (policy, ran) in PolicyName::ALL.into_iter().zip(&mut ran) {
                let chosen = match case.choose(policy) {
                    Ok(chosen) => chosen,
                    Err(SearchError::Plan(PlanError::DoesNotFit { .. }))
                        if policy == PolicyName::Resident && case.machine.memory.vram_gib < 3.0 =>
                    {
                        continue;
                    }
                    Err(error) => panic!("{policy:?}: {error}"),
                };
                compare(&case, &chosen);
                *ran += 1;
                resident += usize::from(!chosen.plan.resident.is_empty());
            }
        }
        assert!(ran.iter().all(|count| *count >= 1) && resident > 0, "{ran:?} {resident}");
    }

    #[test]
    fn the_small_programs_are_cut_as_the_plan_is() {
        let split = |chunking: Chunking| match chunking.order {
            ChunkOrder::Scores => Split { start: 6, end: 10 },
            ChunkOrder::Attention => Split { start: 10, end: 22 },
            // From within q to within fc0.
            ChunkOrder::Linears => Split { start: 2, end: 12 },
        };
        let mut cases: Vec<Case> = cases();
        // More chunks than the model has heads.
        let many = Some(Chunking { order: ChunkOrder::Scores, chunks: 30 });
        let machine = cases[0].machine.clone();
        let linears = Some(Chunking { order: ChunkOrder::Linears, chunks: 2 });
        for chunking in [many, linears] {
            let machine = machine.clone();
            cases.push(Case { model: "opt-125m", chunking, machine, four_bit: false });
        }
        let mut cut = 0;
        for case in &cases {
            let Some(chunking) = case.chunking else { continue };
            let chosen = case.cut(split(chunking));
            let plan = &chosen.plan;
            let of_attention = plan.map.layer_chunking(&plan.config, 0);
            assert_eq!(of_attention, chunking.of_attention());
            let list = plan.map.decode_layer(&plan.config, 0);
            assert!(list.iter().any(|(entry, _)| entry.chunk.is_some()), "{chunking:?}");
            compare(case, &chosen);
            cut += 1;
        }
        assert_eq!(cut, 4);
    }

    #[test]
    fn what_cannot_run_has_its_sentence() {
        let case = &cases()[0];
        let chosen = case.choose(PolicyName::TwoSplit).expect("fits");
        let mut slow = case.machine.clone();
        slow.cpu.op_overhead_us = 1e9;
        slow.gpu.op_overhead_us = 1e9;
        let refused = TimedPlan::from_plan(&chosen.plan, &slow).expect_err("too long").to_string();
        assert!(refused.contains("takes 1000") && refused.contains("hangs"), "{refused}");
        let mut other = chosen.plan.clone();
        let list = &mut other.decode().lanes[0].clone();
        list.instructions.pop();
        let id = other.decode().id;
        other.program_mut(id).lanes[0] = list.clone();
        let refused = TimedPlan::from_plan(&other, &case.machine).expect_err("another").to_string();
        assert!(refused.contains("opt-125m") && refused.contains("defect"), "{refused}");
    }
}
