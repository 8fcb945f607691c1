//! Decides what a server computes next: the rows of each sequence in a step, and the pages of the
//! caches that sequences use.
//!
//! Pure. [`next_step`] allocates nothing: the worker that samples calls it at the end of each step,
//! the coordinator before the first one, and tests. [`PagePool`] is used by the coordinator only.

mod acceptance;
mod costs;
mod drafts;
pub mod expert_cache;
pub mod hybrid;
mod page_pool;
mod sequence;
mod step;

pub use acceptance::DraftAcceptance;
pub use costs::{COST_POINTS, StepCostCurve};
pub use drafts::{DRAFTS_MAX, limit_drafts};
pub use page_pool::{COPIED_POSITIONS_MIN, CheckpointedPrefix, PagePool};
pub use sequence::{RowSpan, Sequence, StepLimits};
pub use step::next_step;
