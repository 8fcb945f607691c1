//! Sizes of compressed weights and of the compressed KV cache: pure arithmetic for the planner, the
//! compiler and the kernels, which must agree on every byte. `kernels::grouped` writes and reads
//! these formats.
//!
//! **Grouped weights.** A matrix `[n, k]` is divided into groups of consecutive inputs. A value is
//! `scale * q + min` with a scale and a minimum per output row and group ([`ScaleLayout`]) and a
//! small integer `q` ([`Bits`]). Output rows are interleaved in blocks of [`ROWS`], so that each
//! vector lane corresponds to an output row. The matrix is `blocks x records`, with all records of
//! a block stored consecutively. A record is a multiple of 64 bytes: [`ROWS`] rows of one or more
//! groups, first the components of their scales and minimums, then the integers. `n` is padded to
//! whole blocks and `k` to whole records, with zeros.
//!
//! **Quantised KV.** One record per sequence, KV head and position ([`KvRecordFormat`]). In 4 bits:
//! `head_dim / 2` bytes of integers, then an f16 scale per group, then an f16 minimum per group. In
//! 8 bits: `head_dim` signed bytes, then a bf16 scale per group.

use std::fmt::{Display, Formatter};

use serde::{Deserialize, Serialize};

pub use crate::codebook::Codebook;

/// Number of output rows in a block, which are interleaved in a record.
pub const ROWS: usize = 16;

/// Number of elements of a head that share a scale and a minimum in a 4-bit KV cache. The last
/// group of a head is shorter if `head_dim` is not a multiple of this number.
pub const KV_GROUP: usize = 64;

/// Number of elements of a head that share a scale in an 8-bit KV cache; the last group of a head
/// may be shorter.
pub const KV8_GROUP: usize = 32;

/// Number of inputs in a record whose scales are products: a super-block of GGUF's K types.
pub const SUPER_BLOCK: usize = 256;

/// Integer type of a grouped matrix, and its number of bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Bits {
    /// Unsigned, 0 to 15.
    Four,
    /// Signed, -128 to 127.
    Eight,
    /// Unsigned, 0 to 31.
    Five,
    /// Signed, -16 to 15, stored with an offset of 16.
    FiveSigned,
    /// Signed, -32 to 31, stored with an offset of 32.
    SixSigned,
    /// Entries of a table of signed bytes, selected by two, three or four bits.
    Table(Codebook),
}

impl Bits {
    /// Returns the number of bits that are stored for each integer.
    pub const fn count(self) -> usize {
        match self {
            Bits::Table(table) => table.index_bits(),
            Bits::Four => 4,
            Bits::Five | Bits::FiveSigned => 5,
            Bits::SixSigned => 6,
            Bits::Eight => 8,
        }
    }

    /// Returns the number of bits of an integer that are stored apart from its lower four: 0, 1 or
    /// 2.
    ///
    /// # Panics
    /// For 2, 3 and 8 bits, which are stored in other ways.
    pub const fn upper(self) -> usize {
        assert!(4 <= self.count() && self.count() < 8);
        self.count() - 4
    }

    /// Returns the offset that is added to an integer before it is stored; 0 if there is none.
    pub const fn offset(self) -> u8 {
        match self {
            Bits::FiveSigned => 16,
            Bits::SixSigned => 32,
            _ => 0,
        }
    }
}

/// Components of the scales and minimums at the start of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ScaleLayout {
    /// An f16 scale and an f16 minimum per row; a record is one group.
    Halves,
    /// An f16 scale per row and group, without a minimum; a record is two groups.
    HalfScales,
    /// An f32 scale and an f32 minimum per row; a record is one group.
    Floats,
    /// A signed byte `e` per row and group for the scale `2^e`, without a minimum; a record is four
    /// groups.
    PowersOfTwo,
    /// A scale that is the product of an f16 per row, a signed byte per row and group, and the
    /// format's [`Grouped::unit`], without a minimum; a record is [`SUPER_BLOCK`] inputs.
    Products,
    /// A scale and a minimum, each of which is such a product without a unit.
    ProductsAndMinimums,
    /// A scale and a minimum, each of which is the product of an f16 per row and half a byte per
    /// row and group, unsigned; the product of the minimum is negated.
    HalfByteProducts,
    /// An f16 scale per row, without a minimum; a record is [`SUPER_BLOCK`] inputs.
    SuperScales,
    /// A scale that is the product of an f32 per row and an 8-bit float (E4M3, not negative) per
    /// row and group, without a minimum; a record is [`SUPER_BLOCK`] inputs.
    FloatProducts,
}

