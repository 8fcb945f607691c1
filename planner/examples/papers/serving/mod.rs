//! The papers about serving beside the simulator of serving.

pub mod cells;
pub mod markdown;
pub mod runs;
