//! Session of a command: everything between a validated request and an engine that runs.
//!
//! [`request`] has the requests and [`values`] their parts; no argument parser is involved. A
//! [`Session`](session::Session) is what set-up functions take. [`model`] opens the model,
//! [`hardware`] and [`profile`] describe the machine, [`formats`] and [`compression`] choose number
//! formats, [`placement`] and [`machine_plan`] choose where each operation runs, [`staging`] writes
//! weights to drives, and [`start`] and [`serving`] start the engine. The crates `batch` and
//! `server` then give it requests.
//!
//! It also has what all commands use of the process: signals ([`interrupt`]), exit codes ([`exit`])
//! and sanitised output ([`terminal`]).
//!
//! Depends on the crates below the command line, and on `report` for the text of its decisions.

#[macro_use]
pub mod terminal;

pub mod argument_error;
pub mod auto_batches;
pub mod byte_progress_bar;
mod checkpoints;
pub mod compression;
pub mod cuda_device;
pub mod descriptor_limit;
mod draft_model;
pub mod embedding_model;
pub mod exit;
pub mod expanded_weights;
pub mod fit_suggestions;
pub mod formats;
pub mod hardware;
pub mod hybrid_placement;
pub mod interrupt;
mod kv_select;
pub mod machine_plan;
pub mod measured_machine;
pub mod model;
mod numa_nodes;
pub mod output;
mod page_size;
pub mod placement;
pub mod plan_request;
mod planned_speculation;
pub mod prediction;
pub mod pricing;
pub mod profile;
pub mod progress_reporter;
mod prompt_cache;
pub mod rehearsal;
pub mod request;
pub mod routing_file;
pub mod run_history;
pub mod serving;
pub mod session;
pub mod staging;
pub mod start;
pub mod values;
pub mod weights_identity;
pub mod writable;