impl ScaleLayout {
    /// Returns true if rows of a group have a minimum.
    pub const fn has_minimums(self) -> bool {
        match self {
            ScaleLayout::Halves
            | ScaleLayout::Floats
            | ScaleLayout::ProductsAndMinimums
            | ScaleLayout::HalfByteProducts => true,
            ScaleLayout::HalfScales
            | ScaleLayout::PowersOfTwo
            | ScaleLayout::Products
            | ScaleLayout::SuperScales
            | ScaleLayout::FloatProducts => false,
        }
    }

    /// Returns the number of groups of `group` inputs in a record.
    pub const fn groups(self, group: usize) -> usize {
        match self {
            ScaleLayout::Halves | ScaleLayout::Floats => 1,
            ScaleLayout::HalfScales => 2,
            ScaleLayout::PowersOfTwo => 4,
            ScaleLayout::Products
            | ScaleLayout::ProductsAndMinimums
            | ScaleLayout::HalfByteProducts
            | ScaleLayout::SuperScales
            | ScaleLayout::FloatProducts => SUPER_BLOCK / group,
        }
    }

    /// Returns the number of bytes that precede the integers of a record with groups of `group`
    /// inputs, a multiple of 64.
    pub const fn size_bytes(self, group: usize) -> usize {
        let of_groups = ROWS * self.groups(group);
        let size_bytes = match self {
            ScaleLayout::Halves => 4 * ROWS,
            ScaleLayout::HalfScales => 2 * of_groups,
            ScaleLayout::Floats => 8 * ROWS,
            ScaleLayout::PowersOfTwo => of_groups,
            ScaleLayout::Products => 2 * ROWS + of_groups,
            ScaleLayout::ProductsAndMinimums => 4 * ROWS + 2 * of_groups,
            ScaleLayout::HalfByteProducts | ScaleLayout::FloatProducts => 4 * ROWS + of_groups,
            ScaleLayout::SuperScales => 2 * ROWS,
        };
        size_bytes.next_multiple_of(64)
    }
}

/// Grouped format of a weight matrix; see the module header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Grouped {
    /// Integer type.
    pub bits: Bits,
    /// Number of consecutive inputs that share a scale and a minimum: 16, 32 or 64.
    pub group: usize,
    /// Components of scales and minimums.
    pub scales: ScaleLayout,
}

