//! SIMD abstraction in which every kernel is written once: a vector of f32 lanes and the few
//! operations on it, implemented by a portable, an AVX2 and an AVX-512 token.
//!
//! A token is a zero-sized proof that the machine has the instructions, so arithmetic is safe to
//! call; only loads and stores, which take raw pointers, are unsafe. Everything is
//! `#[inline(always)]` and meant to be inlined into one function of a token
//! ([`Simd::out_of_line`]).
//!
//! **Pairs.** The hot loops read memory in *pairs*: `2 * LANES` consecutive elements as two
//! vectors. For f32 they are the first and the second half. For bf16 they are the even and the odd
//! elements, because extracting them costs only a shift and a mask. Data combined with such a pair
//! (packed activations, accumulators over head_dim) has the same order, called *pair order*.

#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
pub mod avx512;
#[cfg(target_arch = "x86_64")]
pub mod avx512_f32fma;
pub mod integers;
#[cfg(target_arch = "x86_64")]
pub mod lanes;
pub mod math;
pub mod partial;
pub mod scalar;

use half::{bf16, f16};

use integers::Integers;

/// Width of the widest vector of any variant, in f32 lanes; scratch is laid out for it.
pub const MAX_LANES: usize = 16;
/// Bits of an f32 that [`Simd::truncate`] keeps.
const KEPT_BITS: u32 = !0xf;

/// Work that is compiled as a separate function for each token ([`Simd::out_of_line`]).
pub trait OutOfLine<S> {
    /// Runs the work. Must be `#[inline(always)]`, and so must everything it calls that uses
    /// vectors.
    fn run(self, s: S);
}

/// A token for one instruction set; see the module header.
///
/// # Safety of the pointer methods
/// The pointer must be valid for the named number of elements; no alignment is needed.
pub trait Simd: Integers {
    /// [`Simd::LANES`] vectors of dwords.
    type Block: Copy + AsRef<[Self::D]>;
    const LANES: usize;
    /// True for vectors of 64 bytes, whose machines have 32 registers.
    const IS_WIDE: bool = Self::LANES == MAX_LANES;
    /// True if every tile has a single row or query and nothing is prefetched: portable code, which
    /// makes a model run on a machine without AVX2. More tiles take minutes to compile.
    const IS_PORTABLE: bool = false;
    /// Maximum number of rows of x in the register tile of the linears, which is two vectors wide.
    const TILE_ROWS: usize;
    /// Maximum number of rows of x for which the linears use weights straight from registers.
    const DIRECT_ROWS: usize;

    /// Runs work as a separate function, compiled with the token's instructions: compilers take
    /// more than twice the time for a function of twice the size.
    fn out_of_line<W: OutOfLine<Self>>(self, work: W);

