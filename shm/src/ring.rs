//! A ring for one producer and one consumer, in shared memory; provides the cursors and slots of
//! [`crate::trace`].
//!
//! Both cursors only grow (2^64 records are never reached) and index the slots modulo the capacity.
//! The producer never waits: a record that finds the ring full is counted as lost. A dead or
//! misbehaving peer can lose records by writing to the cursors, but neither side ever leaves the
//! slots.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::sync::{AtomicU32, AtomicU64, Ordering, UnsafeCell};

/// A word on a cache line of its own, so that producer and consumer do not share one.
#[derive(Debug)]
#[cfg_attr(not(loom), repr(C, align(64)))]
struct Line(AtomicU64);

/// The cursors. In shared memory, zero bytes are an empty ring.
#[derive(Debug)]
#[cfg_attr(not(loom), repr(C, align(64)))]
pub(crate) struct RingHeader {
    /// Number of records published; written by the producer.
    written: Line,
    /// Number of records consumed; written by the consumer.
    read: Line,
    /// Number of records that found the ring full; written by the producer.
    lost: Line,
    /// Non-zero once there is a producer, and once there is a consumer.
    taken: [AtomicU32; 2],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<RingHeader>() == 256 && align_of::<RingHeader>() == 64);

impl RingHeader {
    /// Creates an empty ring outside shared memory.
    #[cfg(test)]
    pub(crate) fn new() -> RingHeader {
        let line = || Line(AtomicU64::new(0));
        RingHeader {
            written: line(),
            read: line(),
            lost: line(),
            taken: [AtomicU32::new(0), AtomicU32::new(0)],
        }
    }
}

/// Memory of one record.
pub(crate) type Slot<T> = UnsafeCell<T>;

/// Location of a ring in memory.
pub(crate) struct Ring<T> {
    header: NonNull<RingHeader>,
    slots: NonNull<Slot<T>>,
    capacity: u64,
    /// Keeps header and slots alive.
    _memory: Arc<dyn Send + Sync>,
}

// SAFETY: needed because of the pointers. They point into `_memory`, which is Send; the header is
// accessed only as atomics and a slot only by the side whose turn the cursors say it is.
unsafe impl<T: Copy + Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// Creates a ring over memory that `memory` keeps alive.
    ///
    /// # Safety
    /// `header` and `capacity` slots, each an initialised `T` for which any bytes are valid, stay
    /// mapped as long as `memory` lives and are accessed through `Ring` only.
    pub(crate) unsafe fn new(
        header: NonNull<RingHeader>,
        slots: NonNull<Slot<T>>,
        capacity: u64,
        memory: Arc<dyn Send + Sync>,
    ) -> Ring<T> {
        assert!(capacity > 0, "a ring needs at least one slot");
        Ring { header, slots, capacity, _memory: memory }
    }

    fn header(&self) -> &RingHeader {
        // SAFETY: needed to reach the mapped header; valid for as long as `self` by the contract of
        // `new`.
        unsafe { self.header.as_ref() }
    }

    fn slot(&self, count: u64) -> &Slot<T> {
        #[expect(clippy::cast_possible_truncation, reason = "below a capacity that fits memory")]
        let index = (count % self.capacity) as usize;
        // SAFETY: needed to reach a mapped slot; `index` is below `capacity`, valid by the contract
        // of `new`.
        unsafe { self.slots.add(index).as_ref() }
    }

    /// Takes the writing side; `None` if it is taken already, in any process.
    pub(crate) fn producer(self) -> Option<Producer<T>> {
        if self.header().taken[0].swap(1, Ordering::AcqRel) != 0 {
            return None;
        }
        Some(Producer { written: 0, read_seen: 0, lost: 0, ring: self })
    }

    /// Takes the writing side from an earlier producer, and continues after its last record.
    ///
    /// # Safety
    /// The earlier producer writes no more: its process has ended.
    pub(crate) unsafe fn inherited_producer(self) -> Producer<T> {
        let header = self.header();
        header.taken[0].store(1, Ordering::Relaxed);
        let (written, lost) =
            (header.written.0.load(Ordering::Acquire), header.lost.0.load(Ordering::Relaxed));
        let read_seen = header.read.0.load(Ordering::Acquire);
        Producer { written, read_seen, lost, ring: self }
    }

    /// Takes the reading side; `None` if it is taken already, in any process.
    pub(crate) fn consumer(self) -> Option<Consumer<T>> {
        if self.header().taken[1].swap(1, Ordering::AcqRel) != 0 {
            return None;
        }
        Some(Consumer { read: 0, ring: self })
    }
}

/// The writing side.
pub(crate) struct Producer<T> {
    written: u64,
    /// The consumer's cursor when last read; read again only when the ring seems full.
    read_seen: u64,
    lost: u64,
    ring: Ring<T>,
}

