//! User-facing part of Tandem: command line, batch jobs, server, launch and supervision of the
//! workers, and reports. `main.rs` contains only the entry point.
//!
//! `cli` parses arguments and `commands` executes them. `setup` makes all decisions that precede a
//! run. `job` answers the requests of a file, `server` those of HTTP clients, and `score` computes
//! log-probabilities of texts; `openai` implements the request and response formats that they
//! share. `engine` runs the model; jobs and the server access it only through `engine_api`. `load`
//! measures a server from outside. `child` starts other processes, and `terminal` sanitises all
//! text that a terminal may show.

#[macro_use]
pub mod terminal;

pub mod child;
pub mod cli;
pub mod commands;
pub mod engine;
pub mod engine_api;
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
