//! The planner's predictions for a run: the compiled programs of its placement, priced and
//! simulated.

use model::config::ModelConfig;
use model::ops::Op;
use planner::budget::Budget;
use planner::lia::{LiaStage, LiaWorkload, best_vector};
use planner::policy::Placement;
use planner::search::{Pricing, SteadyDecode, steady_step_ns};
use program::ir::ProgramId;
use program::plan::Plan;
use program::simulate::{LaneUsage, simulate};
use program::topology::HardwareEngine;

use crate::cells::Scenario;
use crate::place::{DTYPE, Setting, TOKENS_MAX, describe, digits};

/// Numbers of layers of the two plans whose difference gives the time of a layer.
const LAYERS: [usize; 2] = [2, 4];

/// Predictions for a run; `None` for quantities that the planner does not predict.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub prefill_ms: f64,
    pub decode_step_ms: f64,
    pub tokens_per_s: f64,
    /// Description of the placement.
    pub placement: String,
    /// Time of a decoder layer in a decode step, for all batches; only if no layer is resident.
    pub layer_ms: Option<f64>,
    /// Share of the decode time during which the CPU computes.
    pub cpu_busy: f64,
    /// Share of the transfer time of decode during which the CPU computes.
    pub cpu_beside_transfers: Option<f64>,
    pub busy: Busy,
    /// Share of the layers that are resident in device memory.
    pub resident_share: f64,
    /// Share of the weights in additional host memories in everything that the host stores.
    pub far_share: f64,
}

/// Busy times of a run, in ms.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Busy {
    pub cpu_ms: f64,
    pub gpu_ms: f64,
    pub transfers_ms: f64,
}

impl Busy {
    fn of(usage: &LaneUsage, plan: &Plan) -> Busy {
        let mut busy = Busy::default();
        for (lane, busy_ns) in plan.topology.lanes.iter().zip(&usage.busy_ns) {
            let ms = *busy_ns as f64 / 1e6;
            match lane.engine {
                HardwareEngine::Cpu => busy.cpu_ms += ms,
                HardwareEngine::Gpu { .. } => busy.gpu_ms += ms,
                HardwareEngine::Link { .. } | HardwareEngine::Storage { .. } => {
                    busy.transfers_ms += ms
                }
            }
        }
        busy
    }

    /// Returns the time if nothing overlaps.
    fn sum_ms(self) -> f64 {
        self.cpu_ms + self.gpu_ms + self.transfers_ms
    }

    fn times(self, factor: f64) -> Busy {
        let Busy { cpu_ms, gpu_ms, transfers_ms } = self;
        Busy {
            cpu_ms: factor * cpu_ms,
            gpu_ms: factor * gpu_ms,
            transfers_ms: factor * transfers_ms,
        }
    }

    fn plus(self, other: Busy) -> Busy {
        Busy {
            cpu_ms: self.cpu_ms + other.cpu_ms,
            gpu_ms: self.gpu_ms + other.gpu_ms,
            transfers_ms: self.transfers_ms + other.transfers_ms,
        }
    }
}

/// Returns the planner's predictions for a scenario.
///
/// # Errors
/// Returns a message if there is no prediction.
pub fn answer(scenario: &Scenario) -> Result<Answer, String> {
    let setting = Setting::of(scenario)?;
    let placement = setting.placement()?;
    let prefill = prefill(&setting, &placement)?;
    let decode = decode(&setting, &placement)?;
    let steps = f64::from(scenario.new_tokens.saturating_sub(1));
    let (prefill_ms, decode_step_ms) = match scenario.overlap {
        true => (prefill.ms, decode.time.ms),
        false => (prefill.busy.sum_ms(), decode.time.busy.sum_ms()),
    };
    let sequences = f64::from(scenario.batches * scenario.batch_size);
    let tokens = sequences * f64::from(scenario.new_tokens);
    let layers = setting.config.num_layers as f64;
    Ok(Answer {
        prefill_ms,
        decode_step_ms,
        tokens_per_s: tokens / (prefill_ms + steps * decode_step_ms) * 1e3,
        placement: describe(&placement, &setting.config),
        layer_ms: layer_ms(&setting, &placement)?,
        cpu_busy: decode.cpu_busy,
        cpu_beside_transfers: decode.cpu_beside_transfers,
        busy: prefill.busy.plus(decode.time.busy.times(steps)),
        resident_share: placement.residency.layers.len() as f64 / layers,
        far_share: decode.far_share,
    })
}

/// Duration and busy times of a program, in ms.
#[derive(Debug, Clone, Copy, Default)]
pub struct Time {
    pub ms: f64,
    busy: Busy,
}

/// Prediction of a steady decode step.
struct Decode {
    time: Time,
    cpu_busy: f64,
    cpu_beside_transfers: Option<f64>,
    far_share: f64,
}

/// Returns the prefill of all batches. If a batch has very many prompt tokens, only a part of it
/// and half of that part are simulated; the rest is extrapolated from their difference.
///
/// # Errors
/// Fails if a plan cannot be compiled or priced.
pub fn prefill(setting: &Setting<'_>, placement: &Placement) -> Result<Time, String> {
    let (all, scenario) = (setting.batch_size, setting.scenario);
    let part = TOKENS_MAX / (scenario.batches * scenario.prompt).max(1);
    let of = |batch_size| prefill_of(setting, placement, batch_size);
    let part = u16::try_from(part).unwrap_or(all);
    if part < 2 || part >= all {
        return of(all);
    }
    let half = part / 2;
    let (half_time, part_time) = (of(half)?, of(part)?);
    let more = f64::from(all - part) / f64::from(part - half);
    Ok(Time {
        ms: part_time.ms + more * (part_time.ms - half_time.ms),
        busy: part_time.busy.times(1.0 + more).plus(half_time.busy.times(-more)),
    })
}

