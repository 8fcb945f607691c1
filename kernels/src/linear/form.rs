//! How weights lie in memory and become *units*: vectors whose lanes are output columns, each
//! multiplied by one broadcast value of x.
//!
//! A *panel* is `LANES` weight rows. A *chunk* of it is a few dword vectors, which expand to units in
//! the order of k. A *segment* is the length of one chain of multiply-adds; it is the same for every
//! batch size and thread count, which is what makes rows independent.

use half::{bf16, f16};
use model::compressed::{Bits, Grouped, ROWS};

use super::BLOCK_UNITS;
use crate::simd::{Bf16Dot, MAX_LANES, Simd};

/// What a unit is and how it is multiplied.
pub trait Dot<S: Simd> {
    /// Inputs (k) of a unit.
    const INPUTS: usize;
    fn step(s: S, w: S::F, x: S::F, acc: S::F) -> S::F;
}

/// A unit is one input in f32.
#[derive(Debug, Clone, Copy)]
pub struct Fma;

impl<S: Simd> Dot<S> for Fma {
    const INPUTS: usize = 1;

    #[inline(always)]
    fn step(s: S, w: S::F, x: S::F, acc: S::F) -> S::F {
        s.fma(w, x, acc)
    }
}

/// A unit is two inputs as a pair of bf16.
#[derive(Debug, Clone, Copy)]
pub struct Pairs;

impl<S: Bf16Dot> Dot<S> for Pairs {
    const INPUTS: usize = 2;

    #[inline(always)]
    fn step(s: S, w: S::F, x: S::F, acc: S::F) -> S::F {
        s.dot_bf16(w, x, acc)
    }
}

/// A form of weights; see the module header.
pub trait Form<S: Simd>: Copy {
    type Dot: Dot<S>;
    /// Units of a dword vector.
    const UNITS: usize;
    /// Dword vectors of a chunk: 1 or `LANES`.
    const DWORDS: usize;
    /// Whether a chain ends with a scale and a minimum per column.
    const GROUPED: bool;

    /// Unit `index` of a dword vector.
    fn unit(s: S, d: S::D, index: usize) -> S::F;
    /// Output columns.
    fn columns(self) -> usize;
    /// Units along k.
    fn units(self) -> usize;
    /// Units of a segment, a whole number of chunks; the last segment may be shorter.
    fn segment(self) -> usize;
    /// Whether all `LANES` columns of a panel can be read.
    fn is_full(self, panel: usize) -> bool;
    /// A chunk of a panel.
    ///
    /// # Safety
    /// The panel is full, and all units of the chunk exist.
    unsafe fn chunk(self, s: S, panel: usize, segment: usize, index: usize) -> S::Block;
    /// As `chunk`, with zeros for the columns and units that do not exist.
    ///
    /// # Safety
    /// The first column and unit exist.
    unsafe fn edge(self, s: S, panel: usize, segment: usize, index: usize) -> S::Block;
    /// Asks for what a later `chunk` will read.
    fn prefetch(self, s: S, panel: usize, segment: usize, index: usize);
    /// Scale and minimum of a segment of a panel, if grouped.
    ///
    /// # Safety
    /// Both exist.
    unsafe fn scale(self, s: S, panel: usize, segment: usize) -> (S::F, S::F);
    /// The lines of memory of `panels` panels from `panel` on, units of one block.
    fn lines(self, panel: usize, panels: usize, block: usize) -> Lines;
}

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

/// Row-major rows of `T`, as in a checkpoint: the weight, or activations to be packed.
#[derive(Debug)]
pub struct Plain<T> {
    rows: *const T,
    n: usize,
    k: usize,
}

impl<T> Clone for Plain<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Plain<T> {}

impl<T> Plain<T> {
    /// `rows` is `[n, k]`.
    pub fn new(rows: *const T, n: usize, k: usize) -> Self {
        Plain { rows, n, k }
    }

