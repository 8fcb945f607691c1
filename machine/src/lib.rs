//! What this machine has: cores with their SMT siblings, caches, NUMA nodes, instruction sets.
//!
//! Used to place threads (which CPUs the workers' pools are pinned to) and to tell machines apart
//! when measurements are kept. It reads and reports; it changes nothing and decides nothing but the
//! order in which CPUs are given to threads.

mod features;
mod topology;

#[cfg(test)]
mod tests;

pub use features::features;
pub use topology::{Core, NumaNode, Package, Placement, SharedCache, Topology, TopologyError};
