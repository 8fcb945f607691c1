//! Reads of one file, many in flight, by whatever this machine allows: [`Io`] is what a reader
//! needs, io_uring and threads with `pread` are ways to have it, and faults can be put before
//! either.

mod faults;
mod faulty;
mod open;
mod request;
mod threads;
mod uring;

pub use faults::{Fault, FaultError, Faults};
pub use faulty::Faulty;
pub use open::IoKind;
pub(crate) use open::open;
pub use request::{Completion, Io, Registered, Request};
pub use threads::{Source, Threads};
pub use uring::Uring;
