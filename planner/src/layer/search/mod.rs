//! The exhaustive search for two split points (Park-Egger §4.2): every half-open interval,
//! including the empty and the full one, with and without compression as requested, and every set
//! of weights of the interval that can be read from NVMe.
//!
//! Up to 2^16 candidates are all priced; beyond, the sets are found by branch and bound, with the
//! same optimum. The closed form ranks all candidates; a second cost model may then choose among
//! its best (one per interval and compression), which keeps the search fast.

mod output;
mod rank;
mod subsets;

pub use output::{SearchOutput, TermsMs};

use super::closed_form::{LatencyTerms, LayerCandidate, TableTimes};
use super::cost::{ClosedFormModel, CostModel, TimelineModel};
use super::table::{CostModelName, OperationTable, TableError};
use super::time::Ps;

use rank::Rank;
use subsets::SearchMethod;

/// Number of candidates up to which each is priced.
const EXHAUSTIVE_MAX: u64 = 1 << 16;
/// Number of the closed form's best candidates that the final cost model evaluates.
const FINALISTS: usize = 64;

/// A candidate and its cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankedCandidate {
    pub candidate: LayerCandidate,
    /// Terms of the closed form.
    pub terms: LatencyTerms,
    /// Latency by the cost model that chose.
    pub latency: Ps,
}

/// Result of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerSearchResult {
    /// Name of the cost model that chose.
    pub cost: &'static str,
    pub best: RankedCandidate,
    /// The next best map with another interval or compression, if there is one.
    pub runner_up: Option<RankedCandidate>,
    /// Size of the search space, each candidate either priced or excluded by a bound.
    pub candidates: u64,
    /// True if each candidate was priced.
    pub exhaustive: bool,
}

/// Searches with the cost model that the table names.
///
/// # Errors
/// A table that [`OperationTable::validate`] refuses.
pub fn search(table: &OperationTable) -> Result<LayerSearchResult, TableError> {
    table.validate()?;
    Ok(match table.cost {
        CostModelName::Paper => search_with(table, &ClosedFormModel, all_intervals(table)),
        CostModelName::Simulated => {
            search_with(table, &TimelineModel::new(table), all_intervals(table))
        }
    })
}

/// Returns every half-open interval of the list, the empty one once, as `[0, 0)`.
pub fn all_intervals(table: &OperationTable) -> Vec<(usize, usize)> {
    let count = table.ops.len();
    let filled = (0..count).flat_map(|start| (start + 1..=count).map(move |end| (start, end)));
    std::iter::once((0, 0)).chain(filled).collect()
}

/// Searches the given intervals with the given cost model; `intervals` is not empty, the table is
/// valid.
pub fn search_with(
    table: &OperationTable,
    model: &dyn CostModel,
    intervals: Vec<(usize, usize)>,
) -> LayerSearchResult {
    let costs = TableTimes::from_table(table);
    let candidates = count(table, &costs, &intervals);
    let walk = if candidates > EXHAUSTIVE_MAX {
        SearchMethod::BranchAndBound
    } else {
        SearchMethod::Exhaustive
    };
    let finalists = finalists(table, &costs, intervals, walk);
    let mut choices: Vec<(Ps, Rank, RankedCandidate)> = finalists
        .into_iter()
        .map(|(rank, candidate, terms)| {
            let latency = model.latency(&candidate, &terms);
            (latency, rank, RankedCandidate { candidate, terms, latency })
        })
        .collect();
    choices.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
    let mut choices = choices.into_iter().map(|(.., choice)| choice);
    let nothing = || {
        let candidate = LayerCandidate::plain(0, 0);
        let terms = costs.terms(&candidate);
        RankedCandidate { latency: model.latency(&candidate, &terms), candidate, terms }
    };
    LayerSearchResult {
        cost: model.name(),
        best: choices.next().unwrap_or_else(nothing),
        runner_up: choices.next(),
        candidates,
        exhaustive: walk == SearchMethod::Exhaustive,
    }
}

/// Returns the number of (interval, compression, set of NVMe weights) combinations.
fn count(table: &OperationTable, costs: &TableTimes, intervals: &[(usize, usize)]) -> u64 {
    let sets = |(start, end): (usize, usize)| {
        let choices = costs.ops[start..end].iter().filter(|op| op.can_come_from_nvme).count();
        let bits = if table.nvme { choices as u32 } else { 0 };
        1u64.checked_shl(bits).unwrap_or(u64::MAX)
    };
    let cases = table.compression.search_cases().len() as u64;
    let all = intervals.iter().fold(0u64, |sum, interval| sum.saturating_add(sets(*interval)));
    all.saturating_mul(cases)
}

/// Returns the best few of the best candidates of each interval and compression, best first.
fn finalists(
    table: &OperationTable,
    costs: &TableTimes,
    intervals: Vec<(usize, usize)>,
    walk: SearchMethod,
) -> Vec<(Rank, LayerCandidate, LatencyTerms)> {
    let cases = table.compression.search_cases();
    let mut rooms: Vec<(Ps, bool, (usize, usize))> = cases
        .iter()
        .flat_map(|case| intervals.iter().map(move |interval| (*case, *interval)))
        .map(|(case, (start, end))| (costs.cpu(start, end), case, (start, end)))
        .collect();
    // The most promising come first, so that the bound prunes early.
    rooms.sort_unstable();
    let mut kept: Vec<(Rank, LayerCandidate, LatencyTerms)> = Vec::with_capacity(FINALISTS + 1);
    for (_, compressed, interval) in rooms {
        let limit = if kept.len() == FINALISTS { kept.last().map(|last| &last.0) } else { None };
        let found = subsets::best(costs, interval, compressed, table.nvme, walk, limit);
        let Some(found) = found else { continue };
        let place = kept.partition_point(|other| other.0 < found.0);
        kept.insert(place, found);
        kept.truncate(FINALISTS);
    }
    kept
}

#[cfg(test)]
mod tests;
