//! What a server computes next: which rows of which sequences a step has, and in which pages of the
//! caches sequences are.
//!
//! Pure. [`next`] allocates nothing: the worker that samples calls it at the end of each step, the
//! coordinator before the first, and tests alike. [`Pages`] are the coordinator's alone.

mod costs;
pub mod hybrid;
mod pages;
mod step;

pub use costs::{Costs, POINTS};
pub use pages::{PART_MIN, Pages};
pub use step::{Piece, Sequence, Step, next};
