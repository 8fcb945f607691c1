//! From a policy's name to the plan that a run executes: of all placements of that name, those not
//! excluded by a bound are estimated, the fastest that fits in memory is compiled completely, and
//! its duration is predicted.

use program::map::Chunking;
use program::plan::Plan;
use program::topology::MemoryId;

use super::considered::{Considered, Effort, Tried, sort};
use super::evaluate::evaluate;
use super::pieces::cut_linears;
use super::space::Space;
use super::{
    Estimate, Estimator, Factors, Finished, Predicted, Pricing, Rehearse, Steady, Unpriced,
    predict, table, table_alone,
};
use crate::budget::{PlanError, Request, Room};
use crate::layer::table::Table;
use crate::policy::by_name::PolicyName;
use crate::policy::{Homes, Placement, Policy};

/// Maximum number of maps that are rehearsed.
const REHEARSALS_MAX: u32 = 8;

/// Ratio below which two estimates count as equal: they do not model first steps, which fill the
/// lanes.
const CLOSE: f64 = 1.03;
/// Maximum number of placements with close estimates that are compared by whole runs.
const CLOSE_MAX: usize = 8;

/// Input of the search for a placement.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// The request; its placement is ignored.
    pub request: &'a Request<'a>,
    pub batches: u16,
    pub batch_size: u16,
    pub policy: PolicyName,
    /// Ways to split operations that policies may use; at least one. Splits of linears are used if
    /// they improve on the best placements without them.
    pub chunkings: &'a [Option<Chunking>],
    pub pricing: &'a dyn Pricing,
    pub effort: Effort,
    /// Where the fastest maps are rehearsed; `None`: estimates alone decide.
    pub stage: Option<&'a dyn Rehearse>,
}

/// Result of the search.
#[derive(Debug)]
pub struct Chosen {
    pub name: PolicyName,
    pub placement: Placement,
    pub plan: Plan,
    pub predicted: Predicted,
    /// Decode steps in the middle of the output, as simulated.
    pub steady: Steady,
    /// The best maps of each policy, the fastest first: the first one is chosen.
    pub considered: Vec<Considered>,
    /// Number of placements considered, including those excluded by a bound.
    pub candidates: usize,
    /// A layer's operations, with attention split as in the chosen map.
    pub table: Table,
}

impl Chosen {
    /// Returns the duration of a decode step in the middle of the output, for all batches, as
    /// measured by the rehearsal.
    pub fn step_ns(&self) -> f64 {
        self.steady.step_ns() * self.factors().decode
    }

    /// Returns the ratio of predicted to simulated durations.
    pub fn factors(&self) -> Factors {
        self.considered[0].factors
    }

    /// Returns the new tokens of a group of full batches divided by its predicted duration.
    pub fn tokens_per_s(&self) -> f64 {
        self.rate(self.predicted.total_ns())
    }

    /// Returns the predicted throughput of a placement that was considered.
    pub fn tokens_per_s_of(&self, other: &Considered) -> f64 {
        self.rate(other.total_ns(self.plan.shape.max_new))
    }

    fn rate(&self, total_ns: f64) -> f64 {
        let shape = &self.plan.shape;
        let sequences = f64::from(shape.batches) * f64::from(shape.batch_size);
        sequences * f64::from(shape.max_new) / (total_ns / 1e9)
    }
}

/// Reason for which nothing was chosen.
#[derive(Debug, thiserror::Error)]
pub enum ChooseError {
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error("{0}")]
    Unpriced(#[from] Unpriced),
}

/// Chooses a placement.
///
/// # Errors
/// Nothing fits, with the numbers of the placement that comes closest; a plan that cannot be
/// priced.
pub fn choose(question: &Question<'_>) -> Result<Chosen, ChooseError> {
    let Question { request, batches, batch_size, .. } = *question;
    if request.least_host_bytes(batches, batch_size) > request.limits.dram_bytes {
        return Err(refusal(question)?);
    }
    let estimator = estimator(question)?;
    let space = Space::new(&estimator, question.chunkings)?;
    let possible = space.placements(question.policy)?;
    let candidates = possible.len();
    let mut considered = evaluate(&estimator, &space, possible, question.effort)?;
    if considered.is_empty() {
        return Err(refusal(question)?);
    }
    cut_linears(&estimator, &space, question.chunkings, &mut considered)?;
    if question.effort == Effort::Full {
        settle(&estimator, &mut considered)?;
    }
    rehearse(question, &estimator, &mut considered)?;
    let table = space.table(considered[0].placement.policy.chunking()).cloned();
    let table = table.ok_or_else(|| Unpriced("the chosen map has no table".to_owned()))?;
    chosen(&estimator, considered, candidates, table)
}

