//! Prefetching by a tile while it multiplies: either some lines per step of [`STEP_LINES`] of its
//! own lines, or one with each line.
//!
//! Prefetching uses few branches: the loop of a tile has few iterations, and the processor predicts
//! its end from the preceding branches.

use crate::linear::prefetch::Lines;
use crate::simd::Simd;

/// Lines of a tile from one step of prefetching to the next.
pub(super) const STEP_LINES: usize = 4;

const LINE_BYTES: usize = 64;

/// Work of a tile between its lines.
pub(super) trait Prefetch {
    /// Called before every [`STEP_LINES`] lines of a tile.
    #[inline(always)]
    fn step<S: Simd>(&mut self, _s: S) {}

    /// Called for the line at `at` of one column.
    #[inline(always)]
    fn line<S: Simd>(&self, _s: S, _at: *const u8) {}
}

/// Prefetches the first lines of the next `N` columns during the last lines of the current ones.
#[derive(Debug, Clone, Copy)]
pub(super) struct NextColumns<const N: usize> {
    at: *const u8,
    stride: usize,
    /// Steps until the first prefetch.
    wait: usize,
}

impl<const N: usize> NextColumns<N> {
    /// Prefetches nothing.
    pub(super) const NONE: Self = NextColumns { at: std::ptr::null(), stride: 0, wait: usize::MAX };

    /// Prefetches `STEP_LINES` lines of each run of `lines` per step, after `wait` steps.
    #[inline(always)]
    pub(super) fn after(wait: usize, lines: Lines) -> Self {
        NextColumns { at: lines.at, stride: lines.stride, wait }
    }
}

impl<const N: usize> Prefetch for NextColumns<N> {
    #[inline(always)]
    fn step<S: Simd>(&mut self, s: S) {
        if self.wait > 0 {
            self.wait -= 1;
            return;
        }
        for line in 0..STEP_LINES {
            for run in 0..N {
                s.prefetch(self.at.wrapping_add(run * self.stride + line * LINE_BYTES));
            }
        }
        self.at = self.at.wrapping_add(STEP_LINES * LINE_BYTES);
    }
}

/// Prefetches, with each line, the line `BYTES` after it, in the same column or the next. The
/// distance is a constant so that it takes no register.
#[derive(Debug, Clone, Copy)]
pub(super) struct AtDistance<const BYTES: usize>;

impl<const BYTES: usize> Prefetch for AtDistance<BYTES> {
    #[inline(always)]
    fn line<S: Simd>(&self, s: S, at: *const u8) {
        s.prefetch(at.wrapping_add(BYTES));
    }
}

/// Prefetches like [`AtDistance`], and additionally the line at twice the distance into the
/// second-level cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct AtTwoDistances<const BYTES: usize>;

impl<const BYTES: usize> Prefetch for AtTwoDistances<BYTES> {
    #[inline(always)]
    fn line<S: Simd>(&self, s: S, at: *const u8) {
        s.prefetch(at.wrapping_add(BYTES));
        s.prefetch_l2(at.wrapping_add(2 * BYTES));
    }
}

/// Prefetches `P` of some lines per step; none if `P` is 0.
#[derive(Debug, Clone, Copy)]
pub(super) struct LinesPerStep<const P: usize> {
    /// The next line. `left` lines remain from it to the end of its run.
    at: *const u8,
    left: usize,
    /// Lines per run. `jump` is the number of bytes from the end of a run to the next.
    lines: usize,
    jump: usize,
}

impl<const P: usize> LinesPerStep<P> {
    #[inline(always)]
    pub(super) fn new(Lines { at, stride, lines, .. }: Lines) -> Self {
        LinesPerStep { at, left: lines, lines, jump: stride.wrapping_sub(lines * LINE_BYTES) }
    }

    /// Returns line `line` of the next `P` lines, which may belong to two runs.
    #[inline(always)]
    fn line(&self, line: usize) -> *const u8 {
        let jump = if line < self.left { 0 } else { self.jump };
        self.at.wrapping_add(line * LINE_BYTES).wrapping_add(jump)
    }

    #[inline(always)]
    fn advance(&mut self) {
        let crosses = P >= self.left;
        self.at = self.line(P);
        self.left = (self.left + if crosses { self.lines } else { 0 }).wrapping_sub(P);
    }
}

impl<const P: usize> Prefetch for LinesPerStep<P> {
    #[inline(always)]
    fn step<S: Simd>(&mut self, s: S) {
        if P == 0 {
            return;
        }
        for line in 0..P {
            s.prefetch(self.line(line));
        }
        self.advance();
    }
}

/// Returns the number of lines per step and the number of steps with which all of `lines` are
/// prefetched within `steps` steps, as far as the maximum number of lines per step permits. Fewer
/// steps are better: they are the last ones, and x passes through the first-level cache meanwhile.
#[inline(always)]
pub(super) fn pace(lines: Lines, steps: usize) -> (usize, usize) {
    let all = lines.rows * lines.lines;
    let wanted = all.div_ceil(steps.max(1));
    let per_step = PER_STEP.into_iter().find(|&some| some >= wanted).unwrap_or(MAX_PER_STEP);
    (per_step, all.div_ceil(per_step))
}

/// Permitted numbers of lines prefetched per step.
const PER_STEP: [usize; 4] = [4, 6, 8, MAX_PER_STEP];
const MAX_PER_STEP: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines that are prefetched, `P` per step, until all are, rounded up to whole
    /// steps.
    fn prefetched<const P: usize>(lines: Lines) -> Vec<usize> {
        let mut prefetch = LinesPerStep::<P>::new(lines);
        let steps = (lines.rows * lines.lines).div_ceil(P);
        let mut prefetched = Vec::new();
        for _ in 0..steps {
            prefetched.extend((0..P).map(|line| prefetch.line(line).addr()));
            prefetch.advance();
        }
        prefetched
    }

    #[test]
    fn every_line_of_every_run_is_prefetched_in_order() {
        for lines in [32, 18, 13] {
            let lines =
                Lines { at: std::ptr::without_provenance(0x4000), stride: 0x3800, rows: 6, lines };
            let all: Vec<_> = (0..lines.rows)
                .flat_map(|row| (0..lines.lines).map(move |line| (row, line)))
                .map(|(row, line)| 0x4000 + row * 0x3800 + line * LINE_BYTES)
                .collect();
            for lines in [
                prefetched::<4>(lines),
                prefetched::<6>(lines),
                prefetched::<8>(lines),
                prefetched::<12>(lines),
            ] {
                assert_eq!(lines[..all.len()], all);
                assert!(lines.len() < all.len() + MAX_PER_STEP);
            }
        }
    }

    #[test]
    fn all_lines_are_prefetched_within_the_steps() {
        let lines = Lines { at: std::ptr::null(), stride: 0, rows: 6, lines: 32 };
        assert_eq!(pace(lines, 8 * 60), (4, 48));
        assert_eq!(pace(lines, 8 * 4), (6, 32));
        assert_eq!(pace(lines, 8 * 2), (12, 16));
        // More lines than the steps can prefetch.
        assert_eq!(pace(lines, 8), (12, 16));
        assert_eq!(pace(Lines::NONE, 8).1, 0);
    }
}
