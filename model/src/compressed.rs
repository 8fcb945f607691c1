//! Sizes of the compressed forms of weights and of the KV cache: pure arithmetic, for the planner,
//! the compiler and the kernels, which must agree on every byte. `kernels::grouped` makes and reads
//! the forms themselves.
//!
//! **Grouped weights.** A matrix `[n, k]` is cut into groups of consecutive inputs; a value is
//! `scale * q + min` with a scale and a minimum per output row and group ([`Scales`]) and a small
//! integer `q` ([`Bits`]). Output rows lie interleaved in blocks of [`ROWS`], so that a vector lane
//! is an output row. The matrix is `blocks x records`, all records of a block behind each other. A
//! record is a multiple of 64 bytes: [`ROWS`] rows of one or more groups, first what their scales
//! and minimums are made of, then the integers. `n` is padded to whole blocks and `k` to whole
//! records, with zeros.
//!
//! **4-bit KV.** One record per sequence, KV head and position: `head_dim / 2` bytes of 4-bit
//! integers, then an f16 scale per group, then an f16 minimum per group.

use std::fmt::{Display, Formatter};

use serde::{Deserialize, Serialize};

/// Output rows of a block, interleaved in a record.
pub const ROWS: usize = 16;

/// Elements along the head that share a scale and a minimum in a 4-bit KV cache; the last group of
/// a head is shorter when the head is no multiple of it.
pub const KV_GROUP: usize = 64;

/// Inputs of a record whose scales are products: a super-block of GGUF's K types.
pub const SUPER_BLOCK: usize = 256;

/// The integers of a grouped matrix, and how many bits each takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Bits {
    /// Unsigned, 0 to 15.
    Four,
    /// Signed, -128 to 127.
    Eight,
    /// Unsigned, 0 to 31.
    Five,
    /// Signed, -16 to 15, kept with 16 added.
    FiveSigned,
    /// Signed, -32 to 31, kept with 32 added.
    SixSigned,
    /// Signed bytes of a table, of which four bits choose one.
    Table(Table),
}

impl Bits {
    /// Bits that are kept of each integer.
    pub const fn count(self) -> usize {
        match self {
            Bits::Four | Bits::Table(_) => 4,
            Bits::Five | Bits::FiveSigned => 5,
            Bits::SixSigned => 6,
            Bits::Eight => 8,
        }
    }

    /// Bits of an integer that lie apart from its lower four: 0, 1 or 2.
    ///
    /// # Panics
    /// For 8 bits, which lie together.
    pub const fn upper(self) -> usize {
        assert!(self.count() < 8);
        self.count() - 4
    }

    /// What is added to an integer where it is kept, if it is kept so.
    pub const fn offset(self) -> u8 {
        match self {
            Bits::FiveSigned => 16,
            Bits::SixSigned => 32,
            _ => 0,
        }
    }
}

/// Tables of sixteen signed bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Table {
    /// GGUF's IQ4_NL and IQ4_XS.
    NonLinear,
    /// The floats of MXFP4, twice each: sign, two bits of exponent, one of mantissa.
    E2M1,
}

impl Table {
    /// The number for each index.
    pub const fn values(self) -> [i8; 16] {
        match self {
            Table::NonLinear => {
                [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
            }
            Table::E2M1 => [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12],
        }
    }
}

/// What the scales and minimums of a record are made of, with which it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Scales {
    /// An f16 scale and an f16 minimum for each row; a record is one group.
    Halves,
    /// An f16 scale for each row and group, no minimum; a record is two groups.
    HalfScales,
    /// An f32 scale and an f32 minimum for each row; a record is one group.
    Floats,
    /// A signed byte `e` for each row and group: the scale `2^e`, no minimum; a record is four
    /// groups.
    PowersOfTwo,
    /// An f16 for each row, times a signed byte for each row and group: the scale, no minimum; a
    /// record is [`SUPER_BLOCK`] inputs.
    Products,
    /// The same twice: the scale, and the minimum.
    ProductsAndMinimums,
}

impl Scales {
    /// Groups of `group` inputs that a record holds.
    pub const fn groups(self, group: usize) -> usize {
        match self {
            Scales::Halves | Scales::Floats => 1,
            Scales::HalfScales => 2,
            Scales::PowersOfTwo => 4,
            Scales::Products | Scales::ProductsAndMinimums => SUPER_BLOCK / group,
        }
    }