impl Grouped {
    /// Weight format of `--compress w4`: 4 bits in groups of 64.
    pub const W4: Grouped = Grouped::halves(Bits::Four, 64);
    /// Lossless format for GGUF's Q4_0 and Q4_1: 4 bits in groups of 32.
    pub const GGUF_Q4: Grouped = Grouped::halves(Bits::Four, 32);
    /// Lossless format for GGUF's Q8_0: 8 bits in groups of 32.
    pub const GGUF_Q8: Grouped = Grouped::halves(Bits::Eight, 32);
    /// Lossless format for GGUF's Q5_0.
    pub const GGUF_Q5_0: Grouped =
        Grouped { bits: Bits::FiveSigned, group: 32, scales: ScaleLayout::HalfScales };
    /// Lossless format for GGUF's Q5_1.
    pub const GGUF_Q5_1: Grouped = Grouped::halves(Bits::Five, 32);
    /// Lossless format for GGUF's Q4_K.
    pub const GGUF_Q4_K: Grouped =
        Grouped { bits: Bits::Four, group: 32, scales: ScaleLayout::ProductsAndMinimums };
    /// Lossless format for GGUF's Q5_K.
    pub const GGUF_Q5_K: Grouped =
        Grouped { bits: Bits::Five, group: 32, scales: ScaleLayout::ProductsAndMinimums };
    /// Lossless format for GGUF's Q6_K.
    pub const GGUF_Q6_K: Grouped =
        Grouped { bits: Bits::SixSigned, group: 16, scales: ScaleLayout::Products };
    /// Lossless format for GGUF's IQ4_NL.
    pub const GGUF_IQ4_NL: Grouped = Grouped {
        bits: Bits::Table(Codebook::NonLinear),
        group: 32,
        scales: ScaleLayout::HalfScales,
    };
    /// Lossless format for GGUF's IQ4_XS.
    pub const GGUF_IQ4_XS: Grouped = Grouped {
        bits: Bits::Table(Codebook::NonLinear),
        group: 32,
        scales: ScaleLayout::Products,
    };
    /// Lossless format for GGUF's MXFP4.
    pub const GGUF_MXFP4: Grouped =
        Grouped { bits: Bits::Table(Codebook::E2M1), group: 32, scales: ScaleLayout::PowersOfTwo };
    /// Lossless format for GGUF's Q2_K.
    pub const GGUF_Q2_K: Grouped =
        Grouped::of_table(Codebook::Unsigned, 16, ScaleLayout::HalfByteProducts);
    /// Lossless format for GGUF's Q3_K.
    pub const GGUF_Q3_K: Grouped = Grouped::of_table(Codebook::Signed, 16, ScaleLayout::Products);
    /// Lossless format for GGUF's TQ1_0 and TQ2_0.
    pub const GGUF_TQ: Grouped = Grouped::of_table(Codebook::Ternary, 32, ScaleLayout::SuperScales);
    /// Lossless format for GGUF's IQ2_XXS.
    pub const GGUF_IQ2_XXS: Grouped = Grouped::of_table(Codebook::Iq2, 32, ScaleLayout::Products);
    /// Lossless format for GGUF's IQ2_XS and IQ2_S.
    pub const GGUF_IQ2_S: Grouped = Grouped::of_table(Codebook::Iq2, 16, ScaleLayout::Products);
    /// Lossless format for GGUF's IQ3_XXS.
    pub const GGUF_IQ3_XXS: Grouped =
        Grouped::of_table(Codebook::Iq3Xxs, 32, ScaleLayout::Products);
    /// Lossless format for GGUF's IQ3_S.
    pub const GGUF_IQ3_S: Grouped = Grouped::of_table(Codebook::Iq3S, 32, ScaleLayout::Products);
    /// Lossless format for GGUF's IQ1_S.
    pub const GGUF_IQ1_S: Grouped = Grouped::of_table(Codebook::Iq1, 32, ScaleLayout::Products);
    /// Lossless format for GGUF's IQ1_M.
    pub const GGUF_IQ1_M: Grouped = Grouped::of_table(Codebook::Iq1, 16, ScaleLayout::Products);

    /// Format for NVFP4: 4-bit floats in groups of 16 with an 8-bit float each.
    pub const NVFP4: Grouped = Grouped::of_table(Codebook::E2M1, 16, ScaleLayout::FloatProducts);

    /// All formats that are the target of quantisation or of a file's type, except those of
    /// devices.
    pub const STORED: [Grouped; 21] = [
        Grouped::W4,
        Grouped::GGUF_Q4,
        Grouped::GGUF_Q8,
        Grouped::GGUF_Q5_0,
        Grouped::GGUF_Q5_1,
        Grouped::GGUF_Q4_K,
        Grouped::GGUF_Q5_K,
        Grouped::GGUF_Q6_K,
        Grouped::GGUF_IQ4_NL,
        Grouped::GGUF_IQ4_XS,
        Grouped::GGUF_MXFP4,
        Grouped::GGUF_Q2_K,
        Grouped::GGUF_Q3_K,
        Grouped::GGUF_TQ,
        Grouped::GGUF_IQ2_XXS,
        Grouped::GGUF_IQ2_S,
        Grouped::GGUF_IQ3_XXS,
        Grouped::GGUF_IQ3_S,
        Grouped::GGUF_IQ1_S,
        Grouped::GGUF_IQ1_M,
        Grouped::NVFP4,
    ];

    /// Returns a format of entries of a table.
    const fn of_table(table: Codebook, group: usize, scales: ScaleLayout) -> Grouped {
        Grouped { bits: Bits::Table(table), group, scales }
    }

    /// Returns the power of two by which scales of [`ScaleLayout::Products`] are multiplied in
    /// addition.
    pub const fn unit(self) -> f32 {
        match self.bits {
            Bits::Table(table) => table.unit(),
            _ => 1.0,
        }
    }

    /// Returns a format of integers in groups with an f16 scale and an f16 minimum each.
    pub const fn halves(bits: Bits, group: usize) -> Grouped {
        Grouped { bits, group, scales: ScaleLayout::Halves }
    }

    /// Returns the wider format that decompression produces: 8 bits with the same groups and
    /// values.
    pub const fn widened(self) -> Grouped {
        let scales = match self.scales {
            ScaleLayout::Halves => ScaleLayout::Halves,
            _ => ScaleLayout::Floats,
        };
        Grouped { bits: Bits::Eight, group: self.group, scales }
    }

