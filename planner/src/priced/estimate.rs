//! What a plan takes: whole ([`predict`]), or estimated from a few of its layers ([`Estimator`]),
//! which is quick enough for every candidate of a search.

use model::config::ModelConfig;
use program::compile::compile;
use program::plan::Plan;
use program::simulate::simulate;

use super::{Pricing, Unpriced};
use crate::budget::{PlanError, Request};
use crate::policy::{DeviceResident, Formats, Homes, Policy};

/// Layers of the two models that an estimate compares: a layer's time is the difference.
const FEW_LAYERS: usize = 2;
const MORE_LAYERS: usize = 4;
/// Decode steps of an estimate; the last two count.
const STEPS: u32 = 4;

/// What a run of full batches of the longest prompts takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Predicted {
    pub prefill_ns: f64,
    /// All decode steps: one fewer than new tokens.
    pub decode_ns: f64,
}

impl Predicted {
    /// Prefill and decode together.
    pub fn total_ns(&self) -> f64 {
        self.prefill_ns + self.decode_ns
    }

    /// The same with so many times longer decode.
    #[must_use]
    pub fn slowed(self, times: f64) -> Predicted {
        Predicted { decode_ns: self.decode_ns * times, ..self }
    }
}

/// Simulates a whole run of `max_new` tokens after prompts of `max_prompt`.
///
/// # Errors
/// A plan that cannot be priced.
pub fn predict(plan: &Plan, pricing: &dyn Pricing) -> Result<Predicted, Unpriced> {
    let shape = &plan.shape;
    let costs = pricing.costs(plan, shape.max_prompt)?;
    let simulated = |program, steps| {
        let timeline = simulate(program, costs.as_ref(), steps);
        timeline.map(|timeline| timeline.total_ns).map_err(|error| Unpriced(error.to_string()))
    };
    let decode_steps = shape.max_new.saturating_sub(1);
    Ok(Predicted {
        prefill_ns: simulated(plan.prefill(), 1)?,
        decode_ns: if decode_steps == 0 { 0.0 } else { simulated(plan.decode(), decode_steps)? },
    })
}

/// An estimate for the whole model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    pub prefill_ns: f64,
    /// One decode step in the middle of the output, all batches.
    pub step_ns: f64,
    /// A layer's share of the step.
    pub layer_ns: f64,
}

impl Estimate {
    /// Prefill and all decode steps.
    pub fn total_ns(&self, max_new: u32) -> f64 {
        self.prefill_ns + f64::from(max_new.saturating_sub(1)) * self.step_ns
    }
}

/// Estimates policies for one request.
#[derive(Debug, Clone, Copy)]
pub struct Estimator<'a> {
    /// Its policy and its resident layers are not looked at.
    pub request: &'a Request<'a>,
    pub batches: u16,
    pub batch_size: u16,
    pub pricing: &'a dyn Pricing,
    /// Where a policy with everything on the GPU keeps KV and hidden states.
    pub homes: Homes,
}

/// The first `layers` layers of a model and of its formats.
fn shortened(request: &Request<'_>, layers: usize) -> (ModelConfig, Formats) {
    let mut config = request.config.clone();
    config.num_layers = layers.min(config.num_layers);
    let mut formats = request.formats.clone();
    formats.weights.layers.truncate(config.num_layers);
    (config, formats)
}

impl Estimator<'_> {
    /// A policy's plan of the first `layers` layers, whether it fits memory or not.
    ///
    /// # Errors
    /// A map that does not compile.
    pub fn plan(&self, policy: &Policy, layers: usize) -> Result<Plan, PlanError> {
        let (config, formats) = shortened(self.request, layers);
        let request = Request {
            config: &config,
            policy,
            resident: DeviceResident::NONE,
            formats: &formats,
            ..*self.request
        };
        let map = request.map(self.homes);
        let shape = request.shape_of(request.shape(self.batches, self.batch_size), &map);
        Ok(compile(&config, &shape, &map)?)
    }

    /// Estimates a policy.
    ///
    /// # Errors
    /// A map that does not compile, or a plan that cannot be priced.
    pub fn estimate(&self, policy: &Policy) -> Result<Estimate, Unpriced> {
        let layers = self.request.config.num_layers;
        let more = self.measure(policy, MORE_LAYERS)?;
        if layers <= MORE_LAYERS {
            let layer_ns = more.1 / layers as f64;
            return Ok(Estimate { prefill_ns: more.0, step_ns: more.1, layer_ns });
        }
        let few = self.measure(policy, FEW_LAYERS)?;
        let grown = |few: f64, more: f64| {
            let layer = ((more - few) / (MORE_LAYERS - FEW_LAYERS) as f64).max(0.0);
            (layer, more + (layers - MORE_LAYERS) as f64 * layer)
        };
        let (layer_ns, step_ns) = grown(few.1, more.1);
        Ok(Estimate { prefill_ns: grown(few.0, more.0).1, step_ns, layer_ns })
    }

    /// Prefill and a steady decode step of the first layers, ns.
    fn measure(&self, policy: &Policy, layers: usize) -> Result<(f64, f64), Unpriced> {
        let unpriced = |error: &dyn std::fmt::Display| Unpriced(error.to_string());
        let plan = self.plan(policy, layers).map_err(|error| unpriced(&error))?;
        let (prompt, new) = (plan.shape.max_prompt, plan.shape.max_new);
        let costs = self.pricing.costs(&plan, prompt)?;
        let prefill = simulate(plan.prefill(), costs.as_ref(), 1).map_err(|e| unpriced(&e))?;
        let costs = self.pricing.costs(&plan, prompt + (new / 2).saturating_sub(STEPS / 2))?;
        let decode = simulate(plan.decode(), costs.as_ref(), STEPS).map_err(|e| unpriced(&e))?;
        let end = |step: u32| decode.step_end_ns[step as usize];
        Ok((prefill.total_ns, (end(STEPS - 1) - end(STEPS - 3)) / 2.0))
    }
}
