//! Forms of bytes to which weights are expanded, and the sums of their products with bytes of x.
//!
//! AVX2 multiplies unsigned by signed bytes and adds two products in a word, which must not exceed
//! it: the larger the weights, the fewer products are added before words are added in dwords.

#![allow(
    clippy::needless_range_loop,
    reason = "panels and rows are clearer, and surer to stay in registers, by index"
)]

use model::quantized_format::Bits;

use super::shape::{MAX_GROUP, PANELS, STEP};
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

    /// Returns the maximum number of rows in a tile.
    pub(super) fn tile_rows<T: Target>(self) -> usize {
        let [one_sum, more] = T::TILE_ROWS;
        match self.products {
            Products::Dots | Products::Words => one_sum,
            Products::Pairs | Products::Single | Products::Signed => more,
        }
    }
}

/// Sums of the products of a group of some rows and two panels, by one of [`Products`].
pub(super) trait GroupSums<S: Simd> {
    /// Returns the sums of `steps` steps, a multiple of four: products of bytes of weights,
    /// `[step][panel]` vectors, and dwords of x, `[step][row]`.
    ///
    /// # Safety
    /// The pointers cover the steps, for `R` rows. The machine has the instructions.
    unsafe fn sums<const R: usize>(
        s: S,
        weights: *const f32,
        x: *const u32,
        steps: usize,
    ) -> [[S::D; PANELS]; R];
}

/// Returns the two vectors of weights of a step.
///
/// # Safety
/// They exist.
#[inline(always)]
unsafe fn weights_at<S: Simd>(s: S, weights: *const f32, step: usize) -> [S::D; PANELS] {
    let mut vectors = [s.zero_dwords(); PANELS];
    for panel in 0..PANELS {
        let at = weights.wrapping_add((step * PANELS + panel) * S::LANES);
        // SAFETY: the caller's promise.
        vectors[panel] = unsafe { s.load_dwords(at.cast()) };
    }
    vectors
}

/// Returns the dword of a row and step in every lane.
///
/// # Safety
/// It exists.
#[inline(always)]
unsafe fn x_at<S: Simd, const R: usize>(s: S, x: *const u32, step: usize, row: usize) -> S::D {
    // SAFETY: the caller's promise.
    s.splat_dword(unsafe { *x.add(step * R + row) })
}

/// [`Products::Dots`].
pub(super) enum Dots {}

impl<S: Simd> GroupSums<S> for Dots {
    #[inline(always)]
    unsafe fn sums<const R: usize>(
        s: S,
        weights: *const f32,
        x: *const u32,
        steps: usize,
    ) -> [[S::D; PANELS]; R] {
        let mut sums = [[s.zero_dwords(); PANELS]; R];
        for step in 0..steps {
            // SAFETY: the caller's promise.
            unsafe {
                let weights = weights_at(s, weights, step);
                for row in 0..R {
                    let x = x_at::<S, R>(s, x, step, row);
                    for panel in 0..PANELS {
                        sums[row][panel] = s.dot_with_vnni(sums[row][panel], weights[panel], x);
                    }
                }
            }
        }
        sums
    }
}

/// [`Products::Words`].
pub(super) enum Words {}

impl<S: Simd> GroupSums<S> for Words {
    #[inline(always)]
    unsafe fn sums<const R: usize>(
        s: S,
        weights: *const f32,
        x: *const u32,
        steps: usize,
    ) -> [[S::D; PANELS]; R] {
        let mut words = [[s.zero_dwords(); PANELS]; R];
        for step in 0..steps {
            // SAFETY: the caller's promise.
            unsafe {
                let weights = weights_at(s, weights, step);
                for row in 0..R {
                    let x = x_at::<S, R>(s, x, step, row);
                    for panel in 0..PANELS {
                        let products = s.pairs_of_products(weights[panel], x);
                        words[row][panel] = s.add_words(words[row][panel], products);
                    }
                }
            }
        }
        for row in 0..R {
            for panel in 0..PANELS {
                words[row][panel] = s.sums_of_words(words[row][panel]);
            }
        }
        words
    }
}

/// [`Products::Pairs`] with 2, [`Products::Single`] with 1.
pub(super) enum Some<const STEPS: usize> {}

impl<S: Simd, const STEPS: usize> GroupSums<S> for Some<STEPS> {
    #[inline(always)]
    unsafe fn sums<const R: usize>(
        s: S,
        weights: *const f32,
        x: *const u32,
        steps: usize,
    ) -> [[S::D; PANELS]; R] {
        let mut sums = [[s.zero_dwords(); PANELS]; R];
        for first in (0..steps).step_by(STEPS) {
            // SAFETY: the caller's promise.
            unsafe {
                let mut some = [[s.zero_dwords(); PANELS]; STEPS];
                for step in 0..STEPS {
                    some[step] = weights_at(s, weights, first + step);
                }
                for row in 0..R {
                    let mut words = [s.zero_dwords(); PANELS];
                    for step in 0..STEPS {
                        let x = x_at::<S, R>(s, x, first + step, row);
                        for panel in 0..PANELS {
                            let products = s.pairs_of_products(some[step][panel], x);
                            words[panel] = s.add_words(words[panel], products);
                        }
                    }
                    for panel in 0..PANELS {
                        let products = s.sums_of_words(words[panel]);
                        sums[row][panel] = s.add_dwords(sums[row][panel], products);
                    }
                }
            }
        }
        sums
    }
}

/// [`Products::Signed`].
pub(super) enum Signed {}

impl<S: Simd> GroupSums<S> for Signed {
    #[inline(always)]
    unsafe fn sums<const R: usize>(
        s: S,
        weights: *const f32,
        x: *const u32,
        steps: usize,
    ) -> [[S::D; PANELS]; R] {
        let mut sums = [[s.zero_dwords(); PANELS]; R];
        for step in 0..steps {
            // SAFETY: the caller's promise.
            unsafe {
                let weights = weights_at(s, weights, step);
                let mut magnitudes = weights;
                for panel in 0..PANELS {
                    magnitudes[panel] = s.abs_bytes(weights[panel]);
                }
                for row in 0..R {
                    let x = x_at::<S, R>(s, x, step, row);
                    for panel in 0..PANELS {
                        let x = s.with_signs(x, weights[panel]);
                        let products = s.pairs_of_products(magnitudes[panel], x);
                        let products = s.sums_of_words(products);
                        sums[row][panel] = s.add_dwords(sums[row][panel], products);
                    }
                }
            }
        }
        sums
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
