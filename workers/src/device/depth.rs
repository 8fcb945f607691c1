//! Bounds on the work enqueued on a stream.
//!
//! The driver's queue is short, about a thousand entries, and a call that finds it full blocks
//! while holding a lock that calls of all other threads need. If the first entry waits for a word
//! that another thread of this process advances only after polling an event, the process deadlocks.
//! A lane therefore stays well below that limit: it waits here, for its own stream and without a
//! lock, while all other lanes continue.

use std::time::Duration;

use cuda::{Context, CudaError, Event, Stream};
use shm::Control;

/// Maximum number of instructions of a lane in flight. It covers several layers, more than a
/// millisecond of work, so that the device never waits for the lane.
pub(super) const INSTRUCTIONS_MAX: usize = 64;
/// Number of entries in flight (launches, copies, fills, waits, marks) from which no new
/// instruction begins.
pub(super) const ENTRIES_MAX: u64 = 384;
/// Entries of an instruction between two of its marks. Up to twice as many may be in flight.
const PIECE_ENTRIES: u64 = 64;
/// Interval between checks of a mark.
const PAUSE: Duration = Duration::from_micros(20);

/// Marks of one lane within instructions of many entries.
#[derive(Debug)]
pub(super) struct Marks {
    marks: [Event; 2],
    control: Control,
}

impl Marks {
    /// Creates the marks of a lane of the run that `control` belongs to.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(super) fn new(context: &Context, control: Control) -> Result<Marks, CudaError> {
        Ok(Marks { marks: [Event::new(context)?, Event::new(context)?], control })
    }

    /// Returns the pace of an instruction that begins on `stream`.
    pub(super) fn pace<'a>(&'a self, stream: &'a Stream) -> Pace<'a> {
        Pace { marks: self, stream, piece_begin: stream.enqueued(), pieces: 0 }
    }

    /// Waits until the device has passed a mark or the run has failed. After a failure the waits of
    /// streams end by themselves, and the next instruction reports the failure.
    fn wait(&self, mark: &Event) -> Result<(), CudaError> {
        while !mark.is_done()? {
            if self.control.poison().cause().is_some() {
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}

/// Bounds the entries of one instruction, regardless of the number of spans that it copies.
#[derive(Debug)]
pub(super) struct Pace<'a> {
    marks: &'a Marks,
    stream: &'a Stream,
    /// Number of stream entries at the start of the current piece.
    piece_begin: u64,
    /// Number of complete pieces.
    pieces: usize,
}

impl Pace<'_> {
    /// Waits while two pieces are in flight. Called between two entries.
    ///
    /// # Errors
    /// Returns the driver's error, or an earlier failure on the device.
    pub(super) fn step(&mut self) -> Result<(), CudaError> {
        if self.stream.enqueued() - self.piece_begin < PIECE_ENTRIES {
            return Ok(());
        }
        let (this, other) = (self.pieces % 2, (self.pieces + 1) % 2);
        self.marks.marks[this].record(self.stream)?;
        if self.pieces > 0 {
            self.marks.wait(&self.marks.marks[other])?;
        }
        self.pieces += 1;
        self.piece_begin = self.stream.enqueued();
        Ok(())
    }
}
