//! Runs programs against costs: the planner's prediction, with the events of a real run.
//!
//! A discrete-event simulation. Each lane executes its list in order. An instruction is an amount
//! of work that advances at a rate which depends on the set of busy lanes, so it is re-timed
//! whenever that set changes. Signals take no time; a wait that blocks costs the wake-up latency.
//! As in a real run, a lane starts a step only once the sampling of the step before the previous
//! one is done, since only then is it known whether the step takes place.
//!
//! Used by the planner (predictions), by the coordinator (`predicted` in reports), and by tests. A
//! timeline is a list of [`Span`]s, like a measured trace, so [`LaneUsage`] and
//! [`crate::validate::replay()`] accept either.

mod costs;
mod machine;
mod place;
mod span;
mod usage;

pub use costs::{MeasuredCosts, MissingCost, SimulationCosts};
pub use machine::{SimulateError, SimulatedTimeline, simulate, simulate_ends};
pub use place::{ByPlace, Place};
pub use span::Span;
pub use usage::LaneUsage;

#[cfg(test)]
mod tests;
