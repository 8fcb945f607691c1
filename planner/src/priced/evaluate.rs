//! Estimates of possible placements: those with the lowest bounds are ordered by the table of
//! operations, and compiled and simulated in that order until none promises to be faster.

use std::collections::HashMap;

use program::map::{Chunking, Device, DeviceMap, Schedule};
use program::topology::MemoryId;

use super::considered::{Considered, Effort, Tried, sort};
use super::prefills::Prefills;
use super::space::{Possible, Space};
use super::{Estimate, Estimator, Factors, Unpriced};
use crate::budget::{PrefillRoom, Request, Room};
use crate::policy::Placement;
use crate::policy::by_name::PolicyName;

/// Limits on the number of placements considered for a policy and a split of attention. Those of
/// small models cost little.
#[derive(Debug, Clone, Copy)]
struct SearchLimits {
    /// Number of placements, those with the lowest bounds, that are ordered.
    ordered: usize,
    compiled: usize,
}

impl SearchLimits {
    fn of(effort: Effort, estimator: &Estimator<'_>) -> SearchLimits {
        let size = estimator.request.config.num_layers * usize::from(estimator.batches);
        match effort {
            Effort::Full => SearchLimits {
                ordered: (20_000 / size.max(1)).clamp(400, 6000),
                compiled: (1000 / size.max(1)).clamp(40, 400),
            },
            Effort::Quick => SearchLimits { ordered: 60, compiled: 4 },
        }
    }
}

/// Number of consecutive placements of a kind that do not fit, after which none is expected to.
const MISFITS_MAX: usize = 60;
/// Fraction by which estimates from the table are reduced: its times include contention with
/// transfers, so it may be slightly high.
const TABLE_SHARE: f64 = 0.9;
/// Number of maps of a policy that are kept.
const OF_A_POLICY: usize = 3;

/// Returns the best placements of each policy that fit, the fastest first.
///
/// # Errors
/// A plan that cannot be priced or compiled.
pub(super) fn evaluate(
    estimator: &Estimator<'_>,
    space: &Space<'_>,
    possible: Vec<Possible>,
    effort: Effort,
) -> Result<Vec<Considered>, Unpriced> {
    let most = SearchLimits::of(effort, estimator);
    let mut search = Search { estimator, space, most, prefills: Prefills::of(estimator) };
    let prefill_hidden = estimator.homes.prefill_hidden;
    // Each split of attention has its own placements.
    let mut kinds: Vec<(PolicyName, Option<Chunking>)> = Vec::new();
    let mut of_kind: HashMap<(PolicyName, Option<Chunking>), Vec<Bounded>> = HashMap::new();
    for one in possible {
        let room = PrefillRoom { prefill_hidden, has_small_streams: one.has_small_streams };
        let prefill_ns = search.prefills.ns(&one.placement, room)?;
        let bound = space.bound(&one.placement);
        let step_ns = bound.map_or(0.0, |bound| bound.lower_bound_ns());
        let least_ns = Estimate { prefill_ns, step_ns }.total_ns(estimator.request.max_new);
        let kind = (one.name, one.placement.policy.chunking());
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
        of_kind.entry(kind).or_default().push(Bounded { least_ns, prefill_ns, one });
    }
    let (mut considered, mut seen): (Vec<Considered>, Vec<DeviceMap>) = (Vec::new(), Vec::new());
    for kind in kinds {
        for one in search.best_of(of_kind.remove(&kind).unwrap_or_default())? {
            let map = nameless(one.map.clone());
            if !seen.contains(&map) {
                seen.push(map);
                considered.push(one);
            }
        }
    }
    if effort == Effort::Full {
        considered.iter_mut().try_for_each(|one| refine(estimator, one))?;
    }
    sort(&mut considered, estimator.request.max_new);
    Ok(considered)
}

/// Refines the duration of a placement as compiled: with the tiers and the streams that fit in
/// memory.
fn refine(estimator: &Estimator<'_>, one: &mut Considered) -> Result<(), Unpriced> {
    let Estimator { request, batches, batch_size, pricing, .. } = *estimator;
    let plan = Request { placement: &one.placement, ..*request }.plan(batches, batch_size);
    let plan = plan.map_err(|error| Unpriced(error.to_string()))?;
    one.estimate = Estimate::of(&plan, pricing)?;
    one.map = plan.map;
    Ok(())
}

