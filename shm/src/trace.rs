//! Trace rings: what each lane did and when, for reports, `--trace` and the cost model.
//!
//! A lane's interpreter pushes one record per instruction into its own ring and never waits; the
//! coordinator drains all rings from time to time. The rings lie in a segment of their own. Times
//! are `CLOCK_MONOTONIC`, the same clock in every process of the machine.

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
    /// When it began, see [`now_ns`].
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// Bytes it moved (copies, reads) or streamed.
    pub bytes: u64,
    /// Rows it worked on.
    pub rows: u32,
    /// Its index in the lane's program.
    pub instruction: u32,
    /// The decode step, or the pass within prefill.
    pub step: u32,
    /// The program, by its place in the plan.
    pub program: u32,
}

const _: () = {
    assert!(size_of::<TraceRecord>() == 40 && align_of::<TraceRecord>() == 8);
    assert!(std::mem::offset_of!(TraceRecord, bytes) == 16);
    assert!(std::mem::offset_of!(TraceRecord, rows) == 24);
    assert!(std::mem::offset_of!(TraceRecord, program) == 36);
    assert!(size_of::<Slot<TraceRecord>>() == size_of::<TraceRecord>());
};

/// Nanoseconds of `CLOCK_MONOTONIC`: comparable between processes, meaningless between machines.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Why trace rings could not be had.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The segment failed.
    #[error("The trace segment is not usable: {0}")]
    Segment(#[from] SegmentError),
    /// The ring number is out of range.
    #[error("There are {rings} trace rings; ring {ring} does not exist.")]
    NoSuchRing {
        /// The wanted ring.
        ring: usize,
        /// How many there are.
        rings: usize,
    },
    /// Only one writer and one reader per ring.
    #[error("Trace ring {ring} already has its {side}.")]
    Taken {
        /// The ring.
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
    /// If either is 0.
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

    /// Bytes that a segment of `rings` rings of `capacity` records takes, for the memory budget.
    pub fn size_bytes(rings: usize, capacity: usize) -> usize {
        rings * Self::stride_bytes(capacity)
    }

    fn stride_bytes(capacity: usize) -> usize {
        (size_of::<RingHeader>() + capacity * size_of::<TraceRecord>())
            .next_multiple_of(align_of::<RingHeader>())
    }

    /// The segment, for its descriptor.
    pub fn segment(&self) -> &Segment {
        &self.segment
    }

    /// How many rings there are.
    pub fn rings(&self) -> usize {
        self.rings
    }

    /// Records per ring.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The writing side of a ring; once per ring among all processes.
    pub fn writer(&self, ring: usize) -> Result<TraceWriter, TraceError> {
        let producer = self.ring(ring)?.producer();
        producer.map(TraceWriter).ok_or(TraceError::Taken { ring, side: "writer" })
    }

    /// The writing side of a ring whose writer is gone; it goes on where that one stopped.
    ///
    /// # Errors
    /// No such ring.
    ///
    /// # Safety
    /// The process that had the writing side has ended.
    pub unsafe fn inherit(&self, ring: usize) -> Result<TraceWriter, TraceError> {
        let ring = self.ring(ring)?;
        // SAFETY: the contract of this function.
        Ok(TraceWriter(unsafe { ring.inherited_producer() }))
    }

    /// The reading side of a ring; once per ring among all processes.
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
        // SAFETY: needed to hand over pointers. Both ranges were just checked to lie in the
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

    /// Records lost so far.
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
    /// Hands every record published so far to `each`, oldest first. Returns how many.
    pub fn drain(&mut self, each: impl FnMut(&TraceRecord)) -> u64 {
        self.0.drain(each)
    }

    /// Records lost so far because nobody drained in time.
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
