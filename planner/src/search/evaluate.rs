//! Estimates of possible placements: those with the lowest bounds are ordered by the table of
//! operations, and compiled and simulated in that order until none promises to be faster.

use std::collections::HashMap;

use program::map::{Chunking, ComputeDevice, DeviceMap, Schedule};
use program::topology::MemoryId;

use super::candidate::{Candidate, SearchEffort, TrialStatus, sort_by_total};
use super::prefill_cache::PrefillCache;
use super::space::{NamedPlacement, PlacementSpace};
use super::{CostError, Estimate, Estimator, TimeFactors};
use crate::budget::{MemoryFit, PlacementRequest, PrefillFit};
use crate::policy::Placement;
use crate::policy::name::PolicyName;

/// Limits on the number of placements considered for a policy and a split of attention. Those of
/// small models cost little.
#[derive(Debug, Clone, Copy)]
struct SearchLimits {
    /// Number of placements, those with the lowest bounds, that are ordered.
    ordered: usize,
    compiled: usize,
}

impl SearchLimits {
    fn for_effort(effort: SearchEffort, estimator: &Estimator<'_>) -> SearchLimits {
        let size = estimator.request.config.num_layers * usize::from(estimator.batches);
        match effort {
            SearchEffort::Full => SearchLimits {
                ordered: (20_000 / size.max(1)).clamp(400, 6000),
                compiled: (1000 / size.max(1)).clamp(40, 400),
            },
            SearchEffort::Quick => SearchLimits { ordered: 60, compiled: 4 },
        }
    }
}

/// Number of consecutive placements of a kind that do not fit, after which none is expected to.
const MISFITS_MAX: usize = 60;
/// Fraction by which estimates from the table are reduced: its times include contention with
/// transfers, so it may be slightly high.
const TABLE_SHARE: f64 = 0.9;
/// Number of maps of a policy that are kept.
const KEPT_PER_POLICY: usize = 3;

/// Returns the best placements of each policy that fit, the fastest first.
///
/// # Errors
/// A plan that cannot be priced or compiled.
pub(super) fn evaluate_placements(
    estimator: &Estimator<'_>,
    space: &PlacementSpace<'_>,
    placements: Vec<NamedPlacement>,
    effort: SearchEffort,
) -> Result<Vec<Candidate>, CostError> {
    let limits = SearchLimits::for_effort(effort, estimator);
    let mut search = Search { estimator, space, limits, prefills: PrefillCache::new(estimator) };
    let prefill_hidden = estimator.tiers.prefill_hidden;
    // Each split of attention has its own placements.
    let mut kinds: Vec<(PolicyName, Option<Chunking>)> = Vec::new();
    let mut of_kind: HashMap<(PolicyName, Option<Chunking>), Vec<BoundedPlacement>> =
        HashMap::new();
    for placement in placements {
        let prefill_fit =
            PrefillFit { prefill_hidden, has_small_streams: placement.has_small_streams };
        let prefill_ns = search.prefills.ns(&placement.placement, prefill_fit)?;
        let bound = space.bound(&placement.placement);
        let step_ns = bound.map_or(0.0, |bound| bound.lower_bound_ns());
        let min_ns = Estimate { prefill_ns, step_ns }.total_ns(estimator.request.max_new);
        let kind = (placement.name, placement.placement.policy.chunking());
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
        of_kind.entry(kind).or_default().push(BoundedPlacement { min_ns, prefill_ns, placement });
    }
    let (mut candidates, mut seen): (Vec<Candidate>, Vec<DeviceMap>) = (Vec::new(), Vec::new());
    for kind in kinds {
        for placement in search.best_placements(of_kind.remove(&kind).unwrap_or_default())? {
            let map = without_policy_name(placement.map.clone());
            if !seen.contains(&map) {
                seen.push(map);
                candidates.push(placement);
            }
        }
    }
    if effort == SearchEffort::Full {
        candidates.iter_mut().try_for_each(|placement| refine_estimate(estimator, placement))?;
    }
    sort_by_total(&mut candidates, estimator.request.max_new);
    Ok(candidates)
}

/// Refines the duration of a placement as compiled: with the tiers and the streams that fit in
/// memory.
fn refine_estimate(estimator: &Estimator<'_>, candidate: &mut Candidate) -> Result<(), CostError> {
    let Estimator { request, batches, batch_size, pricing, .. } = *estimator;
    let plan =
        PlacementRequest { placement: &candidate.placement, ..*request }.plan(batches, batch_size);
    let plan = plan.map_err(|error| CostError(error.to_string()))?;
    candidate.estimate = Estimate::from_plan(&plan, pricing)?;
    candidate.map = plan.map;
    Ok(())
}

