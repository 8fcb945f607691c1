//! Memory that a task reads from one end to the other.

/// Number of runs of a task's K, followed by those of its V.
pub(in crate::attention) const TASK_RANGES: usize = 4;
/// Number of runs of a task and its successor.
pub(super) const TOTAL_RANGES: usize = 2 * TASK_RANGES;
pub(in crate::attention) const LINE_BYTES: usize = 64;

/// Bytes that are read in order: one run, or one run per page of the cache.
#[derive(Debug, Clone, Copy)]
pub(in crate::attention) struct PrefetchRange {
    /// Address of the first byte; with pages, of the head's first byte in page 0.
    pub from: *const u8,
    pub bytes: usize,
    /// Bytes of the head in a page; 0 for a single run.
    pub page_bytes: usize,
    /// Index of the first page in the call's list.
    pub first_page: usize,
    /// Bytes of the head in the first page before those that are read.
    pub skipped_bytes: usize,
}

impl PrefetchRange {
    pub(in crate::attention) const NONE: PrefetchRange = PrefetchRange::run(std::ptr::null(), 0);

    /// Returns a stretch of contiguous bytes.
    pub(in crate::attention) const fn run(from: *const u8, bytes: usize) -> PrefetchRange {
        PrefetchRange { from, bytes, page_bytes: 0, first_page: 0, skipped_bytes: 0 }
    }

    /// Returns the first `bytes` bytes at most.
    pub(super) fn window(self, bytes: usize) -> PrefetchRange {
        PrefetchRange { bytes: self.bytes.min(bytes), ..self }
    }
}

/// All memory that is prefetched during a task, in order.
#[derive(Debug)]
pub(super) struct PrefetchRanges<'a> {
    all: [PrefetchRange; TOTAL_RANGES],
    /// Page list of the call, and the number of heads in each page.
    pages: (&'a [u32], usize),
}

impl<'a> PrefetchRanges<'a> {
    pub(super) fn new(
        [a, b, c, d]: [PrefetchRange; TASK_RANGES],
        [e, f, g, h]: [PrefetchRange; TASK_RANGES],
        pages: (&'a [u32], usize),
    ) -> PrefetchRanges<'a> {
        PrefetchRanges { all: [a, b, c, d, e, f, g, h], pages }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.iter().all(|stretch| stretch.bytes == 0)
    }
}

/// Contiguous bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct ContiguousRun {
    pub from: *const u8,
    pub bytes: usize,
}

/// A run of the stretches.
#[derive(Debug, Clone, Copy)]
pub(super) struct PrefetchPosition {
    stretch: usize,
    /// Bytes of the stretch before the run.
    before: usize,
    pub run: ContiguousRun,
}

impl PrefetchPosition {
    /// Returns the first run.
    #[inline(always)]
    pub(super) fn first(stretches: &PrefetchRanges<'_>) -> PrefetchPosition {
        let run = ContiguousRun { from: std::ptr::null(), bytes: 0 };
        let mut place = PrefetchPosition { stretch: 0, before: 0, run };
        place.find(stretches);
        place
    }

    /// Advances to the next run; returns false at the last one. Inlined, because a call would spill
    /// its callers' vector registers to memory.
    #[inline(always)]
    pub(super) fn advance(&mut self, stretches: &PrefetchRanges<'_>) -> bool {
        let before = self.before + self.run.bytes;
        if before < stretches.all[self.stretch].bytes {
            self.before = before;
        } else if self.stretch + 1 < TOTAL_RANGES {
            (self.stretch, self.before) = (self.stretch + 1, 0);
        } else {
            return false;
        }
        self.find(stretches);
        true
    }

    #[inline(always)]
    fn find(&mut self, stretches: &PrefetchRanges<'_>) {
        let PrefetchRange { from, bytes, page_bytes, first_page, skipped_bytes } =
            stretches.all[self.stretch];
        self.run = ContiguousRun { from, bytes };
        let at = skipped_bytes + self.before;
        if let Some(index) = at.checked_div(page_bytes) {
            let (list, heads) = stretches.pages;
            let within = at - index * page_bytes;
            let page = list[first_page + index] as usize;
            self.run.from = from.wrapping_add(page * heads * page_bytes + within);
            self.run.bytes = (page_bytes - within).min(bytes - self.before);
        }
    }
}
