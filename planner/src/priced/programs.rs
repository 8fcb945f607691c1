//! The third cost model: a candidate is compiled and its programs are simulated with measured
//! costs.

use std::cell::RefCell;

use model::config::ModelConfig;
use program::map::{Chunking, layer_list};

use super::{Estimator, Unpriced};
use crate::layer::closed_form::{Candidate, Terms};
use crate::layer::cost::CostModel;
use crate::layer::time::Ps;
use crate::policy::Policy;
use crate::split::Split;

/// Prices the candidates of a table of [`super::table()`].
#[derive(Debug)]
pub struct Programs<'a> {
    pub estimator: Estimator<'a>,
    pub chunking: Option<Chunking>,
    /// The first candidate that could not be priced; it counts as endless.
    pub failed: RefCell<Option<Unpriced>>,
}

/// Longer than any layer.
const ENDLESS: Ps = Ps(u128::MAX / 2);

/// The policy that an interval is. The whole layer has no cut, so no chunks.
pub(super) fn policy_of(
    interval: (usize, usize),
    config: &ModelConfig,
    chunking: Option<Chunking>,
) -> Policy {
    let (start, end) = interval;
    let count = layer_list(config, chunking).len();
    if (start, end) == (0, count) {
        let end = layer_list(config, None).len();
        return Policy::TwoSplit { split: Split { start: 0, end }, chunking: None };
    }
    Policy::TwoSplit { split: Split { start, end }, chunking }
}

impl CostModel for Programs<'_> {
    fn name(&self) -> &'static str {
        "measured"
    }

    fn latency(&self, candidate: &Candidate, _: &Terms) -> Ps {
        let config = self.estimator.request.config;
        let policy = policy_of(candidate.interval, config, self.chunking);
        match self.estimator.estimate(&policy) {
            Ok(estimate) => Ps::from_ms(estimate.layer_ns / 1e6),
            Err(error) => {
                self.failed.borrow_mut().get_or_insert(error);
                ENDLESS
            }
        }
    }
}
