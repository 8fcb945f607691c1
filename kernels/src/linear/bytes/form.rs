//! Forms of bytes to which weights are expanded, and the sums of their products with bytes of x.
//!
//! AVX2 multiplies unsigned by signed bytes and adds two products in a word, which must not exceed
//! it: the larger the weights, the fewer products are added before words are added in dwords.

#![allow(
    clippy::needless_range_loop,
    reason = "panels and rows are clearer, and surer to stay in registers, by index"
)]

use model::quantized_format::Bits;

use super::biased::RowFactors;
use super::shape::{DIRECT_ROWS, DIRECT_TILE_ROWS, MAX_GROUP, PANELS, STEP};
use super::target::Target;
use crate::simd::Simd;

/// Largest magnitude of a byte of x.
pub(super) const X_MAX: i32 = 127;

/// Bytes of a format's weights, to which `offset` was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ByteForm {
    pub(super) products: Products,
    pub(super) offset: u8,
}

/// How the products of a group are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Products {
    /// One instruction multiplies four bytes and adds their products.
    Dots,
    /// All products of a group are added in words.
    Words,
    /// The products of two steps are added in words.
    Pairs,
    /// The products of one step are added in words.
    Single,
    /// Weights are signed: their signs are applied to x, and the products of one step are added in
    /// words.
    Signed,
}

impl ByteForm {
    /// Returns the form of weights in groups of `group` inputs, on machines that have dot products
    /// of bytes or do not.
    pub(super) fn of(bits: Bits, group: usize, has_dots: bool) -> ByteForm {
        let (smallest, largest) = match bits {
            Bits::Four => (0, 15),
            Bits::Five => (0, 31),
            Bits::FiveSigned => (-16, 15),
            Bits::SixSigned => (-32, 31),
            Bits::Eight => (-128, 127),
            Bits::Table(table) => {
                let values = table.values().map(i32::from);
                (values.into_iter().min().unwrap_or(0), values.into_iter().max().unwrap_or(0))
            }
        };
        let in_word =
            |steps: usize| 2 * steps as i32 * (largest - smallest) * X_MAX <= i32::from(i16::MAX);
        let products = match group.min(MAX_GROUP) / STEP {
            _ if has_dots => Products::Dots,
            steps if in_word(steps) => Products::Words,
            _ if in_word(2) => Products::Pairs,
            _ if in_word(1) => Products::Single,
            _ => Products::Signed,
        };
        let offset = if products == Products::Signed { 0 } else { -smallest as u8 };
        ByteForm { products, offset }
    }

    /// Returns the maximum number of rows in a tile of a pass of `rows` rows.
    pub(super) fn tile_rows<T: Target>(self, rows: usize) -> usize {
        let [one_sum, more] = T::TILE_ROWS;
        if rows <= DIRECT_ROWS {
            return DIRECT_TILE_ROWS.min(more);
        }
        match self.products {
            Products::Dots | Products::Words => one_sum,
            Products::Pairs | Products::Single | Products::Signed => more,
        }
    }
}

/// Products of bytes of weights and of x, added to a sum of dwords or words by one of [`Products`].
pub(super) trait ProductSums<S: Simd> {
    /// Steps whose products are added at a time, at most [`MAX_STEPS`]; a divisor of four.
    const STEPS: usize = 1;

    /// Returns `sum` plus the products of `STEPS` steps.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn add(s: S, sum: S::D, weights: [S::D; MAX_STEPS], x: [S::D; MAX_STEPS]) -> S::D;

    /// Returns the sum of no products; a group's sum is to be more by `start`.
    #[inline(always)]
    fn begin(_: S, start: S::D) -> S::D {
        start
    }

    /// Returns a group's complete sum in dwords, more by `start`.
    #[inline(always)]
    fn finish(_: S, sum: S::D, _start: S::D) -> S::D {
        sum
    }
}

/// Maximum number of steps whose products are added at a time.
pub(super) const MAX_STEPS: usize = 2;

