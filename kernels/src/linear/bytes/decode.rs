//! Decoding of stored integers to bytes.

use model::quantized_format::Bits;

use super::form::ByteForm;
use crate::linear::reader::Records;
use crate::simd::Simd;

/// A group of some inputs of a panel's columns.
#[derive(Clone, Copy)]
pub(super) struct GroupAt {
    pub(super) records: Records,
    pub(super) panel: usize,
    pub(super) group: usize,
}

impl GroupAt {
    /// Returns a vector of integers, and prefetches.
    ///
    /// # Safety
    /// The group and the vector exist.
    #[inline(always)]
    pub(super) unsafe fn vector<S: Simd>(self, s: S, index: usize) -> S::D {
        let at = self.records.vector::<S>(self.panel, self.group, index);
        self.records.prefetch_after(s, at);
        // SAFETY: the caller's promise.
        unsafe { s.load_dwords(at) }
    }
}

/// A way of decoding integers, two steps of a group at a time.
pub(super) trait Decode<S: Simd>: Copy {
    /// Returns the decoder of integers that are stored in this way.
    fn new(s: S, bits: Bits, form: ByteForm) -> Self;

    /// Returns the vector that all steps of a group need.
    ///
    /// # Safety
    /// The group exists.
    #[inline(always)]
    unsafe fn shared(self, s: S, _: GroupAt) -> S::D {
        s.zero_dwords()
    }

    /// Returns the bytes of steps `2 * pair` and `2 * pair + 1`.
    ///
    /// # Safety
    /// The group and the steps exist.
    unsafe fn pair(self, s: S, at: GroupAt, shared: S::D, pair: usize) -> [S::D; 2];
}

/// Unsigned integers of four bits.
#[derive(Clone, Copy)]
pub(super) struct Nibbles;

impl<S: Simd> Decode<S> for Nibbles {
    #[inline(always)]
    fn new(_: S, _: Bits, _: ByteForm) -> Self {
        Nibbles
    }

    #[inline(always)]
    unsafe fn pair(self, s: S, at: GroupAt, _: S::D, pair: usize) -> [S::D; 2] {
        // SAFETY: the caller's promise.
        let vector = unsafe { at.vector(s, pair) };
        [s.nibble_bytes(vector, false), s.nibble_bytes(vector, true)]
    }
}

/// Returns the bytes of a table's entries.
fn bytes_of(bits: Bits, form: ByteForm) -> [i8; 16] {
    let Bits::Table(table) = bits else { unreachable!("{bits:?} have no table") };
    table.values().map(|value| value.wrapping_add(form.offset as i8))
}

/// Entries of a table of four bits.
#[derive(Clone, Copy)]
pub(super) struct Entries([i8; 16]);

impl<S: Simd> Decode<S> for Entries {
    #[inline(always)]
    fn new(_: S, bits: Bits, form: ByteForm) -> Self {
        Entries(bytes_of(bits, form))
    }

    #[inline(always)]
    unsafe fn pair(self, s: S, at: GroupAt, _: S::D, pair: usize) -> [S::D; 2] {
        // SAFETY: the caller's promise.
        let vector = unsafe { at.vector(s, pair) };
        let (low, high) = (s.nibble_bytes(vector, false), s.nibble_bytes(vector, true));
        [s.table_bytes(low, &self.0), s.table_bytes(high, &self.0)]
    }
}

/// Entries of a table of two bits, or three if `HAS_THIRD`.
#[derive(Clone, Copy)]
pub(super) struct FewEntries<const HAS_THIRD: bool>([i8; 16]);

impl<S: Simd, const HAS_THIRD: bool> Decode<S> for FewEntries<HAS_THIRD> {
    #[inline(always)]
    fn new(_: S, bits: Bits, form: ByteForm) -> Self {
        debug_assert_eq!(bits.count(), 2 + usize::from(HAS_THIRD), "{bits:?}");
        FewEntries(bytes_of(bits, form))
    }

    #[inline(always)]
    unsafe fn shared(self, s: S, at: GroupAt) -> S::D {
        if !HAS_THIRD {
            return s.zero_dwords();
        }
        // SAFETY: the caller's promise.
        let third = unsafe { at.vector(s, at.records.third_vector()) };
        s.shift_dwords(third, at.records.first_step(at.group))
    }

