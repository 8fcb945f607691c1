//! Prefetching of lines in the order of reading: into L1 one page ahead, since the processor's
//! prefetcher stops at page boundaries, and into L2 twice as far, because L1 supports too few
//! outstanding requests to use the full memory bandwidth.

use super::stretch::{
    ContiguousRun, LINE_BYTES, PrefetchPosition, PrefetchRange, PrefetchRanges, TASK_RANGES,
};
use crate::simd::Simd;

/// Distances in bytes from the read position to the line prefetched into L1, and to the one into
/// L2.
const NEAR_BYTES: usize = 4096;
const FAR_BYTES: usize = 8192;
/// Additional bytes prefetched into L2 while exponentials are computed: a fraction of that cache.
const PAUSE_BYTES: usize = 96 << 10;

/// The next lines to prefetch into L1 and into L2.
#[derive(Debug, Clone, Copy)]
pub(in crate::attention) struct Next {
    near: *const u8,
    far: *const u8,
}

impl Next {
    /// Prefetches a line of each and advances both by one line.
    #[inline(always)]
    pub(in crate::attention) fn prefetch<S: Simd>(&mut self, s: S) {
        s.prefetch(self.near);
        s.prefetch_l2(self.far);
        self.near = self.near.wrapping_add(LINE_BYTES);
        self.far = self.far.wrapping_add(LINE_BYTES);
    }
}

/// A position in the stretches of a task.
#[derive(Debug, Clone, Copy)]
struct Cursor {
    place: PrefetchPosition,
    /// Bytes of its run before the cursor.
    at: usize,
}

/// Prefetcher in the order of reading; see the module header.
#[derive(Debug)]
pub(in crate::attention) struct LinePrefetcher<'a> {
    stretches: PrefetchRanges<'a>,
    near: Cursor,
    far: Cursor,
    /// Number of bytes by which the second cursor may still advance further relative to the first.
    pause: usize,
}

impl<'a> LinePrefetcher<'a> {
    /// Creates the prefetcher of a task from the memory that it and its successor read; the
    /// previous task has prefetched the beginning of it.
    pub(super) fn new(
        this: [PrefetchRange; TASK_RANGES],
        next: [PrefetchRange; TASK_RANGES],
        pages: (&'a [u32], usize),
    ) -> LinePrefetcher<'a> {
        let stretches = PrefetchRanges::new(this, next, pages);
        let start = Cursor::first(&stretches);
        let mut lines = LinePrefetcher { stretches, near: start, far: start, pause: 0 };
        if !lines.stretches.is_empty() {
            lines.pause = PAUSE_BYTES;
        }
        lines.near.skip(&lines.stretches, NEAR_BYTES, |_| ());
        lines.far.skip(&lines.stretches, FAR_BYTES, |_| ());
        lines
    }

    /// Returns the lines to prefetch while the next `bytes` bytes are read.
    #[inline(always)]
    pub(in crate::attention) fn next<S: Simd>(&mut self, s: S, bytes: usize) -> Next {
        let LinePrefetcher { stretches, near, far, .. } = self;
        Next {
            near: near.take(stretches, bytes, |line| s.prefetch(line)),
            far: far.take(stretches, bytes, |line| s.prefetch_l2(line)),
        }
    }

    /// Prefetches all lines of [`LinePrefetcher::next`] at once.
    #[inline(always)]
    pub(super) fn read<S: Simd>(&mut self, s: S, bytes: usize) {
        let mut next = self.next(s, bytes);
        for _ in 0..bytes.div_ceil(LINE_BYTES) {
            next.prefetch(s);
        }
    }

    /// Prefetches an additional line into L2.
    #[inline(always)]
    pub(super) fn fill_vector<S: Simd>(&mut self, s: S) {
        if self.pause > 0 {
            self.pause -= LINE_BYTES;
            let line = self.far.take(&self.stretches, LINE_BYTES, |_| ());
            s.prefetch_l2(line);
        }
    }
}

impl Cursor {
    /// Returns the cursor at the first byte.
    fn first(stretches: &PrefetchRanges<'_>) -> Cursor {
        Cursor { place: PrefetchPosition::first(stretches), at: 0 }
    }

