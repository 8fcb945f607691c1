//! Duration of a plan: of the whole plan ([`predict`]), or estimated from a few of its layers
//! ([`Estimator`]), which is fast enough for every candidate of a search.

use model::config::ModelConfig;
use program::compile::{CompileError, compile, compile_program};
use program::ir::{Program, ProgramId};
use program::map::DeviceMap;
use program::plan::{Plan, RunShape};
use program::simulate::{SimulatedTimeline, Span, simulate, simulate_ends};

use super::{CostError, Pricing, TimeFactors};
use crate::budget::{PlacementRequest, PlanError};
use crate::policy::{DefaultTiers, Formats, Placement, Policy};
use crate::split::Split;

/// Number of layers of the smaller of two models that an estimate compares: a layer's duration is
/// the difference. A model with no more layers is compiled completely.
const FEW_LAYERS: usize = 2;
pub(super) const MORE_LAYERS: usize = 4;
/// Number of streams of the two prefills that an estimate for many streams compares.
const FEW_STREAMS: u32 = 8;
const MORE_STREAMS: u32 = 16;
/// Number of decode steps of an estimate; the last two count.
const STEPS: u32 = 4;

/// Duration of a run of full batches of the longest prompts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PredictedTimes {
    pub prefill_ns: f64,
    /// Duration of all decode steps, one fewer than new tokens.
    pub decode_ns: f64,
}

impl PredictedTimes {
    /// Returns the duration of prefill and decode together.
    pub fn total_ns(&self) -> f64 {
        self.prefill_ns + self.decode_ns
    }

    /// Scales both phases by `factors`.
    #[must_use]
    pub fn scaled(self, factors: TimeFactors) -> PredictedTimes {
        PredictedTimes {
            prefill_ns: self.prefill_ns * factors.prefill,
            decode_ns: self.decode_ns * factors.decode,
        }
    }
}

/// Simulates a whole run of `max_new` tokens after prompts of `max_prompt`.
///
/// # Errors
/// A plan that cannot be priced.
pub fn predict(plan: &Plan, pricing: &dyn Pricing) -> Result<PredictedTimes, CostError> {
    let shape = &plan.shape;
    let simulated = |program: &Program, steps| {
        let costs = pricing.costs(plan, program, shape.max_prompt)?;
        let timeline = simulate_ends(program, costs.as_ref(), steps);
        timeline.map(|timeline| timeline.total_ns).map_err(|error| CostError(error.to_string()))
    };
    let decode_steps = shape.max_new.saturating_sub(1);
    Ok(PredictedTimes {
        prefill_ns: simulated(plan.prefill(), 1)?,
        decode_ns: if decode_steps == 0 { 0.0 } else { simulated(plan.decode(), decode_steps)? },
    })
}

/// Duration of a placement, estimated from a few of its layers if these suffice.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    pub prefill_ns: f64,
    /// Duration of a decode step in the middle of the output, for all batches.
    pub step_ns: f64,
}

impl Estimate {
    /// Estimates from a whole plan.
    ///
    /// # Errors
    /// A plan that cannot be priced.
    pub(super) fn from_plan(plan: &Plan, pricing: &dyn Pricing) -> Result<Estimate, CostError> {
        let middle = plan.shape.max_prompt + plan.shape.max_new / 2;
        let prefill_ns = prefill_ns(plan, pricing)?;
        Ok(Estimate { prefill_ns, step_ns: steady_step_ns(plan, pricing, middle)? })
    }

    /// Returns the duration of prefill and all decode steps.
    pub fn total_ns(&self, max_new: u32) -> f64 {
        self.prefill_ns + f64::from(max_new.saturating_sub(1)) * self.step_ns
    }
}

/// Estimates placements for one request.
#[derive(Debug, Clone, Copy)]
pub struct Estimator<'a> {
    /// The request; its placement is ignored.
    pub request: &'a PlacementRequest<'a>,
    pub batches: u16,
    pub batch_size: u16,
    pub pricing: &'a dyn Pricing,
    /// Tiers of KV and hidden states that a placement leaves open.
    pub tiers: DefaultTiers,
    /// Streams of prefill are those that take the least memory.
    pub has_small_streams: bool,
}

/// Returns the first `layers` layers of a model and of its formats.
pub(super) fn truncate_layers(
    request: &PlacementRequest<'_>,
    layers: usize,
) -> (ModelConfig, Formats) {
    let mut config = request.config.clone();
    config.num_layers = layers.min(config.num_layers);
    let mut formats = request.formats.clone();
    formats.weights.layers.truncate(config.num_layers);
    (config, formats)
}