    /// Returns the number of inputs in a record.
    pub const fn record_inputs(self) -> usize {
        self.group * self.scales.groups(self.group)
    }

    /// Returns the number of groups whose integers are stored together: two groups of 16 integers
    /// of three bits share a vector of third bits.
    pub const fn groups_together(self) -> usize {
        if self.bits.count() == 3 && self.group == 16 { 2 } else { 1 }
    }

    /// Returns the number of bytes of the integers of [`ROWS`] rows of one group. Those of groups
    /// that are stored together are a multiple of 64.
    pub const fn group_bytes(self) -> usize {
        ROWS * self.group * self.bits.count() / 8
    }

    /// Returns the number of bytes in a record, a multiple of 64.
    pub const fn record_bytes(self) -> usize {
        self.scales.size_bytes(self.group) + self.scales.groups(self.group) * self.group_bytes()
    }

    /// Returns the number of blocks of [`ROWS`] output rows that contain `n` rows.
    pub const fn blocks(self, n: usize) -> usize {
        n.div_ceil(ROWS)
    }

    /// Returns the number of records of a block that contain `k` inputs.
    pub const fn records(self, k: usize) -> usize {
        k.div_ceil(self.record_inputs())
    }

    /// Returns the number of groups that contain `k` inputs. The last record may have space for
    /// more.
    pub const fn groups(self, k: usize) -> usize {
        k.div_ceil(self.group)
    }

    /// Returns the number of bytes in one block of [`ROWS`] output rows of `k` inputs.
    pub const fn block_bytes(self, k: usize) -> usize {
        self.records(k) * self.record_bytes()
    }

    /// Returns the number of bytes of a matrix `[n, k]`.
    pub const fn size_bytes(self, n: usize, k: usize) -> usize {
        self.blocks(n) * self.block_bytes(k)
    }
}

impl Display for Grouped {
    /// Writes the name used in reports: bits and group size.
    fn fmt(&self, to: &mut Formatter<'_>) -> std::fmt::Result {
        let (count, group) = (self.bits.count(), self.group);
        let of_table = if matches!(self.bits, Bits::Table(_)) { " of a table" } else { "" };
        let super_blocks = match self.scales {
            ScaleLayout::Products | ScaleLayout::ProductsAndMinimums => ", scales in 8 bits",
            ScaleLayout::HalfByteProducts => ", scales in 4 bits",
            ScaleLayout::PowersOfTwo => ", scales powers of two",
            ScaleLayout::FloatProducts => ", scales in 8-bit floats",
            ScaleLayout::Halves
            | ScaleLayout::HalfScales
            | ScaleLayout::Floats
            | ScaleLayout::SuperScales => "",
        };
        write!(to, "{count}-bit{of_table} in groups of {group}{super_blocks}")
    }
}

/// Rounding of activations that are multiplied by grouped weights in runs in bf16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum ActivationFormat {
    /// Integers of 8 bits in groups of at most 32 inputs, on every processor.
    #[default]
    Int8,
    /// Integers of 12 bits in the groups of the weights, with AVX512-VNNI; unrounded without it,
    /// and by weights of two and three bits.
    Int12,
}

impl ActivationFormat {
    /// Returns the name used in options and reports.
    pub const fn name(self) -> &'static str {
        match self {
            ActivationFormat::Int8 => "int8",
            ActivationFormat::Int12 => "int12",
        }
    }
}

/// Storage format of a weight matrix in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum WeightFormat {
    /// Row-major `[n, k]` in the run's dtype.
    #[default]
    Plain,
    /// Groups of low-bit integers.
    Grouped(Grouped),
}

/// Format of the records of a quantised KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvRecordFormat {
    /// Integers of 4 bits with a scale and a minimum per group of [`KV_GROUP`].
    Four,
    /// Integers of 8 bits with a scale per group of [`KV8_GROUP`].
    Eight,
}

impl KvRecordFormat {
    pub const ALL: [KvRecordFormat; 2] = [KvRecordFormat::Four, KvRecordFormat::Eight];

    /// Returns the number of bits of an integer.
    pub const fn bits(self) -> usize {
        match self {
            KvRecordFormat::Four => 4,
            KvRecordFormat::Eight => 8,
        }
    }