    /// Inputs of a row.
    #[inline(always)]
    pub fn inputs(self) -> usize {
        self.k
    }

    /// Where a row starts, if it exists.
    #[inline(always)]
    pub fn row(self, row: usize) -> *const T {
        self.rows.wrapping_add(row * self.k)
    }

    #[inline(always)]
    fn stride(self) -> usize {
        self.k * size_of::<T>()
    }

    #[inline(always)]
    fn at<S: Simd>(
        self,
        panel: usize,
        segment: usize,
        index: usize,
        per_dword: usize,
    ) -> *const u8 {
        let chunk = segment * (BLOCK_UNITS / (per_dword * S::LANES)) + index;
        self.rows.cast::<u8>().wrapping_add(panel * S::LANES * self.stride() + chunk * 4 * S::LANES)
    }

    #[inline(always)]
    unsafe fn padded<S: Simd>(
        self,
        s: S,
        panel: usize,
        from: *const u8,
        offset: usize,
    ) -> S::Block {
        let rows = S::LANES.min(self.n - panel * S::LANES);
        let bytes = (4 * S::LANES).min(self.stride() - offset);
        let mut buffer = [[0u8; 4 * MAX_LANES]; MAX_LANES];
        for (row, to) in buffer.iter_mut().enumerate().take(rows) {
            // SAFETY: these bytes of these rows exist, and fit the buffer. The whole length as a
            // constant is a vector move instead of a call.
            unsafe {
                let from = from.add(row * self.stride());
                if bytes == 4 * S::LANES {
                    std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), 4 * S::LANES);
                } else {
                    std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), bytes);
                }
            }
        }
        // SAFETY: the buffer holds LANES rows.
        unsafe { s.transpose(buffer.as_ptr().cast(), 4 * MAX_LANES) }
    }

    #[inline(always)]
    fn prefetch_rows<S: Simd>(self, s: S, at: *const u8) {
        for row in 0..S::LANES {
            s.prefetch_l2(at.wrapping_add(row * self.stride()));
        }
    }

    #[inline(always)]
    fn lines_of_block<S: Simd>(
        self,
        panel: usize,
        panels: usize,
        block: usize,
        per_dword: usize,
    ) -> Lines {
        let first = block * BLOCK_UNITS / per_dword * 4;
        let bytes = self.stride().saturating_sub(first).min(BLOCK_UNITS / per_dword * 4);
        let row = panel * S::LANES;
        Lines {
            at: self.rows.cast::<u8>().wrapping_add(row * self.stride() + first),
            stride: self.stride(),
            rows: self.n.saturating_sub(row).min(panels * S::LANES),
            lines: bytes.div_ceil(64),
        }
    }
}

/// How far ahead of the chunk in use to ask for memory, bytes along a row.
const AHEAD_BYTES: usize = 512;

