//! Vector types, and arithmetic on packed small integers: exact, so that every order and every
//! instruction gives the same bits. Attention over a 4-bit KV cache is built on it.

/// Evaluates intrinsics that only need the instructions to exist.
#[cfg(target_arch = "x86_64")]
macro_rules! with_token {
    ($body:expr) => {{
        // SAFETY: intrinsics are unsafe outside functions compiled for them; the token exists only
        // if the machine has the instructions, and nothing here accesses memory.
        unsafe { $body }
    }};
}

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
mod scalar;
#[cfg(test)]
mod tests;

/// Operations on packed integers, the base of [`Simd`](super::Simd).
pub trait Integers: Copy {
    /// A vector of [`Simd::LANES`](super::Simd::LANES) f32.
    type F: Copy;
    /// A vector of the same number of dwords: packed numbers of some format.
    type D: Copy;

    /// Returns `value` in every lane.
    fn splat_dword(self, value: u32) -> Self::D;
    /// Returns `low` in the first half of the lanes, `high` in the others.
    fn two_dwords(self, low: u32, high: u32) -> Self::D;
    /// Returns the [`Integers::two_dwords`] at two addresses.
    ///
    /// # Safety
    /// Both are readable.
    #[inline(always)]
    unsafe fn two_dwords_at(self, low: *const u32, high: *const u32) -> Self::D {
        // SAFETY: the caller's promise.
        unsafe { self.two_dwords(*low, *high) }
    }
    /// Converts each dword, signed, to f32.
    fn dwords_to_f32(self, d: Self::D) -> Self::F;
    /// Returns the nearest signed dword of each lane, ties to even.
    fn round_dwords(self, a: Self::F) -> Self::D;
    /// Returns the bitwise or.
    fn or_dwords(self, a: Self::D, b: Self::D) -> Self::D;
    /// Returns differences of bytes, modulo 256.
    fn sub_bytes(self, a: Self::D, b: Self::D) -> Self::D;
    /// Returns bits `from..from + count` of every byte, for `count` 1 or 2, as its bits from `to`
    /// on.
    fn move_bits(self, d: Self::D, from: usize, count: usize, to: usize) -> Self::D;
    /// Returns dwords shifted right by `count` bits.
    fn shift_dwords(self, d: Self::D, count: usize) -> Self::D;
    /// Looks up every byte, below 16, in a table.
    fn table_bytes(self, d: Self::D, table: &[i8; 16]) -> Self::D;
    /// Loads a signed byte for each lane, as f32.
    ///
    /// # Safety
    /// `from` is valid for reading a byte for each lane.
    unsafe fn load_signed_bytes(self, from: *const u8) -> Self::F;
    /// Loads a byte for each lane, as its low and high half in f32.
    ///
    /// # Safety
    /// `from` is valid for reading a byte for each lane.
    unsafe fn load_half_bytes(self, from: *const u8) -> [Self::F; 2];
    /// Loads an 8-bit float (E4M3), finite and not negative, for each lane.
    ///
    /// # Safety
    /// `from` is valid for reading a byte for each lane.
    unsafe fn load_e4m3(self, from: *const u8) -> Self::F;
    /// Returns the low or the high nibble of every byte as a byte.
    fn nibble_bytes(self, d: Self::D, high: bool) -> Self::D;
    /// Interleaves the bytes of four rows, the first row's lowest: lane `l` of vector `v` has bytes
    /// `16 * (l / 4) + 8 * half + 4 * v + l % 4`.
    fn interleave_bytes(self, rows: [Self::D; 4], half: usize) -> [Self::D; 2];
    /// Loads half a vector's bytes at `low`, followed by the same number at `high`.
    ///
    /// # Safety
    /// Both are readable.
    unsafe fn load_halves(self, low: *const u8, high: *const u8) -> Self::D;
    /// Returns the sums of both halves of the lanes of `a`, followed by those of `b`.
    fn fold_halves(self, a: Self::D, b: Self::D) -> Self::D;
    /// Returns dword `p` of each of [`Simd::LANES`](super::Simd::LANES) rows that are stored
    /// `stride` bytes apart, as vector `p`.
    ///
    /// # Safety
    /// `from` is valid for reading eight dwords, at any alignment, and so are the rows after it.
    unsafe fn transpose_eight(self, from: *const u8, stride: usize) -> [Self::D; 8];
    /// Converts the low and the high half of each dword, f16, to f32.
    fn halves_f16(self, d: Self::D) -> [Self::F; 2];
    /// Stores the low byte of each dword, whose upper bytes are zero, contiguously.
    ///
    /// # Safety
    /// `to` is valid for writing a byte for each lane.
    unsafe fn store_bytes(self, to: *mut u8, d: Self::D);
    /// Loads `count` bytes, fewer than a vector's, followed by zeros.
    ///
    /// # Safety
    /// `from` is valid for reading `count` bytes.
    unsafe fn load_bytes(self, from: *const u8, count: usize) -> Self::D;
    /// True if some machine with this instruction set has dedicated instructions for the dot
    /// products below.
    const MAY_HAVE_FAST_DOTS: bool = false;
    /// Returns true if the machine has dedicated instructions for the dot products below, which are
    /// then called with `FAST`; the sums are exact, so both give the same bits.
    fn has_fast_dots(self) -> bool;
    /// Returns `acc` plus the sum of the products of four bytes of `a` and signed ones of `b`; the
    /// bytes of one of the two are from 0 to 15.
    fn dot_bytes<const FAST: bool>(self, acc: Self::D, a: Self::D, b: Self::D) -> Self::D;
    /// Returns sums of two products of bytes in words: of unsigned bytes of `a` and signed ones of
    /// `b`. No sum may exceed a word.
    fn pairs_of_products(self, a: Self::D, b: Self::D) -> Self::D;
    /// Returns sums of words, modulo 2^16.
    fn add_words(self, a: Self::D, b: Self::D) -> Self::D;
    /// Returns the sums of the two signed words of each dword.
    fn sums_of_words(self, words: Self::D) -> Self::D;
    /// Returns sums of dwords, modulo 2^32.
    fn add_dwords(self, a: Self::D, b: Self::D) -> Self::D;
    /// Returns differences of dwords, modulo 2^32.
    fn sub_dwords(self, a: Self::D, b: Self::D) -> Self::D;
    /// Returns the magnitudes of signed bytes; that of -128 is 128, unsigned.
    fn abs_bytes(self, d: Self::D) -> Self::D;
    /// Returns bytes of `d` with the signs of `by` applied: negated where `by` is negative, 0 where
    /// it is 0.
    fn with_signs(self, d: Self::D, by: Self::D) -> Self::D;
    /// Returns `acc` plus the sums of four products of unsigned bytes of `a` and signed ones of
    /// `b`, with the instruction for it.
    ///
    /// # Safety
    /// The machine has the instruction for this vector: of AVX-VNNI or of AVX512-VNNI.
    unsafe fn dot_with_vnni(self, acc: Self::D, a: Self::D, b: Self::D) -> Self::D;
}
