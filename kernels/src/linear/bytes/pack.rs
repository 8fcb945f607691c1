//! Packs x as bytes, and the factors that convert sums of products to results.

use half::bf16;
use model::quantized_format::Bits;

use super::form::X_MAX;
use super::shape::{MAX_GROUP, STEP};
use crate::linear::factors::{self, FACTORS};
use crate::linear::pack::{NIBBLES, Pack};
use crate::simd::{OutOfLine, Simd};

/// Smallest value by which a group is divided. Values of x that are far below are 0.
const MIN_LARGEST: f32 = f32::from_bits((127 - 100) << 23);
/// A float that, added to one of small magnitude, rounds it to an integer in its lowest bits.
const ROUND: f32 = (3 << 22) as f32;

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
    fn run(self, _: S) {
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
                        let rounded = Rounded::of(x, inputs);
                        for (i, &dword) in rounded.dwords(bits).iter().enumerate().take(units) {
                            to.add(row * row_stride + i * dword_stride).write(dword);
                        }
                        let Rounded { step, sum, .. } = rounded;
                        factors::write(of_group, row, rows, step, sum, offset);
                    }
                }
            }
        }
    }
}

/// A group of x as multiples of a step.
struct Rounded {
    bytes: [i8; MAX_GROUP],
    step: f32,
    sum: i32,
}

impl Rounded {
    /// Rounds `inputs` values to multiples of a 127th of the largest magnitude, and appends zeros.
    /// For an infinity or a NaN the step is NaN.
    ///
    /// # Safety
    /// `x` has the values.
    #[inline(always)]
    unsafe fn of(x: *const bf16, inputs: usize) -> Rounded {
        let mut bits = [0u16; MAX_GROUP];
        if inputs == MAX_GROUP {
            // SAFETY: the caller's promise.
            bits = unsafe { x.cast::<[u16; MAX_GROUP]>().read_unaligned() };
        } else {
            for (i, bits) in bits.iter_mut().enumerate().take(inputs) {
                // SAFETY: the caller's promise.
                *bits = unsafe { x.add(i).read() }.to_bits();
            }
        }
        let largest = bits.iter().fold(0u16, |largest, bits| largest.max(bits & 0x7fff));
        let largest = f32::from_bits(u32::from(largest) << 16);
        if !largest.is_finite() {
            return Rounded { bytes: [0; MAX_GROUP], step: f32::NAN, sum: 0 };
        }
        let largest = largest.max(MIN_LARGEST);
        let (step, inverse) = (largest / X_MAX as f32, X_MAX as f32 / largest);
        let mut bytes = [0i8; MAX_GROUP];
        let mut sum = 0;
        for (byte, bits) in bytes.iter_mut().zip(bits) {
            let value = f32::from_bits(u32::from(bits) << 16) * inverse;
            let rounded = (value + ROUND).to_bits() as i32 - ROUND.to_bits() as i32;
            sum += rounded;
            *byte = rounded as i8;
        }
        Rounded { bytes, step, sum }
    }

    /// Returns the bytes in the order of weights of `bits`.
    #[inline(always)]
    fn dwords(&self, bits: Bits) -> [u32; MAX_GROUP / STEP] {
        let bytes = match bits {
            Bits::Four => {
                let mut ordered = [0; MAX_GROUP];
                for (to, from) in ordered.chunks_exact_mut(8).zip(self.bytes.chunks_exact(8)) {
                    for (to, at) in to.iter_mut().zip(NIBBLES) {
                        *to = from[usize::from(at)];
                    }
                }
                ordered
            }
            _ => self.bytes,
        };
        bytemuck::cast(bytes)
    }
}
