//! What a task will read soon, asked for while it reads what comes before.
//!
//! The processor's own prefetcher follows each page separately and stops at its end. So memory is asked for beyond that,
//! across the ends of K, of V and of the task: a task asks for the beginning of its successor, which expects it to be
//! there. In which order, depends on the machine: side by side in several pages (`pages.rs`), or line after line
//! as they will be read (`lines.rs`).

mod lines;
mod pages;
mod stretch;

pub(super) use lines::{Lines, Next};
use pages::Pages;
pub(super) use stretch::{LINE_BYTES, Stretch};

use crate::simd::Simd;
use crate::variant::Variant;

/// Bytes that are asked for at once, at most.
pub(super) const BURST_BYTES: usize = pages::STREAMS * LINE_BYTES;

/// See the module header.
#[derive(Debug)]
pub(super) enum Prefetcher {
    Pages(Pages),
    Lines(Lines),
}

impl Prefetcher {
    /// What a task reads, K and V, and what the next one will. As measured: where AVX512-BF16 stands without AMX
    /// (Zen 5), lines are fastest; Ice Lake needs pages.
    pub(super) fn new(variant: Variant, this: [Stretch; 2], next: [Stretch; 2]) -> Prefetcher {
        match variant {
            #[cfg(target_arch = "x86_64")]
            Variant::Avx512Bf16 => Prefetcher::Lines(Lines::new(this, next)),
            _ => Prefetcher::Pages(Pages::new(this, next)),
        }
    }

    /// As many bytes are read now, in so many steps: lines to be asked for one with each of them, where lines are
    /// what is asked for. Whatever is more than that is asked for at once.
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

    /// As many bytes are read now, all of them before anything is asked for.
    #[inline(always)]
    pub(super) fn read<S: Simd>(&mut self, s: S, bytes: usize) {
        match self {
            Prefetcher::Pages(pages) => pages.read(s, bytes),
            Prefetcher::Lines(lines) => lines.read(s, bytes),
        }
    }

    /// Something is computed for a while: memory would rest meanwhile.
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

    /// The task is over: whatever was not asked for yet.
    pub(super) fn finish<S: Simd>(&mut self, s: S) {
        if let Prefetcher::Pages(pages) = self {
            pages.finish(s);
        }
    }
}
