//! Properties of this machine: cores with their SMT siblings, caches, NUMA nodes, instruction sets.
//!
//! They are used to place threads (the CPUs to which the workers' pools are pinned) and to identify
//! machines when measurements are stored. The crate only reads and reports; its only decision is
//! the order in which CPUs are assigned to threads.

mod features;
mod topology;

#[cfg(test)]
mod tests;

pub use features::features;
pub use topology::{
    Core, CpuTopology, CpuTopologyError, NumaNode, Package, SharedCache, ThreadPlacement,
};
