//! Records of grouped low-bit weights, in which a vector lane is an output column already.

use half::f16;
use model::compressed::{Bits, Grouped, ROWS};

use super::{Lines, WeightReader};
use crate::linear::sizes::BLOCK_UNITS;
use crate::linear::tuning::GROUPED_PREFETCH_BYTES;
use crate::simd::Simd;

/// Records of grouped low-bit weights (`model::compressed`).
#[derive(Debug, Clone, Copy)]
pub struct Records {
    records: *const u8,
    format: Grouped,
    n: usize,
    groups: usize,
}

impl Records {
    /// `records` holds a matrix `[n, k]` of `format`.
    pub fn new(records: *const u8, format: Grouped, n: usize, k: usize) -> Self {
        Records { records, format, n, groups: format.groups(k) }
    }

    /// Bits of an integer.
    pub fn bits(self) -> Bits {
        self.format.bits
    }

    /// Inputs of a group.
    pub fn group(self) -> usize {
        self.format.group
    }

    /// Groups along k.
    pub fn groups(self) -> usize {
        self.groups
    }

    /// Bytes of a record.
    pub fn record_bytes(self) -> usize {
        self.format.record_bytes()
    }

    /// The record of a block of `ROWS` columns and a group.
    pub fn record_at(self, block: usize, group: usize) -> *const u8 {
        self.records.wrapping_add((block * self.groups + group) * self.format.record_bytes())
    }

    /// A record, and the first of the panel's rows in it.
    #[inline(always)]
    fn record<S: Simd>(self, panel: usize, segment: usize) -> (*const u8, usize) {
        let (block, row) = (panel * S::LANES / ROWS, panel * S::LANES % ROWS);
        (self.record_at(block, segment), row)
    }

    #[inline(always)]
    fn vector<S: Simd>(self, panel: usize, segment: usize, index: usize) -> *const u8 {
        let (record, row) = self.record::<S>(panel, segment);
        record.wrapping_add(4 * ROWS * (1 + index) + 4 * row)
    }
}

macro_rules! grouped_reader {
    ($units:literal, |$s:ident, $d:ident, $index:ident| $unit:expr) => {
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
            self.0.groups * self.0.format.group
        }

        #[inline(always)]
        fn segment(self) -> usize {
            self.0.format.group
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
            s.prefetch(at.wrapping_add(GROUPED_PREFETCH_BYTES));
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
            let segments = BLOCK_UNITS / self.0.format.group;
            let (first, bytes) = (block * segments, self.0.format.record_bytes());
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

impl<S: Simd> WeightReader<S> for Four {
    // The low half of a dword has the even inputs, the high half the odd ones.
    grouped_reader!(8, |s, d, index| s.nibble(d, index / 2 + index % 2 * 4));
}

/// 8-bit records, widened: four units to a dword.
#[derive(Debug, Clone, Copy)]
pub struct Eight(pub Records);

impl<S: Simd> WeightReader<S> for Eight {
    grouped_reader!(4, |s, d, index| s.byte(d, index));
}