    fn splat(self, value: f32) -> Self::F;
    #[inline(always)]
    fn zero(self) -> Self::F {
        self.splat(0.0)
    }
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// Returns `a * b + c`; fused in the vector variants, two roundings in the portable one.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Returns the lane-wise maximum; `b` where either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// Returns the lane-wise minimum; `b` where either is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// Returns `yes` where `a < b`, else `no` (also where either is NaN).
    fn select_less(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F;
    /// Returns the nearest integer, ties to even.
    fn round(self, a: Self::F) -> Self::F;
    /// Returns `2^a` for integral `a` in -126..=127.
    fn exp2_integral(self, a: Self::F) -> Self::F;
    /// Returns `a * 2^n` for integral `n` in -126..=127.
    #[inline(always)]
    fn times_power(self, a: Self::F, n: Self::F) -> Self::F {
        self.mul(a, self.exp2_integral(n))
    }
    /// Returns the upper 20 of the 24 significant bits of an f32; the lower ones are cut off.
    fn truncate(self, a: Self::F) -> Self::F;
    /// Returns the sum of all lanes by halving: lane `l` with lane `l + LANES/2`, and so on.
    fn sum_lanes(self, a: Self::F) -> f32;
    /// Returns the largest lane.
    fn max_lanes(self, a: Self::F) -> f32;

    /// Prefetches the cache line at `at`, which may be any address.
    fn prefetch(self, at: *const u8);
    /// Prefetches like [`Simd::prefetch`], but only into L2.
    fn prefetch_l2(self, at: *const u8);

    fn zero_dwords(self) -> Self::D;
    /// Reinterprets the bits of each dword as an f32.
    fn bits(self, d: Self::D) -> Self::F;
    /// Converts the low half of each dword, a bf16, to f32.
    fn low_bf16(self, d: Self::D) -> Self::F;
    /// Converts the high half of each dword, a bf16, to f32.
    fn high_bf16(self, d: Self::D) -> Self::F;
    /// Converts bits `4 * index..4 * index + 4` of each dword, unsigned, to f32.
    fn nibble(self, d: Self::D, index: usize) -> Self::F;
    /// Converts byte `index` of each dword, signed, to f32.
    fn byte(self, d: Self::D, index: usize) -> Self::F;
    /// Returns a block that repeats one vector.
    fn repeat(self, d: Self::D) -> Self::Block;
    /// # Safety
    /// `from` is valid for reading `LANES` dwords, at any alignment.
    unsafe fn load_dwords(self, from: *const u8) -> Self::D;
    /// Returns dword `p` of each of `LANES` rows that are stored `stride` bytes apart, as vector
    /// `p`.
    ///
    /// # Safety
    /// `from` is valid for reading `LANES` dwords, at any alignment, and so are the rows after it.
    unsafe fn transpose(self, from: *const u8, stride: usize) -> Self::Block;
    /// # Safety
    /// `from` is valid for reading `LANES` f16.
    unsafe fn load_f16(self, from: *const f16) -> Self::F;

    /// # Safety
    /// `from` is valid for reading `LANES` f32.
    unsafe fn load(self, from: *const f32) -> Self::F;
    /// # Safety
    /// `from` is valid for reading `count` f32; `count < LANES`. Other lanes are 0.
    unsafe fn load_partial(self, from: *const f32, count: usize) -> Self::F;
    /// # Safety
    /// `to` is valid for writing `LANES` f32.
    unsafe fn store(self, to: *mut f32, value: Self::F);
    /// # Safety
    /// `to` is valid for writing `count` f32; `count < LANES`.
    unsafe fn store_partial(self, to: *mut f32, value: Self::F, count: usize);

    /// # Safety
    /// `from` is valid for reading `LANES` bf16.
    unsafe fn load_bf16(self, from: *const bf16) -> Self::F;
    /// # Safety
    /// `to` is valid for writing `LANES` bf16. Rounds to nearest even.
    unsafe fn store_bf16(self, to: *mut bf16, value: Self::F);
    /// # Safety
    /// `from` is valid for reading `2 * LANES` bf16. Even elements, odd elements.
    unsafe fn load_pair_bf16(self, from: *const bf16) -> (Self::F, Self::F);
    /// # Safety
    /// `from` is valid for reading `count` bf16; `count < 2 * LANES`. Other lanes are 0.
    unsafe fn load_pair_partial_bf16(self, from: *const bf16, count: usize) -> (Self::F, Self::F);
    /// # Safety
    /// `to` is valid for writing `2 * LANES` bf16. Rounds to nearest even.
    unsafe fn store_pair_bf16(self, to: *mut bf16, value: (Self::F, Self::F));
    /// Stores one vector after the other, rounded to nearest, ties away from zero; finite values
    /// only.
    ///
    /// # Safety
    /// `to` is valid for writing `2 * LANES` bf16.
    #[inline(always)]
    unsafe fn store_rounded(self, to: *mut bf16, values: [Self::F; 2]) {
        let mut all = [0.0f32; 2 * MAX_LANES];
        // SAFETY: the buffer has space for two of the widest vectors; the rest is the caller's
        // promise.
        unsafe {
            self.store(all.as_mut_ptr(), values[0]);
            self.store(all.as_mut_ptr().add(Self::LANES), values[1]);
            for (i, value) in all.iter().enumerate().take(2 * Self::LANES) {
                *to.add(i) = bf16::from_bits((value.to_bits().wrapping_add(0x8000) >> 16) as u16);
            }
        }
    }
}

/// Loads and stores of one element type; sealed, because its module is private.
///
/// # Safety of the methods
/// Same contracts as the methods of [`Simd`] that they forward to.
pub trait SimdElement: Copy + 'static {
    const IS_F32: bool;

    /// # Safety
    /// `from` is valid for reading `LANES` elements.
    unsafe fn load<S: Simd>(s: S, from: *const Self) -> S::F;
    /// # Safety
    /// `from` is valid for reading `count < LANES` elements. Other lanes are 0.
    unsafe fn load_partial<S: Simd>(s: S, from: *const Self, count: usize) -> S::F;
    /// # Safety
    /// `to` is valid for writing `LANES` elements.
    unsafe fn store<S: Simd>(s: S, to: *mut Self, value: S::F);
    /// # Safety
    /// `to` is valid for writing `count < LANES` elements.
    unsafe fn store_partial<S: Simd>(s: S, to: *mut Self, value: S::F, count: usize);
    /// # Safety
    /// `from` is valid for reading `2 * LANES` elements.
    unsafe fn load_pair<S: Simd>(s: S, from: *const Self) -> (S::F, S::F);
    /// # Safety
    /// `from` is valid for reading `count < 2 * LANES` elements. Other lanes are 0.
    unsafe fn load_pair_partial<S: Simd>(s: S, from: *const Self, count: usize) -> (S::F, S::F);
    /// # Safety
    /// `to` is valid for writing `2 * LANES` elements.
    unsafe fn store_pair<S: Simd>(s: S, to: *mut Self, value: (S::F, S::F));
    /// # Safety
    /// `to` is valid for writing `count < 2 * LANES` elements.
    #[inline(always)]
    unsafe fn store_pair_partial<S: Simd>(s: S, to: *mut Self, value: (S::F, S::F), count: usize) {
        let mut buffer = std::mem::MaybeUninit::<[Self; 2 * MAX_LANES]>::uninit();
        let buffer = buffer.as_mut_ptr().cast::<Self>();
        // SAFETY: the tail is written through a whole vector on the stack, which has space for the
        // widest pair; the caller guarantees `count` elements starting at `to`.
        unsafe {
            Self::store_pair(s, buffer, value);
            std::ptr::copy_nonoverlapping(buffer, to, count);
        }
    }
}

