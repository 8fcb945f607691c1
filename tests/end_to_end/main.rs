//! End-to-end tests: every one runs the real binary, as a user would, on tiny models that
//! `scripts/fixtures.py` made.

mod bad_input;
mod bad_weights;
mod chunked;
mod command;
mod compress;
mod cuda;
mod cuda_faults;
mod cuda_profile;
mod death;
mod doctor;
mod families;
mod following;
mod forms;
mod golden;
mod gpu_stages;
mod hostile;
mod interrupted;
mod kernels;
mod lean;
mod logprobs;
mod messages;
mod nvme;
mod outputs;
mod placement;
mod plan;
mod profiled;
mod profiled_kinds;
mod report_page;
mod resume;
mod score;
mod serve;
mod sharing;
mod timed;