macro_rules! plain_form {
    ($dot:ty, $units:literal, $inputs:literal, |$s:ident, $d:ident, $index:ident| $unit:expr) => {
        type Dot = $dot;
        const UNITS: usize = $units;
        const DWORDS: usize = S::LANES;
        const GROUPED: bool = false;

        #[inline(always)]
        fn unit($s: S, $d: S::D, $index: usize) -> S::F {
            $unit
        }

        #[inline(always)]
        fn columns(self) -> usize {
            self.0.n
        }

        #[inline(always)]
        fn units(self) -> usize {
            self.0.k.div_ceil($inputs)
        }

        #[inline(always)]
        fn segment(self) -> usize {
            BLOCK_UNITS
        }

        #[inline(always)]
        fn is_full(self, panel: usize) -> bool {
            (panel + 1) * S::LANES <= self.0.n
        }

        #[inline(always)]
        unsafe fn chunk(self, s: S, panel: usize, segment: usize, index: usize) -> S::Block {
            // Of an odd number of inputs the last has no partner in memory but the next row's first.
            let end = segment * BLOCK_UNITS * 4 / $units + (index + 1) * 4 * S::LANES;
            if $inputs > 1 && end > self.0.stride() {
                // SAFETY: the caller's promise.
                return unsafe { self.edge(s, panel, segment, index) };
            }
            // SAFETY: the caller promises that these rows and inputs exist.
            unsafe { s.transpose(self.0.at::<S>(panel, segment, index, $units), self.0.stride()) }
        }

        #[inline(always)]
        unsafe fn edge(self, s: S, panel: usize, segment: usize, index: usize) -> S::Block {
            let offset = segment * BLOCK_UNITS * 4 / $units + index * 4 * S::LANES;
            // SAFETY: the caller promises that the first column and input exist.
            unsafe {
                self.0.padded(s, panel, self.0.at::<S>(panel, segment, index, $units), offset)
            }
        }

        #[inline(always)]
        fn prefetch(self, s: S, panel: usize, segment: usize, index: usize) {
            let at = self.0.at::<S>(panel, segment, index, $units);
            self.0.prefetch_rows(s, at.wrapping_add(AHEAD_BYTES));
        }

        #[inline(always)]
        unsafe fn scale(self, s: S, _: usize, _: usize) -> (S::F, S::F) {
            (s.zero(), s.zero())
        }

        #[inline(always)]
        fn lines(self, panel: usize, panels: usize, block: usize) -> Lines {
            self.0.lines_of_block::<S>(panel, panels, block, $units)
        }
    };
}

/// f32 weights: a unit is a dword.
#[derive(Debug, Clone, Copy)]
pub struct PlainF32(pub Plain<f32>);

impl<S: Simd> Form<S> for PlainF32 {
    plain_form!(Fma, 1, 1, |s, d, _index| s.bits(d));
}

/// bf16 weights, widened: two units to a dword.
#[derive(Debug, Clone, Copy)]
pub struct PlainBf16(pub Plain<bf16>);

impl<S: Simd> Form<S> for PlainBf16 {
    plain_form!(Fma, 2, 1, |s, d, index| if index == 0 { s.low_bf16(d) } else { s.high_bf16(d) });
}

/// bf16 weights as they are: a unit is a dword, two inputs.
#[derive(Debug, Clone, Copy)]
pub struct PairsBf16(pub Plain<bf16>);

impl<S: Bf16Dot> Form<S> for PairsBf16 {
    plain_form!(Pairs, 1, 2, |s, d, _index| s.bits(d));
}

/// Records of grouped low-bit weights (`model::compressed`).
#[derive(Debug, Clone, Copy)]
pub struct Records {
    records: *const u8,
    form: Grouped,
    n: usize,
    groups: usize,
}

impl Records {
    /// `records` holds a matrix `[n, k]` of `form`.
    pub fn new(records: *const u8, form: Grouped, n: usize, k: usize) -> Self {
        Records { records, form, n, groups: form.groups(k) }
    }

    /// Bits of an integer.
    pub fn bits(self) -> Bits {
        self.form.bits
    }

    /// A record, and the first of the panel's rows in it.
    #[inline(always)]
    fn record<S: Simd>(self, panel: usize, segment: usize) -> (*const u8, usize) {
        let (block, row) = (panel * S::LANES / ROWS, panel * S::LANES % ROWS);
        let record = (block * self.groups + segment) * self.form.record_bytes();
        (self.records.wrapping_add(record), row)
    }

    #[inline(always)]
    fn vector<S: Simd>(self, panel: usize, segment: usize, index: usize) -> *const u8 {
        let (record, row) = self.record::<S>(panel, segment);
        record.wrapping_add(4 * ROWS * (1 + index) + 4 * row)
    }
}

/// How far ahead of the vector in use to ask for memory, bytes along the records of a panel.
const AHEAD_RECORD_BYTES: usize = 1024;

