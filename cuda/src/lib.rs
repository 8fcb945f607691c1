//! NVIDIA's driver, opened at run time. Isolates every foreign call of the CUDA device.
//!
//! Used by the gpu and transfer workers, and by the coordinator to find out whether there is a
//! device. Nothing of CUDA is needed to build, and a machine without a driver gets an error message
//! instead of a panic: [`Driver::open`] checks for the library before the first call.
//!
//! Invariants:
//! - Calls go through [`Driver`]'s table, which is created only if it contains every function: a
//!   driver that lacks one is refused at start and not in the middle of a run.
//! - Other libraries of NVIDIA's (cuBLASLt, NVML, cuFile) are opened here too, and are never
//!   required.
//! - A result is a number until it has been compared. Drivers have codes that these bindings do not
//!   know.
//! - Owners of resources on the device release them when dropped, and keep their context alive.
//! - After start nothing here allocates, except for errors.

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

pub use blas::{BLAS_WORKSPACE_BYTES, Blas, MatmulPlan};
pub use context::{Context, DeviceInfo};
pub use cufile::{CuFile, CuFileError, DirectFile, DirectMemory};
pub use driver::{Driver, DriverVersion};
pub use error::CudaError;
pub use library::NvidiaLibrary;
pub use link::{LinkState, PcieLink};
pub use memory::{Arena, DeviceAddress, IpcHandle, PinnedBuffer, RegisteredHost};
pub use module::{Kernel, Launch, Module};
pub use nvml::{Nvml, NvmlDevice};
pub use stream::{Event, Stream};
