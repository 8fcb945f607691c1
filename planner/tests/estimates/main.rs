//! Tests of estimates and searches against published figures, compiled programs and brute force.

mod brute;
mod device_gaps;
mod footprint;
mod lia_thresholds;
mod paper;
mod paper_tables;
mod search_against_brute_force;
mod steady_against_programs;
