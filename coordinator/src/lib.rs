//! User-facing part of Tandem: command line and set-up. `main.rs` contains only the entry
//! point.
//!
//! `cli` parses arguments and `commands` executes them. `setup` makes all decisions that precede a
//! run: it opens the model, chooses a placement and starts an engine, which the crates `batch` and
//! `server` then give requests. `load` measures a server from outside. `terminal` sanitises all
//! text that a terminal may show.

#[macro_use]
pub mod terminal;

pub mod cli;
pub mod commands;
pub mod exit;
pub mod interrupt;
pub mod load;
pub mod setup;