/// Returns an estimator for a question, with the tiers for which memory has capacity if everything
/// is on the device.
fn estimator<'a>(question: &Question<'a>) -> Result<Estimator<'a>, PlanError> {
    let Question { request, batches, batch_size, pricing, .. } = *question;
    let everything = Request { placement: &Placement::of(Policy::GpuOnly), ..*request };
    let homes = everything.homes(batches, batch_size)?;
    Ok(Estimator { request, batches, batch_size, pricing, homes, has_small_streams: false })
}

/// Returns an estimate of a group's duration in the best placement, without rehearsals. `None` if
/// nothing fits or can be priced.
pub(super) fn estimate_total_ns(question: &Question<'_>) -> Option<f64> {
    let estimator = estimator(question).ok()?;
    let space = Space::new(&estimator, question.chunkings).ok()?;
    let possible = space.placements(question.policy).ok()?;
    let considered = evaluate(&estimator, &space, possible, question.effort).ok()?;
    considered.first().map(|best| best.total_ns(question.request.max_new))
}

/// Returns the result for a single placement; the question's policy and chunkings are ignored.
///
/// # Errors
/// A placement that does not fit, with the numbers; a plan that cannot be priced.
pub fn place(
    question: &Question<'_>,
    name: PolicyName,
    placement: &Placement,
) -> Result<Chosen, ChooseError> {
    let Question { request, batches, batch_size, pricing, .. } = *question;
    let request = &Request { placement, ..*request };
    let room = request.room(batches, batch_size)?;
    let placement = &match room {
        Some(Room { far, staged, .. }) => Placement { far, staged, ..placement.clone() },
        None => placement.clone(),
    };
    let request = &Request { placement, ..*request };
    let plan = request.plan(batches, batch_size)?;
    let homes = Homes {
        kv: plan.map.kv.first().and_then(|kv| kv.k.first()).copied().unwrap_or(MemoryId::DRAM),
        prefill_hidden: plan.map.prefill_hidden,
    };
    let estimator =
        Estimator { request, batches, batch_size, pricing, homes, has_small_streams: false };
    let (map, placement) = (estimator.map(placement), placement.clone());
    let estimate = match plan.map.uses_storages() {
        // With few layers, the duration depends on which of them are read.
        true => Estimate::of(&plan, pricing)?,
        false => Estimate {
            prefill_ns: estimator.uniform_prefill_ns(&placement, map.uses_gpu())?,
            step_ns: estimator.step_ns(&placement)?,
        },
    };
    let table = match map.uses_gpu() {
        true => table(&estimator, placement.policy.chunking())?,
        false => table_alone(&estimator)?,
    };
    let mut considered = [Considered {
        name,
        placement,
        map,
        estimate,
        factors: Factors::NONE,
        tried: Tried::Never,
    }];
    rehearse(question, &estimator, &mut considered)?;
    chosen(&estimator, considered.into(), 1, table)
}

/// Returns the first of the considered placements, compiled and predicted. The duration of its
/// previous runs is used for the prediction and not for the choice: placements that never ran would
/// be judged by less.
fn chosen(
    estimator: &Estimator<'_>,
    mut considered: Vec<Considered>,
    candidates: usize,
    table: Table,
) -> Result<Chosen, ChooseError> {
    let Estimator { request, batches, batch_size, pricing, .. } = *estimator;
    let Considered { name, placement, .. } = considered[0].clone();
    let plan = Request { placement: &placement, ..*request }.plan(batches, batch_size)?;
    if let Some(Finished { factors, runs }) = pricing.finished(&plan) {
        (considered[0].factors, considered[0].tried) = (factors, Tried::Finished(runs));
    }
    let predicted = predict(&plan, pricing)?.times(considered[0].factors);
    let steady = Steady::of(&plan, pricing, request.max_prompt + request.max_new / 2)?;
    Ok(Chosen { name, placement, plan, predicted, steady, considered, candidates, table })
}