/// Returns a placement with all prompts on the CPU, like the given one, which leaves the GPU a part
/// of decode.
fn cpu_prefill_with_device(placement: &Placement) -> Placement {
    let (split, chunking) = (Split { start: 0, end: 1 }, placement.policy.chunking());
    let policy = Policy::TwoSplit { split, chunking };
    Placement { policy, prefill_on_cpu: true, ..placement.clone() }
}

impl Estimator<'_> {
    /// Returns the plan of a placement's first `layers` layers, preserving the fractions that are
    /// resident and read from storages, whether it fits in memory or not.
    ///
    /// # Errors
    /// A map that does not compile.
    pub fn plan(&self, placement: &Placement, layers: usize) -> Result<Plan, PlanError> {
        self.compile(placement, layers, compile)
    }

    /// Returns the plan of [`Estimator::plan`] with the instructions of one program alone, which
    /// suffices to price that program.
    ///
    /// # Errors
    /// A map that does not compile.
    pub fn program_plan(
        &self,
        placement: &Placement,
        layers: usize,
        program: ProgramId,
    ) -> Result<Plan, CostError> {
        self.compile(placement, layers, |config, shape, map| {
            compile_program(config, shape, map, program)
        })
        .map_err(|error| CostError(error.to_string()))
    }

    fn compile(
        &self,
        placement: &Placement,
        layers: usize,
        compile: impl FnOnce(&ModelConfig, &RunShape, &DeviceMap) -> Result<Plan, CompileError>,
    ) -> Result<Plan, PlanError> {
        let (config, formats) = truncate_layers(self.request, layers);
        let placement = &match (self.request.config.num_layers, config.num_layers) {
            (all, few) if all != few => placement.scaled(all, few),
            _ => placement.clone(),
        };
        let request =
            PlacementRequest { config: &config, placement, formats: &formats, ..*self.request };
        let map = request.map(self.tiers);
        let shape = request.shape_of(self.shape(&request), &map);
        Ok(compile(&config, &shape, &map)?)
    }

    fn shape(&self, request: &PlacementRequest<'_>) -> RunShape {
        let usual = request.shape(self.batches, self.batch_size);
        if self.has_small_streams { request.smallest_streams(usual) } else { usual }
    }

    /// Returns the map of a placement.
    pub fn map(&self, placement: &Placement) -> DeviceMap {
        PlacementRequest { placement, ..*self.request }.map(self.tiers)
    }

    /// Returns the duration of a steady decode step in the middle of the output, for all layers.
    ///
    /// # Errors
    /// A map that does not compile, or a plan that cannot be priced.
    pub fn step_ns(&self, placement: &Placement) -> Result<f64, CostError> {
        // Prompts do not matter here, so they are as short as possible.
        let request = &PlacementRequest { max_prompt: 1, shared_prompt: 0, ..*self.request };
        let estimator = Estimator { request, ..*self };
        let plan =
            estimator.program_plan(placement, request.config.num_layers, ProgramId::DECODE)?;
        let middle = self.request.max_prompt + self.request.max_new / 2;
        steady_step_ns(&plan, self.pricing, middle)
    }

    /// Returns the duration of prefill of one group of full batches in which all layers are equal,
    /// from a few layers if there are many.
    ///
    /// `uses_gpu` is true if the whole run uses the GPU: a CPU next to a device may have other
    /// rates than one without.
    ///
    /// # Errors
    /// Fails like [`Estimator::step_ns`].
    pub fn uniform_prefill_ns(
        &self,
        placement: &Placement,
        uses_gpu: bool,
    ) -> Result<f64, CostError> {
        let with_device = cpu_prefill_with_device(placement);
        let needs_device = uses_gpu && !self.map(placement).uses_gpu();
        let placement = if needs_device { &with_device } else { placement };
        let layers = self.request.config.num_layers;
        if layers <= MORE_LAYERS {
            return self.prefill_of_layers(placement, layers);
        }
        let kinds = self.for_each_kind(|of_kind| of_kind.prefill_of_many_layers(placement))?;
        Ok(kinds.into_iter().map(|(share, ns)| share * ns).sum())
    }

    /// Returns the duration of prefill for a model with more than a few layers, all of one kind.
    fn prefill_of_many_layers(&self, placement: &Placement) -> Result<f64, CostError> {
        let layers = self.request.config.num_layers;
        let (few_ns, more_ns) = (
            self.prefill_of_layers(placement, FEW_LAYERS)?,
            self.prefill_of_layers(placement, MORE_LAYERS)?,
        );
        let layer_ns = ((more_ns - few_ns) / (MORE_LAYERS - FEW_LAYERS) as f64).max(0.0);
        Ok(more_ns + (layers - MORE_LAYERS) as f64 * layer_ns)
    }

    /// Returns the duration of prefill for some layers, extrapolating many streams from few, since
    /// each additional stream takes the same time.
    fn prefill_of_layers(&self, placement: &Placement, layers: usize) -> Result<f64, CostError> {
        let shape = self.shape(self.request);
        let streams = u32::from(self.batches) * u32::from(shape.checked_streams().unwrap_or(1));
        if shape.is_chunked() || streams <= 2 * MORE_STREAMS {
            return self.prefill_of_all_streams(placement, layers);
        }
        let of_streams = |streams: u32| {
            let batch_size = streams as u16 * shape.micro_sequences;
            Estimator { batches: 1, batch_size, ..*self }.prefill_of_all_streams(placement, layers)
        };
        let (few_ns, more_ns) = (of_streams(FEW_STREAMS)?, of_streams(MORE_STREAMS)?);
        let stream_ns = (more_ns - few_ns) / f64::from(MORE_STREAMS - FEW_STREAMS);
        Ok(more_ns + f64::from(streams - MORE_STREAMS) * stream_ns)
    }

    fn prefill_of_all_streams(
        &self,
        placement: &Placement,
        layers: usize,
    ) -> Result<f64, CostError> {
        let plan = self.program_plan(placement, layers, ProgramId::PREFILL)?;
        prefill_ns(&plan, self.pricing)
    }
}

