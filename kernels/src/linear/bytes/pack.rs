//! Packs x as bytes, and the factors that convert sums of products to results.

use half::bf16;
use model::quantized_format::Bits;

use super::biased::{self, rounded_step};
use super::form::X_MAX;
use super::shape::{MAX_GROUP, STEP};
use crate::linear::factors::{self, FACTORS};
use crate::linear::pack::Pack;
use crate::simd::{OutOfLine, Simd};

/// Smallest value by which a group is divided. Values of x that are far below are 0.
const MIN_LARGEST: f32 = f32::from_bits((127 - 100) << 23);
/// Largest value of a group. Values above count as infinite: their step times
/// [`BIAS`](super::biased::BIAS) is no f32.
const MAX_LARGEST: f32 = f32::from_bits((127 + 111) << 23);
/// The sign of a byte, which is added so that bytes are unsigned.
const SIGN: u32 = 128;
/// The signs of eight bytes.
const SIGNS: u64 = 0x8080_8080_8080_8080;

/// Packs blocks of a tile of rows as dwords of four inputs, `[block][tile][dword][row]`, or
/// `[tile][group][row][dword]` if `for_tiles` of AMX. Also writes the factors.
pub(super) struct PackBytes<'a> {
    pub(super) task: &'a Pack<bf16>,
    /// Number that was added to the weights.
    pub(super) offset: i32,
    pub(super) for_tiles: bool,
}

impl<S: Simd> OutOfLine<S> for PackBytes<'_> {
    #[inline(always)]
    fn run(self, s: S) {
        let PackBytes { task, offset, for_tiles } = self;
        let (weight_group, bits) = task.group.expect("a grouped weight has groups");
        let group = weight_group.min(MAX_GROUP);
        let (first_row, rows) = (task.tiles.start(task.tile), task.rows());
        let (block_units, units) = (task.tiles.block, group / STEP);
        for block in task.blocks.clone() {
            let end = task.units.min((block + 1) * block_units);
            let before = task.tiles.packed_before(task.units, block, first_row);
            for (place, unit) in (block * block_units..end).step_by(units).enumerate() {
                let before = if for_tiles {
                    first_row * task.units + unit * rows
                } else {
                    before + place * units * rows
                };
                let to = task.packed.pointer().wrapping_add(before).cast::<u32>();
                let (row_stride, dword_stride) = if for_tiles { (units, 1) } else { (1, rows) };
                let (g, input) = (unit / units, unit * STEP);
                let before = FACTORS * (g * task.tiles.rows + first_row);
                let of_group = task.sums.pointer().wrapping_add(before);
                let inputs = group.min(task.k.saturating_sub(input));
                for row in 0..rows {
                    let x = task.x.wrapping_add((first_row + row) * task.k + input);
                    // SAFETY: x has these inputs of the row; the tile's dwords and factors are this
                    // task's to write.
                    unsafe {
                        let rounded = Rounded::compute(s, x, group, inputs);
                        for (i, &dword) in rounded.dwords(bits).iter().enumerate().take(units) {
                            to.add(row * row_stride + i * dword_stride).write(dword);
                        }
                        let Rounded { step, sum, .. } = rounded;
                        if for_tiles {
                            factors::write(of_group, row, rows, step, sum, offset);
                        } else {
                            biased::write(of_group, row, rows, step, sum, offset);
                        }
                    }
                }
            }
        }
    }
}

/// A group of x as multiples of a step.
struct Rounded {
    /// Bytes, eight at a time.
    bytes: [u64; MAX_GROUP / 8],
    step: f32,
    sum: i32,
}

impl Rounded {
    /// Rounds `inputs` values, at most a `group`, to multiples of a 127th of the largest magnitude,
    /// and appends zeros. For an infinity, a NaN or a value above [`MAX_LARGEST`] the step is NaN.
    ///
    /// # Safety
    /// `x` has the values.
    #[inline(always)]
    unsafe fn compute<S: Simd>(s: S, x: *const bf16, group: usize, inputs: usize) -> Rounded {
        let mut padded = [bf16::ZERO; MAX_GROUP];
        let x = if inputs < group {
            for (i, value) in padded.iter_mut().enumerate().take(inputs) {
                // SAFETY: the caller's promise.
                *value = unsafe { x.add(i).read() };
            }
            padded.as_ptr()
        } else {
            x
        };
        // SAFETY: a group is a multiple of every vector, and `x` has a group.
        let vector = |first: usize| unsafe { s.load_bf16(x.add(first)) };
        let (mut largest, mut zeros) = (s.zero(), s.zero());
        for first in (0..group).step_by(S::LANES) {
            let values = vector(first);
            largest = s.max(largest, s.max(values, s.sub(s.zero(), values)));
            zeros = s.fma(values, s.zero(), zeros);
        }
        // No number if a value is infinite or none, which the maximum does not tell.
        let (largest, zeros) = (s.max_lanes(largest), s.sum_lanes(zeros));
        if zeros.is_nan() || largest > MAX_LARGEST {
            return Rounded { bytes: [0; MAX_GROUP / 8], step: f32::NAN, sum: 0 };
        }
        let largest = largest.max(MIN_LARGEST);
        let step = rounded_step(largest / X_MAX as f32);
        let inverse = s.splat(X_MAX as f32 / largest);
        let mut bytes = [SIGNS; MAX_GROUP / 8];
        let mut sum = s.zero();
        for first in (0..group).step_by(S::LANES) {
            let integers = s.round_dwords(s.mul(vector(first), inverse));
            sum = s.add(sum, s.dwords_to_f32(integers));
            let unsigned = s.add_dwords(integers, s.splat_dword(SIGN));
            // SAFETY: as for `vector`.
            unsafe { s.store_bytes(bytes.as_mut_ptr().cast::<u8>().add(first), unsigned) };
        }
        // Sums of a group's integers are exact.
        Rounded { bytes: bytes.map(|eight| eight ^ SIGNS), step, sum: s.sum_lanes(sum) as i32 }
    }

    /// Returns the bytes in the order of weights of `bits`.
    #[inline(always)]
    fn dwords(&self, bits: Bits) -> [u32; MAX_GROUP / STEP] {
        let bytes = match bits {
            Bits::Four => self.bytes.map(interleaved),
            _ => self.bytes,
        };
        bytemuck::cast(bytes)
    }
}

/// Returns eight bytes in the order of [`NIBBLES`](crate::linear::pack::NIBBLES).
#[inline(always)]
fn interleaved(bytes: u64) -> u64 {
    let spread = |four: u64| {
        let pairs = (four | four << 16) & 0x0000_ffff_0000_ffff;
        (pairs | pairs << 8) & 0x00ff_00ff_00ff_00ff
    };
    spread(bytes & 0xffff_ffff) | spread(bytes >> 32) << 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::pack::NIBBLES;

    #[test]
    fn four_bits_are_in_the_order_of_nibbles() {
        let bytes = 0x1716_1514_1312_1110u64;
        let ordered = NIBBLES.map(|at| bytes.to_le_bytes()[usize::from(at)]);
        assert_eq!(interleaved(bytes).to_le_bytes(), ordered);
    }
}
