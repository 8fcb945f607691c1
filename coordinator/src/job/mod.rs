//! The batch job: requests in, answers out, restartable.
//!
//! [`prepare`] reads and checks everything before an engine exists, so that invalid input costs no
//! model load; [`run`](run::Job::run) passes all sequences to an
//! [`Engine`](crate::boundary::engine::Engine), those with the longest answers first, and writes
//! answers as they are finished.
//!
//! Invariants: a job that ends leaves the output in input order; an answer depends on its request
//! alone, never on the group it ran in; lines that were written survive any later failure.

mod answers;
pub mod demand;
pub mod error;
mod follow;
pub mod input;
mod kinds;
pub mod on_serving;
pub mod prepare;
pub mod progress;
pub mod read;
pub mod reading;
mod regular;
pub mod remaining;
pub mod resume;
pub mod run;
pub mod sink;
pub mod source;
pub mod summary;
pub mod unfinished;

#[cfg(test)]
pub(crate) mod tests;
