//! Estimates of possible placements: those of the least bounds are put in order by the table of
//! operations, and compiled and simulated in that order until none promises more.

use std::collections::HashMap;

use program::map::{Chunking, DeviceMap};
use program::topology::MemoryId;

use super::choose::{Considered, sort};
use super::space::{Possible, Space};
use super::{Estimate, Estimator, Unpriced};
use crate::budget::Request;
use crate::policy::by_name::PolicyName;
use crate::policy::{Placement, Policy, ResidentAttention, Residency};

/// Placements of a policy, those of the least bounds, that are put in order.
const ORDERED_MAX: usize = 400;
/// Placements of a policy that are compiled at most.
const ESTIMATES_MAX: usize = 40;
/// Placements of a policy in a row that do not fit, after which none is expected to.
const MISFITS_MAX: usize = 20;
/// What the table says may be a little high: its times are those beside transfers.
const TABLE_SHARE: f64 = 0.93;
/// Maps of a policy that are kept.
const OF_A_POLICY: usize = 3;

/// The best placements of each policy that fit, the fastest first.
///
/// # Errors
/// A plan that cannot be priced or compiled.
pub(super) fn evaluate(
    estimator: &Estimator<'_>,
    space: &Space<'_>,
    possible: Vec<Possible>,
) -> Result<Vec<Considered>, Unpriced> {
    let mut search = Search { estimator, space, prefills: HashMap::new() };
    let mut names: Vec<PolicyName> = Vec::new();
    let mut of_name: HashMap<PolicyName, Vec<Bounded>> = HashMap::new();
    for one in possible {
        let prefill_ns = search.prefill_ns(&one.placement)?;
        let bound = space.bound(&one.placement);
        let step_ns = bound.map_or(0.0, |bound| bound.least_step_ns());
        let least_ns = Estimate { prefill_ns, step_ns }.total_ns(estimator.request.max_new);
        if !names.contains(&one.name) {
            names.push(one.name);
        }
        of_name.entry(one.name).or_default().push(Bounded { least_ns, prefill_ns, one });
    }
    let mut considered: Vec<Considered> = Vec::new();
    for name in names {
        for one in search.best_of(of_name.remove(&name).unwrap_or_default())? {
            if !considered.iter().any(|other| is_same(&other.map, &one.map)) {
                considered.push(one);
            }
        }
    }
    sort(&mut considered, estimator.request.max_new);
    Ok(considered)
}

/// A placement that takes no less than `least_ns`.
struct Bounded {
    least_ns: f64,
    prefill_ns: f64,
    one: Possible,
}

/// Whether two maps differ in the name of their policy at most: LIA's vectors may leave all to the
/// CPU.
fn is_same(one: &DeviceMap, other: &DeviceMap) -> bool {
    *one == DeviceMap { policy: one.policy.clone(), ..other.clone() }
}

/// What prefill depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PrefillKey {
    policy: &'static str,
    chunking: Option<Chunking>,
    on_cpu: bool,
    kv: Option<MemoryId>,
    attention: ResidentAttention,
    head: bool,
    all_resident: bool,
}

struct Search<'a> {
    estimator: &'a Estimator<'a>,
    space: &'a Space<'a>,
    prefills: HashMap<PrefillKey, f64>,
}

impl Search<'_> {
    /// The best placements of one policy, the fastest first.
    fn best_of(&self, possible: Vec<Bounded>) -> Result<Vec<Considered>, Unpriced> {
        let max_new = self.estimator.request.max_new;
        let (mut best, mut seen): (Vec<Considered>, Vec<DeviceMap>) = (Vec::new(), Vec::new());
        let (mut estimates, mut misfits) = (0, 0);
        for (about_ns, prefill_ns, one) in self.in_order(possible) {
            let is_excluded =
                best.first().is_some_and(|best| TABLE_SHARE * about_ns > best.total_ns(max_new));
            if is_excluded || estimates >= ESTIMATES_MAX || misfits >= MISFITS_MAX {
                break;
            }
            let map = self.estimator.map(&one.placement);
            if seen.iter().any(|other| is_same(other, &map)) {
                continue;
            }
            seen.push(map.clone());
            estimates += 1;
            let step_ns = self.estimator.step_ns(&one.placement)?;
            let estimate = Estimate { prefill_ns, step_ns };
            let is_full = best.len() == OF_A_POLICY;
            if is_full && estimate.total_ns(max_new) >= best[OF_A_POLICY - 1].total_ns(max_new) {
                continue;
            }
            let Possible { name, placement, .. } = one;
            if !self.fits(&placement)? {
                misfits += 1;
                continue;
            }
            misfits = 0;
            best.push(Considered { name, placement, map, estimate, slowed: 1.0, rehearsed: false });
            sort(&mut best, max_new);
            best.truncate(OF_A_POLICY);
        }
        Ok(best)
    }

    /// Placements with what they take by the table, and with their prefill.
    fn in_order(&self, mut possible: Vec<Bounded>) -> Vec<(f64, f64, Possible)> {
        possible.sort_by(|a, b| a.least_ns.total_cmp(&b.least_ns));
        possible.truncate(ORDERED_MAX);
        let about = |Bounded { prefill_ns, one, .. }| {
            let bound = self.space.bound(&one.placement);
            let step_ns = bound.map_or(0.0, |bound| bound.about_step_ns());
            let total = Estimate { prefill_ns, step_ns };
            (total.total_ns(self.estimator.request.max_new), prefill_ns, one)
        };
        let mut ordered: Vec<_> = possible.into_iter().map(about).collect();
        ordered.sort_by(|a, b| a.0.total_cmp(&b.0));
        ordered
    }

    fn fits(&self, placement: &Placement) -> Result<bool, Unpriced> {
        let Estimator { request, batches, batch_size, .. } = *self.estimator;
        let fits = Request { placement, ..*request }.fits(batches, batch_size);
        fits.map_err(|error| Unpriced(error.to_string()))
    }

    /// Prefill with some layers resident lies between prefill with none and with all.
    fn prefill_ns(&mut self, placement: &Placement) -> Result<f64, Unpriced> {
        let layers = self.estimator.request.config.num_layers;
        let share = placement.residency.layers.len() as f64 / layers.max(1) as f64;
        let mut sum_ns = 0.0;
        for (all_resident, part) in [(false, 1.0 - share), (true, share)] {
            if part > 0.0 {
                sum_ns += part * self.uniform_prefill_ns(placement, all_resident)?;
            }
        }
        Ok(sum_ns)
    }

    fn uniform_prefill_ns(
        &mut self,
        placement: &Placement,
        all_resident: bool,
    ) -> Result<f64, Unpriced> {
        let Placement { policy, prefill_on_cpu, kv, residency } = placement;
        let key = PrefillKey {
            policy: match policy {
                Policy::OneSplit { .. } => "two-split",
                other => other.name(),
            },
            chunking: policy.chunking(),
            on_cpu: *prefill_on_cpu,
            kv: *kv,
            attention: residency.attention,
            head: residency.head,
            all_resident,
        };
        if let Some(known_ns) = self.prefills.get(&key) {
            return Ok(*known_ns);
        }
        let count = if all_resident { self.estimator.request.config.num_layers } else { 0 };
        let residency = Residency { layers: (0..count).collect(), ..residency.clone() };
        let placement = Placement { residency, ..placement.clone() };
        let prefill_ns = self.estimator.uniform_prefill_ns(&placement)?;
        self.prefills.insert(key, prefill_ns);
        Ok(prefill_ns)
    }
}