fn prefill_of(
    setting: &Setting<'_>,
    placement: &Placement,
    batch_size: u16,
) -> Result<Time, String> {
    let prompt = setting.scenario.prompt;
    setting.with_estimator(batch_size, prompt, |estimator| {
        let plan = estimator.program_plan(placement, setting.config.num_layers, ProgramId::PREFILL);
        let plan = plan.map_err(sentence)?;
        let costs = setting.machine.costs(&plan, plan.prefill(), prompt).map_err(sentence)?;
        let timeline = simulate(plan.prefill(), costs.as_ref(), 1).map_err(sentence)?;
        let busy = Busy::of(&timeline.usage(&plan.topology), &plan);
        Ok(Time { ms: timeline.total_ns / 1e6, busy })
    })
}

/// Returns a decode step in the middle of the output.
fn decode(setting: &Setting<'_>, placement: &Placement) -> Result<Decode, String> {
    // The decode program does not depend on the length of the prompt.
    setting.with_estimator(setting.batch_size, 1, |estimator| {
        let plan = estimator.program_plan(placement, setting.config.num_layers, ProgramId::DECODE);
        let plan = plan.map_err(sentence)?;
        let steady = SteadyDecode::simulate(&plan, &setting.machine, middle(setting.scenario));
        let steady = steady.map_err(sentence)?;
        let step_ns = steady.step_ns();
        let usage = steady.timeline.usage(&plan.topology);
        let steps = f64::from(u32::try_from(steady.timeline.step_end_ns.len()).map_err(sentence)?);
        let busy = Busy::of(&usage, &plan).times(1.0 / steps);
        Ok(Decode {
            time: Time { ms: step_ns / 1e6, busy },
            cpu_busy: busy.cpu_ms / (usage.total_ns as f64 / 1e6 / steps),
            cpu_beside_transfers: usage.overlap(),
            far_share: far_share(&Budget::from_plan(&plan)),
        })
    })
}

fn far_share(budget: &Budget) -> f64 {
    let far = budget.slow_tier_bytes.iter().sum::<u64>() as f64;
    far / (far + (budget.weights_bytes + budget.kv_bytes) as f64)
}

/// Returns the number of positions of a sequence in the middle of the output.
pub const fn middle(scenario: &Scenario) -> u32 {
    scenario.prompt + scenario.new_tokens / 2
}

fn sentence(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Returns the time of a layer: the difference between plans with different numbers of layers, per
/// layer.
fn layer_ms(setting: &Setting<'_>, placement: &Placement) -> Result<Option<f64>, String> {
    if !placement.residency.layers.is_empty() {
        return Ok(None);
    }
    setting.with_estimator(setting.batch_size, 1, |estimator| {
        let step_ms = |layers| {
            let plan = estimator.program_plan(placement, layers, ProgramId::DECODE);
            let plan = plan.map_err(sentence)?;
            let step_ns = steady_step_ns(&plan, &setting.machine, middle(setting.scenario));
            Ok::<f64, String>(step_ns.map_err(sentence)? / 1e6)
        };
        let [few, more] = LAYERS;
        Ok(Some((step_ms(more)? - step_ms(few)?) / (more - few) as f64))
    })
}

/// Returns the vectors of LIA for prefill and decode by its equations, which define the vectors
/// that the paper prints. The vectors that the planner's own search chooses are in the other
/// answers.
///
/// # Errors
/// Fails if the planner does not know the model or machine, or if the policy has no vectors.
pub fn vectors(scenario: &Scenario) -> Result<[String; 2], String> {
    let setting = Setting::of(scenario)?;
    let best = |stage| {
        let length = match stage {
            LiaStage::Prefill => scenario.prompt,
            LiaStage::Decode => middle(scenario),
        };
        let batch = scenario.batches * scenario.batch_size;
        let case = LiaWorkload { batch, length, dtype: DTYPE, resident: false };
        let best = best_vector(&setting.machine, &setting.config, stage, &case);
        best.map(|(vector, _)| digits(vector)).map_err(|error| error.to_string())
    };
    Ok([best(LiaStage::Prefill)?, best(LiaStage::Decode)?])
}

/// Sizes of weights and KV of a run, in bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bytes {
    pub weights: f64,
    pub kv: f64,
}

/// Returns the sizes of weights and KV of a run.
///
/// # Errors
/// Fails if the planner does not know the model or machine.
pub fn bytes(scenario: &Scenario) -> Result<Bytes, String> {
    let config = &Setting::of(scenario)?.config;
    Ok(Bytes { weights: weights_bytes(config), kv: kv_bytes(config, scenario) })
}

fn weights_bytes(config: &ModelConfig) -> f64 {
    let head = if config.tied_embeddings { 0 } else { Op::Head.weight_bytes(config, DTYPE) };
    let layers = config.num_layers * config.layer_weight_bytes(0, DTYPE);
    (layers + Op::Embed.weight_bytes(config, DTYPE) + head) as f64
}

fn kv_bytes(config: &ModelConfig, scenario: &Scenario) -> f64 {
    let layer = config.kv_bytes_per_position(DTYPE) * config.num_layers;
    let sequences = f64::from(scenario.batches) * f64::from(scenario.batch_size);
    layer as f64 * sequences * f64::from(scenario.prompt + scenario.new_tokens)
}

/// Returns the maximum number of sequences of a batch that fit in memory.
///
/// # Errors
/// Fails if the planner does not know the model or machine.
pub fn largest_batch(scenario: &Scenario) -> Result<u16, String> {
    Setting::of(scenario)?.largest_batch()
}
