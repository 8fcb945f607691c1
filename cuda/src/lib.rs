//! NVIDIA's driver, opened at run time: the fence around every foreign call of the CUDA device.
//!
//! Used by the gpu and transfer workers, and by the coordinator to ask whether there is a device.
//! Nothing of CUDA is needed to build, and a machine without a driver gets a sentence instead of a
//! panic: [`Driver::open`] asks for the library before the first call.
//!
//! Invariants:
//! - Calls go through [`Driver`]'s table, which holds every function or is not made: a driver that
//!   lacks one is refused at start and not in the middle of a run.
//! - Other libraries of NVIDIA's (cuBLASLt, NVML, cuFile) are opened here too, and are never
//!   needed.
//! - A result is a number until it has been compared. Drivers know codes that these bindings do
//!   not.
//! - What owns something on the device gives it back when dropped, and keeps its context alive.
//! - After start nothing here allocates, errors apart.

mod blas;
mod context;
mod cufile;
mod driver;
mod error;
mod library;
mod link;
mod memory;
mod module;
mod nvml;
mod stream;

pub use blas::{BLAS_WORKSPACE_BYTES, Blas, Product};
pub use context::{Context, DeviceInfo};
pub use cufile::{CuFile, CuFileError, DirectFile, DirectMemory};
pub use driver::{Driver, Version};
pub use error::CudaError;
pub use library::Library;
pub use link::{LinkAt, PcieLink};
pub use memory::{Address, Arena, IpcHandle, PinnedBuffer, RegisteredHost};
pub use module::{Kernel, Launch, Module};
pub use nvml::{Nvml, NvmlDevice};
pub use stream::{Event, Stream};
