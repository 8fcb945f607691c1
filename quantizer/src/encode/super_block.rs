//! Blocks of 256 values whose groups have scales, and possibly minimums, that are small integers
//! times an f16 of the block.
//!
//! Groups are fitted on their own first. Their factors are then rounded to integers, of which the
//! neighbours are tried, and for the integers found, the f16 factors of the block are computed
//! again by least squares.

use half::f16;

use super::fit::{Affine, Group, fit_affine, fit_scale};
use super::levels::{Levels, inverse};

/// Number of values in a block.
pub(super) const BLOCK: usize = 256;
/// Maximum number of groups in a block.
const GROUPS: usize = 16;
/// Number of times that the integers of groups and the factors of the block are alternately
/// computed.
const REFINEMENTS: usize = 2;

/// Returns the nearest f16; the largest one for larger numbers.
pub(super) fn to_half(value: f32) -> f16 {
    f16::from_f32(value.clamp(f16::MIN.to_f32(), f16::MAX.to_f32()))
}

/// A block with scales only: a value is `scale * scales[group] * level`.
#[derive(Debug, Clone)]
pub(super) struct ScaledBlock {
    pub scale: f16,
    pub scales: [i8; GROUPS],
    /// Codes of levels, as [`Levels::code`] defines them.
    pub codes: [u8; BLOCK],
}

/// Encodes a block in groups of `size` values with integer scales from `lowest` to `highest`.
pub(super) fn encode_scaled<L: Levels>(
    levels: L,
    size: usize,
    lowest: i32,
    highest: i32,
    block: Group<'_>,
) -> ScaledBlock {
    let mut fitted = [0.0f32; GROUPS];
    for (fitted, group) in fitted.iter_mut().zip(block.split(size)) {
        *fitted = fit_scale(levels, group);
    }
    let largest =
        fitted.iter().fold(
            0.0,
            |largest: f32, scale| {
                if scale.abs() > largest.abs() { *scale } else { largest }
            },
        );
    // The largest scale becomes the lowest integer, whose magnitude is the largest one.
    let mut found = ScaledBlock {
        scale: to_half(largest / lowest as f32),
        scales: [0; GROUPS],
        codes: [0; BLOCK],
    };
    let mut best = (f32::INFINITY, found.clone());
    for refinement in 0..=REFINEMENTS {
        let scale = found.scale.to_f32();
        let mut error = 0.0;
        for (index, group) in block.split(size).enumerate() {
            let nearest = integer(fitted[index], scale, lowest, highest);
            let tried = (nearest - 1).max(lowest)..=(nearest + 1).min(highest);
            let errors = tried.map(|tried| (error_of(levels, scale * tried as f32, group), tried));
            let (smallest, chosen) =
                errors.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((f32::INFINITY, nearest));
            error += smallest;
            found.scales[index] = chosen as i8;
        }
        if error < best.0 {
            best = (error, found.clone());
        }
        if refinement < REFINEMENTS {
            let refitted = refit_scale(levels, size, &found, block);
            if refitted == found.scale {
                break;
            }
            found.scale = refitted;
        }
    }
    let mut found = best.1;
    let scale = found.scale.to_f32();
    for (index, codes) in found.codes.chunks_exact_mut(size).enumerate() {
        let inverse = inverse(scale * f32::from(found.scales[index]));
        for (code, value) in codes.iter_mut().zip(&block.values[index * size..]) {
            *code = levels.code(levels.nearest(value * inverse));
        }
    }
    found
}

/// Returns `fitted / scale` as an integer from `lowest` to `highest`.
fn integer(fitted: f32, scale: f32, lowest: i32, highest: i32) -> i32 {
    ((fitted * inverse(scale)).round() as i32).clamp(lowest, highest)
}

fn error_of<L: Levels>(levels: L, scale: f32, group: Group<'_>) -> f32 {
    let inverse = inverse(scale);
    group.error(|value| scale * levels.nearest(value * inverse))
}

/// Returns the scale of a block that is best for its integers and levels.
fn refit_scale<L: Levels>(levels: L, size: usize, found: &ScaledBlock, block: Group<'_>) -> f16 {
    let scale = found.scale.to_f32();
    let (mut product, mut square) = (0.0, 0.0);
    for (index, group) in block.split(size).enumerate() {
        let integer = f32::from(found.scales[index]);
        let inverse = inverse(scale * integer);
        for (value, weight) in group.values.iter().zip(group.weights) {
            let level = integer * levels.nearest(value * inverse);
            product += f64::from(weight * level * value);
            square += f64::from(weight * level * level);
        }
    }
    if square > 0.0 { to_half((product / square) as f32) } else { found.scale }
}

