//! Records of grouped low-bit weights, in which a vector lane already is an output column.

use std::ops::Range;

use half::f16;
use model::quantized_format::{Bits, Grouped, ROWS, ScaleLayout};

use super::{Lines, WeightReader};
use crate::linear::sizes::BLOCK_UNITS;
use crate::linear::tuning::GROUPED_PREFETCH_BYTES;
use crate::simd::Simd;

/// Bytes of a vector of dwords, one for each row of a record.
const VECTOR_BYTES: usize = 4 * ROWS;

/// Records of grouped low-bit weights (`model::compressed`).
#[derive(Debug, Clone, Copy)]
pub struct Records {
    records: *const u8,
    format: Grouped,
    n: usize,
    groups: usize,
    /// Bytes of a block of `ROWS` columns. The following fields are the sizes of its components.
    block_bytes: usize,
    record_bytes: usize,
    head_bytes: usize,
    group_bytes: usize,
    /// Base-2 logarithm of the number of groups in a record.
    shift: u32,
    /// Groups whose integers are stored together, less one.
    others: usize,
}

impl Records {
    /// Creates a reader of `records`, which hold a matrix `[n, k]` of `format`.
    pub fn new(records: *const u8, format: Grouped, n: usize, k: usize) -> Self {
        let in_record = format.scales.groups(format.group);
        assert!(in_record.is_power_of_two(), "{format:?}: groups of a record");
        Records {
            records,
            format,
            n,
            groups: format.groups(k),
            block_bytes: format.block_bytes(k),
            record_bytes: format.record_bytes(),
            head_bytes: format.scales.size_bytes(format.group),
            group_bytes: format.group_bytes(),
            shift: in_record.trailing_zeros(),
            others: format.groups_together() - 1,
        }
    }

    /// Returns the records with groups of at most `most` inputs: groups are divided, whose parts
    /// have the same scale and minimum.
    pub(in crate::linear) fn in_groups_of_at_most(self, most: usize) -> Self {
        let parts = self.format.group / most;
        if parts <= 1 {
            return self;
        }
        // The parts of a record's only group are consecutive, and so are their scales and minimums
        // as `ranges` reads them: they do not depend on the group.
        assert_eq!(self.format.scales, ScaleLayout::Halves, "the layout of scales of large groups");
        Records {
            format: Grouped { group: most, ..self.format },
            groups: self.groups * parts,
            group_bytes: self.group_bytes / parts,
            shift: self.shift + parts.trailing_zeros(),
            ..self
        }
    }

    /// Returns the type of the integers.
    pub fn bits(self) -> Bits {
        self.format.bits
    }

    /// Returns the format of the records.
    pub fn format(self) -> Grouped {
        self.format
    }

    /// Returns the number of inputs in a group.
    pub fn group(self) -> usize {
        self.format.group
    }

    /// Returns the number of groups along k.
    pub fn groups(self) -> usize {
        self.groups
    }

    /// Returns the number of groups in a record.
    pub fn in_record(self) -> usize {
        1 << self.shift
    }

    /// Returns the number of bytes in a record.
    pub fn record_bytes(self) -> usize {
        self.record_bytes
    }

    /// Returns the number of bytes of scales and minimums, with which a record starts.
    pub fn head_bytes(self) -> usize {
        self.head_bytes
    }

    /// Returns the number of bytes of a group's integers.
    pub fn group_bytes(self) -> usize {
        self.group_bytes
    }

    /// Returns the index of a group in its record.
    pub fn place(self, group: usize) -> usize {
        group & (self.in_record() - 1)
    }

    /// Returns the record of a block of `ROWS` columns that contains a group.
    pub fn record_at(self, block: usize, group: usize) -> *const u8 {
        let before = block * self.block_bytes + (group >> self.shift) * self.record_bytes;
        self.records.wrapping_add(before)
    }

    /// Returns the integers of a group, or where those of groups begin that are stored together.
    pub fn integers_at(self, block: usize, group: usize) -> *const u8 {
        let before = self.head_bytes + (self.place(group) & !self.others) * self.group_bytes;
        self.record_at(block, group).wrapping_add(before)
    }

    /// Returns the number of steps of four inputs before a group in integers that are stored
    /// together.
    pub(in crate::linear) fn first_step(self, group: usize) -> usize {
        (group & self.others) * self.format.group / 4
    }

    /// Returns the vector of third bits in integers of three bits.
    pub(in crate::linear) fn third_vector(self) -> usize {
        (1 + self.others) * self.format.group / 16
    }

