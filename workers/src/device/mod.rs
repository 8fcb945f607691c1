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
mod buffer_addresses;
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
mod open;
mod products;
mod rates;
mod resident;
mod row_lists;
mod scratch;
mod stall_check;
mod transfer;
mod uploads;

pub use direct::DirectDevice;
pub use environment::ENVIRONMENT;
pub use lane::{DeviceLane, DeviceLaneSetup};
pub use limits::check;
pub use open::{ArenaHandle, Device};
pub use products::{has_blas, probed_rows};
pub use rates::{BusyDevice, KernelRate, PeakDeviceRates, RateSizes, SmallCopy};
pub use rates::{measure_kernels, measure_rates, measure_small_copies, memory_bytes};
pub use scratch::scratch;