macro_rules! grouped_form {
    ($dot:ty, $units:literal, $inputs:literal, |$s:ident, $d:ident, $index:ident| $unit:expr) => {
        type Dot = $dot;
        const UNITS: usize = $units;
        const DWORDS: usize = 1;
        const GROUPED: bool = true;

        #[inline(always)]
        fn unit($s: S, $d: S::D, $index: usize) -> S::F {
            $unit
        }

        #[inline(always)]
        fn columns(self) -> usize {
            self.0.n
        }

        #[inline(always)]
        fn units(self) -> usize {
            self.0.groups * self.0.form.group / $inputs
        }

        #[inline(always)]
        fn segment(self) -> usize {
            self.0.form.group / $inputs
        }

        #[inline(always)]
        fn is_full(self, panel: usize) -> bool {
            panel * S::LANES < self.0.n
        }

        #[inline(always)]
        unsafe fn chunk(self, s: S, panel: usize, segment: usize, index: usize) -> S::Block {
            // SAFETY: the caller promises that the vector exists.
            s.repeat(unsafe { s.load_dwords(self.0.vector::<S>(panel, segment, index)) })
        }

        #[inline(always)]
        unsafe fn edge(self, s: S, panel: usize, segment: usize, index: usize) -> S::Block {
            // SAFETY: records are padded, so that what exists in part exists in full.
            unsafe { self.chunk(s, panel, segment, index) }
        }

        #[inline(always)]
        fn prefetch(self, s: S, panel: usize, segment: usize, index: usize) {
            let at = self.0.vector::<S>(panel, segment, index);
            s.prefetch_l2(at.wrapping_add(AHEAD_RECORD_BYTES));
        }

        #[inline(always)]
        unsafe fn scale(self, s: S, panel: usize, segment: usize) -> (S::F, S::F) {
            let (record, row) = self.0.record::<S>(panel, segment);
            let record = record.cast::<f16>();
            // SAFETY: a record starts with the scales and minimums of its rows.
            unsafe { (s.load_f16(record.add(row)), s.load_f16(record.add(ROWS + row))) }
        }

        #[inline(always)]
        fn lines(self, panel: usize, panels: usize, block: usize) -> Lines {
            let segments = BLOCK_UNITS / (self.0.form.group / $inputs);
            let (first, bytes) = (block * segments, self.0.form.record_bytes());
            let here = self.0.groups.saturating_sub(first).min(segments);
            let (panels, left) = (panels * S::LANES, self.0.n.saturating_sub(panel * S::LANES));
            Lines {
                at: self.0.record::<S>(panel, first).0,
                stride: self.0.groups * bytes,
                rows: left.min(panels).div_ceil(ROWS),
                lines: here * bytes / 64,
            }
        }
    };
}

/// 4-bit records, widened: eight units to a dword.
#[derive(Debug, Clone, Copy)]
pub struct Four(pub Records);

impl<S: Simd> Form<S> for Four {
    // The low half of a dword has the even inputs, the high half the odd ones.
    grouped_form!(Fma, 8, 1, |s, d, index| s.nibble(d, index / 2 + index % 2 * 4));
}

/// 8-bit records, widened: four units to a dword.
#[derive(Debug, Clone, Copy)]
pub struct Eight(pub Records);

impl<S: Simd> Form<S> for Eight {
    grouped_form!(Fma, 4, 1, |s, d, index| s.byte(d, index));
}

/// 4-bit records as pairs of bf16: four units to a dword.
#[derive(Debug, Clone, Copy)]
pub struct FourPairs(pub Records);

impl<S: Bf16Dot> Form<S> for FourPairs {
    grouped_form!(Pairs, 4, 2, |s, d, index| s.nibble_pair(d, index));
}

/// 8-bit records as pairs of bf16: two units to a dword.
#[derive(Debug, Clone, Copy)]
pub struct EightPairs(pub Records);

impl<S: Bf16Dot> Form<S> for EightPairs {
    grouped_form!(Pairs, 2, 2, |s, d, index| s.byte_pair(d, index));
}
