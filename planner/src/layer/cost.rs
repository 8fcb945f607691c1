//! The two cost models behind one trait.

use super::closed_form::{Candidate, Terms};
use super::steady::{Shape, steady_layer};
use super::table::Table;
use super::time::Ps;

/// Cost model that prices a candidate of one table.
pub trait CostModel {
    /// Returns the name in reports and in `"cost"`.
    fn name(&self) -> &'static str;

    /// Returns the duration of one layer in a long row of such layers, for all batches; `terms` are
    /// the candidate's.
    fn latency(&self, candidate: &Candidate, terms: &Terms) -> Ps;
}

/// The closed form: the maximum of the terms.
#[derive(Debug, Clone, Copy)]
pub struct Paper;

impl CostModel for Paper {
    fn name(&self) -> &'static str {
        "paper"
    }

    fn latency(&self, _: &Candidate, terms: &Terms) -> Ps {
        terms.latency()
    }
}

/// The steady layer as a timeline, in which ordered work stays in order.
#[derive(Debug, Clone)]
pub struct Simulated<'a> {
    table: &'a Table,
    shape: Shape,
}

impl<'a> Simulated<'a> {
    /// Returns the model with the runtime's slots.
    pub fn of(table: &'a Table) -> Simulated<'a> {
        Simulated { table, shape: Shape::default() }
    }
}

impl CostModel for Simulated<'_> {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn latency(&self, candidate: &Candidate, _: &Terms) -> Ps {
        steady_layer(self.table, candidate, &self.shape).latency
    }
}
