//! All variants compute the same integers.

use crate::simd::Simd;
use crate::variant::{SimdTask, Variant, dispatch};

/// Every operation on the same bytes, lanes as bytes one after the other.
struct Every<'a> {
    a: &'a [u8; 64],
    b: &'a [u8; 64],
    out: &'a mut Vec<u32>,
}

impl SimdTask for Every<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut of_part = |part: usize| {
            // SAFETY: a part of the arrays is a vector.
            let (a, b) = unsafe {
                let at = part * 4 * S::LANES;
                (s.load_dwords(self.a.as_ptr().add(at)), s.load_dwords(self.b.as_ptr().add(at)))
            };
            let low = s.nibble_bytes(a, false);
            let high = s.nibble_bytes(a, true);
            let acc = s.splat_dword(7);
            let words = [s.interleave_words(a, b, 0), s.interleave_words(a, b, 1)];
            let nibbles = |index: usize| s.nibble_words(words[index % 2], index);
            let mut vectors = vec![low, high, words[0], words[1]];
            vectors.extend([s.dot_bytes::<false>(acc, low, b), nibbles(1), nibbles(2)]);
            vectors.extend([s.dot_words::<false>(acc, nibbles(0), b), nibbles(3)]);
            if s.has_fast_dots() {
                vectors[4] = s.dot_bytes::<true>(acc, low, b);
                vectors[7] = s.dot_words::<true>(acc, nibbles(0), b);
                let slow = [s.dot_bytes::<false>(acc, low, b)];
                vectors.extend(slow);
                vectors.push(s.dot_words::<false>(acc, nibbles(0), b));
            }
            let mut dwords = [0u32; 16];
            for (index, vector) in vectors.into_iter().enumerate() {
                // SAFETY: the array has room for the widest vector.
                unsafe { s.store(dwords.as_mut_ptr().cast(), s.bits(vector)) };
                for dword in &dwords[..S::LANES] {
                    self.out.push(*dword ^ index as u32);
                }
            }
        };
        for part in 0..16 / S::LANES {
            of_part(part);
        }
    }
}

fn every(variant: Variant, a: &[u8; 64], b: &[u8; 64]) -> Vec<Vec<u32>> {
    let mut out = Vec::new();
    // SAFETY: the callers name variants of this machine.
    unsafe { dispatch(variant, Every { a, b, out: &mut out }) };
    let lanes = if variant <= Variant::Avx2 { 8 } else { 16 };
    let operations = out.len() / 16;
    // Operation by operation, whatever the width of the vectors.
    let vectors: Vec<&[u32]> = out.chunks(lanes).collect();
    (0..operations)
        .map(|operation| {
            let parts = 16 / lanes;
            let part = |part: usize| vectors[part * operations + operation].to_vec();
            (0..parts).flat_map(part).collect()
        })
        .collect()
}

#[test]
fn every_variant_computes_the_same_integers() {
    let mut state = 1u32;
    let mut byte = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    for _ in 0..100 {
        let a: [u8; 64] = std::array::from_fn(|_| byte());
        let b: [u8; 64] = std::array::from_fn(|_| byte());
        let expected = every(Variant::Scalar, &a, &b);
        for variant in Variant::available() {
            let actual = every(variant, &a, &b);
            assert_eq!(actual[..9], expected[..], "{variant:?}");
            // The slow forms behind the fast ones.
            for (slow, fast) in actual[9..].iter().zip([4, 7]) {
                let plain = |values: &[u32], index: usize| -> Vec<u32> {
                    values.iter().map(|value| value ^ index as u32).collect()
                };
                let index = if fast == 4 { 9 } else { 10 };
                assert_eq!(plain(slow, index), plain(&actual[fast], fast), "{variant:?}");
            }
        }
    }
}
