//! Packed integers without dedicated instructions.

use half::f16;
use model::source::float8::e4m3;

use super::Integers;
use crate::simd::Simd;
use crate::simd::scalar::{Scalar, lanes, map};

/// Lanes of the portable variant.
const LANES: usize = 8;

impl Integers for Scalar {
    type F = [f32; LANES];
    type D = [u32; LANES];

    #[inline(always)]
    fn splat_dword(self, value: u32) -> [u32; LANES] {
        [value; LANES]
    }

    #[inline(always)]
    fn two_dwords(self, low: u32, high: u32) -> [u32; LANES] {
        lanes(|lane| if lane < LANES / 2 { low } else { high })
    }

    #[inline(always)]
    fn dwords_to_f32(self, d: [u32; LANES]) -> [f32; LANES] {
        map(d, |dword| dword as i32 as f32)
    }

    #[inline(always)]
    fn round_dwords(self, a: [f32; LANES]) -> [u32; LANES] {
        map(a, |value| value.round_ties_even() as i32 as u32)
    }

    #[inline(always)]
    fn or_dwords(self, a: [u32; LANES], b: [u32; LANES]) -> [u32; LANES] {
        lanes(|lane| a[lane] | b[lane])
    }

    #[inline(always)]
    fn sub_bytes(self, a: [u32; LANES], b: [u32; LANES]) -> [u32; LANES] {
        lanes(|lane| {
            let (a, b) = (a[lane].to_le_bytes(), b[lane].to_le_bytes());
            u32::from_le_bytes(std::array::from_fn(|i| a[i].wrapping_sub(b[i])))
        })
    }

    #[inline(always)]
    fn shift_dwords(self, d: [u32; LANES], count: usize) -> [u32; LANES] {
        map(d, |dword| dword >> count)
    }

    #[inline(always)]
    fn move_bits(self, d: [u32; LANES], from: usize, count: usize, to: usize) -> [u32; LANES] {
        let mask = if count == 1 { 0x0101_0101 } else { 0x0303_0303 };
        map(d, |dword| (dword >> from & mask) << to)
    }

    #[inline(always)]
    fn table_bytes(self, d: [u32; LANES], table: &[i8; 16]) -> [u32; LANES] {
        let entry = |byte: u8| table[usize::from(byte & 15)].cast_unsigned();
        map(d, |dword| u32::from_le_bytes(dword.to_le_bytes().map(entry)))
    }

    #[inline(always)]
    unsafe fn load_signed_bytes(self, from: *const u8) -> [f32; LANES] {
        // SAFETY: the caller promises eight readable bytes.
        map(unsafe { from.cast::<[i8; LANES]>().read_unaligned() }, f32::from)
    }

    #[inline(always)]
    unsafe fn load_half_bytes(self, from: *const u8) -> [[f32; LANES]; 2] {
        // SAFETY: the caller promises eight readable bytes.
        let bytes = unsafe { from.cast::<[u8; LANES]>().read_unaligned() };
        [map(bytes, |byte| f32::from(byte & 15)), map(bytes, |byte| f32::from(byte >> 4))]
    }

    #[inline(always)]
    unsafe fn load_e4m3(self, from: *const u8) -> [f32; LANES] {
        // SAFETY: the caller promises eight readable bytes.
        map(unsafe { from.cast::<[u8; LANES]>().read_unaligned() }, e4m3)
    }

    #[inline(always)]
    fn nibble_bytes(self, d: [u32; LANES], high: bool) -> [u32; LANES] {
        map(d, |dword| (if high { dword >> 4 } else { dword }) & 0x0f0f_0f0f)
    }

    #[inline(always)]
    fn interleave_bytes(self, rows: [[u32; LANES]; 4], half: usize) -> [[u32; LANES]; 2] {
        std::array::from_fn(|vector| {
            lanes(|lane| {
                let byte = 16 * (lane / 4) + 8 * half + 4 * vector + lane % 4;
                u32::from_le_bytes(rows.map(|row| row[byte / 4].to_le_bytes()[byte % 4]))
            })
        })
    }

    #[inline(always)]
    unsafe fn load_halves(self, low: *const u8, high: *const u8) -> [u32; LANES] {
        // SAFETY: the caller promises sixteen bytes at both.
        bytemuck::cast(unsafe { [low, high].map(|at| at.cast::<[u8; 16]>().read_unaligned()) })
    }

