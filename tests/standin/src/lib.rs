//! A stand-in for NVIDIA's `libcuda.so.1`, for tests on machines without a GPU.
//!
//! Built as a shared library; a test puts it on `LD_LIBRARY_PATH` under the driver's name, and the
//! unchanged device code then runs against it. What it keeps of a real driver is what programs get
//! wrong:
//!
//! - **Streams are asynchronous.** Work only queues up. It runs at points that a seed chooses, in
//!   an order across streams that the seed chooses, unless a wait or a synchronisation orders it;
//!   so a missing wait shows, and shows again with the same seed.
//! - Device memory is a memfd, full of NaN at first. Another process can open it by its handle, and
//!   the exporting one cannot, as with CUDA IPC.
//! - Kernels run on the CPU, from the same sources, by name; the parameters' sizes come from the
//!   PTX or the cubin.
//! - **Queues are short.** A call that finds a channel full blocks with the driver's lock held, as
//!   do loads of code that were left to a first launch; streams share channels.
//! - A thread without a context, a range outside an allocation, an impossible launch, PTX of a
//!   later version, too little memory: refused with the driver's codes. A failing kernel is sticky.
//!
//! It says nothing about speed. Settings are environment variables: see [`settings`].
//!
//! Invariant: one lock holds everything, so a call is an atomic step. Nothing runs behind the
//! caller's back: the queues move only inside calls.

mod api;
mod code;
mod contexts;
mod cubin;
mod direct;
mod memory;
mod objects;
mod ptx;
mod running;
mod settings;
mod state;
mod streams;
mod turns;
