//! Ranges of a segment as atomic words: for tables that several processes read and write word by
//! word.
//!
//! The step table (active rows, lengths, positions, tokens) is built from these. Loads and stores
//! are relaxed: a lane that reads a word that another lane wrote has waited on that lane's
//! timeline, and the timeline orders them. Every index is checked; an index outside is a bug and
//! panics.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::mapping::Access;
use crate::segment::Segment;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

macro_rules! shared_words {
    ($name:ident, $atomic:ty, $word:ty, $doc:literal) => {
        #[doc = $doc]
        ///
        /// Keeps its segment alive, so it may outlive its creator; clones view the same words.
        #[derive(Debug, Clone)]
        pub struct $name {
            segment: Arc<Segment>,
            first: NonNull<$atomic>,
            count: usize,
        }

        // SAFETY: needed because of the raw pointer. It points into the mapping that `segment`
        // keeps alive, which is not bound to a thread, and the words are touched only as atomics.
        unsafe impl Send for $name {}
        // SAFETY: as for `Send`.
        unsafe impl Sync for $name {}

        impl $name {
            /// Creates a view of `count` words at `offset_bytes`.
            ///
            /// # Panics
            /// Panics if the range leaves the segment or is unaligned, or if the segment is mapped
            /// read-only (a store would fault).
            pub fn new(segment: Arc<Segment>, offset_bytes: usize, count: usize) -> $name {
                assert!(
                    segment.access() == Access::ReadWrite,
                    "shared words need a segment attached for writing"
                );
                let first = segment.pointer::<$atomic>(offset_bytes, count);
                $name { segment, first, count }
            }

            /// Returns the number of words in view.
            pub fn len(&self) -> usize {
                self.count
            }

            /// Returns true if no word is in view.
            pub fn is_empty(&self) -> bool {
                self.count == 0
            }

            /// Returns a part of the view: `count` words from word `start`.
            ///
            /// # Panics
            /// Panics if the part leaves the view.
            pub fn part(&self, start: usize, count: usize) -> $name {
                let words = &self.words()[start..][..count];
                let first = NonNull::from(words).cast();
                $name { segment: Arc::clone(&self.segment), first, count }
            }

            /// Returns the word at `index`.
            ///
            /// # Panics
            /// Panics if `index` is outside the view, like all methods below.
            #[inline]
            pub fn load(&self, index: usize) -> $word {
                self.words()[index].load(Ordering::Relaxed)
            }

            /// Sets the word at `index`.
            #[inline]
            pub fn store(&self, index: usize, value: $word) {
                self.words()[index].store(value, Ordering::Relaxed);
            }

            /// Returns the word at `index`; everything that its writer stored before
            /// [`Self::publish`] is visible afterwards.
            #[inline]
            pub fn acquire(&self, index: usize) -> $word {
                self.words()[index].load(Ordering::Acquire)
            }

            /// Sets the word at `index` after everything that was stored before.
            #[inline]
            pub fn publish(&self, index: usize, value: $word) {
                self.words()[index].store(value, Ordering::Release);
            }

            /// Sets the first `values.len()` words.
            pub fn copy_from(&self, values: &[$word]) {
                for (word, value) in self.words()[..values.len()].iter().zip(values) {
                    word.store(*value, Ordering::Relaxed);
                }
            }

            /// Reads the first `values.len()` words.
            pub fn read_into(&self, values: &mut [$word]) {
                let words = &self.words()[..values.len()];
                for (word, value) in words.iter().zip(values) {
                    *value = word.load(Ordering::Relaxed);
                }
            }

            /// Sets every word in view.
            pub fn fill(&self, value: $word) {
                for word in self.words() {
                    word.store(value, Ordering::Relaxed);
                }
            }

            /// Returns the words themselves, for orderings other than relaxed and for futexes.
            #[inline]
            pub fn words(&self) -> &[$atomic] {
                // SAFETY: needed to view the mapping as words. Bounds, alignment and writability
                // were checked when the view was made, any bytes are an atomic integer, atomics may
                // change under a shared reference, and `segment` keeps the mapping alive. Control
                // words are accessed only as atomics (rule 1 of the crate).
                unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) }
            }
        }
    };
}

shared_words!(SharedU32s, AtomicU32, u32, "A range of a segment as atomic 32-bit words.");
shared_words!(SharedU64s, AtomicU64, u64, "A range of a segment as atomic 64-bit words.");

#[cfg(test)]
mod tests {
    use super::*;

    fn segment() -> Arc<Segment> {
        Arc::new(Segment::create("words", 64).unwrap())
    }

    #[test]
    fn views_of_the_same_words_agree() {
        let segment = segment();
        let all = SharedU32s::new(Arc::clone(&segment), 0, 16);
        let part = all.part(4, 2);
        let wide = SharedU64s::new(segment, 16, 1);
        part.copy_from(&[0x1111_1111, 0x2222_2222]);
        assert_eq!(all.load(5), 0x2222_2222);
        assert_eq!(wide.load(0), 0x2222_2222_1111_1111);
        wide.store(0, 9);
        let mut seen = [7; 2];
        part.read_into(&mut seen);
        assert_eq!(seen, [9, 0]);
        all.fill(3);
        assert_eq!(wide.load(0), 0x3_0000_0003);
        assert_eq!((part.len(), part.is_empty(), all.part(16, 0).is_empty()), (2, false, true));
    }

    #[test]
    #[should_panic(expected = "index out of bounds")]
    fn an_index_outside_panics() {
        SharedU32s::new(segment(), 0, 4).store(4, 0);
    }

    #[test]
    #[should_panic(expected = "leave a mapping")]
    fn a_view_outside_panics() {
        SharedU64s::new(segment(), 8, 8);
    }

    #[test]
    #[should_panic(expected = "not aligned")]
    fn an_unaligned_view_panics() {
        SharedU64s::new(segment(), 4, 1);
    }
}
