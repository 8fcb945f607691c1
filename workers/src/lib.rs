//! The workers: processes that interpret a compiled plan, one thread per lane.
//!
//! The coordinator starts [`roles::worker_main`] in processes of its own. Each maps its segments
//! ([`setup`]), the cpu worker loads host weights ([`load`]), and from then on every lane
//! ([`lane`]) runs its list of instructions step after step against the step table
//! ([`protocol::table`]). Its [`lane_executor::LaneExecutor`] does the work: on the CPU
//! ([`execute`]), on a device ([`device`]), from a storage ([`storage`]), or by letting time pass
//! ([`timed`]). Workers contain no policy and no model code: what runs where is in the plan.
//!
//! A gpu worker computes with CPU kernels (the emulated device) or on a CUDA device ([`device`]).
//!
//! Invariants:
//! - From ready to drain a worker allocates nothing ([`alloc_counter`] checks it).
//! - Every wait is released by poison, and a failing lane poisons before its process ends.
//! - Only [`memory`] turns buffers into slices.

pub mod alloc_counter;
mod background;
mod calibrate;
pub mod checkpoint;
mod checkpoint_copies;
pub mod device;
mod draft_model;
pub mod error;
pub mod execute;
mod expert_list;
mod grammar_compiler;
mod grammar_orders;
mod heartbeat;
mod hidden_store;
pub mod lane;
pub mod lane_executor;
pub mod load;
pub mod memory;
mod messages;
mod page_copies;
mod page_transfers;
mod partial_keys;
mod prefix_transfers;
mod process;
mod read_watchdog;
mod rope_tables;
mod sample_dependency;
pub mod setup;
mod shared_drafter;
mod skew;
pub mod squared_inputs;
mod stall;
pub mod standby;
pub mod storage;
pub mod testing;
pub mod timed;
pub mod work_items;
mod worker_load;
pub mod worker_main;

const _: () = assert!(shm::control::LANES_MAX >= program::topology::LANES_MAX);
const _: () = assert!(shm::control::WORKERS_MAX >= program::topology::LANES_MAX);

#[cfg(test)]
mod tests;
