//! Comparison of the papers about serving with the simulator of serving.

pub mod cells;
pub mod markdown;
pub mod runs;
