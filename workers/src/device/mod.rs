//! Lanes on a CUDA device.
//!
//! The gpu worker owns one arena ([`Device::create`]), and the transfer worker opens it in a
//! process and context of its own ([`Device::open`]). Their lanes ([`DeviceLane`]) interpret the
//! same programs as the emulated device's, with one difference: executing an instruction means
//! enqueuing it on the lane's stream. A thread per lane ([`completion`]) turns the device's
//! progress into trace records and signals, so a signal still means that all earlier work is
//! complete.
//!
//! Linears of prefill use cuBLASLt if it is installed ([`products`]).
//!
//! Storage workers open the arena too if they read directly to it ([`DirectDevice`]).
//!
//! Streams wait for other lanes' timelines by themselves if the driver supports it. Only
//! instructions that need the current state of the step table wait on the host, since sizes are
//! read when work is enqueued.

mod attention;
mod code;
mod completion;
mod compute;
mod depth;
mod direct;
mod environment;
mod expert_sizes;
mod experts;
mod lane;
mod limits;
mod moving;
mod open;
mod places;
mod products;
mod rates;
mod row_lists;
mod scratch;
mod uploads;
mod verdict;

pub use direct::DirectDevice;
pub use environment::ENVIRONMENT;
pub use lane::{DeviceLane, DeviceLaneSetup};
pub use limits::check;
pub use open::{Device, Exported};
pub use products::{finds_blas, tried_rows};
pub use rates::{BusyDevice, KernelRate, RateSizes, Rates, SmallCopy};
pub use rates::{kernel_rates, memory_bytes, rates, small_copies};
pub use scratch::scratch;
