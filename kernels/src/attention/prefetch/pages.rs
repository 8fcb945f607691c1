//! Prefetching of several pages in parallel, line by line, at the speed at which the pages before
//! them are read; each line is in L1 when it is read.

use super::stretch::{
    ContiguousRun, LINE_BYTES, PrefetchPosition, PrefetchRange, PrefetchRanges, TASK_RANGES,
};
use crate::simd::Simd;

/// Number of pages prefetched in parallel.
pub(super) const STREAMS: usize = 8;
const PAGE_BYTES: usize = 4096;
/// Bytes that memory can deliver while queries are packed, or while the softmax of a few hundred
/// positions is computed.
const PAUSE_BYTES: usize = 2048;
/// Prefetcher of pages in parallel; see the module header.
#[derive(Debug)]
pub(in crate::attention) struct Pages<'a> {
    stretches: PrefetchRanges<'a>,
    /// Run of the next page to prefetch, and the byte offset of the page in it.
    place: PrefetchPosition,
    at: usize,
    /// Pages that are being prefetched, and the number of bytes prefetched of each.
    pages: [*const u8; STREAMS],
    prefetched: usize,
    /// Bytes read for which nothing has been prefetched yet.
    debt: usize,
    /// Bytes read per round of prefetches, which fetches one line of each page: fewer if incomplete
    /// pages overlap.
    step_bytes: usize,
}

impl<'a> Pages<'a> {
    /// Creates the prefetcher of a task from the K and V that it and its successor read. The
    /// previous task has prefetched the first window of it, and this task prefetches that of the
    /// next one.
    pub(super) fn new(
        this: [PrefetchRange; TASK_RANGES],
        next: [PrefetchRange; TASK_RANGES],
        pages: (&'a [u32], usize),
    ) -> Pages<'a> {
        let mut left = STREAMS * PAGE_BYTES;
        let next = next.map(|stretch| {
            let window = stretch.window(left);
            left -= window.bytes;
            window
        });
        let stretches = PrefetchRanges::new(this, next, pages);
        let place = PrefetchPosition::first(&stretches);
        let mut pages = Pages {
            stretches,
            place,
            at: 0,
            pages: [std::ptr::null(); STREAMS],
            prefetched: PAGE_BYTES,
            debt: 0,
            step_bytes: STREAMS * LINE_BYTES,
        };
        pages.next_pages();
        pages.next_pages();
        pages
    }

    /// Advances to the next pages; returns false if there are none. Inlined, because a call would
    /// spill its callers' vector registers to memory.
    #[inline(always)]
    fn next_pages(&mut self) -> bool {
        let (mut count, mut bytes_ahead) = (0, 0);
        while count < STREAMS {
            let ContiguousRun { from, bytes } = self.place.run;
            if self.at >= bytes {
                if !self.place.advance(&self.stretches) {
                    break;
                }
                self.at = 0;
                continue;
            }
            // An incomplete last page begins earlier, so that nothing after it is prefetched.
            let page = from.wrapping_add(self.at.min(bytes.saturating_sub(PAGE_BYTES)));
            self.pages[count] = page;
            count += 1;
            // The first page ends at a page boundary of the processor, as do all others.
            let to_end = PAGE_BYTES - from.wrapping_add(self.at).addr() % PAGE_BYTES;
            bytes_ahead += to_end.min(bytes - self.at);
            self.at += to_end;
        }
        for other in count..STREAMS {
            self.pages[other] = self.pages[0];
        }
        self.prefetched = if count > 0 { 0 } else { PAGE_BYTES };
        self.step_bytes = (bytes_ahead / (PAGE_BYTES / LINE_BYTES)).max(LINE_BYTES);
        count > 0
    }

    /// Announces a read of `bytes` bytes.
    #[inline(always)]
    pub(super) fn read<S: Simd>(&mut self, s: S, bytes: usize) {
        self.debt += bytes;
        while self.debt >= self.step_bytes {
            self.debt -= self.step_bytes;
            self.prefetch(s);
        }
    }

    /// Prefetches more than is read, before a computation that would leave memory idle.
    #[inline(always)]
    pub(super) fn fill_pause<S: Simd>(&mut self, s: S) {
        self.read(s, PAUSE_BYTES);
    }

    /// Prefetches one line of every page.
    #[inline(always)]
    fn prefetch<S: Simd>(&mut self, s: S) {
        if self.prefetched == PAGE_BYTES && !self.next_pages() {
            return;
        }
        for page in &self.pages {
            s.prefetch(page.wrapping_add(self.prefetched));
        }
        self.prefetched += LINE_BYTES;
    }

