//! From a policy's name to the plan that a run executes: of all placements of that name, those not
//! excluded by a bound are estimated, the fastest that fits in memory is compiled completely, and
//! its duration is predicted.

use program::map::Chunking;
use program::plan::Plan;
use program::topology::MemoryId;

use super::candidate::{Candidate, SearchEffort, TrialStatus, sort_by_total};
use super::evaluate::evaluate_placements;
use super::linear_splits::refine_linear_splits;
use super::space::PlacementSpace;
use super::{
    CostError, Estimate, Estimator, MeasuredFactors, PredictedTimes, Pricing, Rehearser,
    SteadyDecode, TimeFactors, cpu_only_table, operation_table, predict,
};
use crate::budget::{MemoryFit, PlacementRequest, PlanError};
use crate::layer::table::OperationTable;
use crate::policy::name::PolicyName;
use crate::policy::{DefaultTiers, Placement, Policy};

/// Maximum number of maps that are rehearsed.
const REHEARSALS_MAX: u32 = 8;

/// Ratio below which two estimates count as equal: they do not model first steps, which fill the
/// lanes.
const TIE_RATIO: f64 = 1.03;
/// Maximum number of placements with close estimates that are compared by whole runs.
const TIED_MAX: usize = 8;

/// Input of the search for a placement.
#[derive(Debug, Clone, Copy)]
pub struct SearchRequest<'a> {
    /// The request; its placement is ignored.
    pub request: &'a PlacementRequest<'a>,
    pub batches: u16,
    pub batch_size: u16,
    pub policy: PolicyName,
    /// Ways to split operations that policies may use; at least one. Splits of linears are used if
    /// they improve on the best placements without them.
    pub chunkings: &'a [Option<Chunking>],
    pub pricing: &'a dyn Pricing,
    pub effort: SearchEffort,
    /// Rehearses the fastest maps; `None` if estimates alone decide.
    pub rehearser: Option<&'a dyn Rehearser>,
}

/// Result of the search.
#[derive(Debug)]
pub struct SearchResult {
    pub name: PolicyName,
    pub placement: Placement,
    pub plan: Plan,
    pub predicted: PredictedTimes,
    /// Decode steps in the middle of the output, as simulated.
    pub steady: SteadyDecode,
    /// The best maps of each policy, the fastest first: the first one is chosen.
    pub candidates: Vec<Candidate>,
    /// Number of placements considered, including those excluded by a bound.
    pub candidate_count: usize,
    /// A layer's operations, with attention split as in the chosen map.
    pub table: OperationTable,
}

impl SearchResult {
    /// Returns the duration of a decode step in the middle of the output, for all batches, as
    /// measured by the rehearsal.
    pub fn step_ns(&self) -> f64 {
        self.steady.step_ns() * self.factors().decode
    }

    /// Returns the ratio of predicted to simulated durations.
    pub fn factors(&self) -> TimeFactors {
        self.candidates[0].factors
    }

    /// Returns the new tokens of a group of full batches divided by its predicted duration.
    pub fn tokens_per_s(&self) -> f64 {
        self.rate(self.predicted.total_ns())
    }

    /// Returns the predicted throughput of a placement that was considered.
    pub fn tokens_per_s_of(&self, other: &Candidate) -> f64 {
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
pub enum SearchError {
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error("{0}")]
    Cost(#[from] CostError),
}

/// Chooses a placement.
///
/// # Errors
/// Nothing fits, with the numbers of the placement that comes closest; a plan that cannot be
/// priced.
pub fn choose(question: &SearchRequest<'_>) -> Result<SearchResult, SearchError> {
    let estimator = build_fitting_estimator(question)?;
    let space = PlacementSpace::new(&estimator, question.chunkings)?;
    let RankedCandidates { candidates, candidate_count } =
        rank_candidates(question, &estimator, &space)?;
    let table = space.table(candidates[0].placement.policy.chunking()).cloned();
    let table = table.ok_or_else(|| CostError("the chosen map has no table".to_owned()))?;
    build_result(&estimator, candidates, candidate_count, table)
}

/// Returns the placement that [`choose`] chooses, without predicting its run.
///
/// # Errors
/// Fails like [`choose`].
pub fn choose_placement(question: &SearchRequest<'_>) -> Result<Placement, SearchError> {
    let estimator = build_fitting_estimator(question)?;
    let space = PlacementSpace::new(&estimator, question.chunkings)?;
    let mut ranked = rank_candidates(question, &estimator, &space)?;
    Ok(ranked.candidates.swap_remove(0).placement)
}

/// The best maps of each policy, the fastest first; at least one.
struct RankedCandidates {
    candidates: Vec<Candidate>,
    /// See [`SearchResult::candidate_count`].
    candidate_count: usize,
}

/// Returns an estimator for a question.
///
/// # Errors
/// The host lacks the memory that every placement takes.
fn build_fitting_estimator<'a>(question: &SearchRequest<'a>) -> Result<Estimator<'a>, SearchError> {
    let SearchRequest { request, batches, batch_size, .. } = *question;
    if request.min_host_bytes(batches, batch_size) > request.limits.dram_bytes {
        return Err(explain_misfit(question)?);
    }
    Ok(build_estimator(question)?)
}