    #[inline(always)]
    unsafe fn pair(self, s: S, at: GroupAt, third: S::D, pair: usize) -> [S::D; 2] {
        let step = 2 * pair;
        // SAFETY: the caller's promise. A group begins with a vector.
        let vector = unsafe { at.vector(s, (at.records.first_step(at.group) + step) / 4) };
        let mut first = s.move_bits(vector, step % 4 * 2, 2, 0);
        let mut second = s.move_bits(vector, step % 4 * 2 + 2, 2, 0);
        if HAS_THIRD {
            first = s.or_dwords(first, s.move_bits(third, step, 1, 2));
            second = s.or_dwords(second, s.move_bits(third, step + 1, 1, 2));
        }
        [s.table_bytes(first, &self.0), s.table_bytes(second, &self.0)]
    }
}

/// Integers of `4 + UPPER` bits.
#[derive(Clone, Copy)]
pub(super) struct Split<const UPPER: usize>;

impl<S: Simd, const UPPER: usize> Decode<S> for Split<UPPER> {
    #[inline(always)]
    fn new(_: S, bits: Bits, _: ByteForm) -> Self {
        debug_assert_eq!(bits.upper(), UPPER, "{bits:?}");
        Split
    }

    #[inline(always)]
    unsafe fn shared(self, s: S, at: GroupAt) -> S::D {
        // SAFETY: the caller's promise.
        unsafe { at.vector(s, 0) }
    }

    #[inline(always)]
    unsafe fn pair(self, s: S, at: GroupAt, above: S::D, pair: usize) -> [S::D; 2] {
        // SAFETY: the caller's promise.
        let vector = unsafe { at.vector(s, 1 + pair) };
        let step = 2 * pair;
        let low = s.move_bits(above, UPPER * step, UPPER, 4);
        let high = s.move_bits(above, UPPER * (step + 1), UPPER, 4);
        [
            s.or_dwords(s.nibble_bytes(vector, false), low),
            s.or_dwords(s.nibble_bytes(vector, true), high),
        ]
    }
}

/// Integers of eight bits.
#[derive(Clone, Copy)]
pub(super) struct Whole {
    offset: u8,
}

impl<S: Simd> Decode<S> for Whole {
    #[inline(always)]
    fn new(_: S, _: Bits, form: ByteForm) -> Self {
        Whole { offset: form.offset }
    }

    #[inline(always)]
    unsafe fn pair(self, s: S, at: GroupAt, _: S::D, pair: usize) -> [S::D; 2] {
        let offset = s.splat_dword(u32::from_ne_bytes([self.offset.wrapping_neg(); 4]));
        // SAFETY: the caller's promise.
        let (first, second) = unsafe { (at.vector(s, 2 * pair), at.vector(s, 2 * pair + 1)) };
        [s.sub_bytes(first, offset), s.sub_bytes(second, offset)]
    }
}

/// Runs `$work.decoded::<Decoder>()` for the integers of `$bits`.
macro_rules! with_decoder {
    ($s:ident: $S:ty, $bits:expr, $form:expr, |$decoder:ident| $work:expr) => {
        match $bits {
            Bits::Four => {
                let $decoder = <Nibbles as Decode<$S>>::new($s, $bits, $form);
                $work
            }
            Bits::Five | Bits::FiveSigned => {
                let $decoder = <Split<1> as Decode<$S>>::new($s, $bits, $form);
                $work
            }
            Bits::SixSigned => {
                let $decoder = <Split<2> as Decode<$S>>::new($s, $bits, $form);
                $work
            }
            Bits::Eight => {
                let $decoder = <Whole as Decode<$S>>::new($s, $bits, $form);
                $work
            }
            Bits::Table(table) if table.index_bits() == 2 => {
                let $decoder = <FewEntries<false> as Decode<$S>>::new($s, $bits, $form);
                $work
            }
            Bits::Table(table) if table.index_bits() == 3 => {
                let $decoder = <FewEntries<true> as Decode<$S>>::new($s, $bits, $form);
                $work
            }
            Bits::Table(_) => {
                let $decoder = <Entries as Decode<$S>>::new($s, $bits, $form);
                $work
            }
        }
    };
}
pub(super) use with_decoder;