/// Returns the sums of the products of a group of `R` rows and two panels, over `steps` steps, a
/// multiple of four: bytes of weights, `[step][panel]` vectors, and dwords of x, `[step][row]`.
/// They are more by the number from which the rows' `factors` let them start.
///
/// # Safety
/// The pointers cover the steps and rows, and the machine has the instructions.
#[inline(always)]
pub(super) unsafe fn group_sums<S: Simd, P: ProductSums<S>, const R: usize>(
    s: S,
    weights: *const f32,
    x: *const u32,
    factors: *const f32,
    steps: usize,
) -> [[S::D; PANELS]; R] {
    let mut sums = [[s.zero_dwords(); PANELS]; R];
    for row in 0..R {
        // SAFETY: the caller's promise.
        let start = unsafe { RowFactors::start(s, factors, row, R) };
        sums[row] = [P::begin(s, start); PANELS];
    }
    for first in (0..steps).step_by(P::STEPS) {
        let mut vectors = [[s.zero_dwords(); MAX_STEPS]; PANELS];
        for panel in 0..PANELS {
            for step in 0..P::STEPS {
                let at = weights.wrapping_add(((first + step) * PANELS + panel) * S::LANES);
                // SAFETY: the caller's promise.
                vectors[panel][step] = unsafe { s.load_dwords(at.cast()) };
            }
        }
        for row in 0..R {
            let mut dwords = [s.zero_dwords(); MAX_STEPS];
            for step in 0..P::STEPS {
                // SAFETY: the caller's promise.
                dwords[step] = s.splat_dword(unsafe { *x.add((first + step) * R + row) });
            }
            for panel in 0..PANELS {
                // SAFETY: the caller's promise.
                sums[row][panel] = unsafe { P::add(s, sums[row][panel], vectors[panel], dwords) };
            }
        }
    }
    for row in 0..R {
        // SAFETY: the caller's promise.
        let start = unsafe { RowFactors::start(s, factors, row, R) };
        for panel in 0..PANELS {
            sums[row][panel] = P::finish(s, sums[row][panel], start);
        }
    }
    sums
}

/// [`Products::Dots`].
pub(super) enum Dots {}

impl<S: Simd> ProductSums<S> for Dots {
    #[inline(always)]
    unsafe fn add(s: S, sum: S::D, [weights, _]: [S::D; 2], [x, _]: [S::D; 2]) -> S::D {
        // SAFETY: the caller's promise.
        unsafe { s.dot_with_vnni(sum, weights, x) }
    }
}

/// [`Products::Words`].
pub(super) enum Words {}

impl<S: Simd> ProductSums<S> for Words {
    #[inline(always)]
    fn begin(s: S, _start: S::D) -> S::D {
        s.zero_dwords()
    }

    #[inline(always)]
    unsafe fn add(s: S, sum: S::D, [weights, _]: [S::D; 2], [x, _]: [S::D; 2]) -> S::D {
        s.add_words(sum, s.pairs_of_products(weights, x))
    }

    #[inline(always)]
    fn finish(s: S, sum: S::D, start: S::D) -> S::D {
        s.add_dwords(s.sums_of_words(sum), start)
    }
}

/// [`Products::Pairs`].
pub(super) enum Pairs {}

impl<S: Simd> ProductSums<S> for Pairs {
    const STEPS: usize = 2;

    #[inline(always)]
    unsafe fn add(s: S, sum: S::D, weights: [S::D; 2], x: [S::D; 2]) -> S::D {
        let first = s.pairs_of_products(weights[0], x[0]);
        let words = s.add_words(first, s.pairs_of_products(weights[1], x[1]));
        s.add_dwords(sum, s.sums_of_words(words))
    }
}

/// [`Products::Single`].
pub(super) enum Single {}

impl<S: Simd> ProductSums<S> for Single {
    #[inline(always)]
    unsafe fn add(s: S, sum: S::D, [weights, _]: [S::D; 2], [x, _]: [S::D; 2]) -> S::D {
        s.add_dwords(sum, s.sums_of_words(s.pairs_of_products(weights, x)))
    }
}

/// [`Products::Signed`].
pub(super) enum Signed {}

impl<S: Simd> ProductSums<S> for Signed {
    #[inline(always)]
    unsafe fn add(s: S, sum: S::D, [weights, _]: [S::D; 2], [x, _]: [S::D; 2]) -> S::D {
        let products = s.pairs_of_products(s.abs_bytes(weights), s.with_signs(x, weights));
        s.add_dwords(sum, s.sums_of_words(products))
    }
}

#[cfg(test)]
mod tests {
    use model::quantized_format::Grouped;

    use super::*;

    #[test]
    fn sums_in_words_fit() {
        for format in Grouped::STORED.into_iter().flat_map(|format| [format, format.widened()]) {
            let ByteForm { products, offset } = ByteForm::of(format.bits, format.group, false);
            let steps = match products {
                Products::Words => format.group.min(MAX_GROUP) / STEP,
                Products::Pairs => 2,
                Products::Single | Products::Signed => 1,
                Products::Dots => unreachable!("no dot products"),
            };
            let largest = match format.bits {
                Bits::Four => 15,
                Bits::Five => 31,
                Bits::FiveSigned => 15 + i32::from(offset),
                Bits::SixSigned => 31 + i32::from(offset),
                Bits::Eight => 128,
                Bits::Table(table) => {
                    let values = table.values().map(|value| i32::from(value) + i32::from(offset));
                    assert!(offset == 0 || values.iter().all(|value| *value >= 0), "{format:?}");
                    values.into_iter().map(i32::abs).max().unwrap()
                }
            };
            assert!(2 * steps as i32 * largest * X_MAX <= 32767, "{format:?} {products:?}");
        }
    }
}
