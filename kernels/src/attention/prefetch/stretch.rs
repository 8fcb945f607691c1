//! Memory that a task reads from one end to the other.

/// Runs of a task's K, and of its V behind them.
pub(in crate::attention) const OF_TASK: usize = 4;
/// Those of a task and of the one after it.
pub(super) const STRETCHES: usize = 2 * OF_TASK;
pub(in crate::attention) const LINE_BYTES: usize = 64;

/// Bytes that are read in order: one run of them, or in pages of the cache a run in each.
#[derive(Debug, Clone, Copy)]
pub(in crate::attention) struct Stretch {
    /// The first byte; in pages the first of the head's in page 0.
    pub from: *const u8,
    pub bytes: usize,
    /// Of the head in a page; 0: there is one run.
    pub page_bytes: usize,
    /// The place of the first page in the call's list.
    pub first_page: usize,
    /// Of the head in the first page, before those that are read.
    pub skipped_bytes: usize,
}

impl Stretch {
    pub(in crate::attention) const NONE: Stretch = Stretch::run(std::ptr::null(), 0);

    /// Bytes that lie one behind the other.
    pub(in crate::attention) const fn run(from: *const u8, bytes: usize) -> Stretch {
        Stretch { from, bytes, page_bytes: 0, first_page: 0, skipped_bytes: 0 }
    }

    /// The first of these bytes, at most a window of them.
    pub(super) fn window(self, bytes: usize) -> Stretch {
        Stretch { bytes: self.bytes.min(bytes), ..self }
    }
}

/// All that is prefetched during a task, in order.
#[derive(Debug)]
pub(super) struct Stretches<'a> {
    all: [Stretch; STRETCHES],
    /// The pages of the call's units, in each of which that many heads lie.
    pages: (&'a [u32], usize),
}

impl<'a> Stretches<'a> {
    pub(super) fn new(
        [a, b, c, d]: [Stretch; OF_TASK],
        [e, f, g, h]: [Stretch; OF_TASK],
        pages: (&'a [u32], usize),
    ) -> Stretches<'a> {
        Stretches { all: [a, b, c, d, e, f, g, h], pages }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.iter().all(|stretch| stretch.bytes == 0)
    }
}

/// Bytes that lie one behind the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub from: *const u8,
    pub bytes: usize,
}

/// A run of the stretches.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    stretch: usize,
    /// Bytes of the stretch before the run.
    before: usize,
    pub run: Run,
}

impl Place {
    /// The first run.
    #[inline(always)]
    pub(super) fn first(stretches: &Stretches<'_>) -> Place {
        let run = Run { from: std::ptr::null(), bytes: 0 };
        let mut place = Place { stretch: 0, before: 0, run };
        place.find(stretches);
        place
    }

    /// Goes on to the next run; false at the last one. Inlined, because for a call the vector
    /// registers of its callers would go through memory.
    #[inline(always)]
    pub(super) fn advance(&mut self, stretches: &Stretches<'_>) -> bool {
        let before = self.before + self.run.bytes;
        if before < stretches.all[self.stretch].bytes {
            self.before = before;
        } else if self.stretch + 1 < STRETCHES {
            (self.stretch, self.before) = (self.stretch + 1, 0);
        } else {
            return false;
        }
        self.find(stretches);
        true
    }

    #[inline(always)]
    fn find(&mut self, stretches: &Stretches<'_>) {
        let Stretch { from, bytes, page_bytes, first_page, skipped_bytes } =
            stretches.all[self.stretch];
        self.run = Run { from, bytes };
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
