//! Prefetching of what a task reads next while it reads what comes before.
//!
//! The processor's own prefetcher follows each page separately and stops at its end. So memory is
//! prefetched beyond that, across the ends of K, of V and of the task: a task prefetches the
//! beginning of its successor, which relies on that. The order depends on the processor: side by
//! side in several pages (`pages.rs`), or line after line as they will be read (`lines.rs`).

mod lines;
mod pages;
mod stretch;

pub(super) use lines::{Lines, Next};
use pages::Pages;
pub(super) use stretch::{LINE_BYTES, OF_TASK, Stretch};

use crate::simd::Simd;
use crate::variant::Variant;

/// Bytes that are prefetched at once, at most.
pub(super) const BURST_BYTES: usize = pages::STREAMS * LINE_BYTES;

/// See the module header.
#[derive(Debug)]
pub(super) enum Prefetcher<'a> {
    Pages(Pages<'a>),
    Lines(Lines<'a>),
}

impl<'a> Prefetcher<'a> {
    /// What a task reads, K and V, and what the next one will, with the pages of the call and the
    /// heads in each. Zen 5, which has AVX512-BF16 without
    /// AMX, reads fastest line by line; Ice Lake needs pages side by side.
    pub(super) fn new(
        variant: Variant,
        this: [Stretch; OF_TASK],
        next: [Stretch; OF_TASK],
        pages: (&'a [u32], usize),
    ) -> Prefetcher<'a> {
        match variant {
            #[cfg(target_arch = "x86_64")]
            Variant::Avx512Bf16 => Prefetcher::Lines(Lines::new(this, next, pages)),
            _ => Prefetcher::Pages(Pages::new(this, next, pages)),
        }
    }

    /// `bytes` bytes are read now, in `steps` steps: where lines are prefetched in order, those to
    /// prefetch one a step. Lines beyond one a step are prefetched at once.
    #[inline(always)]
    pub(super) fn read_in_steps<S: Simd>(
        &mut self,
        s: S,
        bytes: usize,
        steps: usize,
    ) -> Option<Next> {
        match self {
            Prefetcher::Pages(pages) => {
                pages.read(s, bytes);
                None
            }
            Prefetcher::Lines(lines) => {
                let mut next = lines.next(s, bytes);
                for _ in steps..bytes.div_ceil(LINE_BYTES) {
                    next.prefetch(s);
                }
                Some(next)
            }
        }
    }

    /// `bytes` bytes are read now; all that belongs to them is prefetched at once.
    #[inline(always)]
    pub(super) fn read<S: Simd>(&mut self, s: S, bytes: usize) {
        match self {
            Prefetcher::Pages(pages) => pages.read(s, bytes),
            Prefetcher::Lines(lines) => lines.read(s, bytes),
        }
    }

    /// Something is computed for a while, and memory would be idle.
    #[inline(always)]
    pub(super) fn fill_pause<S: Simd>(&mut self, s: S) {
        if let Prefetcher::Pages(pages) = self {
            pages.fill_pause(s);
        }
    }

    /// Exponentials of a vector are computed, which takes about as long as a line does from memory.
    #[inline(always)]
    pub(super) fn fill_vector<S: Simd>(&mut self, s: S) {
        if let Prefetcher::Lines(lines) = self {
            lines.fill_vector(s);
        }
    }

    /// The task is over: prefetches what is left.
    pub(super) fn finish<S: Simd>(&mut self, s: S) {
        if let Prefetcher::Pages(pages) = self {
            pages.finish(s);
        }
    }
}
