//! Tests of compiled plans, each accepted by the validator, and of what the validator refuses.

mod barrier;
mod checkpoints;
mod common;
mod content;
mod dropped;
mod entries;
mod expert_portions;
mod expert_reads;
mod indexed;
mod layer_heads;
mod owners;
mod replay;
mod shared_caches;
mod states;
mod storage;
