//! Splits that begin or end within a linear: derived from the best splits that do not, by moving
//! both ends to all positions at which the table of operations promises an improvement. Resident
//! weights, tiers of KV and the device of prompts remain unchanged.

use program::compile::CompileError;
use program::map::{ChunkOrder, Chunking, leading_list};

use super::bound::StepBound;
use super::candidate::{Candidate, TrialStatus, sort_by_total};
use super::space::PlacementSpace;
use super::{CostError, Estimate, Estimator, TimeFactors};
use crate::budget::{MemoryFit, PlacementRequest, PlanError};
use crate::policy::{Placement, Policy};
use crate::split::Split;

/// Number of splits that are refined, the best first.
const REFINED_SPLITS: usize = 2;
/// Number of positions of both ends, those with the lowest bounds, that are ordered by a timeline
/// for each split.
const ORDERED_MAX: usize = 150;
/// Number of these that are compiled.
const COMPILED_MAX: usize = 6;

/// Adds the best splits whose ends are within linears if they are faster than without, using the
/// split of linears in `chunkings`, if there is one.
///
/// # Errors
/// A plan that cannot be priced or compiled.
pub(super) fn refine_linear_splits(
    estimator: &Estimator<'_>,
    space: &PlacementSpace<'_>,
    chunkings: &[Option<Chunking>],
    candidates: &mut Vec<Candidate>,
) -> Result<(), CostError> {
    let linear_chunking = chunkings.iter().flatten().find(|cut| cut.order == ChunkOrder::Linears);
    let Some(linear_chunking) = linear_chunking.copied() else { return Ok(()) };
    let splits: Vec<Candidate> = candidates
        .iter()
        .filter(|one| is_split(&one.placement.policy))
        .take(REFINED_SPLITS)
        .cloned()
        .collect();
    for whole in splits {
        candidates.extend(best_refinement(estimator, space, linear_chunking, &whole)?);
    }
    sort_by_total(candidates, estimator.request.max_new);
    candidates.dedup_by(|one, other| one.map == other.map);
    Ok(())
}

/// Returns true if both devices have a part.
fn is_split(policy: &Policy) -> bool {
    match policy {
        Policy::TwoSplit { split, .. } => split.start < split.end,
        Policy::OneSplit { .. } => true,
        _ => false,
    }
}

/// Returns the fastest placement with other ends, if it is faster.
fn best_refinement(
    estimator: &Estimator<'_>,
    space: &PlacementSpace<'_>,
    linear_chunking: Chunking,
    base: &Candidate,
) -> Result<Option<Candidate>, CostError> {
    let Estimator { request, batches, batch_size, .. } = *estimator;
    let mut best: Option<Candidate> = None;
    for placement in
        order_by_estimate(estimator, space, linear_chunking, base).into_iter().take(COMPILED_MAX)
    {
        if request.has_device_gaps() && request.device_gap(&estimator.map(&placement)).is_some() {
            continue;
        }
        let memory_fit =
            PlacementRequest { placement: &placement, ..*request }.memory_fit(batches, batch_size);
        let MemoryFit { slow_tier, staged, .. } = match memory_fit {
            Ok(Some(room)) => room,
            // Pieces are not supported with these formats or drives.
            Ok(None) | Err(PlanError::Compile(CompileError::Pieces { .. })) => continue,
            Err(error) => return Err(CostError(error.to_string())),
        };
        let placement = Placement { slow_tier, staged, ..placement };
        let step_ns = estimator.step_ns(&placement)?;
        let best_ns = best.as_ref().map_or(base.estimate.step_ns, |best| best.estimate.step_ns);
        if step_ns < best_ns {
            let estimate = Estimate { step_ns, ..base.estimate };
            let map = estimator.map(&placement);
            let (name, factors, trial) = (base.name, TimeFactors::NONE, TrialStatus::Untried);
            best = Some(Candidate { name, placement, map, estimate, factors, trial });
        }
    }
    Ok(best)
}

/// Returns the placement with all other ends that may be faster by the table, the best by a
/// timeline first.
fn order_by_estimate(
    estimator: &Estimator<'_>,
    space: &PlacementSpace<'_>,
    linear_chunking: Chunking,
    base: &Candidate,
) -> Vec<Placement> {
    let step_bound_ns = |placement: &Placement, ns: &dyn Fn(&StepBound<'_>) -> f64| {
        space.bound(placement).map_or(f64::INFINITY, |bound| ns(&bound))
    };
    let mut placements: Vec<(f64, Placement)> =
        refined_policies(estimator, linear_chunking, &base.placement.policy)
            .map(|policy| {
                let placement = Placement { policy, ..base.placement.clone() };
                (step_bound_ns(&placement, &|bound| bound.lower_bound_ns()), placement)
            })
            .filter(|(bound_ns, _)| *bound_ns < base.estimate.step_ns)
            .collect();
    placements.sort_by(|a, b| a.0.total_cmp(&b.0));
    placements.truncate(ORDERED_MAX);
    for (ns, placement) in &mut placements {
        *ns = step_bound_ns(placement, &|bound| bound.estimate_ns());
    }
    placements.sort_by(|a, b| a.0.total_cmp(&b.0));
    placements.into_iter().map(|(_, placement)| placement).collect()
}

/// Returns splits of the same kind with an end within a linear.
fn refined_policies(
    estimator: &Estimator<'_>,
    linear_chunking: Chunking,
    policy: &Policy,
) -> impl Iterator<Item = Policy> + use<> {
    let list = leading_list(estimator.request.config, Some(linear_chunking));
    let count = list.len();
    let is_within = move |at: usize| {
        (1..count).contains(&at) && list[at].chunk.is_some() && list[at - 1].op == list[at].op
    };
    let (to_the_end, chunking) = (matches!(policy, Policy::OneSplit { .. }), Some(linear_chunking));
    let ends = move |start: usize| if to_the_end { count..=count } else { start + 1..=count };
    (0..count).flat_map(move |start| ends(start).map(move |end| (start, end))).filter_map(
        move |(start, end)| match (is_within(start) || is_within(end), to_the_end) {
            (false, _) => None,
            (true, true) => Some(Policy::OneSplit { start, chunking }),
            (true, false) => Some(Policy::TwoSplit { split: Split { start, end }, chunking }),
        },
    )
}
