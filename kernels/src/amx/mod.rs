//! AMX: whether this process may use it, and the configuration of a thread's tiles. The kernels
//! made of its instructions stand with what they compute: `linear::amx`, `linear::integers::tiles`.

mod state;
pub(crate) mod tiles;

pub(crate) use state::is_usable;
