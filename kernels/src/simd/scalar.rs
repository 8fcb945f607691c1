//! The portable variant: eight lanes as an array, which the compiler turns into the instructions
//! that the target guarantees. No fused multiply-add, because without the instruction it is a
//! library call.

use half::{bf16, f16};

use super::{KEPT_BITS, OutOfLine, Simd};
use crate::number::Number;

const LANES: usize = 8;

/// Token of the portable variant; always available.
#[derive(Debug, Clone, Copy)]
pub struct Scalar;

/// Returns `f` of every lane. A plain loop compiles several times as fast as `std::array::from_fn`.
#[inline(always)]
pub(crate) fn lanes<T: Copy + Default>(f: impl Fn(usize) -> T) -> [T; LANES] {
    let mut values = [T::default(); LANES];
    let mut lane = 0;
    while lane < LANES {
        values[lane] = f(lane);
        lane += 1;
    }
    values
}

/// Returns `f` of every lane of `a`.
#[inline(always)]
pub(crate) fn map<A: Copy, T: Copy + Default>(a: [A; LANES], f: impl Fn(A) -> T) -> [T; LANES] {
    lanes(|lane| f(a[lane]))
}

#[inline(always)]
fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    lanes(|lane| f(a[lane], b[lane]))
}

impl Simd for Scalar {
    type Block = [[u32; LANES]; LANES];
    const LANES: usize = LANES;
    const IS_PORTABLE: bool = true;
    const TILE_ROWS: usize = 1;
    const DIRECT_ROWS: usize = 1;

    #[inline(never)]
    fn out_of_line<W: OutOfLine<Self>>(self, work: W) {
        work.run(self);
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        [value; LANES]
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        lanes(|lane| a[lane] * b[lane] + c[lane])
    }

    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn select_less(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F {
        lanes(|lane| if a[lane] < b[lane] { yes[lane] } else { no[lane] })
    }

    #[inline(always)]
    fn round(self, a: Self::F) -> Self::F {
        // Adding and subtracting 1.5 * 2^23 rounds to an integer in the current mode (nearest even)
        // for the small magnitudes used here, without a library call.
        const MAGIC: f32 = 12_582_912.0;
        map(a, |value| (value + MAGIC) - MAGIC)
    }

    #[inline(always)]
    fn exp2_integral(self, a: Self::F) -> Self::F {
        map(a, |value| f32::from_bits((((value as i32) + 127) as u32) << 23))
    }

    #[inline(always)]
    fn truncate(self, a: Self::F) -> Self::F {
        map(a, |value| f32::from_bits(value.to_bits() & KEPT_BITS))
    }

    #[inline(always)]
    fn sum_lanes(self, a: Self::F) -> f32 {
        let four: [f32; 4] = std::array::from_fn(|lane| a[lane] + a[lane + 4]);
        (four[0] + four[2]) + (four[1] + four[3])
    }

    #[inline(always)]
    fn max_lanes(self, a: Self::F) -> f32 {
        a.iter().fold(a[0], |largest, &value| if largest > value { largest } else { value })
    }

    #[inline(always)]
    fn prefetch(self, _at: *const u8) {}

    #[inline(always)]
    fn prefetch_l2(self, _at: *const u8) {}

    #[inline(always)]
    fn zero_dwords(self) -> Self::D {
        [0; LANES]
    }

    #[inline(always)]
    fn bits(self, d: Self::D) -> Self::F {
        map(d, f32::from_bits)
    }

    #[inline(always)]
    fn low_bf16(self, d: Self::D) -> Self::F {
        map(d, |dword| f32::from_bits(dword << 16))
    }

    #[inline(always)]
    fn high_bf16(self, d: Self::D) -> Self::F {
        map(d, |dword| f32::from_bits(dword & 0xffff_0000))
    }

    #[inline(always)]
    fn nibble(self, d: Self::D, index: usize) -> Self::F {
        map(d, |dword| ((dword >> (4 * index)) & 15) as f32)
    }

    #[inline(always)]
    fn byte(self, d: Self::D, index: usize) -> Self::F {
        map(d, |dword| f32::from(dword.to_le_bytes()[index] as i8))
    }

    #[inline(always)]
    fn repeat(self, d: Self::D) -> Self::Block {
        [d; LANES]
    }

    #[inline(always)]
    unsafe fn load_dwords(self, from: *const u8) -> Self::D {
        // SAFETY: the caller promises LANES readable dwords.
        unsafe { from.cast::<[u32; LANES]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn transpose(self, from: *const u8, stride: usize) -> Self::Block {
        // SAFETY: the caller promises LANES readable rows.
        let rows: Self::Block = lanes(|row| unsafe { self.load_dwords(from.add(row * stride)) });
        lanes(|column| map(rows, |row| row[column]))
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const f16) -> Self::F {
        // SAFETY: the caller promises LANES readable f16.
        map(unsafe { from.cast::<[f16; LANES]>().read_unaligned() }, f16::to_f32)
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Self::F {
        // SAFETY: the caller promises LANES readable f32; an array of f32 has their alignment.
        unsafe { from.cast::<[f32; LANES]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_partial(self, from: *const f32, count: usize) -> Self::F {
        let mut value = [0.0; LANES];
        for (lane, slot) in value.iter_mut().enumerate().take(count) {
            // SAFETY: `lane < count`, which the caller promises to be readable.
            *slot = unsafe { from.add(lane).read_unaligned() };
        }
        value
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: Self::F) {
        // SAFETY: the caller promises LANES writable f32.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(value) }
    }

    #[inline(always)]
    unsafe fn store_partial(self, to: *mut f32, value: Self::F, count: usize) {
        for (lane, &element) in value.iter().enumerate().take(count) {
            // SAFETY: `lane < count`, which the caller promises to be writable.
            unsafe { to.add(lane).write_unaligned(element) };
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const bf16) -> Self::F {
        // SAFETY: the caller promises LANES readable bf16.
        map(unsafe { from.cast::<[bf16; LANES]>().read_unaligned() }, Number::to_f32)
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut bf16, value: Self::F) {
        let rounded: [bf16; LANES] = map(value, Number::from_f32);
        // SAFETY: the caller promises LANES writable bf16.
        unsafe { to.cast::<[bf16; LANES]>().write_unaligned(rounded) }
    }

    #[inline(always)]
    unsafe fn load_pair_bf16(self, from: *const bf16) -> (Self::F, Self::F) {
        // SAFETY: the caller promises 2 * LANES readable bf16.
        let pairs = unsafe { from.cast::<[[bf16; 2]; LANES]>().read_unaligned() };
        (map(pairs, |pair| pair[0].to_f32()), map(pairs, |pair| pair[1].to_f32()))
    }

    #[inline(always)]
    unsafe fn load_pair_partial_bf16(self, from: *const bf16, count: usize) -> (Self::F, Self::F) {
        let mut buffer = [bf16::ZERO; 2 * LANES];
        // SAFETY: the caller promises `count` readable bf16, fewer than the buffer holds.
        unsafe {
            std::ptr::copy_nonoverlapping(from, buffer.as_mut_ptr(), count);
            self.load_pair_bf16(buffer.as_ptr())
        }
    }

    #[inline(always)]
    unsafe fn store_pair_bf16(self, to: *mut bf16, value: (Self::F, Self::F)) {
        let pairs: [[bf16; 2]; LANES] =
            lanes(|lane| [Number::from_f32(value.0[lane]), Number::from_f32(value.1[lane])]);
        // SAFETY: the caller promises 2 * LANES writable bf16.
        unsafe { to.cast::<[[bf16; 2]; LANES]>().write_unaligned(pairs) }
    }
}
