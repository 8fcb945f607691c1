//! What a server computes next: which rows of which sequences a step has.
//!
//! Pure and without allocation. The worker that samples calls it at the end of each step, the
//! coordinator before the first, and tests alike.

mod costs;
mod step;

pub use costs::{Costs, POINTS};
pub use step::{Piece, Sequence, Step, next};
