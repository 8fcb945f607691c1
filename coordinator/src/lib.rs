//! What a user sees of Tandem: arguments, the batch job, launch and supervision of the workers,
//! reports. `main.rs` is only the door.
//!
//! `cli` reads arguments, `commands` carry them out. What a run needs before it begins is decided
//! in `setup`; `job` answers requests of a file and `server` those of clients, `score` tells what a
//! model makes of texts, `openai` is their language, `engine` computes. Job or server and engine
//! meet at `boundary` alone. `load` measures a server from outside. Other processes are started by
//! `child`, and what a terminal shows passes `terminal`.

#[macro_use]
pub mod terminal;

pub mod boundary;
pub mod child;
pub mod cli;
pub mod commands;
pub mod engine;
pub mod exit;
pub mod interrupt;
pub mod job;
pub mod load;
pub mod openai;
pub mod report;
pub mod score;
pub mod server;
pub mod setup;
pub mod text;
