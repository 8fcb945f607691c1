//! Prefetching of weights while the preceding ones are multiplied.

use super::tuning::BURST_LINES;
use crate::simd::Simd;

/// Cache lines to prefetch, a few at a time: `rows` runs, `stride` bytes apart.
#[derive(Debug, Clone, Copy)]
pub struct Lines {
    pub at: *const u8,
    pub stride: usize,
    pub rows: usize,
    /// Lines per run.
    pub lines: usize,
}

impl Lines {
    pub const NONE: Lines = Lines { at: std::ptr::null(), stride: 0, rows: 0, lines: 0 };

    #[inline(always)]
    fn bursts(self) -> usize {
        self.lines.div_ceil(BURST_LINES) * self.rows
    }
}

/// Prefetches lines in bursts at some of the steps of a product. A step without a burst is only a
/// count and a branch, since the product needs the other issue slots.
#[derive(Debug)]
pub(super) struct Prefetcher {
    at: *const u8,
    /// Bursts left in the current run. `left` are left in all runs, and `run` is the number per
    /// run.
    remaining_in_run: usize,
    remaining: usize,
    run: usize,
    /// Bytes from the last burst of a run to the next run.
    jump: usize,
    /// Steps until the next burst. `pause` is the number of steps between bursts.
    wait: usize,
    pause: usize,
    /// Lines that are prefetched after these.
    following: Lines,
}

impl Prefetcher {
    /// Prefetches all of `lines` within `steps` steps, as far as one burst per step permits.
    #[inline(always)]
    pub(super) fn new(lines: Lines, steps: usize) -> Self {
        Prefetcher::with_following(lines, Lines::NONE, steps)
    }

    /// Prefetches all of `lines`, then all of `then`, within `steps` steps, as far as one burst per
    /// step permits.
    #[inline(always)]
    pub(super) fn with_following(lines: Lines, following: Lines, steps: usize) -> Self {
        let bursts = lines.bursts() + following.bursts();
        let pause = steps.checked_div(bursts).map_or(usize::MAX, |pause| pause.max(1));
        let mut prefetcher = Prefetcher {
            at: lines.at,
            remaining_in_run: 0,
            remaining: 0,
            run: 0,
            jump: 0,
            wait: pause,
            pause,
            following,
        };
        prefetcher.begin(lines);
        if prefetcher.remaining == 0 {
            prefetcher.advance();
        }
        prefetcher
    }

    #[inline(always)]
    fn begin(&mut self, lines: Lines) {
        self.run = lines.lines.div_ceil(BURST_LINES);
        self.remaining = lines.bursts();
        self.remaining_in_run = self.run;
        self.at = lines.at;
        self.jump = lines.stride.wrapping_sub(self.run.saturating_sub(1) * BURST_LINES * 64);
    }

    /// Advances to the lines that follow these.
    #[inline(always)]
    fn advance(&mut self) {
        let then = std::mem::replace(&mut self.following, Lines::NONE);
        self.begin(then);
        self.wait = if self.remaining == 0 { usize::MAX } else { self.pause };
    }

    #[inline(always)]
    pub(super) fn step<S: Simd>(&mut self, s: S) {
        self.wait -= 1;
        if self.wait > 0 {
            return;
        }
        for line in 0..BURST_LINES {
            s.prefetch(self.at.wrapping_add(line * 64));
        }
        self.remaining_in_run -= 1;
        if self.remaining_in_run == 0 {
            self.remaining_in_run = self.run;
            self.at = self.at.wrapping_add(self.jump);
        } else {
            self.at = self.at.wrapping_add(BURST_LINES * 64);
        }
        self.remaining -= 1;
        self.wait = self.pause;
        if self.remaining == 0 {
            self.advance();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::scalar::Scalar;

    #[test]
    fn both_are_prefetched_in_order_and_within_the_steps() {
        let at = std::ptr::without_provenance::<u8>;
        let weights = Lines { at: at(0x1000), stride: 0x800, rows: 3, lines: 8 };
        let x = Lines { at: at(0x9000), stride: 0, rows: 1, lines: 6 };
        for (both, expected) in [
            ([weights, x], vec![0x1000, 0x1100, 0x1800, 0x1900, 0x2000, 0x2100, 0x9000, 0x9100]),
            ([Lines::NONE, x], vec![0x9000, 0x9100]),
            ([x, Lines::NONE], vec![0x9000, 0x9100]),
            ([Lines::NONE, Lines::NONE], vec![]),
        ] {
            let steps = 50;
            let mut prefetcher = Prefetcher::with_following(both[0], both[1], steps);
            let mut prefetched = Vec::new();
            for _ in 0..steps {
                if prefetcher.wait == 1 {
                    prefetched.push(prefetcher.at.addr());
                }
                prefetcher.step(Scalar);
            }
            assert_eq!(prefetched, expected);
        }
    }
}
