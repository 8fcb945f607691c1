//! Placements on described machines: what is chosen, and what it is predicted to take.

mod batches;
mod brute_force;
mod cases;
mod cells;
mod hardware;
mod monotone;
mod nvme;