fn rank_candidates(
    question: &SearchRequest<'_>,
    estimator: &Estimator<'_>,
    space: &PlacementSpace<'_>,
) -> Result<RankedCandidates, SearchError> {
    let placements = space.placements(question.policy)?;
    let candidate_count = placements.len();
    let mut candidates = evaluate_placements(estimator, space, placements, question.effort)?;
    if candidates.is_empty() {
        return Err(explain_misfit(question)?);
    }
    refine_linear_splits(estimator, space, question.chunkings, &mut candidates)?;
    if question.effort == SearchEffort::Full {
        refine_by_full_run(estimator, &mut candidates)?;
    }
    rehearse(question, estimator, &mut candidates)?;
    Ok(RankedCandidates { candidates, candidate_count })
}

/// Returns an estimator for a question, with the tiers for which memory has capacity if everything
/// is on the device.
fn build_estimator<'a>(question: &SearchRequest<'a>) -> Result<Estimator<'a>, PlanError> {
    let SearchRequest { request, batches, batch_size, pricing, .. } = *question;
    let everything =
        PlacementRequest { placement: &Placement::from_policy(Policy::GpuOnly), ..*request };
    let tiers = everything.default_tiers(batches, batch_size)?;
    Ok(Estimator { request, batches, batch_size, pricing, tiers, has_small_streams: false })
}

/// Returns an estimate of a group's duration in the best placement, without rehearsals. `None` if
/// nothing fits or can be priced.
pub(super) fn estimate_total_ns(question: &SearchRequest<'_>) -> Option<f64> {
    let estimator = build_estimator(question).ok()?;
    let space = PlacementSpace::new(&estimator, question.chunkings).ok()?;
    let placements = space.placements(question.policy).ok()?;
    let candidates = evaluate_placements(&estimator, &space, placements, question.effort).ok()?;
    candidates.first().map(|best| best.total_ns(question.request.max_new))
}

/// Returns the result for a single placement; the question's policy and chunkings are ignored.
///
/// # Errors
/// A placement that does not fit, with the numbers; a plan that cannot be priced.
pub fn evaluate_placement(
    question: &SearchRequest<'_>,
    name: PolicyName,
    placement: &Placement,
) -> Result<SearchResult, SearchError> {
    let SearchRequest { request, batches, batch_size, pricing, .. } = *question;
    let request = &PlacementRequest { placement, ..*request };
    let memory_fit = request.memory_fit(batches, batch_size)?;
    let placement = &match memory_fit {
        Some(MemoryFit { slow_tier, staged, .. }) => {
            Placement { slow_tier, staged, ..placement.clone() }
        }
        None => placement.clone(),
    };
    let request = &PlacementRequest { placement, ..*request };
    let plan = request.plan(batches, batch_size)?;
    let tiers = DefaultTiers {
        kv: plan.map.kv.first().and_then(|kv| kv.k.first()).copied().unwrap_or(MemoryId::DRAM),
        prefill_hidden: plan.map.prefill_hidden,
    };
    let estimator =
        Estimator { request, batches, batch_size, pricing, tiers, has_small_streams: false };
    let (map, placement) = (estimator.map(placement), placement.clone());
    let estimate = match plan.map.uses_storages() {
        // With few layers, the duration depends on which of them are read.
        true => Estimate::from_plan(&plan, pricing)?,
        false => Estimate {
            prefill_ns: estimator.uniform_prefill_ns(&placement, map.uses_gpu())?,
            step_ns: estimator.step_ns(&placement)?,
        },
    };
    let table = match map.uses_gpu() {
        true => operation_table(&estimator, placement.policy.chunking())?,
        false => cpu_only_table(&estimator)?,
    };
    let mut candidates = [Candidate {
        name,
        placement,
        map,
        estimate,
        factors: TimeFactors::NONE,
        trial: TrialStatus::Untried,
    }];
    rehearse(question, &estimator, &mut candidates)?;
    build_result(&estimator, candidates.into(), 1, table)
}

/// Returns the first of the considered placements, compiled and predicted. The duration of its
/// previous runs is used for the prediction and not for the choice: placements that never ran would
/// be judged by less.
fn build_result(
    estimator: &Estimator<'_>,
    mut candidates: Vec<Candidate>,
    candidate_count: usize,
    table: OperationTable,
) -> Result<SearchResult, SearchError> {
    let Estimator { request, batches, batch_size, pricing, .. } = *estimator;
    let Candidate { name, placement, .. } = candidates[0].clone();
    let plan = PlacementRequest { placement: &placement, ..*request }.plan(batches, batch_size)?;
    if let Some(MeasuredFactors { factors, runs }) = pricing.measured_factors(&plan) {
        (candidates[0].factors, candidates[0].trial) = (factors, TrialStatus::CompletedRuns(runs));
    }
    let predicted = predict(&plan, pricing)?.scaled(candidates[0].factors);
    let steady = SteadyDecode::simulate(&plan, pricing, request.max_prompt + request.max_new / 2)?;
    Ok(SearchResult {
        name,
        placement,
        plan,
        predicted,
        steady,
        candidates,
        candidate_count,
        table,
    })
}