impl<T: Copy> Producer<T> {
    /// Publishes a record. Returns false if the ring was full and the record is lost.
    pub(crate) fn push(&mut self, record: T) -> bool {
        let header = self.ring.header();
        if self.written.wrapping_sub(self.read_seen) >= self.ring.capacity {
            // SYNC POINT: slot free, acquired here (see `Consumer::drain`).
            self.read_seen = header.read.0.load(Ordering::Acquire);
            if self.written.wrapping_sub(self.read_seen) >= self.ring.capacity {
                self.lost += 1;
                header.lost.0.store(self.lost, Ordering::Relaxed);
                return false;
            }
        }
        self.ring.slot(self.written).with_mut(|slot| {
            // SAFETY: needed to write through the shared cell. This slot is outside
            // `read..written`, and the only other party reads inside it (there is one consumer, see
            // `Ring::consumer`).
            unsafe { slot.write(record) }
        });
        self.written += 1;
        // SYNC POINT: slot filled, released here (see `Consumer::drain`).
        header.written.0.store(self.written, Ordering::Release);
        true
    }

    /// Returns the number of records lost so far.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }
}

/// The reading side.
pub(crate) struct Consumer<T> {
    read: u64,
    ring: Ring<T>,
}

impl<T: Copy> Consumer<T> {
    /// Passes every record published so far to `each`, oldest first, and frees its slot. Returns
    /// the number of records.
    pub(crate) fn drain(&mut self, mut each: impl FnMut(&T)) -> u64 {
        let header = self.ring.header();
        // SYNC POINT: slot filled, acquired here (see `Producer::push`).
        let written = header.written.0.load(Ordering::Acquire);
        // A producer never gets further ahead; a corrupted cursor must not make this a long loop.
        let count = written.wrapping_sub(self.read).min(self.ring.capacity);
        for _ in 0..count {
            // Copied out first: the slot is free already while `each` runs.
            let record = self.ring.slot(self.read).with(|slot| {
                // SAFETY: needed to read through the shared cell. The slot is inside
                // `read..written`, where the only producer does not write, and any bytes are a
                // valid record (contract of `Ring::new`).
                unsafe { slot.read() }
            });
            self.read += 1;
            // SYNC POINT: slot free, released here (see `Producer::push`).
            header.read.0.store(self.read, Ordering::Release);
            each(&record);
        }
        count
    }

    /// Returns the number of records that the producer has lost so far.
    pub(crate) fn lost(&self) -> u64 {
        self.ring.header().lost.0.load(Ordering::Relaxed)
    }
}

/// Creates a ring on the heap, for tests.
#[cfg(test)]
pub(crate) fn on_heap(capacity: usize) -> (Producer<u64>, Consumer<u64>) {
    struct Memory {
        header: RingHeader,
        slots: Box<[Slot<u64>]>,
    }
    // SAFETY: needed for the cells. As in shared memory, the cursors determine which side may
    // access a slot.
    unsafe impl Sync for Memory {}

    let slots = (0..capacity).map(|_| Slot::new(0)).collect();
    let memory = Arc::new(Memory { header: RingHeader::new(), slots });
    let ring = || {
        let slots = NonNull::new(memory.slots.as_ptr().cast_mut()).unwrap();
        // SAFETY: header and slots belong to `memory`, which the ring holds.
        unsafe {
            Ring::new(
                NonNull::from(&memory.header),
                slots,
                capacity as u64,
                Arc::clone(&memory) as Arc<dyn Send + Sync>,
            )
        }
    };
    (ring().producer().unwrap(), ring().consumer().unwrap())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Operation {
        Push(u8),
        Drain,
    }

    fn operations() -> impl Strategy<Value = Vec<Operation>> {
        let operation = prop_oneof![(1..20u8).prop_map(Operation::Push), Just(Operation::Drain)];
        prop::collection::vec(operation, 0..60)
    }

    proptest! {
        /// Behaves like a bounded queue: equal records in equal order, equal losses.
        #[test]
        fn behaves_like_a_bounded_queue(capacity in 1..17usize, operations in operations()) {
            let (mut producer, mut consumer) = on_heap(capacity);
            let mut oracle = VecDeque::new();
            let (mut next, mut lost) = (0u64, 0u64);
            for operation in operations {
                match operation {
                    Operation::Push(count) => for _ in 0..count {
                        let fits = oracle.len() < capacity;
                        prop_assert_eq!(producer.push(next), fits);
                        if fits { oracle.push_back(next) } else { lost += 1 }
                        next += 1;
                    },
                    Operation::Drain => {
                        let mut seen = Vec::new();
                        let count = consumer.drain(|record| seen.push(*record));
                        prop_assert_eq!(count, seen.len() as u64);
                        prop_assert_eq!(seen, oracle.drain(..).collect::<Vec<_>>());
                    }
                }
                prop_assert_eq!((producer.lost(), consumer.lost()), (lost, lost));
            }
        }
    }

    #[test]
    fn a_spoilt_cursor_stays_inside_the_ring() {
        let (mut producer, mut consumer) = on_heap(4);
        producer.push(1);
        producer.ring.header().written.0.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(consumer.drain(|_| ()), 4);
    }
}
