//! A stand-in for NVIDIA's `libcuda.so.1`, for tests on machines without a GPU.
//!
//! Built as a shared library; a test puts it on `LD_LIBRARY_PATH` under the driver's name, and the
//! unchanged device code then runs against it. It reproduces the properties of a real driver that
//! programs get wrong:
//! - **Streams are asynchronous.** Calls only enqueue work. It runs at points that a seed chooses,
//!   in an order across streams that the seed chooses, unless a wait or a synchronisation orders
//!   it. Therefore a missing wait shows up, and reproducibly with an equal seed.
//! - Device memory is a memfd, initially filled with NaN. Another process can open it by its
//!   handle, and the exporting one cannot, as with CUDA IPC.
//! - Kernels run on the CPU, from the sources of the real ones, by name; the sizes of parameters
//!   come from the PTX or the cubin.
//! - **Queues are short.** A call that finds a channel full blocks with the driver's lock held, and
//!   so do loads of code that were deferred to a first launch; streams share channels.
//! - A thread without a context, a range outside an allocation, an impossible launch, PTX of a
//!   later version, too little memory: refused with the driver's codes. A failing kernel is sticky.
//!
//! It does not model speed. Settings are environment variables: see [`settings`].
//!
//! Invariant: one lock protects everything, so a call is an atomic step. Work never runs in the
//! background: the queues make progress only inside calls.

mod api;
mod code;
mod contexts;
mod cubin;
mod cufile_state;
mod execute;
mod memory;
mod objects;
mod ptx;
mod settings;
mod state;
mod streams;
mod turn_taking;