    /// Returns the cache lines of some groups of some blocks.
    pub fn lines_of(self, block: usize, blocks: usize, groups: Range<usize>) -> Lines {
        // The scales and minimums of a record are prefetched with its first group.
        let begin = |group: usize| match self.place(group) {
            0 => self.record_at(block, group),
            _ => self.integers_at(block, group),
        };
        let at = begin(groups.start);
        let lines = (begin(groups.end).addr() - at.addr()) / 64;
        Lines { at, stride: self.block_bytes, rows: blocks, lines }
    }

    /// Returns true if a panel's columns exist.
    #[inline(always)]
    pub(in crate::linear) fn has_panel<S: Simd>(self, panel: usize) -> bool {
        panel * S::LANES < self.n
    }

    /// Prefetches memory that is read soon after `at`.
    #[inline(always)]
    pub(in crate::linear) fn prefetch_after<S: Simd>(self, s: S, at: *const u8) {
        s.prefetch(at.wrapping_add(GROUPED_PREFETCH_BYTES));
    }

    /// Returns a panel's block, and the index of the panel's first row in it.
    #[inline(always)]
    fn block<S: Simd>(panel: usize) -> (usize, usize) {
        (panel * S::LANES / ROWS, panel * S::LANES % ROWS)
    }

    /// Returns a vector of a group, from the panel's first row on.
    #[inline(always)]
    pub(in crate::linear) fn vector<S: Simd>(
        self,
        panel: usize,
        segment: usize,
        index: usize,
    ) -> *const u8 {
        let (block, row) = Self::block::<S>(panel);
        self.integers_at(block, segment).wrapping_add(VECTOR_BYTES * index + 4 * row)
    }

    /// Returns the scales and minimums of a panel and group.
    ///
    /// # Safety
    /// They exist.
    #[inline(always)]
    pub(in crate::linear) unsafe fn ranges<S: Simd>(
        self,
        s: S,
        panel: usize,
        group: usize,
    ) -> (S::F, S::F) {
        let (block, row) = Self::block::<S>(panel);
        let record = self.record_at(block, group);
        // SAFETY: the caller's promise.
        unsafe { record_ranges(s, self.format, record, self.place(group), row) }
    }

    /// Returns four integers of each column, those of a step, as signed bytes.
    ///
    /// # Safety
    /// They exist, and have neither 4 nor 8 bits.
    #[inline(always)]
    unsafe fn signed_bytes<S: Simd>(self, s: S, panel: usize, segment: usize, step: usize) -> S::D {
        let bits = self.format.bits;
        if let Bits::Table(table) = bits
            && table.index_bits() < 4
        {
            let step = self.first_step(segment) + step;
            // SAFETY: the vectors of a group exist.
            let vector =
                |index: usize| unsafe { s.load_dwords(self.vector::<S>(panel, segment, index)) };
            let mut codes = s.move_bits(vector(step / 4), step % 4 * 2, 2, 0);
            if table.index_bits() == 3 {
                let third = s.move_bits(vector(self.third_vector()), step, 1, 2);
                codes = s.or_dwords(codes, third);
            }
            return s.table_bytes(codes, &table.values());
        }
        let (upper, offset) = (bits.upper(), bits.offset());
        let nibbles = self.vector::<S>(panel, segment, usize::from(upper > 0) + step / 2);
        // SAFETY: the vectors of a group exist.
        let codes = unsafe {
            let nibbles = s.nibble_bytes(s.load_dwords(nibbles), step % 2 == 1);
            if upper == 0 {
                nibbles
            } else {
                let above = s.load_dwords(self.vector::<S>(panel, segment, 0));
                s.or_dwords(nibbles, s.move_bits(above, upper * step, upper, 4))
            }
        };
        match bits {
            Bits::Table(table) => s.table_bytes(codes, &table.values()),
            _ => s.sub_bytes(codes, s.splat_dword(u32::from_ne_bytes([offset; 4]))),
        }
    }
}

