//! Output of `coordinator plan --tables --json`.

use serde::Serialize;

use crate::layer::closed_form::LatencyTerms;
use crate::layer::table::OperationTable;
use crate::layer::time::Ps;

use super::LayerSearchResult;

/// The terms of the maximum in ms; 0 for those that the map does not use.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TermsMs {
    pub cpu: f64,
    pub h2d: f64,
    pub dc: f64,
    pub s2d: f64,
}

impl From<&LatencyTerms> for TermsMs {
    fn from(terms: &LatencyTerms) -> TermsMs {
        let or_zero = |term: Option<Ps>| term.unwrap_or_default().ms();
        TermsMs {
            cpu: terms.cpu.ms(),
            h2d: terms.h2d.ms(),
            dc: or_zero(terms.dc),
            s2d: or_zero(terms.s2d),
        }
    }
}

/// The chosen map, by names.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SearchOutput {
    /// `[i, j)`; the CPU alone is `[0, 0]`.
    pub gpu_interval: [usize; 2],
    pub gpu_ops: Vec<String>,
    pub compression: bool,
    /// Weights read from NVMe, in the order of the layer.
    pub nvme: Vec<String>,
    pub terms_ms: TermsMs,
    /// Latency by the cost model that the table names.
    pub latency_ms: f64,
    /// Largest minus smallest of the terms in use, by the closed form.
    pub imbalance_ms: f64,
    pub candidates: u64,
}

impl SearchOutput {
    /// Returns the output for a search of `table`.
    pub fn new(table: &OperationTable, found: &LayerSearchResult) -> SearchOutput {
        let best = &found.best;
        let (start, end) = best.candidate.interval;
        let name = |index: usize| table.ops[index].name.clone();
        SearchOutput {
            gpu_interval: [start, end],
            gpu_ops: (start..end).map(name).collect(),
            compression: best.candidate.compressed,
            nvme: best.candidate.nvme.iter().map(|index| name(*index)).collect(),
            terms_ms: TermsMs::from(&best.terms),
            latency_ms: best.latency.ms(),
            imbalance_ms: best.terms.imbalance().ms(),
            candidates: found.candidates,
        }
    }
}
