//! Contention between lanes: rates concurrently with sets of lanes, as measured.

use std::collections::HashMap;

use program::topology::{LaneId, LaneSet};

use crate::key::WorkKey;
use crate::profile::Profile;

/// Rates concurrently with sets of lanes.
pub(crate) type ContentionRates = Vec<(LaneSet, f64)>;

/// Computes the rates of each lane, and of each kind of work, concurrently with every measured set
/// of lanes. Means are used: if more lanes are busy than there are cores, a span has a core to
/// itself or shares one, and the median would be one or the other.
pub(crate) fn measure_contention(
    profile: &Profile,
) -> (HashMap<LaneId, ContentionRates>, HashMap<WorkKey, ContentionRates>) {
    let work = &profile.measurements.work;
    let alone: HashMap<_, f64> = work
        .iter()
        .filter(|measured| measured.concurrent.is_empty())
        .map(|measured| ((measured.key, measured.point), measured.time.mean_ns))
        .collect();
    let mut sums: HashMap<(LaneId, LaneSet), (f64, f64)> = HashMap::new();
    let mut by_key: HashMap<WorkKey, HashMap<LaneSet, (f64, f64)>> = HashMap::new();
    for measured in work.iter().filter(|measured| !measured.concurrent.is_empty()) {
        let Some(alone_ns) = alone.get(&(measured.key, measured.point)) else { continue };
        let set: LaneSet = measured.concurrent.iter().copied().collect();
        let of_lane = sums.entry((measured.key.lane, set)).or_default();
        let of_key = by_key.entry(measured.key).or_default().entry(set).or_default();
        for sum in [of_lane, of_key] {
            sum.0 += alone_ns;
            sum.1 += measured.time.mean_ns;
        }
    }
    let rate = |(alone_ns, contended_ns): (f64, f64)| {
        if alone_ns > 0.0 && contended_ns > 0.0 { alone_ns / contended_ns } else { 1.0 }
    };
    let mut rates: HashMap<LaneId, ContentionRates> = HashMap::new();
    for ((lane, set), sum) in sums {
        rates.entry(lane).or_default().push((set, rate(sum)));
    }
    let by_key = by_key
        .into_iter()
        .map(|(key, sets)| (key, sets.into_iter().map(|(set, sum)| (set, rate(sum))).collect()))
        .collect();
    (rates, by_key)
}

/// Returns the rate of a lane concurrently with `others`, which slow it down: measured, or the
/// lowest rate of the measured subsets.
pub(crate) fn find_rate(rates: &ContentionRates, others: LaneSet) -> Option<f64> {
    if others == LaneSet::EMPTY {
        return Some(1.0);
    }
    let exact = rates.iter().find(|(measured, _)| *measured == others);
    let within = |measured: LaneSet| measured.within(others) == measured;
    let parts = rates.iter().filter(|(measured, _)| within(*measured)).map(|(_, rate)| *rate);
    exact.map(|(_, rate)| *rate).or_else(|| parts.reduce(f64::min))
}