/// Returns the name of a map's policy. If all layers run on the GPU from resident weights, it is an
/// ordinary run on the GPU, regardless of what its policy would do with other layers.
fn effective_name(name: PolicyName, map: &DeviceMap) -> PolicyName {
    let on_gpu =
        |layers: &[Vec<ComputeDevice>]| layers.iter().flatten().all(|on| *on == ComputeDevice::Gpu);
    let is_resident = map.schedule == Schedule::Overlapped
        && on_gpu(&map.decode.layers)
        && on_gpu(&map.prefill.layers)
        && map.weights.iter().flatten().all(|tier| *tier == MemoryId::VRAM)
        && map.outer_weights == MemoryId::VRAM;
    if is_resident { PolicyName::Resident } else { name }
}

/// A placement with a lower bound, `least_ns`.
struct BoundedPlacement {
    min_ns: f64,
    prefill_ns: f64,
    placement: NamedPlacement,
}

/// Removes the name of a map's policy. Maps of different policies may be equal otherwise: LIA's
/// vectors may leave everything to the CPU.
fn without_policy_name(map: DeviceMap) -> DeviceMap {
    DeviceMap { policy: String::new(), ..map }
}

struct Search<'a> {
    estimator: &'a Estimator<'a>,
    space: &'a PlacementSpace<'a>,
    limits: SearchLimits,
    prefills: PrefillCache<'a>,
}

impl Search<'_> {
    /// Returns the best placements of one policy, the fastest first.
    fn best_placements(
        &mut self,
        placements: Vec<BoundedPlacement>,
    ) -> Result<Vec<Candidate>, CostError> {
        let max_new = self.estimator.request.max_new;
        let (mut best, mut seen): (Vec<Candidate>, Vec<DeviceMap>) = (Vec::new(), Vec::new());
        let (mut estimates, mut misfits) = (0, 0);
        for (estimated_ns, one) in self.order_by_estimate(placements) {
            let is_too_slow = best
                .first()
                .is_some_and(|best| TABLE_SHARE * estimated_ns > best.total_ns(max_new));
            if is_too_slow || estimates >= self.limits.compiled || misfits >= MISFITS_MAX {
                break;
            }
            let map = without_policy_name(self.estimator.map(&one.placement));
            if seen.contains(&map) {
                continue;
            }
            seen.push(map);
            let Some(MemoryFit { prefill, slow_tier, staged }) = self.memory_fit(&one.placement)?
            else {
                misfits += 1;
                continue;
            };
            (estimates, misfits) = (estimates + 1, 0);
            let NamedPlacement { name, placement, .. } = one;
            let placement = Placement { slow_tier, staged, ..placement };
            let prefill_ns = self.prefills.ns(&placement, prefill)?;
            let step_ns = self.estimator.step_ns(&placement)?;
            let estimate = Estimate { prefill_ns, step_ns };
            let is_full = best.len() == KEPT_PER_POLICY;
            if is_full && estimate.total_ns(max_new) >= best[KEPT_PER_POLICY - 1].total_ns(max_new)
            {
                continue;
            }
            let map = self.estimator.map(&placement);
            let name = effective_name(name, &map);
            let (factors, trial) = (TimeFactors::NONE, TrialStatus::Untried);
            best.push(Candidate { name, placement, map, estimate, factors, trial });
            sort_by_total(&mut best, max_new);
            best.truncate(KEPT_PER_POLICY);
        }
        Ok(best)
    }

    /// Returns placements with their durations by the table, in ascending order.
    fn order_by_estimate(
        &self,
        mut placements: Vec<BoundedPlacement>,
    ) -> Vec<(f64, NamedPlacement)> {
        placements.sort_by(|a, b| a.min_ns.total_cmp(&b.min_ns));
        placements.truncate(self.limits.ordered);
        let estimated = |BoundedPlacement { prefill_ns, placement, .. }| {
            let bound = self.space.bound(&placement.placement);
            let step_ns = bound.map_or(0.0, |bound| bound.estimate_ns());
            let total = Estimate { prefill_ns, step_ns };
            (total.total_ns(self.estimator.request.max_new), placement)
        };
        let mut ordered: Vec<_> = placements.into_iter().map(estimated).collect();
        ordered.sort_by(|a, b| a.0.total_cmp(&b.0));
        ordered
    }

    fn memory_fit(&self, placement: &Placement) -> Result<Option<MemoryFit>, CostError> {
        let Estimator { request, batches, batch_size, .. } = *self.estimator;
        let memory_fit = PlacementRequest { placement, ..*request }.memory_fit(batches, batch_size);
        memory_fit.map_err(|error| CostError(error.to_string()))
    }
}
