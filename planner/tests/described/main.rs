//! Placements on described machines: the choice and its predicted time.

mod batches;
mod brute_force;
mod cases;
mod cells;
mod hardware;
mod monotone;
mod nvme;