/// Moves the placement with the shortest whole run to the front, among those whose estimates count
/// as equal.
fn refine_by_full_run(
    estimator: &Estimator<'_>,
    candidates: &mut [Candidate],
) -> Result<(), CostError> {
    let Estimator { request, batches, batch_size, pricing, .. } = *estimator;
    let best_ns = candidates[0].total_ns(request.max_new);
    let is_tied = |one: &Candidate| one.total_ns(request.max_new) <= best_ns * TIE_RATIO;
    let tied = candidates.iter().take(TIED_MAX).take_while(|one| is_tied(one)).count();
    let mut best: Option<(f64, usize)> = None;
    for (place, one) in candidates[..tied].iter().enumerate().filter(|_| tied > 1) {
        let plan =
            PlacementRequest { placement: &one.placement, ..*request }.plan(batches, batch_size);
        let plan = plan.map_err(|error| CostError(error.to_string()))?;
        let total_ns = predict(&plan, pricing)?.total_ns();
        if best.is_none_or(|(other_ns, _)| total_ns < other_ns) {
            best = Some((total_ns, place));
        }
    }
    if let Some((_, place)) = best {
        candidates[..=place].rotate_right(1);
    }
    Ok(())
}

/// Rehearses the placement that looks fastest, until the fastest one has already been rehearsed.
fn rehearse(
    question: &SearchRequest<'_>,
    estimator: &Estimator<'_>,
    candidates: &mut [Candidate],
) -> Result<(), CostError> {
    let Some(rehearser) = question.rehearser else { return Ok(()) };
    let max_new = question.request.max_new;
    for _ in 0..REHEARSALS_MAX {
        let first = &mut candidates[0];
        if first.trial != TrialStatus::Untried {
            return Ok(());
        }
        let Some(decode) = estimator.decode_factor(&first.placement, rehearser)? else { break };
        (first.factors, first.trial) =
            (TimeFactors { decode, ..TimeFactors::NONE }, TrialStatus::Rehearsed);
        sort_by_total(candidates, max_new);
    }
    // The order settled by whole runs stands if nothing was rehearsed.
    if candidates.iter().any(|one| one.trial != TrialStatus::Untried) {
        extrapolate_rehearsals(candidates);
        sort_by_total(candidates, max_new);
    }
    Ok(())
}

/// If rehearsing ended early, placements that were not rehearsed are assumed to be slower than
/// estimated by the same factor as those that were, separately with and without the device.
/// Otherwise the ones left over would look the fastest.
fn extrapolate_rehearsals(candidates: &mut [Candidate]) {
    for uses_gpu in [false, true] {
        let is_on_side = |one: &&Candidate| one.map.uses_gpu() == uses_gpu;
        let rehearsed =
            candidates.iter().filter(is_on_side).filter(|one| one.trial != TrialStatus::Untried);
        let mut factors: Vec<f64> = rehearsed.map(|one| one.factors.decode).collect();
        factors.sort_by(f64::total_cmp);
        let Some(decode) = factors.get(factors.len() / 2).copied() else { continue };
        let others = candidates.iter_mut().filter(|one| one.map.uses_gpu() == uses_gpu);
        for other in others.filter(|one| one.trial == TrialStatus::Untried) {
            other.factors.decode = decode;
        }
    }
}

/// Returns the reason for which nothing fits: for the plain policy that fits the largest batch.
fn explain_misfit(question: &SearchRequest<'_>) -> Result<SearchError, SearchError> {
    let SearchRequest { request, batches, batch_size, .. } = *question;
    let policies = match question.policy {
        PolicyName::CpuOnly => vec![Policy::CpuOnly],
        PolicyName::Ellm => vec![Policy::Ellm],
        PolicyName::GpuOnly => vec![Policy::GpuOnly],
        PolicyName::Resident => vec![Policy::Resident],
        PolicyName::Auto => vec![Policy::CpuOnly, Policy::GpuOnly, Policy::Resident],
        _ => vec![Policy::GpuOnly],
    };
    let mut closest: Option<(Option<u16>, PlanError)> = None;
    for policy in policies {
        let placement = Placement::from_policy(policy);
        let request = PlacementRequest { placement: &placement, ..*request };
        let Err(error) = request.plan(batches, batch_size) else { continue };
        let fitting = match &error {
            PlanError::DoesNotFit { fitting, .. } => *fitting,
            PlanError::Compile(_) | PlanError::NotOnDevice { .. } => None,
        };
        if closest.as_ref().is_none_or(|(most, _)| fitting > *most) {
            closest = Some((fitting, error));
        }
    }
    match closest {
        Some((_, error)) => Ok(error.into()),
        None => {
            let name = question.policy.name();
            let text = format!("no placement of --policy {name} fits memory; --policy auto may");
            Err(CostError(text).into())
        }
    }
}