/// Returns the scales and minimums of a record's rows from `row` on for its group `place`.
///
/// # Safety
/// They exist.
#[inline(always)]
pub(in crate::linear) unsafe fn record_ranges<S: Simd>(
    s: S,
    format: Grouped,
    record: *const u8,
    place: usize,
    row: usize,
) -> (S::F, S::F) {
    let half = |index: usize| record.cast::<f16>().wrapping_add(index + row);
    let float = |index: usize| record.cast::<f32>().wrapping_add(index + row);
    let byte = |at: usize| record.wrapping_add(at + row);
    // SAFETY: a record starts with what the format specifies, for each of its rows.
    unsafe {
        match format.scales {
            ScaleLayout::Halves => (s.load_f16(half(0)), s.load_f16(half(ROWS))),
            ScaleLayout::HalfScales => (s.load_f16(half(place * ROWS)), s.zero()),
            ScaleLayout::Floats => (s.load(float(0)), s.load(float(ROWS))),
            ScaleLayout::PowersOfTwo => {
                // In two steps, since the smallest powers are below the smallest normal number.
                let power = s.load_signed_bytes(byte(place * ROWS));
                let normal = s.max(power, s.splat(-126.0));
                let rest = s.exp2_integral(s.sub(power, normal));
                (s.mul(s.exp2_integral(normal), rest), s.zero())
            }
            ScaleLayout::Products => {
                let times = s.load_signed_bytes(byte(2 * ROWS + place * ROWS));
                // All three factors have few bits, so their product is exact.
                let unit = s.splat(format.unit());
                (s.mul(s.mul(s.load_f16(half(0)), times), unit), s.zero())
            }
            ScaleLayout::ProductsAndMinimums => {
                let at = 4 * ROWS + place * 2 * ROWS;
                let times = s.load_signed_bytes(byte(at));
                let min_times = s.load_signed_bytes(byte(at + ROWS));
                (s.mul(s.load_f16(half(0)), times), s.mul(s.load_f16(half(ROWS)), min_times))
            }
            ScaleLayout::HalfByteProducts => {
                let [times, min_times] = s.load_half_bytes(byte(4 * ROWS + place * ROWS));
                let min_times = s.sub(s.zero(), min_times);
                (s.mul(s.load_f16(half(0)), times), s.mul(s.load_f16(half(ROWS)), min_times))
            }
            ScaleLayout::SuperScales => (s.load_f16(half(0)), s.zero()),
            ScaleLayout::FloatProducts => {
                let times = s.load_e4m3(byte(4 * ROWS + place * ROWS));
                (s.mul(s.load(float(0)), times), s.zero())
            }
        }
    }
}

macro_rules! grouped_reader {
    (
        $units:literal,
        |$s:ident, $d:ident, $index:ident| $unit:expr,
        |$r:ident, $c:ident, $panel:ident, $segment:ident, $chunk:ident| $dwords:expr,
        $lines:literal
    ) => {
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
        unsafe fn chunk(self, $c: S, $panel: usize, $segment: usize, $chunk: usize) -> S::Block {
            let $r = self.0;
            // SAFETY: the caller promises that the vector exists.
            $c.repeat(unsafe { $dwords })
        }

        #[inline(always)]
        unsafe fn edge(self, s: S, panel: usize, segment: usize, index: usize) -> S::Block {
            // SAFETY: records are padded, so that what exists in part exists in full.
            unsafe { self.chunk(s, panel, segment, index) }
        }

        #[inline(always)]
        fn prefetch(self, s: S, panel: usize, segment: usize, index: usize) {
            let at = self.0.vector::<S>(panel, segment, index / $lines);
            s.prefetch(at.wrapping_add(GROUPED_PREFETCH_BYTES));
        }

        #[inline(always)]
        unsafe fn scale(self, s: S, panel: usize, segment: usize) -> (S::F, S::F) {
            // SAFETY: the caller's promise.
            unsafe { self.0.ranges(s, panel, segment) }
        }

        #[inline(always)]
        fn lines(self, panel: usize, panels: usize, block: usize) -> Lines {
            let segments = BLOCK_UNITS / self.0.format.group;
            let first = self.0.groups.min(block * segments);
            let (panels, left) = (panels * S::LANES, self.0.n.saturating_sub(panel * S::LANES));
            let blocks = left.min(panels).div_ceil(ROWS);
            let end = self.0.groups.min(first + segments);
            self.0.lines_of(Records::block::<S>(panel).0, blocks, first..end)
        }
    };
}

/// 4-bit records, widened: eight units per dword.
#[derive(Debug, Clone, Copy)]
pub struct Int4Records(pub Records);

impl<S: Simd> WeightReader<S> for Int4Records {
    // The low half of a dword contains the even inputs, the high half the odd ones.
    grouped_reader!(
        8,
        |s, d, index| s.nibble(d, index / 2 + index % 2 * 4),
        |records, s, panel, segment, index| s
            .load_dwords(records.vector::<S>(panel, segment, index)),
        1
    );
}

/// 8-bit records, widened: four units per dword.
#[derive(Debug, Clone, Copy)]
pub struct Int8Records(pub Records);

impl<S: Simd> WeightReader<S> for Int8Records {
    grouped_reader!(
        4,
        |s, d, index| s.byte(d, index),
        |records, s, panel, segment, index| s
            .load_dwords(records.vector::<S>(panel, segment, index)),
        1
    );
}

/// Records of five or six bits or of a table, as bytes: four units per dword.
#[derive(Debug, Clone, Copy)]
pub struct CodedRecords(pub Records);

impl<S: Simd> WeightReader<S> for CodedRecords {
    grouped_reader!(
        4,
        |s, d, index| s.byte(d, index),
        |records, s, panel, segment, index| records.signed_bytes(s, panel, segment, index),
        2
    );
}
