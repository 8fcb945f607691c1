//! The two cost models behind one trait.

use super::closed_form::{LatencyTerms, LayerCandidate};
use super::steady::{SlotLimits, steady_layer};
use super::table::OperationTable;
use super::time::Ps;

/// Cost model that prices a candidate of one table.
pub trait CostModel {
    /// Returns the name in reports and in `"cost"`.
    fn name(&self) -> &'static str;

    /// Returns the duration of one layer in a long row of such layers, for all batches; `terms` are
    /// the candidate's.
    fn latency(&self, candidate: &LayerCandidate, terms: &LatencyTerms) -> Ps;
}

/// The closed form: the maximum of the terms.
#[derive(Debug, Clone, Copy)]
pub struct ClosedFormModel;

impl CostModel for ClosedFormModel {
    fn name(&self) -> &'static str {
        "paper"
    }

    fn latency(&self, _: &LayerCandidate, terms: &LatencyTerms) -> Ps {
        terms.latency()
    }
}

/// The steady layer as a timeline, in which ordered work stays in order.
#[derive(Debug, Clone)]
pub struct TimelineModel<'a> {
    table: &'a OperationTable,
    shape: SlotLimits,
}

impl<'a> TimelineModel<'a> {
    /// Returns the model with the runtime's slots.
    pub fn new(table: &'a OperationTable) -> TimelineModel<'a> {
        TimelineModel { table, shape: SlotLimits::default() }
    }
}

impl CostModel for TimelineModel<'_> {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn latency(&self, candidate: &LayerCandidate, _: &LatencyTerms) -> Ps {
        steady_layer(self.table, candidate, &self.shape).latency
    }
}
