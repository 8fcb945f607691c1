//! Compiles a device map into programs that workers only interpret.
//!
//! [`topology::Topology`] describes the memories, workers and lanes of the machine;
//! [`map::DeviceMap`] assigns operations to devices and weights and KV caches to memories.
//! [`compile::compile`] turns it into a [`plan::Plan`]: buffers, and one list of instructions
//! ([`ir::Instruction`]) per lane, for prefill and for decode. [`validate`] proves a plan free of
//! deadlocks and buffer hazards before any worker starts; [`simulate`] runs the same lists against
//! costs. Everything here is pure: no I/O, no clock, no threads.

pub mod checkpoints;
mod chunk;
pub mod compile;
pub mod cuda_gaps;
pub mod deferred_rows;
mod expert_cache;
pub mod expert_portions;
pub mod expert_reads;
pub mod expert_records;
pub mod formats;
pub mod ir;
pub mod kv_owner;
pub mod map;
pub mod page_runs;
pub mod pieces;
pub mod pinned;
pub mod plan;
pub mod pooling;
pub mod products;
pub mod resident_weights;
pub mod routing_counts;
pub mod routing_log;
pub mod select;
pub mod shares;
pub mod simulate;
pub mod sizes;
pub mod step_table;
pub mod topology;
pub mod validate;
pub mod weights;
