//! Weights that are asked for while the ones before them are multiplied.

use crate::simd::Simd;

/// Lines of memory to ask for, a little at a time: `rows` runs, `stride` bytes apart.
#[derive(Debug, Clone, Copy)]
pub struct Lines {
    pub at: *const u8,
    pub stride: usize,
    pub rows: usize,
    /// Lines of a run.
    pub lines: usize,
}

impl Lines {
    pub const NONE: Lines = Lines { at: std::ptr::null(), stride: 0, rows: 0, lines: 0 };
}

/// Lines asked for a few at a time, at the steps of a product: more at once would fill the buffers of
/// outstanding misses, which the product needs for x.
#[derive(Debug)]
pub(super) struct Ahead {
    lines: Lines,
    line: usize,
    left: usize,
    /// Lines at each step.
    at_once: usize,
}

impl Ahead {
    /// All of `lines` within `steps` steps.
    #[inline(always)]
    pub(super) fn new(lines: Lines, steps: usize) -> Self {
        let left = lines.rows * lines.lines;
        Ahead { lines, line: 0, left, at_once: left.div_ceil(steps.max(1)) }
    }

    #[inline(always)]
    pub(super) fn step<S: Simd>(&mut self, s: S) {
        for _ in 0..self.at_once.min(self.left) {
            s.prefetch_l2(self.lines.at.wrapping_add(self.line * 64));
            self.left -= 1;
            self.line += 1;
            if self.line == self.lines.lines {
                self.line = 0;
                self.lines.at = self.lines.at.wrapping_add(self.lines.stride);
            }
        }
    }
}
