//! Splits that begin or end within a linear: derived from the best splits that do not, by moving
//! both ends to all positions at which the table of operations promises an improvement. Resident
//! weights, tiers of KV and the device of prompts remain unchanged.

use program::compile::CompileError;
use program::map::{ChunkOrder, Chunking, leading_list};

use super::bound::Bound;
use super::considered::{Considered, Tried, sort};
use super::space::Space;
use super::{Estimate, Estimator, Factors, Unpriced};
use crate::budget::{PlanError, Request, Room};
use crate::policy::{Placement, Policy};
use crate::split::Split;

/// Number of splits that are refined, the best first.
const SPLITS: usize = 2;
/// Number of positions of both ends, those with the lowest bounds, that are ordered by a timeline
/// for each split.
const ORDERED: usize = 150;
/// Number of these that are compiled.
const COMPILED: usize = 6;

/// Adds the best splits whose ends are within linears if they are faster than without, using the
/// split of linears in `chunkings`, if there is one.
///
/// # Errors
/// A plan that cannot be priced or compiled.
pub(super) fn cut_linears(
    estimator: &Estimator<'_>,
    space: &Space<'_>,
    chunkings: &[Option<Chunking>],
    considered: &mut Vec<Considered>,
) -> Result<(), Unpriced> {
    let cuts = chunkings.iter().flatten().find(|cut| cut.order == ChunkOrder::Linears);
    let Some(cuts) = cuts.copied() else { return Ok(()) };
    let splits: Vec<Considered> = considered
        .iter()
        .filter(|one| is_split(&one.placement.policy))
        .take(SPLITS)
        .cloned()
        .collect();
    for whole in splits {
        considered.extend(best_of(estimator, space, cuts, &whole)?);
    }
    sort(considered, estimator.request.max_new);
    considered.dedup_by(|one, other| one.map == other.map);
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
fn best_of(
    estimator: &Estimator<'_>,
    space: &Space<'_>,
    cuts: Chunking,
    whole: &Considered,
) -> Result<Option<Considered>, Unpriced> {
    let Estimator { request, batches, batch_size, .. } = *estimator;
    let mut best: Option<Considered> = None;
    for placement in in_order(estimator, space, cuts, whole).into_iter().take(COMPILED) {
        let room = Request { placement: &placement, ..*request }.room(batches, batch_size);
        let Room { far, staged, .. } = match room {
            Ok(Some(room)) => room,
            // Pieces are not supported with these formats or drives.
            Ok(None) | Err(PlanError::Compile(CompileError::Pieces { .. })) => continue,
            Err(error) => return Err(Unpriced(error.to_string())),
        };
        let placement = Placement { far, staged, ..placement };
        let step_ns = estimator.step_ns(&placement)?;
        let least_ns = best.as_ref().map_or(whole.estimate.step_ns, |best| best.estimate.step_ns);
        if step_ns < least_ns {
            let estimate = Estimate { step_ns, ..whole.estimate };
            let map = estimator.map(&placement);
            let (name, factors, tried) = (whole.name, Factors::NONE, Tried::Never);
            best = Some(Considered { name, placement, map, estimate, factors, tried });
        }
    }
    Ok(best)
}

/// Returns the placement with all other ends that may be faster by the table, the best by a
/// timeline first.
fn in_order(
    estimator: &Estimator<'_>,
    space: &Space<'_>,
    cuts: Chunking,
    whole: &Considered,
) -> Vec<Placement> {
    let of_step = |placement: &Placement, ns: &dyn Fn(&Bound<'_>) -> f64| {
        space.bound(placement).map_or(f64::INFINITY, |bound| ns(&bound))
    };
    let mut possible: Vec<(f64, Placement)> = policies(estimator, cuts, &whole.placement.policy)
        .map(|policy| {
            let placement = Placement { policy, ..whole.placement.clone() };
            (of_step(&placement, &|bound| bound.lower_bound_ns()), placement)
        })
        .filter(|(least_ns, _)| *least_ns < whole.estimate.step_ns)
        .collect();
    possible.sort_by(|a, b| a.0.total_cmp(&b.0));
    possible.truncate(ORDERED);
    for (ns, placement) in &mut possible {
        *ns = of_step(placement, &|bound| bound.estimate_ns());
    }
    possible.sort_by(|a, b| a.0.total_cmp(&b.0));
    possible.into_iter().map(|(_, placement)| placement).collect()
}

/// Returns splits of the same kind with an end within a linear.
fn policies(
    estimator: &Estimator<'_>,
    cuts: Chunking,
    policy: &Policy,
) -> impl Iterator<Item = Policy> + use<> {
    let list = leading_list(estimator.request.config, Some(cuts));
    let count = list.len();
    let is_within = move |at: usize| {
        (1..count).contains(&at) && list[at].chunk.is_some() && list[at - 1].op == list[at].op
    };
    let (to_the_end, chunking) = (matches!(policy, Policy::OneSplit { .. }), Some(cuts));
    let ends = move |start: usize| if to_the_end { count..=count } else { start + 1..=count };
    (0..count).flat_map(move |start| ends(start).map(move |end| (start, end))).filter_map(
        move |(start, end)| match (is_within(start) || is_within(end), to_the_end) {
            (false, _) => None,
            (true, true) => Some(Policy::OneSplit { start, chunking }),
            (true, false) => Some(Policy::TwoSplit { split: Split { start, end }, chunking }),
        },
    )
}
