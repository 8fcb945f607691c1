//! Asynchronous reads of one file with many requests in flight. [`Io`] is the interface that a
//! reader requires; it is implemented by io_uring, by threads that call `pread`, and by a wrapper
//! that injects faults into either.

mod faults;
mod faulty;
mod open;
mod request;
mod threads;
mod uring;

pub use faults::{FaultError, Faults, ReadFault};
pub use faulty::FaultyIo;
pub use open::IoKind;
pub(crate) use open::open;
pub use request::{BufferRegistration, Io, ReadCompletion, ReadRequest};
pub use threads::{ReadSource, ThreadPoolIo};
pub use uring::UringIo;
