//! Trace rings: what each lane did and when, for reports, `--trace` and the cost model.
//!
//! A lane's interpreter pushes one record per instruction into its own ring and never waits; the
//! coordinator drains all rings from time to time. The rings are in a segment of their own. Times
//! are `CLOCK_MONOTONIC`, which is the same clock in every process of the machine.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};

use crate::mapping::Access;
use crate::ring::{Consumer, Producer, Ring, RingHeader, Slot};
use crate::segment::{Segment, SegmentError};

/// One executed instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
#[repr(C)]
pub struct TraceRecord {
    /// Start time, see [`now_ns`].
    pub start_ns: u64,
    /// End time.
    pub end_ns: u64,
    /// Bytes moved (copies, reads) or streamed.
    pub bytes: u64,
    /// Number of rows processed.
    pub rows: u32,
    /// Index of the instruction in the lane's program.
    pub instruction: u32,
    /// Decode step, or pass within prefill.
    pub step: u32,
    /// Index of the program in the plan.
    pub program: u32,
}

const _: () = {
    assert!(size_of::<TraceRecord>() == 40 && align_of::<TraceRecord>() == 8);
    assert!(std::mem::offset_of!(TraceRecord, bytes) == 16);
    assert!(std::mem::offset_of!(TraceRecord, rows) == 24);
    assert!(std::mem::offset_of!(TraceRecord, program) == 36);
    assert!(size_of::<Slot<TraceRecord>>() == size_of::<TraceRecord>());
};

/// Returns nanoseconds of `CLOCK_MONOTONIC`: comparable between processes, meaningless between
/// machines.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Error of creating or opening trace rings.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("The trace segment is not usable: {0}")]
    Segment(#[from] SegmentError),
    /// The ring number is out of range.
    #[error("There are {rings} trace rings; ring {ring} does not exist.")]
    NoSuchRing {
        /// Requested ring.
        ring: usize,
        /// Number of rings.
        rings: usize,
    },
    /// The ring already has the one writer or reader that it can have.
    #[error("Trace ring {ring} already has its {side}.")]
    Taken {
        ring: usize,
        /// `writer` or `reader`.
        side: &'static str,
    },
}

/// A segment of equal trace rings, one per lane.
#[derive(Debug, Clone)]
pub struct TraceSegment {
    segment: Arc<Segment>,
    rings: usize,
    capacity: usize,
}

impl TraceSegment {
    /// Creates `rings` rings of `capacity` records each.
    ///
    /// # Panics
    /// Panics if either is 0.
    pub fn create(rings: usize, capacity: usize) -> Result<TraceSegment, TraceError> {
        assert!(rings > 0 && capacity > 0, "a trace needs at least one ring of one record");
        let segment = Segment::create("tandem-trace", Self::size_bytes(rings, capacity))?;
        Ok(TraceSegment { segment: Arc::new(segment), rings, capacity })
    }

    /// Attaches rings that another process created with the same numbers.
    pub fn attach(fd: OwnedFd, rings: usize, capacity: usize) -> Result<TraceSegment, TraceError> {
        let size_bytes = Self::size_bytes(rings, capacity);
        let segment = Segment::attach(fd, size_bytes, Access::ReadWrite)?;
        Ok(TraceSegment { segment: Arc::new(segment), rings, capacity })
    }

    /// Returns the size of a segment of `rings` rings of `capacity` records, for the memory budget.
    pub fn size_bytes(rings: usize, capacity: usize) -> usize {
        rings * Self::stride_bytes(capacity)
    }

    fn stride_bytes(capacity: usize) -> usize {
        (size_of::<RingHeader>() + capacity * size_of::<TraceRecord>())
            .next_multiple_of(align_of::<RingHeader>())
    }

    /// Returns the segment, for its descriptor.
    pub fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Returns the number of rings.
    pub fn rings(&self) -> usize {
        self.rings
    }

    /// Returns the number of records per ring.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Takes the writing side of a ring; once per ring over all processes.
    pub fn writer(&self, ring: usize) -> Result<TraceWriter, TraceError> {
        let producer = self.ring(ring)?.producer();
        producer.map(TraceWriter).ok_or(TraceError::Taken { ring, side: "writer" })
    }

    /// Takes the writing side of a ring whose writer is gone, and continues after its last record.
    ///
    /// # Errors
    /// Fails if there is no such ring.
    ///
    /// # Safety
    /// The process that had the writing side has ended.
    pub unsafe fn inherit(&self, ring: usize) -> Result<TraceWriter, TraceError> {
        let ring = self.ring(ring)?;
        // SAFETY: the contract of this function.
        Ok(TraceWriter(unsafe { ring.inherited_producer() }))
    }

    /// Takes the reading side of a ring; once per ring over all processes.
    pub fn reader(&self, ring: usize) -> Result<TraceReader, TraceError> {
        let consumer = self.ring(ring)?.consumer();
        consumer.map(TraceReader).ok_or(TraceError::Taken { ring, side: "reader" })
    }