/// Returns the name of a map's policy. If all layers run on the GPU from resident weights, it is an
/// ordinary run on the GPU, regardless of what its policy would do with other layers.
fn name_of(name: PolicyName, map: &DeviceMap) -> PolicyName {
    let on_gpu = |layers: &[Vec<Device>]| layers.iter().flatten().all(|on| *on == Device::Gpu);
    let is_resident = map.schedule == Schedule::Overlapped
        && on_gpu(&map.decode.layers)
        && on_gpu(&map.prefill.layers)
        && map.weights.iter().flatten().all(|home| *home == MemoryId::VRAM)
        && map.outer_weights == MemoryId::VRAM;
    if is_resident { PolicyName::Resident } else { name }
}

/// A placement with a lower bound, `least_ns`.
struct Bounded {
    least_ns: f64,
    prefill_ns: f64,
    one: Possible,
}

/// Removes the name of a map's policy. Maps of different policies may be equal otherwise: LIA's
/// vectors may leave everything to the CPU.
fn nameless(map: DeviceMap) -> DeviceMap {
    DeviceMap { policy: String::new(), ..map }
}

struct Search<'a> {
    estimator: &'a Estimator<'a>,
    space: &'a Space<'a>,
    most: SearchLimits,
    prefills: Prefills<'a>,
}

impl Search<'_> {
    /// Returns the best placements of one policy, the fastest first.
    fn best_of(&mut self, possible: Vec<Bounded>) -> Result<Vec<Considered>, Unpriced> {
        let max_new = self.estimator.request.max_new;
        let (mut best, mut seen): (Vec<Considered>, Vec<DeviceMap>) = (Vec::new(), Vec::new());
        let (mut estimates, mut misfits) = (0, 0);
        for (about_ns, one) in self.in_order(possible) {
            let is_excluded =
                best.first().is_some_and(|best| TABLE_SHARE * about_ns > best.total_ns(max_new));
            if is_excluded || estimates >= self.most.compiled || misfits >= MISFITS_MAX {
                break;
            }
            let map = nameless(self.estimator.map(&one.placement));
            if seen.contains(&map) {
                continue;
            }
            seen.push(map);
            let Some(Room { prefill, far, staged }) = self.room(&one.placement)? else {
                misfits += 1;
                continue;
            };
            (estimates, misfits) = (estimates + 1, 0);
            let Possible { name, placement, .. } = one;
            let placement = Placement { far, staged, ..placement };
            let prefill_ns = self.prefills.ns(&placement, prefill)?;
            let step_ns = self.estimator.step_ns(&placement)?;
            let estimate = Estimate { prefill_ns, step_ns };
            let is_full = best.len() == OF_A_POLICY;
            if is_full && estimate.total_ns(max_new) >= best[OF_A_POLICY - 1].total_ns(max_new) {
                continue;
            }
            let map = self.estimator.map(&placement);
            let name = name_of(name, &map);
            let (factors, tried) = (Factors::NONE, Tried::Never);
            best.push(Considered { name, placement, map, estimate, factors, tried });
            sort(&mut best, max_new);
            best.truncate(OF_A_POLICY);
        }
        Ok(best)
    }

    /// Returns placements with their durations by the table, in ascending order.
    fn in_order(&self, mut possible: Vec<Bounded>) -> Vec<(f64, Possible)> {
        possible.sort_by(|a, b| a.least_ns.total_cmp(&b.least_ns));
        possible.truncate(self.most.ordered);
        let about = |Bounded { prefill_ns, one, .. }| {
            let bound = self.space.bound(&one.placement);
            let step_ns = bound.map_or(0.0, |bound| bound.estimate_ns());
            let total = Estimate { prefill_ns, step_ns };
            (total.total_ns(self.estimator.request.max_new), one)
        };
        let mut ordered: Vec<_> = possible.into_iter().map(about).collect();
        ordered.sort_by(|a, b| a.0.total_cmp(&b.0));
        ordered
    }

    fn room(&self, placement: &Placement) -> Result<Option<Room>, Unpriced> {
        let Estimator { request, batches, batch_size, .. } = *self.estimator;
        let room = Request { placement, ..*request }.room(batches, batch_size);
        room.map_err(|error| Unpriced(error.to_string()))
    }
}
