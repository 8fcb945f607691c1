//! How much enqueued work a stream may hold.
//!
//! The driver's queue is short, about a thousand entries, and a call that finds it full blocks with
//! a lock that calls of all other threads need. Where the first entry is a wait for a word, and the
//! word is one that another thread of this process advances once it has asked an event, nothing
//! ever moves again. So a lane stays well below: it waits here, for its own stream, with no lock
//! held, and every other lane goes on.

use std::time::Duration;

use cuda::{Context, CudaError, Event, Stream};
use shm::Control;

/// Instructions of a lane in flight. Some layers' worth, which is more than a millisecond: enough
/// that the device never waits for the lane.
pub(super) const INSTRUCTIONS_MAX: usize = 64;
/// Entries in flight (launches, copies, fillings, waits, marks) at which no instruction begins.
pub(super) const ENTRIES_MAX: u64 = 384;
/// Entries of an instruction between two of its marks: so many may be in flight twice.
const PIECE_ENTRIES: u64 = 64;
/// Between two questions whether a mark was passed.
const PAUSE: Duration = Duration::from_micros(20);

/// Marks within instructions of many entries, of one lane.
#[derive(Debug)]
pub(super) struct Marks {
    marks: [Event; 2],
    control: Control,
}

impl Marks {
    /// Marks for a lane of the run that `control` is of.
    ///
    /// # Errors
    /// The driver's refusal.
    pub(super) fn new(context: &Context, control: Control) -> Result<Marks, CudaError> {
        Ok(Marks { marks: [Event::new(context)?, Event::new(context)?], control })
    }

    /// The pace of an instruction that begins on `stream`.
    pub(super) fn pace<'a>(&'a self, stream: &'a Stream) -> Pace<'a> {
        Pace { marks: self, stream, piece_begin: stream.entries(), pieces: 0 }
    }

    /// Waits until the device has passed a mark, or until the run has failed: then waits of streams
    /// end by themselves, and whoever begins the next instruction is told.
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

/// Bounds the entries of one instruction, however many spans it copies.
#[derive(Debug)]
pub(super) struct Pace<'a> {
    marks: &'a Marks,
    stream: &'a Stream,
    /// Entries of the stream when the present piece began.
    piece_begin: u64,
    /// Complete pieces.
    pieces: usize,
}

impl Pace<'_> {
    /// Called between two entries: waits while two pieces are in flight.
    ///
    /// # Errors
    /// The driver's refusal, or an earlier failure on the device.
    pub(super) fn step(&mut self) -> Result<(), CudaError> {
        if self.stream.entries() - self.piece_begin < PIECE_ENTRIES {
            return Ok(());
        }
        let (this, other) = (self.pieces % 2, (self.pieces + 1) % 2);
        self.marks.marks[this].record(self.stream)?;
        if self.pieces > 0 {
            self.marks.wait(&self.marks.marks[other])?;
        }
        self.pieces += 1;
        self.piece_begin = self.stream.entries();
        Ok(())
    }
}