    fn ring(&self, ring: usize) -> Result<Ring<TraceRecord>, TraceError> {
        if ring >= self.rings {
            return Err(TraceError::NoSuchRing { ring, rings: self.rings });
        }
        let offset_bytes = ring * Self::stride_bytes(self.capacity);
        let header = self.segment.pointer::<RingHeader>(offset_bytes, 1);
        let slots = self
            .segment
            .pointer::<Slot<TraceRecord>>(offset_bytes + size_of::<RingHeader>(), self.capacity);
        let memory = Arc::clone(&self.segment) as Arc<dyn Send + Sync>;
        // SAFETY: needed to hand over pointers. Both ranges were just checked to be within the
        // segment, which `memory` keeps mapped; any bytes are a `TraceRecord` (Pod); nothing else
        // views this segment.
        Ok(unsafe { Ring::new(header, slots, self.capacity as u64, memory) })
    }
}

/// A lane's end of its ring.
pub struct TraceWriter(Producer<TraceRecord>);

impl TraceWriter {
    /// Records an instruction. Never blocks; a record that finds the ring full is counted as lost.
    #[inline]
    pub fn push(&mut self, record: TraceRecord) {
        self.0.push(record);
    }

    /// Returns the number of records lost so far.
    pub fn lost(&self) -> u64 {
        self.0.lost()
    }
}

impl fmt::Debug for TraceWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceWriter").field("lost", &self.lost()).finish_non_exhaustive()
    }
}

/// The coordinator's end of a lane's ring.
pub struct TraceReader(Consumer<TraceRecord>);

impl TraceReader {
    /// Passes every record published so far to `each`, oldest first. Returns the number of records.
    pub fn drain(&mut self, each: impl FnMut(&TraceRecord)) -> u64 {
        self.0.drain(each)
    }

    /// Returns the number of records lost so far because the ring was not drained in time.
    pub fn lost(&self) -> u64 {
        self.0.lost()
    }
}

impl fmt::Debug for TraceReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceReader").field("lost", &self.lost()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(instruction: u32) -> TraceRecord {
        TraceRecord { instruction, bytes: u64::from(instruction) << 33, ..TraceRecord::default() }
    }

    #[test]
    fn rings_of_one_segment_do_not_touch() {
        let created = TraceSegment::create(3, 5).unwrap();
        let fd = created.segment().fd().try_clone_to_owned().unwrap();
        let attached = TraceSegment::attach(fd, 3, 5).unwrap();
        let mut writers: Vec<_> = (0..3).map(|ring| attached.writer(ring).unwrap()).collect();
        let mut readers: Vec<_> = (0..3).map(|ring| created.reader(ring).unwrap()).collect();
        for round in 0..4 {
            for (ring, writer) in writers.iter_mut().enumerate() {
                (0..7).for_each(|i| writer.push(record(round * 100 + ring as u32 * 10 + i)));
            }
            for (ring, reader) in readers.iter_mut().enumerate() {
                let mut seen = Vec::new();
                assert_eq!(reader.drain(|r| seen.push(*r)), 5);
                let expected: Vec<_> =
                    (0..5).map(|i| record(round * 100 + ring as u32 * 10 + i)).collect();
                assert_eq!(seen, expected);
                assert_eq!(reader.lost(), 2 * (u64::from(round) + 1));
            }
        }
    }

    #[test]
    fn a_ring_has_one_writer_and_one_reader() {
        let trace = TraceSegment::create(1, 1).unwrap();
        let _writer = trace.writer(0).unwrap();
        let _reader = trace.reader(0).unwrap();
        assert!(matches!(trace.writer(0), Err(TraceError::Taken { side: "writer", .. })));
        assert!(matches!(trace.reader(0), Err(TraceError::Taken { side: "reader", .. })));
        assert!(matches!(trace.reader(1), Err(TraceError::NoSuchRing { ring: 1, rings: 1 })));
    }

    #[test]
    fn a_ring_goes_on_with_the_writer_that_inherits_it() {
        let trace = TraceSegment::create(1, 2).unwrap();
        let mut reader = trace.reader(0).unwrap();
        let mut first = trace.writer(0).unwrap();
        (0..4).for_each(|number| first.push(record(number)));
        drop(first);
        // SAFETY: the writer was dropped.
        let mut heir = unsafe { trace.inherit(0) }.unwrap();
        heir.push(record(4));
        assert_eq!((heir.lost(), reader.lost()), (3, 3));
        let mut seen = Vec::new();
        reader.drain(|record| seen.push(record.instruction));
        heir.push(record(5));
        reader.drain(|record| seen.push(record.instruction));
        assert_eq!(seen, [0, 1, 5]);
    }

    #[test]
    fn another_capacity_is_refused_at_attach() {
        let trace = TraceSegment::create(2, 8).unwrap();
        let fd = trace.segment().fd().try_clone_to_owned().unwrap();
        assert!(matches!(
            TraceSegment::attach(fd, 2, 16),
            Err(TraceError::Segment(SegmentError::Size { .. }))
        ));
    }

    #[test]
    fn the_clock_does_not_go_back() {
        let first = now_ns();
        assert!(first > 0 && now_ns() >= first);
    }
}
