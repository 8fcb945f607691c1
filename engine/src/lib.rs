//! The engines, which run models in worker processes.
//!
//! - [`RunEngine`] runs a batch: groups of sequences that begin together, on any number of batches
//!   that take turns on the device and the CPU. It implements
//!   [`BatchEngine`](engine_api::batch::BatchEngine).
//! - [`serving::ServingEngine`] takes requests at any time and starts each as soon as a slot is
//!   free. It implements [`Engine`](engine_api::serving::Engine).
//!
//! Both start workers according to a validated [`Plan`](program::plan::Plan) and
//! [`launch::LaunchOptions`], report the [`EngineEvent`](engine_api::event::EngineEvent)s of
//! requests, and return the [`RunStats`] of what ran. [`replay`] and [`mod@bench`] run groups
//! without requests, for measurements.

pub mod bench;
pub mod descriptors;
mod device_use;
mod groups;
pub mod launch;
mod launched_workers;
pub mod memory;
mod recorder;
pub mod replay;
pub mod routing_stats;
pub mod serving;
pub mod sparse_attention_stats;
mod stats;
mod supervisor;
mod takeover;
pub mod trace_file;
pub mod trace_stats;
mod worker_roles;
mod worker_startup;

pub use groups::{InterruptFn, RunEngine};
pub use memory::PeakMemory;
pub use stats::RunStats;
pub use supervisor::WorkerFailure;
pub use takeover::LostStorage;
