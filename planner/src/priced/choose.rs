//! From a policy's name to the plan that a run will execute: of all placements that the name stands
//! for, those that a bound does not exclude are estimated, the fastest that fits memory is compiled
//! whole, and its time is predicted.

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

/// Maps that are rehearsed at most.
const REHEARSALS_MAX: u32 = 8;

/// Estimates that differ by no more are as good as equal: of first steps, which fill the lanes,
/// they know nothing.
const CLOSE: f64 = 1.03;
/// Placements with such estimates that are compared by whole runs.
const CLOSE_MAX: usize = 8;

/// What is to be placed.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// Its placement is not looked at.
    pub request: &'a Request<'a>,
    pub batches: u16,
    pub batch_size: u16,
    pub policy: PolicyName,
    /// Ways to cut operations that splits may use; at least one. Linears are cut where that gains
    /// something over the best splits without.
    pub chunkings: &'a [Option<Chunking>],
    pub pricing: &'a dyn Pricing,
    pub effort: Effort,
    /// Where the fastest maps are rehearsed; `None`: estimates alone decide.
    pub stage: Option<&'a dyn Rehearse>,
}

/// The answer.
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
    /// Placements that were looked at, those among them that a bound excluded.
    pub candidates: usize,
    /// A layer's operations, with attention cut as in the chosen map.
    pub table: Table,
}

impl Chosen {
    /// One decode step in the middle of the output, all batches, as it was tried out.
    pub fn step_ns(&self) -> f64 {
        self.steady.step_ns() * self.factors().decode
    }

    /// What is predicted over what is simulated.
    pub fn factors(&self) -> Factors {
        self.considered[0].factors
    }

    /// New tokens of a group of full batches over its predicted time.
    pub fn tokens_per_s(&self) -> f64 {
        self.rate(self.predicted.total_ns())
    }

    /// The same of a placement that was considered.
    pub fn tokens_per_s_of(&self, other: &Considered) -> f64 {
        self.rate(other.total_ns(self.plan.shape.max_new))
    }

    fn rate(&self, total_ns: f64) -> f64 {
        let shape = &self.plan.shape;
        let sequences = f64::from(shape.batches) * f64::from(shape.batch_size);
        sequences * f64::from(shape.max_new) / (total_ns / 1e9)
    }
}

/// Why nothing was chosen.
#[derive(Debug, thiserror::Error)]
pub enum ChooseError {
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error("{0}")]
    Unpriced(#[from] Unpriced),
}

/// Chooses.
///
/// # Errors
/// Nothing that fits, with the numbers of the placement that comes nearest; a plan that cannot be
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

/// Estimates for a question, with the homes for which memory has room where all is on the device.
fn estimator<'a>(question: &Question<'a>) -> Result<Estimator<'a>, PlanError> {
    let Question { request, batches, batch_size, pricing, .. } = *question;
    let everything = Request { placement: &Placement::of(Policy::GpuOnly), ..*request };
    let homes = everything.homes(batches, batch_size)?;
    Ok(Estimator { request, batches, batch_size, pricing, homes, has_small_streams: false })
}

/// What a group takes about, in the best placement; nothing is tried out. `None` where nothing fits
/// or can be priced.
pub(super) fn estimate_total_ns(question: &Question<'_>) -> Option<f64> {
    let estimator = estimator(question).ok()?;
    let space = Space::new(&estimator, question.chunkings).ok()?;
    let possible = space.placements(question.policy).ok()?;
    let considered = evaluate(&estimator, &space, possible, question.effort).ok()?;
    considered.first().map(|best| best.total_ns(question.request.max_new))
}

/// The answer for one placement; the question's policy and chunkings are not looked at.
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
        // Of few layers it depends on which are read.
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

/// The first of what was considered, compiled and predicted. What its runs took is believed of it
/// and decides nothing: others, of which no run is known, would be judged by less.
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

/// Puts that one first of which the whole run takes least, among those whose estimates are as good
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

/// Rehearses what looks fastest, until what then is fastest was rehearsed already.
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
    // What was settled by whole runs stays first where nothing was tried.
    if considered.iter().any(|one| one.tried != Tried::Never) {
        believe_as_tried(considered);
        sort(considered, max_new);
    }
    Ok(())
}

/// Where trying out has ended early: what was not tried is believed to take as much longer as what
/// was, those with the device and those without each by themselves. Else whatever was left over
/// would look the fastest.
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

/// Why nothing fits: by the plain policy of which the largest batch would.
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
