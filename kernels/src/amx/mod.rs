//! AMX: detection of whether this process may use it, and the configuration of a thread's tiles.
//! Kernels that use its instructions are in the modules of their operations: `linear::amx`,
//! `linear::integers::tiles`.

mod state;
pub(crate) mod tiles;

pub(crate) use state::is_usable;
