//! What a task will read soon, asked for in several pages at a time.
//!
//! One stream, however far ahead it is asked for, reaches three quarters of what memory can deliver:
//! the processor's own prefetcher follows each page separately and stops at its end. So the next
//! [`STREAMS`] pages are asked for line by line in turn, as fast as the pages before them are read,
//! and each line is in the first cache when its turn comes. That holds across the ends of K, of V and
//! of the task: a task asks for the first pages of its successor, which expects them to be there.

use crate::simd::Simd;

/// Pages asked for side by side.
const STREAMS: usize = 8;
const PAGE_BYTES: usize = 4096;
const LINE_BYTES: usize = 64;
/// Bytes that are asked for at once.
pub(super) const ASK_BYTES: usize = STREAMS * LINE_BYTES;
/// How far ahead of the reading lines are asked for.
pub(super) const WINDOW_BYTES: usize = STREAMS * PAGE_BYTES;
/// K and V of a task and of the one after it.
pub(super) const STRETCHES: usize = 4;

/// Memory that is read from one end to the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stretch {
    pub from: *const u8,
    pub bytes: usize,
}

impl Stretch {
    pub(super) const NONE: Stretch = Stretch { from: std::ptr::null(), bytes: 0 };

    /// The first of these bytes, at most a window of them.
    pub(super) fn window(self, bytes: usize) -> Stretch {
        Stretch { bytes: self.bytes.min(bytes), ..self }
    }
}

/// See the module header.
#[derive(Debug)]
pub(super) struct Ahead {
    stretches: [Stretch; STRETCHES],
    /// The stretch of the next page to be asked for, and the byte of it.
    stretch: usize,
    at: usize,
    /// Those that are asked for now, and how far.
    pages: [*const u8; STREAMS],
    asked: usize,
    /// Bytes read for which nothing was asked yet.
    debt: usize,
}

impl Ahead {
    /// What a task reads, in order, and what the next one will read first. The first window of it
    /// was asked for by the task before.
    pub(super) fn new(stretches: [Stretch; STRETCHES]) -> Ahead {
        let mut ahead = Ahead {
            stretches,
            stretch: 0,
            at: 0,
            pages: [std::ptr::null(); STREAMS],
            asked: PAGE_BYTES,
            debt: 0,
        };
        ahead.next_pages();
        ahead.next_pages();
        ahead
    }

    /// Goes on to the next pages; false if there are none. Inlined, because for a call the vector
    /// registers of its callers would go through memory.
    #[inline(always)]
    fn next_pages(&mut self) -> bool {
        let mut count = 0;
        while count < STREAMS && self.stretch < STRETCHES {
            let Stretch { from, bytes } = self.stretches[self.stretch];
            if self.at >= bytes {
                (self.stretch, self.at) = (self.stretch + 1, 0);
                continue;
            }
            // A last page that is not whole begins earlier, so that nothing behind it is asked for.
            let page = from.wrapping_add(self.at.min(bytes.saturating_sub(PAGE_BYTES)));
            self.pages[count] = page;
            count += 1;
            // The first page ends where a page of the processor does, as do all others.
            self.at += PAGE_BYTES - from.wrapping_add(self.at).addr() % PAGE_BYTES;
        }
        for other in count..STREAMS {
            self.pages[other] = self.pages[0];
        }
        self.asked = if count > 0 { 0 } else { PAGE_BYTES };
        count > 0
    }

    /// As many bytes are read now.
    #[inline(always)]
    pub(super) fn read<S: Simd>(&mut self, s: S, bytes: usize) {
        self.debt += bytes;
        while self.debt >= ASK_BYTES {
            self.debt -= ASK_BYTES;
            self.ask(s);
        }
    }

    /// A line of every page.
    #[inline(always)]
    fn ask<S: Simd>(&mut self, s: S) {
        if self.asked == PAGE_BYTES && !self.next_pages() {
            return;
        }
        for page in self.pages {
            s.prefetch(page.wrapping_add(self.asked));
        }
        self.asked += LINE_BYTES;
    }

    /// The task is over: whatever was not asked for yet.
    pub(super) fn finish<S: Simd>(&mut self, s: S) {
        while self.asked < PAGE_BYTES || self.next_pages() {
            self.ask(s);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Lines asked for after the first window, until everything was.
    fn asked(stretches: [Stretch; STRETCHES]) -> BTreeSet<usize> {
        let mut ahead = Ahead::new(stretches);
        let mut lines = BTreeSet::new();
        while ahead.asked < PAGE_BYTES || ahead.next_pages() {
            for page in ahead.pages {
                lines.insert(page.wrapping_add(ahead.asked).addr() / LINE_BYTES);
            }
            ahead.asked += LINE_BYTES;
        }
        lines
    }

    fn lines(from: usize, bytes: usize) -> BTreeSet<usize> {
        (from..from + bytes).map(|byte| byte / LINE_BYTES).collect()
    }

    #[test]
    fn every_line_behind_the_first_window_is_asked_for_and_no_other() {
        let at = std::ptr::without_provenance;
        for (from, bytes) in [(0x10_0000, 160 << 10), (0x10_0480, 139_264), (0x10_0ff0, 77_777)] {
            let k = Stretch { from: at(from), bytes };
            let v = Stretch { from: at(from + (1 << 20)), bytes };
            let next = Stretch { from: at(from + (2 << 20)), bytes }.window(WINDOW_BYTES);
            let found = asked([k, v, next, Stretch::NONE]);
            let mut all = lines(from, bytes);
            all.extend(lines(from + (1 << 20), bytes));
            all.extend(lines(from + (2 << 20), next.bytes));
            // The task before has asked for the first eight pages, the first of which may be short.
            let first = lines(from, WINDOW_BYTES - from % PAGE_BYTES);
            assert!(found.is_subset(&all), "{from:x} {bytes}: beyond the stretches");
            let missing: Vec<_> = all.difference(&found).filter(|l| !first.contains(l)).collect();
            // Where lines are cut, a stretch may lose the one it ends in.
            let lost = if from % LINE_BYTES == 0 { 0 } else { 3 };
            assert!(missing.len() <= lost, "{from:x} {bytes}: {missing:x?}");
        }
    }

    #[test]
    fn short_and_empty_stretches_come_to_an_end() {
        let short = Stretch { from: std::ptr::without_provenance(0x2_0010), bytes: 96 };
        assert!(asked([Stretch::NONE; STRETCHES]).is_empty());
        // All of it was the first window.
        assert!(asked([short, Stretch::NONE, short, Stretch::NONE]).is_empty());
    }
}