/// A block with scales and minimums: a value is `scale * scales[group] * level - minimum *
/// minimums[group]`.
#[derive(Debug, Clone)]
pub(super) struct AffineBlock {
    pub scale: f16,
    pub minimum: f16,
    pub scales: [u8; GROUPS],
    pub minimums: [u8; GROUPS],
    pub codes: [u8; BLOCK],
}

/// Encodes a block in groups of `size` values with levels from 0 to `highest`, and scales and
/// minimums up to `limit`.
pub(super) fn encode_affine(highest: f32, size: usize, limit: u8, block: Group<'_>) -> AffineBlock {
    let mut fitted = [Affine { scale: 0.0, minimum: 0.0 }; GROUPS];
    for (fitted, group) in fitted.iter_mut().zip(block.split(size)) {
        *fitted = fit_affine(highest, false, group);
    }
    let largest = |factor: fn(&Affine) -> f32| fitted.iter().map(factor).fold(0.0, f32::max);
    let mut found = AffineBlock {
        scale: to_half(largest(|factors| factors.scale) / f32::from(limit)),
        minimum: to_half(largest(|factors| -factors.minimum) / f32::from(limit)),
        scales: [0; GROUPS],
        minimums: [0; GROUPS],
        codes: [0; BLOCK],
    };
    let mut best = (f32::INFINITY, found.clone());
    for refinement in 0..=REFINEMENTS {
        let mut error = 0.0;
        for (index, group) in block.split(size).enumerate() {
            error += found.choose_integers(highest, limit, index, fitted[index], group);
        }
        if error < best.0 {
            best = (error, found.clone());
        }
        if refinement < REFINEMENTS && !found.refit(highest, size, block) {
            break;
        }
    }
    let mut found = best.1;
    for index in 0..BLOCK / size {
        let factors = found.factors(index);
        for value in index * size..(index + 1) * size {
            found.codes[value] = factors.level(highest, block.values[value]) as u8;
        }
    }
    found
}

impl AffineBlock {
    fn factors(&self, group: usize) -> Affine {
        Affine {
            scale: self.scale.to_f32() * f32::from(self.scales[group]),
            minimum: -self.minimum.to_f32() * f32::from(self.minimums[group]),
        }
    }

    /// Chooses the integers of a group among those next to its fitted factors, and returns the
    /// error.
    fn choose_integers(
        &mut self,
        highest: f32,
        limit: u8,
        index: usize,
        fitted: Affine,
        group: Group<'_>,
    ) -> f32 {
        let limit = i32::from(limit);
        let scale = integer(fitted.scale, self.scale.to_f32(), 0, limit);
        let minimum = integer(-fitted.minimum, self.minimum.to_f32(), 0, limit);
        let around = |nearest: i32| (nearest - 1).max(0)..=(nearest + 1).min(limit);
        let mut best = (f32::INFINITY, 0, 0);
        for scale in around(scale) {
            for minimum in around(minimum) {
                (self.scales[index], self.minimums[index]) = (scale as u8, minimum as u8);
                let factors = self.factors(index);
                let error = group
                    .error(|value| factors.scale * factors.level(highest, value) + factors.minimum);
                if error < best.0 {
                    best = (error, self.scales[index], self.minimums[index]);
                }
            }
        }
        (self.scales[index], self.minimums[index]) = (best.1, best.2);
        best.0
    }

    /// Computes the factors of the block that are best for its integers and levels. Returns false
    /// if they are the same as before.
    fn refit(&mut self, highest: f32, size: usize, block: Group<'_>) -> bool {
        // Sums of products of the multipliers of both factors, and of each with values.
        let (mut aa, mut ab, mut bb, mut ax, mut bx) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (index, group) in block.split(size).enumerate() {
            let factors = self.factors(index);
            let minimum = -f64::from(self.minimums[index]);
            for (value, weight) in group.values.iter().zip(group.weights) {
                let level = f64::from(factors.level(highest, *value));
                let scaled = f64::from(self.scales[index]) * level;
                let (value, weight) = (f64::from(*value), f64::from(*weight));
                aa += weight * scaled * scaled;
                ab += weight * scaled * minimum;
                bb += weight * minimum * minimum;
                ax += weight * scaled * value;
                bx += weight * minimum * value;
            }
        }
        let determinant = aa * bb - ab * ab;
        let (scale, minimum) = if determinant > 1e-9 * aa * bb {
            ((bb * ax - ab * bx) / determinant, (aa * bx - ab * ax) / determinant)
        } else if aa > 0.0 {
            (ax / aa, 0.0)
        } else {
            return false;
        };
        if scale <= 0.0 || minimum < 0.0 {
            return false;
        }
        let refitted = (to_half(scale as f32), to_half(minimum as f32));
        let is_new = refitted != (self.scale, self.minimum);
        (self.scale, self.minimum) = refitted;
        is_new
    }
}
