//! Tests of staged weights: written, resumed, read back, damaged and moved.

#[path = "../common/mod.rs"]
mod common;

mod balance;
mod cache;
mod damage;
mod elsewhere;
mod faults;
mod resume;
mod round_trip;