    #[inline(always)]
    fn fold_halves(self, a: [u32; LANES], b: [u32; LANES]) -> [u32; LANES] {
        lanes(|lane| {
            let from = if lane < LANES / 2 { a } else { b };
            let lane = lane % (LANES / 2);
            from[lane].wrapping_add(from[lane + LANES / 2])
        })
    }

    #[inline(always)]
    unsafe fn transpose_eight(self, from: *const u8, stride: usize) -> [[u32; LANES]; 8] {
        // SAFETY: the caller's promise: a row is a vector.
        unsafe { self.transpose(from, stride) }
    }

    #[inline(always)]
    fn halves_f16(self, d: [u32; LANES]) -> [[f32; LANES]; 2] {
        [0, 16].map(|from| map(d, |dword| f16::from_bits((dword >> from) as u16).to_f32()))
    }

    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut u8, d: [u32; LANES]) {
        // SAFETY: the caller promises eight writable bytes.
        unsafe { to.cast::<[u8; LANES]>().write_unaligned(map(d, |dword| dword as u8)) }
    }

    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8, count: usize) -> [u32; LANES] {
        let mut buffer = [0u8; 4 * LANES];
        // SAFETY: the caller promises `count` bytes, fewer than the buffer's.
        unsafe { std::ptr::copy_nonoverlapping(from, buffer.as_mut_ptr(), count) };
        bytemuck::cast(buffer)
    }

    #[inline(always)]
    fn has_fast_dots(self) -> bool {
        false
    }

    #[inline(always)]
    fn dot_bytes<const FAST: bool>(
        self,
        acc: [u32; LANES],
        a: [u32; LANES],
        b: [u32; LANES],
    ) -> [u32; LANES] {
        lanes(|lane| {
            let (a, b) = (a[lane].to_le_bytes(), b[lane].to_le_bytes());
            let product = |i: usize| i32::from(a[i]) * i32::from(b[i] as i8);
            acc[lane].wrapping_add((0..4).map(product).sum::<i32>() as u32)
        })
    }

    #[inline(always)]
    fn pairs_of_products(self, a: [u32; LANES], b: [u32; LANES]) -> [u32; LANES] {
        lanes(|lane| {
            let (a, b) = (a[lane].to_le_bytes(), b[lane].to_le_bytes());
            let product = |i: usize| i32::from(a[i]) * i32::from(b[i] as i8);
            let (low, high) = (product(0) + product(1), product(2) + product(3));
            (low as u32 & 0xffff) | (high as u32) << 16
        })
    }

    #[inline(always)]
    fn add_words(self, a: [u32; LANES], b: [u32; LANES]) -> [u32; LANES] {
        lanes(|lane| {
            let low = a[lane].wrapping_add(b[lane]) & 0xffff;
            low | (a[lane] & !0xffff).wrapping_add(b[lane] & !0xffff)
        })
    }

    #[inline(always)]
    fn sums_of_words(self, words: [u32; LANES]) -> [u32; LANES] {
        map(words, |words| {
            (i32::from(words as i16) + i32::from((words >> 16) as i16)).cast_unsigned()
        })
    }

    #[inline(always)]
    fn add_dwords(self, a: [u32; LANES], b: [u32; LANES]) -> [u32; LANES] {
        lanes(|lane| a[lane].wrapping_add(b[lane]))
    }

    #[inline(always)]
    fn sub_dwords(self, a: [u32; LANES], b: [u32; LANES]) -> [u32; LANES] {
        lanes(|lane| a[lane].wrapping_sub(b[lane]))
    }

    #[inline(always)]
    fn abs_bytes(self, d: [u32; LANES]) -> [u32; LANES] {
        map(d, |dword| {
            u32::from_le_bytes(dword.to_le_bytes().map(|byte| (byte as i8).unsigned_abs()))
        })
    }

    #[inline(always)]
    fn with_signs(self, d: [u32; LANES], by: [u32; LANES]) -> [u32; LANES] {
        lanes(|lane| {
            let (d, by) = (d[lane].to_le_bytes(), by[lane].to_le_bytes());
            let signed = |i: usize| (d[i] as i8).wrapping_mul((by[i] as i8).signum());
            u32::from_le_bytes(std::array::from_fn(|i| signed(i).cast_unsigned()))
        })
    }

    #[inline(always)]
    unsafe fn dot_with_vnni(
        self,
        acc: [u32; LANES],
        a: [u32; LANES],
        b: [u32; LANES],
    ) -> [u32; LANES] {
        self.dot_bytes::<false>(acc, a, b)
    }
}
