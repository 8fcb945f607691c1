//! The best set of NVMe weights for one interval: all subsets, or branch and bound with the same
//! result.

use crate::layer::closed_form::{LatencyTerms, LayerCandidate, TableTimes};
use crate::layer::time::Ps;

use super::rank::Rank;

/// Traversal of the subsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SearchMethod {
    Exhaustive,
    BranchAndBound,
}

/// Bounds on what the operations from some index of the interval onwards can add.
#[derive(Debug, Clone, Copy, Default)]
struct RemainingBounds {
    /// Transfers that can still move to NVMe.
    movable: Ps,
    s2d: Ps,
    /// Decompressions that no choice avoids, and all of them.
    dc_fixed: Ps,
    dc_all: Ps,
    /// Largest transfer that can become the first compressed one.
    first_max: Ps,
}

/// A partial choice.
#[derive(Debug, Clone, Copy)]
struct PartialChoice {
    h2d: Ps,
    s2d: Ps,
    dc: Ps,
    first: Option<Ps>,
}

#[derive(Debug)]
struct SubsetSearch<'a> {
    costs: &'a TableTimes,
    walk: SearchMethod,
    start: usize,
    end: usize,
    compressed: bool,
    nvme: bool,
    cpu: Ps,
    rest: Vec<RemainingBounds>,
    nvme_weights: Vec<usize>,
    best: Option<(Rank, LayerCandidate, LatencyTerms)>,
    /// Bound that a useful result must beat.
    limit: Option<&'a Rank>,
}

/// Returns the best candidate of an interval; `None` if none is better than `limit`.
pub(super) fn best(
    costs: &TableTimes,
    interval: (usize, usize),
    compressed: bool,
    nvme: bool,
    walk: SearchMethod,
    limit: Option<&Rank>,
) -> Option<(Rank, LayerCandidate, LatencyTerms)> {
    let (start, end) = interval;
    let mut walker = SubsetSearch {
        costs,
        walk,
        start,
        end,
        compressed,
        nvme,
        cpu: costs.cpu(start, end),
        rest: vec![RemainingBounds::default(); end - start + 1],
        nvme_weights: Vec::new(),
        best: None,
        limit: limit.filter(|_| walk == SearchMethod::BranchAndBound),
    };
    walker.sum_up();
    let h2d = costs.h2d(start, end, compressed);
    walker.visit(start, PartialChoice { h2d, s2d: Ps::ZERO, dc: Ps::ZERO, first: None });
    walker.best
}

impl SubsetSearch<'_> {
    fn is_choice(&self, index: usize) -> bool {
        self.nvme && self.costs.ops[index].can_come_from_nvme
    }

    fn sum_up(&mut self) {
        for index in (self.start..self.end).rev() {
            let op = &self.costs.ops[index];
            let mut rest = self.rest[index - self.start + 1];
            let dc = self.costs.decompressions(index, self.compressed);
            rest.dc_all += dc;
            if self.is_choice(index) {
                rest.movable += op.transfer(self.compressed);
                rest.s2d += op.s2d;
            } else {
                rest.dc_fixed += dc;
            }
            if dc > Ps::ZERO {
                rest.first_max = rest.first_max.max(op.transfer(self.compressed));
            }
            self.rest[index - self.start] = rest;
        }
    }

    fn visit(&mut self, index: usize, node: PartialChoice) {
        if self.walk == SearchMethod::BranchAndBound && self.is_hopeless(index, &node) {
            return;
        }
        if index == self.end {
            self.finish(&node);
            return;
        }
        let op = self.costs.ops[index];
        let transfer = op.transfer(self.compressed);
        // Earlier weights first: among sets of a size the first one found is the first in order.
        if self.is_choice(index) && !self.twin_stays(index) {
            let h2d = node.h2d.saturating_sub(transfer);
            self.nvme_weights.push(index);
            self.visit(index + 1, PartialChoice { h2d, s2d: node.s2d + op.s2d, ..node });
            self.nvme_weights.pop();
        }
        let dc = self.costs.decompressions(index, self.compressed);
        let first = if dc > Ps::ZERO { node.first.or(Some(transfer)) } else { node.first };
        self.visit(index + 1, PartialChoice { dc: node.dc + dc, first, ..node });
    }

    /// Returns true if an equal predecessor (a chunk of the same weight) stays. Of equal neighbours
    /// the earlier ones are chosen first: any other choice is a renaming that loses the tie.
    fn twin_stays(&self, index: usize) -> bool {
        let same = |a: usize, b: usize| {
            let (a, b) = (&self.costs.ops[a], &self.costs.ops[b]);
            let times = |index: &crate::layer::closed_form::OpTimes| {
                (index.transfer(self.compressed), index.decompression(self.compressed), index.s2d)
            };
            a.can_come_from_nvme && b.can_come_from_nvme && times(a) == times(b)
        };
        self.walk == SearchMethod::BranchAndBound
            && index > self.start
            && same(index - 1, index)
            && self.nvme_weights.last() != Some(&(index - 1))
    }

    /// Returns true if no completion of a partial choice can beat the best so far, or the limit.
    fn is_hopeless(&self, index: usize, node: &PartialChoice) -> bool {
        let rest = self.rest[index - self.start];
        let mut largest = self.cpu.max(node.h2d.saturating_sub(rest.movable)).max(node.s2d);
        let mut smallest = self.cpu.min(node.h2d);
        if self.compressed {
            largest = largest.max(node.dc + rest.dc_fixed + node.first.unwrap_or_default());
            let first = node.first.unwrap_or(rest.first_max);
            smallest = smallest.min(node.dc + rest.dc_all + first);
        }
        if !self.nvme_weights.is_empty() {
            smallest = smallest.min(node.s2d + rest.s2d);
        }
        let (gpu_ops, interval) = (self.end - self.start, (self.start, self.end));
        let imbalance = largest.saturating_sub(smallest);
        let bound = (largest, imbalance, gpu_ops, self.nvme_weights.len(), interval);
        let bar = |rank: &Rank| {
            (rank.latency, rank.imbalance, rank.gpu_ops, rank.nvme_weights, rank.interval)
        };
        // Equal to the best of this walk means a later set of the same size, which loses the tie.
        self.best.as_ref().is_some_and(|(rank, ..)| bound >= bar(rank))
            || self.limit.is_some_and(|limit| bound > bar(limit))
    }

    fn finish(&mut self, node: &PartialChoice) {
        let dc = node.dc + node.first.unwrap_or_default();
        let terms = LatencyTerms {
            cpu: self.cpu,
            h2d: node.h2d,
            dc: self.compressed.then_some(dc),
            s2d: (!self.nvme_weights.is_empty()).then_some(node.s2d),
        };
        let candidate = LayerCandidate {
            interval: (self.start, self.end),
            compressed: self.compressed,
            nvme: self.nvme_weights.clone(),
        };
        let rank = Rank::new(&candidate, &terms);
        if self.best.as_ref().is_none_or(|(best, ..)| rank < *best) {
            self.best = Some((rank, candidate, terms));
        }
    }
}
