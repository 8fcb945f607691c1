//! Products of a vector of nibbles with integer weights.

use crate::simd::Simd;

/// Adds the products of the weights and both nibbles of every byte, with four positions adjacent.
#[inline(always)]
pub(super) fn add_products<S: Simd, const MR: usize, const FAST: bool>(
    s: S,
    dwords: [S::D; 2],
    w: [S::D; MR],
    sums: &mut [[S::D; 4]; MR],
) {
    for j in 0..4 {
        let nibbles = s.nibble_bytes(dwords[j / 2], j % 2 == 1);
        for i in 0..MR {
            sums[i][j] = s.dot_bytes::<FAST>(sums[i][j], w[i], nibbles);
        }
    }
}
