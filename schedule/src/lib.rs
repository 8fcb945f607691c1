//! Decides what a server computes next: the rows of each sequence in a step, and the pages of the
//! caches that sequences use.
//!
//! Pure. [`next`] allocates nothing: the worker that samples calls it at the end of each step, the
//! coordinator before the first one, and tests. [`Pages`] is used by the coordinator only.

mod costs;
pub mod hybrid;
mod pages;
mod step;

pub use costs::{Costs, POINTS};
pub use pages::{PART_MIN, Pages};
pub use step::{Piece, Sequence, Step, next};