/// Returns the duration of prefill for full batches of the longest prompts.
///
/// # Errors
/// A plan that cannot be priced.
fn prefill_ns(plan: &Plan, pricing: &dyn Pricing) -> Result<f64, CostError> {
    let costs = pricing.costs(plan, plan.prefill(), plan.shape.max_prompt)?;
    let prefill = simulate_ends(plan.prefill(), costs.as_ref(), 1)
        .map_err(|error| CostError(error.to_string()))?;
    Ok(prefill.total_ns)
}

/// Returns the duration of a decode step in a long row of such steps, reading `positions` cached
/// positions.
///
/// # Errors
/// A plan that cannot be priced.
pub fn steady_step_ns(
    plan: &Plan,
    pricing: &dyn Pricing,
    positions: u32,
) -> Result<f64, CostError> {
    let costs = pricing.costs(plan, plan.decode(), steady_start(positions))?;
    let timeline = simulate_ends(plan.decode(), costs.as_ref(), STEPS)
        .map_err(|error| CostError(error.to_string()))?;
    Ok(SteadyDecode { timeline }.step_ns())
}

/// Returns the number of cached positions in the first of the steps that read `positions` on
/// average.
const fn steady_start(positions: u32) -> u32 {
    positions.saturating_sub(STEPS / 2)
}

/// A few decode steps of a plan over time, the last of which are steady.
#[derive(Debug, Clone)]
pub struct SteadyDecode {
    pub timeline: SimulatedTimeline,
}

impl SteadyDecode {
    /// Simulates steps that read about `positions` cached positions.
    ///
    /// # Errors
    /// A plan that cannot be priced.
    pub fn simulate(
        plan: &Plan,
        pricing: &dyn Pricing,
        positions: u32,
    ) -> Result<SteadyDecode, CostError> {
        let costs = pricing.costs(plan, plan.decode(), steady_start(positions))?;
        let timeline = simulate(plan.decode(), costs.as_ref(), STEPS)
            .map_err(|error| CostError(error.to_string()))?;
        Ok(SteadyDecode { timeline })
    }

    /// Returns the duration of one step.
    pub fn step_ns(&self) -> f64 {
        let ends = &self.timeline.step_end_ns;
        (ends[ends.len() - 1] - ends[ends.len() - 3]) / 2.0
    }

    /// Returns the spans of the step before the last: the next one starts before it ends.
    pub fn spans(&self) -> impl Iterator<Item = &Span> {
        self.timeline.spans.iter().filter(|span| span.step == STEPS - 2)
    }
}
