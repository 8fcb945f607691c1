//! Prefetching of memory that a task reads next while it reads the current part.
//!
//! The processor's own prefetcher follows each page separately and stops at its end. This module
//! therefore prefetches further ahead, across the ends of K, of V and of the task: a task
//! prefetches the beginning of its successor, which relies on that. The order depends on the
//! processor: several pages in parallel (`pages.rs`), or line after line in the order of reading
//! (`lines.rs`).

mod lines;
mod pages;
mod stretch;

pub(super) use lines::{LinePrefetcher, Next};
use pages::Pages;
pub(super) use stretch::{LINE_BYTES, PrefetchRange, TASK_RANGES};

use crate::simd::Simd;
use crate::variant::Variant;

/// Maximum number of bytes that are prefetched at once.
pub(super) const BURST_BYTES: usize = pages::STREAMS * LINE_BYTES;

/// Prefetcher of a task; see the module header.
#[derive(Debug)]
pub(super) enum Prefetcher<'a> {
    /// Used by all variants but one; portable code prefetches nothing.
    Pages(Pages<'a>),
    /// Used by a variant with wide vectors.
    Lines(LinePrefetcher<'a>),
    /// Used for memory that is in L1 already.
    Nothing,
}

impl<'a> Prefetcher<'a> {
    /// Creates the prefetcher of a task from the K and V that it and its successor read, the page
    /// list of the call and the number of heads in each page. Zen 5, which has AVX512-BF16 without
    /// AMX, reads fastest line by line; Ice Lake needs pages in parallel.
    pub(super) fn new(
        variant: Variant,
        this: [PrefetchRange; TASK_RANGES],
        next: [PrefetchRange; TASK_RANGES],
        pages: (&'a [u32], usize),
    ) -> Prefetcher<'a> {
        match variant {
            #[cfg(target_arch = "x86_64")]
            Variant::Avx512Bf16 => Prefetcher::Lines(LinePrefetcher::new(this, next, pages)),
            _ => Prefetcher::Pages(Pages::new(this, next, pages)),
        }
    }

    /// Announces a read of `bytes` bytes in `steps` steps. If lines are prefetched in order,
    /// returns those to prefetch one per step; lines in excess of one per step are prefetched at
    /// once.
    #[inline(always)]
    pub(super) fn read_in_steps<S: Simd>(
        &mut self,
        s: S,
        bytes: usize,
        steps: usize,
    ) -> Option<Next> {
        match self {
            Prefetcher::Pages(pages) => {
                if const { !S::IS_PORTABLE } {
                    pages.read(s, bytes);
                }
                None
            }
            Prefetcher::Lines(lines) if const { S::IS_WIDE } => {
                let mut next = lines.next(s, bytes);
                for _ in steps..bytes.div_ceil(LINE_BYTES) {
                    next.prefetch(s);
                }
                Some(next)
            }
            Prefetcher::Lines(_) | Prefetcher::Nothing => None,
        }
    }

    /// Announces a read of `bytes` bytes; all lines that belong to it are prefetched at once.
    #[inline(always)]
    pub(super) fn read<S: Simd>(&mut self, s: S, bytes: usize) {
        match self {
            Prefetcher::Pages(pages) if const { !S::IS_PORTABLE } => pages.read(s, bytes),
            Prefetcher::Lines(lines) if const { S::IS_WIDE } => lines.read(s, bytes),
            _ => {}
        }
    }

    /// Prefetches during a computation that would leave memory idle.
    #[inline(always)]
    pub(super) fn fill_pause<S: Simd>(&mut self, s: S) {
        if const { S::IS_PORTABLE } {
            return;
        }
        if let Prefetcher::Pages(pages) = self {
            pages.fill_pause(s);
        }
    }

    /// Prefetches while the exponentials of a vector are computed, which takes about as long as a
    /// line does from memory.
    #[inline(always)]
    pub(super) fn fill_vector<S: Simd>(&mut self, s: S) {
        if const { !S::IS_WIDE } {
            return;
        }
        if let Prefetcher::Lines(lines) = self {
            lines.fill_vector(s);
        }
    }

    /// Prefetches the remaining lines at the end of the task.
    pub(super) fn finish<S: Simd>(&mut self, s: S) {
        if let Prefetcher::Pages(pages) = self {
            pages.finish(s);
        }
    }
}