    /// Bytes before the integers of a record of groups of `group` inputs, a multiple of 64.
    pub const fn size_bytes(self, group: usize) -> usize {
        let of_groups = ROWS * self.groups(group);
        let size_bytes = match self {
            Scales::Halves => 4 * ROWS,
            Scales::HalfScales => 2 * of_groups,
            Scales::Floats => 8 * ROWS,
            Scales::PowersOfTwo => of_groups,
            Scales::Products => 2 * ROWS + of_groups,
            Scales::ProductsAndMinimums => 4 * ROWS + 2 * of_groups,
        };
        size_bytes.next_multiple_of(64)
    }
}

/// A grouped form of a weight matrix; see the module header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Grouped {
    /// The integers.
    pub bits: Bits,
    /// Consecutive inputs that share a scale and a minimum: 16, 32 or 64.
    pub group: usize,
    /// Scales and minimums.
    pub scales: Scales,
}

impl Grouped {
    /// What `--compress w4` makes of a weight: 4 bits in groups of 64.
    pub const W4: Grouped = Grouped::halves(Bits::Four, 64);
    /// What GGUF's Q4_0 and Q4_1 become without loss: 4 bits in groups of 32.
    pub const GGUF_Q4: Grouped = Grouped::halves(Bits::Four, 32);
    /// What GGUF's Q8_0 becomes without loss: 8 bits in groups of 32.
    pub const GGUF_Q8: Grouped = Grouped::halves(Bits::Eight, 32);
    /// What GGUF's Q5_0 becomes without loss.
    pub const GGUF_Q5_0: Grouped =
        Grouped { bits: Bits::FiveSigned, group: 32, scales: Scales::HalfScales };
    /// What GGUF's Q5_1 becomes without loss.
    pub const GGUF_Q5_1: Grouped = Grouped::halves(Bits::Five, 32);
    /// What GGUF's Q4_K becomes without loss.
    pub const GGUF_Q4_K: Grouped =
        Grouped { bits: Bits::Four, group: 32, scales: Scales::ProductsAndMinimums };
    /// What GGUF's Q5_K becomes without loss.
    pub const GGUF_Q5_K: Grouped =
        Grouped { bits: Bits::Five, group: 32, scales: Scales::ProductsAndMinimums };
    /// What GGUF's Q6_K becomes without loss.
    pub const GGUF_Q6_K: Grouped =
        Grouped { bits: Bits::SixSigned, group: 16, scales: Scales::Products };
    /// What GGUF's IQ4_NL becomes without loss.
    pub const GGUF_IQ4_NL: Grouped =
        Grouped { bits: Bits::Table(Table::NonLinear), group: 32, scales: Scales::HalfScales };
    /// What GGUF's IQ4_XS becomes without loss.
    pub const GGUF_IQ4_XS: Grouped =
        Grouped { bits: Bits::Table(Table::NonLinear), group: 32, scales: Scales::Products };
    /// What GGUF's MXFP4 becomes without loss.
    pub const GGUF_MXFP4: Grouped =
        Grouped { bits: Bits::Table(Table::E2M1), group: 32, scales: Scales::PowersOfTwo };

    /// Every form that is quantised to or that a file's type becomes; not those of devices.
    pub const STORED: [Grouped; 11] = [
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
    ];

    /// Integers in groups with an f16 scale and an f16 minimum each.
    pub const fn halves(bits: Bits, group: usize) -> Grouped {
        Grouped { bits, group, scales: Scales::Halves }
    }

    /// The form that decompression widens this one to: 8 bits, the same groups, the same values.
    pub const fn widened(self) -> Grouped {
        let scales = match self.scales {
            Scales::Halves => Scales::Halves,
            _ => Scales::Floats,
        };
        Grouped { bits: Bits::Eight, group: self.group, scales }
    }

    /// Inputs of a record.
    pub const fn record_inputs(self) -> usize {
        self.group * self.scales.groups(self.group)
    }