    /// Prefetches the remaining lines at the end of the task.
    pub(super) fn finish<S: Simd>(&mut self, s: S) {
        while self.prefetched < PAGE_BYTES || self.next_pages() {
            self.prefetch(s);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Returns all lines prefetched after the first window, and the bytes of a window.
    fn prefetched(
        of: [PrefetchRange; TASK_RANGES],
        next: [PrefetchRange; TASK_RANGES],
    ) -> (BTreeSet<usize>, usize) {
        let mut pages = Pages::new(of, next, (&[9, 2, 7, 1], 3));
        let mut lines = BTreeSet::new();
        while pages.prefetched < PAGE_BYTES || pages.next_pages() {
            for page in &pages.pages {
                lines.insert(page.wrapping_add(pages.prefetched).addr() / LINE_BYTES);
            }
            pages.prefetched += LINE_BYTES;
        }
        (lines, STREAMS * PAGE_BYTES)
    }

    fn lines(from: usize, bytes: usize) -> BTreeSet<usize> {
        (from..from + bytes).map(|byte| byte / LINE_BYTES).collect()
    }

    #[test]
    fn every_line_behind_the_first_window_is_prefetched_and_no_other() {
        let at = std::ptr::without_provenance;
        let cases = [(0x10_0000, 160 << 10), (0x10_0480, 139_264), (0x10_0ff0, 77_777)];
        for (from, bytes) in cases {
            let k = PrefetchRange::run(at(from), bytes);
            let v = PrefetchRange::run(at(from + (1 << 20)), bytes);
            let next = PrefetchRange::run(at(from + (2 << 20)), bytes);
            let none = PrefetchRange::NONE;
            let (prefetched_lines, window) =
                prefetched([k, none, v, none], [next, none, none, none]);
            let mut all = lines(from, bytes);
            all.extend(lines(from + (1 << 20), bytes));
            all.extend(lines(from + (2 << 20), bytes.min(window)));
            // The previous task has prefetched the first pages, the first of which may be short.
            let first = lines(from, window - from % PAGE_BYTES);
            assert!(prefetched_lines.is_subset(&all), "{from:x} {bytes}: beyond the stretches");
            let missing: Vec<_> =
                all.difference(&prefetched_lines).filter(|l| !first.contains(l)).collect();
            // If lines are cut, a stretch may lose the one it ends in.
            let lost = if from % LINE_BYTES == 0 { 0 } else { 3 };
            assert!(missing.len() <= lost, "{from:x} {bytes}: {missing:x?}");
        }
    }

    /// Returns the prefetched addresses after the first window, in order.
    fn in_order(
        of: [PrefetchRange; TASK_RANGES],
        next: [PrefetchRange; TASK_RANGES],
    ) -> Vec<usize> {
        let list: Vec<u32> = (0..64).collect();
        let mut pages = Pages::new(of, next, (&list, 1));
        let mut lines = Vec::new();
        while pages.prefetched < PAGE_BYTES || pages.next_pages() {
            lines.extend(pages.pages.map(|page| page.wrapping_add(pages.prefetched).addr()));
            pages.prefetched += LINE_BYTES;
        }
        lines
    }

    #[test]
    fn pages_one_behind_the_other_are_prefetched_like_one_run() {
        let (bytes, page_bytes) = (655_360, 20_480);
        let none = PrefetchRange::NONE;
        let [run, pages] = [0, page_bytes].map(|page_bytes| {
            let of = |at: usize| PrefetchRange {
                page_bytes,
                ..PrefetchRange::run(std::ptr::without_provenance(at), bytes)
            };
            let [k, v, next] = [0x100_0000, 0x200_0000, 0x300_0000].map(of);
            in_order([k, none, v, none], [next, none, none, none])
        });
        assert_eq!(pages, run);
    }

    #[test]
    fn the_pages_of_a_head_are_prefetched_in_their_order_and_no_others() {
        let none = PrefetchRange::NONE;
        for (page_bytes, skipped_bytes, bytes) in [(65_536, 1280, 180_032), (10_240, 640, 24_960)] {
            // The second of three heads in pages 2, 7 and 1.
            let k = PrefetchRange {
                from: std::ptr::without_provenance(0x100_0000 + page_bytes),
                bytes,
                page_bytes,
                first_page: 1,
                skipped_bytes,
            };
            let prefetched_lines = prefetched([k, none, none, none], [none; TASK_RANGES]).0;
            let (mut all, mut left, mut skipped) = (Vec::new(), bytes, skipped_bytes);
            for page in [2, 7, 1] {
                let of_page = left.min(page_bytes - skipped);
                let from = 0x100_0000 + (3 * page + 1) * page_bytes + skipped;
                all.extend(lines(from, of_page));
                (left, skipped) = (left - of_page, 0);
            }
            assert_eq!(left, 0, "three pages hold it");
            let is_one = |line: &usize| all.contains(line);
            assert!(prefetched_lines.iter().all(is_one), "{page_bytes} {bytes}: beyond the pages");
            // The previous task has prefetched the first window.
            let window = all.len().min(STREAMS * PAGE_BYTES / LINE_BYTES);
            let missing = all[window..].iter().filter(|line| !prefetched_lines.contains(line));
            assert_eq!(missing.count(), 0, "{page_bytes} {bytes}");
        }
    }

    #[test]
    fn short_and_empty_stretches_come_to_an_end() {
        let short = PrefetchRange::run(std::ptr::without_provenance(0x2_0010), 96);
        let none = [PrefetchRange::NONE; TASK_RANGES];
        assert!(prefetched(none, none).0.is_empty());
        // The first window was all of it.
        let short = [short, PrefetchRange::NONE, PrefetchRange::NONE, PrefetchRange::NONE];
        assert!(prefetched(short, short).0.is_empty());
    }
}