    /// Advances by `bytes`, at most to the end of the last run; calls `passed_line` for each line
    /// that it passes in later runs.
    #[inline(always)]
    fn skip(
        &mut self,
        stretches: &PrefetchRanges<'_>,
        bytes: usize,
        passed_line: impl Fn(*const u8),
    ) {
        self.at += bytes;
        while self.at >= self.place.run.bytes {
            let passed = self.place.run.bytes;
            if !self.place.advance(stretches) {
                self.at = passed;
                break;
            }
            self.at -= passed;
            let ContiguousRun { from, bytes } = self.place.run;
            for line in (0..self.at.min(bytes)).step_by(LINE_BYTES) {
                passed_line(from.wrapping_add(line));
            }
        }
    }

    /// Advances by `bytes` bytes and returns their address. They are contiguous: at the end of a
    /// run they begin before the cursor, and the part in the next runs is prefetched at once.
    #[inline(always)]
    fn take(
        &mut self,
        stretches: &PrefetchRanges<'_>,
        bytes: usize,
        prefetch: impl Fn(*const u8),
    ) -> *const u8 {
        let ContiguousRun { from, bytes: all } = self.place.run;
        if self.at + bytes < all {
            let at = from.wrapping_add(self.at);
            self.at += bytes;
            return at;
        }
        let at = from.wrapping_add(all.saturating_sub(bytes));
        self.skip(stretches, bytes, prefetch);
        at
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    use super::*;

    /// KV heads of a page.
    const HEADS: usize = 3;

    fn stretch(from: usize, bytes: usize) -> PrefetchRange {
        PrefetchRange::run(std::ptr::without_provenance(from), bytes)
    }

    fn lines(from: usize, bytes: usize) -> BTreeSet<usize> {
        (0..bytes).map(|byte| (from + byte) / LINE_BYTES).collect()
    }

    /// Returns the lines prefetched by a cursor that is `lead` bytes ahead while K and V are read,
    /// `block` bytes at a time.
    fn prefetched(
        this: [PrefetchRange; TASK_RANGES],
        next: [PrefetchRange; TASK_RANGES],
        pages: &[u32],
        lead: usize,
        block: usize,
    ) -> BTreeSet<usize> {
        let stretches = PrefetchRanges::new(this, next, (pages, HEADS));
        let mut cursor = Cursor::first(&stretches);
        cursor.skip(&stretches, lead, |_| ());
        let prefetched_lines = RefCell::new(BTreeSet::new());
        for read in &this {
            let mut left = read.bytes;
            while left > 0 {
                let bytes = left.min(block);
                let at = cursor.take(&stretches, bytes, |line| {
                    prefetched_lines.borrow_mut().insert(line.addr() / LINE_BYTES);
                });
                prefetched_lines.borrow_mut().extend(lines(at.addr(), bytes));
                left -= bytes;
            }
        }
        prefetched_lines.into_inner()
    }

    #[test]
    fn every_line_is_prefetched_and_none_behind_what_the_next_task_expects() {
        let none = PrefetchRange::NONE;
        let next = [stretch(0x30_0000, 1 << 17), none, stretch(0x40_0000, 1 << 17), none];
        for bytes in [1 << 17, 139_264, 66_048] {
            let [k, v] = [stretch(0x10_0000, bytes), stretch(0x20_0000, bytes)];
            for (lead, block) in
                [(NEAR_BYTES, 4096), (NEAR_BYTES, 512), (FAR_BYTES, 4096), (FAR_BYTES, 1280)]
            {
                let prefetched_lines = prefetched([k, none, v, none], next, &[], lead, block);
                let mut all = lines(0x10_0000 + lead, bytes - lead);
                all.extend(lines(0x20_0000, bytes));
                all.extend(lines(0x30_0000, lead));
                let missing: Vec<_> = all.difference(&prefetched_lines).collect();
                assert!(missing.is_empty(), "{bytes} {lead} {block}: {missing:x?}");
                // The lines at the end of a stretch begin before the position.
                all.extend(lines(0x10_0000, bytes));
                assert!(prefetched_lines.is_subset(&all), "{bytes} {lead} {block}");
            }
        }
    }

    #[test]
    fn both_runs_of_a_ring_are_prefetched_and_nothing_between_them() {
        // The older run ends a cache, the newer one begins it.
        for (older, newer) in [(24 << 10, 8 << 10), (1 << 10, 31 << 10), (32 << 10, 0)] {
            let ring = |at: usize| [stretch(at + (1 << 16) - older, older), stretch(at, newer)];
            let ([a, b], [c, d]) = (ring(0x10_0000), ring(0x20_0000));
            let lead = NEAR_BYTES;
            let none = PrefetchRange::NONE;
            let next = [stretch(0x30_0000, 1 << 17), none, none, none];
            let prefetched_lines = prefetched([a, b, c, d], next, &[], lead, 512);
            let mut all: BTreeSet<usize> = [b, c, d]
                .iter()
                .flat_map(|stretch| lines(stretch.from.addr(), stretch.bytes))
                .collect();
            // Lines that the previous task has prefetched.
            let skipped = lead.saturating_sub(a.bytes);
            for line in lines(b.from.addr(), skipped) {
                all.remove(&line);
            }
            all.extend(lines(next[0].from.addr(), lead));
            let missing: Vec<_> = all.difference(&prefetched_lines).collect();
            assert!(missing.is_empty(), "{older} {newer}: {missing:x?}");
            all.extend(lines(a.from.addr(), a.bytes));
            all.extend(lines(b.from.addr(), b.bytes));
            assert!(prefetched_lines.is_subset(&all), "{older} {newer}");
        }
    }

    #[test]
    fn the_pages_of_a_head_are_prefetched_in_their_order_and_no_others() {
        let none = PrefetchRange::NONE;
        let list = [9, 2, 7, 1, 0, 5];
        // Parts of the first and the last page, whole pages, pages of a step, and a part of a page.
        for (page_bytes, skipped_bytes, bytes) in
            [(10_240, 1280, 30_720), (65_536, 0, 196_608), (4096, 0, 8192), (65_536, 6400, 25_600)]
        {
            let paged = |at: usize| PrefetchRange {
                from: std::ptr::without_provenance(at + page_bytes),
                bytes,
                page_bytes,
                first_page: 1,
                skipped_bytes,
            };
            // All lines of the second of three heads, starting at a byte of the stretch.
            let of_pages = |at: usize, first: usize, end: usize| -> BTreeSet<usize> {
                (skipped_bytes + first..skipped_bytes + end)
                    .map(|byte| {
                        let page = list[1 + byte / page_bytes] as usize;
                        (at + (page * HEADS + 1) * page_bytes + byte % page_bytes) / LINE_BYTES
                    })
                    .collect()
            };
            let [k, v, next] = [0x100_0000, 0x200_0000, 0x300_0000].map(paged);
            for (lead, block) in [(NEAR_BYTES, 4096), (NEAR_BYTES, 512), (FAR_BYTES, 1280)] {
                let (this, next) = ([k, none, v, none], [next, none, none, none]);
                let prefetched_lines = prefetched(this, next, &list, lead, block);
                let mut all = of_pages(0x100_0000, lead, bytes);
                all.extend(of_pages(0x200_0000, 0, bytes));
                all.extend(of_pages(0x300_0000, 0, lead));
                let missing: Vec<_> = all.difference(&prefetched_lines).collect();
                let context = format!("{page_bytes} {bytes} {lead} {block}");
                assert!(missing.is_empty(), "{context}: {missing:x?}");
                // The lines at the end of a run begin before the position.
                all.extend(of_pages(0x100_0000, 0, bytes));
                assert!(prefetched_lines.is_subset(&all), "{context}");
            }
        }
    }

    #[test]
    fn short_and_empty_stretches_come_to_an_end() {
        let none = PrefetchRange::NONE;
        assert!(
            prefetched([none; TASK_RANGES], [none; TASK_RANGES], &[], FAR_BYTES, 4096).is_empty()
        );
        let short = stretch(0x1_0000, 1024);
        let of_task = [short, none, short, none];
        let prefetched_lines = prefetched(of_task, [none; TASK_RANGES], &[], NEAR_BYTES, 4096);
        assert!(prefetched_lines.iter().all(|line| line * LINE_BYTES < 0x1_0000 + 1024));
    }
}