impl SimdElement for f32 {
    const IS_F32: bool = true;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, from: *const Self) -> S::F {
        // SAFETY: the caller's promise is the callee's.
        unsafe { s.load(from) }
    }

    #[inline(always)]
    unsafe fn load_partial<S: Simd>(s: S, from: *const Self, count: usize) -> S::F {
        // SAFETY: the caller's promise is the callee's.
        unsafe { s.load_partial(from, count) }
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(s: S, to: *mut Self, value: S::F) {
        // SAFETY: the caller's promise is the callee's.
        unsafe { s.store(to, value) }
    }

    #[inline(always)]
    unsafe fn store_partial<S: Simd>(s: S, to: *mut Self, value: S::F, count: usize) {
        // SAFETY: the caller's promise is the callee's.
        unsafe { s.store_partial(to, value, count) }
    }

    #[inline(always)]
    unsafe fn load_pair<S: Simd>(s: S, from: *const Self) -> (S::F, S::F) {
        // SAFETY: the caller promises 2 * LANES elements.
        unsafe { (s.load(from), s.load(from.add(S::LANES))) }
    }

    #[inline(always)]
    unsafe fn load_pair_partial<S: Simd>(s: S, from: *const Self, count: usize) -> (S::F, S::F) {
        // SAFETY: the caller promises `count` elements; the second half is accessed only if `count`
        // reaches into it.
        unsafe {
            if count < S::LANES {
                (s.load_partial(from, count), s.zero())
            } else {
                (s.load(from), s.load_partial(from.add(S::LANES), count - S::LANES))
            }
        }
    }

    #[inline(always)]
    unsafe fn store_pair<S: Simd>(s: S, to: *mut Self, value: (S::F, S::F)) {
        // SAFETY: the caller promises 2 * LANES elements.
        unsafe {
            s.store(to, value.0);
            s.store(to.add(S::LANES), value.1);
        }
    }
}

impl SimdElement for bf16 {
    const IS_F32: bool = false;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, from: *const Self) -> S::F {
        // SAFETY: the caller's promise is the callee's.
        unsafe { s.load_bf16(from) }
    }

    #[inline(always)]
    unsafe fn load_partial<S: Simd>(s: S, from: *const Self, count: usize) -> S::F {
        let mut buffer = [bf16::ZERO; MAX_LANES];
        // SAFETY: there is no cheap masked load of 16-bit elements in every variant, so the tail
        // goes through the stack; the caller promises `count` elements, fewer than the buffer's.
        unsafe {
            std::ptr::copy_nonoverlapping(from, buffer.as_mut_ptr(), count);
            s.load_bf16(buffer.as_ptr())
        }
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(s: S, to: *mut Self, value: S::F) {
        // SAFETY: the caller's promise is the callee's.
        unsafe { s.store_bf16(to, value) }
    }

    #[inline(always)]
    unsafe fn store_partial<S: Simd>(s: S, to: *mut Self, value: S::F, count: usize) {
        let mut buffer = [bf16::ZERO; MAX_LANES];
        // SAFETY: as in `load_partial`.
        unsafe {
            s.store_bf16(buffer.as_mut_ptr(), value);
            std::ptr::copy_nonoverlapping(buffer.as_ptr(), to, count);
        }
    }

    #[inline(always)]
    unsafe fn load_pair<S: Simd>(s: S, from: *const Self) -> (S::F, S::F) {
        // SAFETY: the caller's promise is the callee's.
        unsafe { s.load_pair_bf16(from) }
    }

    #[inline(always)]
    unsafe fn load_pair_partial<S: Simd>(s: S, from: *const Self, count: usize) -> (S::F, S::F) {
        // SAFETY: the caller's promise is the callee's.
        unsafe { s.load_pair_partial_bf16(from, count) }
    }

    #[inline(always)]
    unsafe fn store_pair<S: Simd>(s: S, to: *mut Self, value: (S::F, S::F)) {
        // SAFETY: the caller's promise is the callee's.
        unsafe { s.store_pair_bf16(to, value) }
    }
}