/// Moves the placement with the shortest whole run to the front, among those whose estimates count
/// as equal.
fn settle(estimator: &Estimator<'_>, considered: &mut [Considered]) -> Result<(), Unpriced> {
    let Estimator { request, batches, batch_size, pricing, .. } = *estimator;
    let best_ns = considered[0].total_ns(request.max_new);
    let is_close = |one: &Considered| one.total_ns(request.max_new) <= best_ns * CLOSE;
    let close = considered.iter().take(CLOSE_MAX).take_while(|one| is_close(one)).count();
    let mut least: Option<(f64, usize)> = None;
    for (place, one) in considered[..close].iter().enumerate().filter(|_| close > 1) {
        let plan = Request { placement: &one.placement, ..*request }.plan(batches, batch_size);
        let plan = plan.map_err(|error| Unpriced(error.to_string()))?;
        let total_ns = predict(&plan, pricing)?.total_ns();
        if least.is_none_or(|(other_ns, _)| total_ns < other_ns) {
            least = Some((total_ns, place));
        }
    }
    if let Some((_, place)) = least {
        considered[..=place].rotate_right(1);
    }
    Ok(())
}

/// Rehearses the placement that looks fastest, until the fastest one has already been rehearsed.
fn rehearse(
    question: &Question<'_>,
    estimator: &Estimator<'_>,
    considered: &mut [Considered],
) -> Result<(), Unpriced> {
    let Some(stage) = question.stage else { return Ok(()) };
    let max_new = question.request.max_new;
    for _ in 0..REHEARSALS_MAX {
        let first = &mut considered[0];
        if first.tried != Tried::Never {
            return Ok(());
        }
        let Some(decode) = estimator.rehearse(&first.placement, stage)? else { break };
        (first.factors, first.tried) = (Factors { decode, ..Factors::NONE }, Tried::Rehearsed);
        sort(considered, max_new);
    }
    // The order settled by whole runs stands if nothing was rehearsed.
    if considered.iter().any(|one| one.tried != Tried::Never) {
        believe_as_tried(considered);
        sort(considered, max_new);
    }
    Ok(())
}

/// If rehearsing ended early, placements that were not rehearsed are assumed to be slower than
/// estimated by the same factor as those that were, separately with and without the device.
/// Otherwise the ones left over would look the fastest.
fn believe_as_tried(considered: &mut [Considered]) {
    for uses_gpu in [false, true] {
        let is_such = |one: &&Considered| one.map.uses_gpu() == uses_gpu;
        let tried = considered.iter().filter(is_such).filter(|one| one.tried != Tried::Never);
        let mut factors: Vec<f64> = tried.map(|one| one.factors.decode).collect();
        factors.sort_by(f64::total_cmp);
        let Some(decode) = factors.get(factors.len() / 2).copied() else { continue };
        let others = considered.iter_mut().filter(|one| one.map.uses_gpu() == uses_gpu);
        for other in others.filter(|one| one.tried == Tried::Never) {
            other.factors.decode = decode;
        }
    }
}

/// Returns the reason for which nothing fits: for the plain policy that fits the largest batch.
fn refusal(question: &Question<'_>) -> Result<ChooseError, ChooseError> {
    let Question { request, batches, batch_size, .. } = *question;
    let named = match question.policy {
        PolicyName::CpuOnly => vec![Policy::CpuOnly],
        PolicyName::GpuOnly => vec![Policy::GpuOnly],
        PolicyName::Resident => vec![Policy::Resident],
        PolicyName::Auto => vec![Policy::CpuOnly, Policy::GpuOnly, Policy::Resident],
        _ => vec![Policy::GpuOnly],
    };
    let mut nearest: Option<(Option<u16>, PlanError)> = None;
    for policy in named {
        let placement = Placement::of(policy);
        let request = Request { placement: &placement, ..*request };
        let Err(error) = request.plan(batches, batch_size) else { continue };
        let fitting = match &error {
            PlanError::DoesNotFit { fitting, .. } => *fitting,
            PlanError::Compile(_) => None,
        };
        if nearest.as_ref().is_none_or(|(most, _)| fitting > *most) {
            nearest = Some((fitting, error));
        }
    }
    match nearest {
        Some((_, error)) => Ok(error.into()),
        None => {
            let name = question.policy.name();
            let text = format!("no placement of --policy {name} fits memory; --policy auto may");
            Err(Unpriced(text).into())
        }
    }
}
