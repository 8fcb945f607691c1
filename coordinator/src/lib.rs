//! User-facing part of Tandem: the command line. `main.rs` contains only the entry point.
//!
//! `cli` parses arguments into requests, and `commands` executes them: each prepares a [`session`]
//! and gives its engine requests through the crates `batch` and `server`. Tools that only
//! researchers use are in [`lab`].

// Its `eprintln!` and `eprint!` shadow those of the standard library: no message bypasses it.
#[macro_use]
extern crate session;

pub mod cli;
pub mod commands;
