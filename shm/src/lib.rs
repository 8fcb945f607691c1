//! Shared memory between the processes of one run: segments, and the words on which processes
//! synchronise.
//!
//! All other crates build on this one, and it depends on none of them. It isolates two dangers:
//! atomics with futexes ([`sync`], [`futex`]) and `mmap` ([`mapping`]); no other crate of the
//! control path needs either.
//!
//! Two memory rules hold throughout:
//! 1. Control words are accessed only as atomics. A peer that dies or misbehaves can corrupt their
//!    values, never soundness.
//! 2. Payload becomes a slice only for the side that owns it in this epoch. Ownership over time is
//!    determined by programs and their timelines, which the validator has checked.
//!
//! Nothing that is stored in shared memory contains an address, a descriptor, a `bool`, an enum or
//! a `usize`: ranges are offsets. Every wait has a timeout and is released by [`timeline::Poison`].
//!
//! Under `cfg(loom)` the atomics and the futex are loom's models and only the modules that wait are
//! built.

pub mod barrier;
pub mod futex;
#[cfg(any(test, not(loom)))]
mod ring;
pub mod sync;
pub mod timeline;

#[cfg(not(loom))]
pub mod channel;
#[cfg(not(loom))]
pub mod control;
#[cfg(not(loom))]
pub mod lane;
#[cfg(not(loom))]
pub mod mapping;
#[cfg(not(loom))]
pub mod nodes;
#[cfg(not(loom))]
mod packed;
#[cfg(not(loom))]
pub mod segment;
#[cfg(not(loom))]
pub mod trace;
#[cfg(not(loom))]
pub mod words;

#[cfg(all(test, loom))]
mod loom_tests;

pub use barrier::Barrier;
#[cfg(not(loom))]
pub use channel::{Channel, ChannelError};
#[cfg(not(loom))]
pub use control::{Control, ControlError, LANES_MAX, STAGES_MAX, WORKERS_MAX, WorkerState};
#[cfg(not(loom))]
pub use lane::StepOfGroup;
#[cfg(not(loom))]
pub use mapping::{Access, MapError, Mapping};
#[cfg(not(loom))]
pub use nodes::NodesError;
#[cfg(not(loom))]
pub use packed::{Position, ProgramStage};
#[cfg(not(loom))]
pub use segment::{Segment, SegmentError};
pub use timeline::{Poison, PoisonCause, Timeline, WaitError};
#[cfg(not(loom))]
pub use trace::{TraceError, TraceReader, TraceRecord, TraceSegment, TraceWriter, now_ns};
#[cfg(not(loom))]
pub use words::{SharedU32s, SharedU64s};