    /// Bytes of the integers of [`ROWS`] rows of one group, a multiple of 64.
    pub const fn group_bytes(self) -> usize {
        ROWS * self.group * self.bits.count() / 8
    }

    /// Bytes of a record: a multiple of 64.
    pub const fn record_bytes(self) -> usize {
        self.scales.size_bytes(self.group) + self.scales.groups(self.group) * self.group_bytes()
    }

    /// Blocks of [`ROWS`] output rows that hold `n` rows.
    pub const fn blocks(self, n: usize) -> usize {
        n.div_ceil(ROWS)
    }

    /// Records of a block that hold `k` inputs.
    pub const fn records(self, k: usize) -> usize {
        k.div_ceil(self.record_inputs())
    }

    /// Groups that hold `k` inputs; the last record may have room for more.
    pub const fn groups(self, k: usize) -> usize {
        k.div_ceil(self.group)
    }

    /// Bytes of one block of [`ROWS`] output rows of `k` inputs.
    pub const fn block_bytes(self, k: usize) -> usize {
        self.records(k) * self.record_bytes()
    }

    /// Bytes of a matrix `[n, k]`.
    pub const fn size_bytes(self, n: usize, k: usize) -> usize {
        self.blocks(n) * self.block_bytes(k)
    }
}

impl Display for Grouped {
    /// In the words of reports: bits and group.
    fn fmt(&self, to: &mut Formatter<'_>) -> std::fmt::Result {
        let (count, group) = (self.bits.count(), self.group);
        let of_table = if matches!(self.bits, Bits::Table(_)) { " of a table" } else { "" };
        let super_blocks = match self.scales {
            Scales::Products | Scales::ProductsAndMinimums => ", scales in 8 bits",
            Scales::PowersOfTwo => ", scales powers of two",
            Scales::Halves | Scales::HalfScales | Scales::Floats => "",
        };
        write!(to, "{count}-bit{of_table} in groups of {group}{super_blocks}")
    }
}

/// How a weight matrix is kept in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum WeightFormat {
    /// Row-major `[n, k]` in the run's dtype.
    #[default]
    Plain,
    /// Groups of low-bit integers.
    Grouped(Grouped),
}

/// Groups of a head of `head_dim` elements in a 4-bit KV cache.
pub const fn kv4_groups(head_dim: usize) -> usize {
    head_dim.div_ceil(KV_GROUP)
}

/// Bytes of one position of one KV head (K or V) in a 4-bit KV cache; `None` when `head_dim` is odd
/// or 0, which that cache cannot hold.
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
        let sizes = [576, 320, 576, 704, 384, 2368, 2880, 3392, 576, 2240, 1088];
        let wide = [1088, 576, 576, 640, 576, 640, 640, 384, 640, 640, 640];
        for ((form, size_bytes), wide_bytes) in Grouped::STORED.into_iter().zip(sizes).zip(wide) {
            assert_eq!(form.record_bytes(), size_bytes, "{form:?}");
            assert_eq!(form.widened().record_bytes(), wide_bytes, "{form:?}");
            for form in [form, form.widened()] {
                assert_eq!(form.record_bytes() % 64, 0, "{form:?}");
                assert_eq!(form.group_bytes() % 64, 0, "{form:?}");
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
        // Two groups to a record, and four.
        let q5_0 = Grouped::GGUF_Q5_0;
        assert_eq!((q5_0.groups(96), q5_0.records(96), q5_0.size_bytes(1, 96)), (3, 2, 2 * 704));
        assert_eq!(Grouped::GGUF_MXFP4.size_bytes(17, 160), 2 * 2 * 1088);
        // 4.5 bits a weight where nothing is padded.
        assert_eq!(w4.size_bytes(7168, 7168) * 16, 7168 * 7168 * 9);
    }

    #[test]
    fn kv_positions_hold_their_groups_and_odd_heads_are_refused() {
        let cases = [(2, 5), (8, 8), (64, 36), (66, 41), (80, 48), (96, 56), (128, 72), (256, 144)];
        for (head_dim, bytes) in cases {
            assert_eq!(kv4_position_bytes(head_dim), Some(bytes), "head_dim {head_dim}");
        }
        assert_eq!(kv4_position_bytes(63), None);
        assert_eq!(kv4_position_bytes(0), None);
    }
}