    /// Returns the number of bytes of one position of one KV head (K or V); `None` if `head_dim` is
    /// odd or 0, which quantised caches do not support.
    pub const fn position_bytes(self, head_dim: usize) -> Option<usize> {
        match self {
            KvRecordFormat::Four => kv4_position_bytes(head_dim),
            // An even size keeps every scale at an even offset.
            KvRecordFormat::Eight if head_dim == 0 || !head_dim.is_multiple_of(2) => None,
            KvRecordFormat::Eight => Some(head_dim + 2 * head_dim.div_ceil(KV8_GROUP)),
        }
    }
}

/// Returns the number of groups of a head of `head_dim` elements in a 4-bit KV cache.
pub const fn kv4_groups(head_dim: usize) -> usize {
    head_dim.div_ceil(KV_GROUP)
}

/// Returns the number of bytes of one position of one KV head (K or V) in a 4-bit KV cache; `None`
/// if `head_dim` is odd or 0, which that cache does not support.
pub const fn kv4_position_bytes(head_dim: usize) -> Option<usize> {
    if head_dim == 0 || !head_dim.is_multiple_of(2) {
        return None;
    }
    Some(head_dim / 2 + 4 * kv4_groups(head_dim))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_their_documented_sizes() {
        assert_eq!(Grouped::W4.record_bytes(), 576);
        assert_eq!(Grouped::GGUF_Q4.record_bytes(), 320);
        assert_eq!(Grouped::W4.widened().record_bytes(), 1088);
        assert_eq!(Grouped::GGUF_Q8.record_bytes(), 576);
        assert_eq!(Grouped::GGUF_Q4.widened(), Grouped::GGUF_Q8);
        let sizes = [
            576, 320, 576, 704, 384, 2368, 2880, 3392, 576, 2240, 1088, 1344, 1856, 1088, 1728,
            1856, 2240, 2240, 1728, 1856, 2368,
        ];
        let wide = [
            1088, 576, 576, 640, 576, 640, 640, 384, 640, 640, 640, 384, 384, 640, 640, 384, 640,
            640, 640, 384, 384,
        ];
        for ((form, size_bytes), wide_bytes) in Grouped::STORED.into_iter().zip(sizes).zip(wide) {
            assert_eq!(form.record_bytes(), size_bytes, "{form:?}");
            assert_eq!(form.widened().record_bytes(), wide_bytes, "{form:?}");
            for form in [form, form.widened()] {
                assert_eq!(form.record_bytes() % 64, 0, "{form:?}");
                assert_eq!(form.groups_together() * form.group_bytes() % 64, 0, "{form:?}");
                assert_eq!(form.scales.size_bytes(form.group) % 64, 0, "{form:?}");
            }
        }
    }

    #[test]
    fn matrices_are_padded_to_whole_blocks_and_groups() {
        let w4 = Grouped::W4;
        assert_eq!((w4.blocks(16), w4.blocks(17), w4.groups(64), w4.groups(65)), (1, 2, 1, 2));
        assert_eq!(w4.size_bytes(16, 64), 576);
        assert_eq!(w4.size_bytes(17, 65), 4 * 576);
        assert_eq!(Grouped::GGUF_Q8.size_bytes(32, 96), 2 * 3 * 576);
        // Two groups per record, and four.
        let q5_0 = Grouped::GGUF_Q5_0;
        assert_eq!((q5_0.groups(96), q5_0.records(96), q5_0.size_bytes(1, 96)), (3, 2, 2 * 704));
        assert_eq!(Grouped::GGUF_MXFP4.size_bytes(17, 160), 2 * 2 * 1088);
        // 4.5 bits per weight if nothing is padded.
        assert_eq!(w4.size_bytes(7168, 7168) * 16, 7168 * 7168 * 9);
    }

    #[test]
    fn kv_positions_hold_their_groups_and_odd_heads_are_refused() {
        let four = [(2, 5), (8, 8), (64, 36), (66, 41), (80, 48), (96, 56), (128, 72), (256, 144)];
        let eight = [(2, 4), (8, 10), (64, 68), (66, 72), (80, 86), (96, 102), (128, 136)];
        for (format, cases) in KvRecordFormat::ALL.into_iter().zip([&four[..], &eight[..]]) {
            for (head_dim, bytes) in cases {
                assert_eq!(format.position_bytes(*head_dim), Some(*bytes), "head_dim {head_dim}");
            }
            assert_eq!(format.position_bytes(63), None);
            assert_eq!(format.position_bytes(0), None);
        }
    }
}
