//! Tests of workers as threads of this process: the same bits wherever, whenever and beside
//! whatever the work is done.

#[path = "../common/mod.rs"]
mod common;

mod chunked;
mod compressed;
mod failures;
mod hidden;
mod owners;
mod pages;
mod pieces;
mod placement;
mod pooling;
mod row_independence;
mod selected;
mod serving;
mod squared_inputs;
mod stages;
mod states;
mod stored_gguf;
mod timed;
