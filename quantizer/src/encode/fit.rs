//! Weighted least-squares fits of a scale, and of a scale and a minimum, to the values of a group.
//!
//! A fit alternates between two problems that are easy alone: for given factors the best levels
//! are the nearest ones, and for given levels the best factors solve linear equations. It starts
//! from several scales and keeps the one with the smallest weighted error.

use super::levels::{Levels, inverse, nearest_integer};

/// Number of sums that are accumulated side by side.
const LANES: usize = 8;
/// Number of scales that a search tries below and above the one that just covers all values.
const NARROWER: i32 = 4;
const WIDER: i32 = 7;
/// Distance of scales with a minimum, as a difference of the level of the largest value.
const AFFINE_STEP: f32 = 0.2;
/// Number of times that levels and factors are alternately computed after the search.
const REFINEMENTS: usize = 2;

/// Values of a group and their weights. The length is a multiple of [`LANES`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Group<'a> {
    pub values: &'a [f32],
    pub weights: &'a [f32],
}

/// Weighted sums over a group: of levels, of their squares and of their products with values.
#[derive(Debug, Clone, Copy)]
struct LevelSums {
    level: f32,
    square: f32,
    product: f32,
}

impl<'a> Group<'a> {
    /// Returns the weighted sums of the levels that `level` assigns to values.
    #[inline(always)]
    fn sums(self, level: impl Fn(f32) -> f32) -> LevelSums {
        let (mut levels, mut squares, mut products) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
        let pieces = self.values.chunks_exact(LANES).zip(self.weights.chunks_exact(LANES));
        for (values, weights) in pieces {
            for lane in 0..LANES {
                let level = level(values[lane]);
                let weighted = weights[lane] * level;
                levels[lane] += weighted;
                squares[lane] += weighted * level;
                products[lane] += weighted * values[lane];
            }
        }
        LevelSums {
            level: levels.iter().sum(),
            square: squares.iter().sum(),
            product: products.iter().sum(),
        }
    }

    /// Returns the weighted squared error if `rounded` replaces each value.
    #[inline(always)]
    pub(super) fn error(self, rounded: impl Fn(f32) -> f32) -> f32 {
        let mut errors = [0.0; LANES];
        let pieces = self.values.chunks_exact(LANES).zip(self.weights.chunks_exact(LANES));
        for (values, weights) in pieces {
            for lane in 0..LANES {
                let difference = values[lane] - rounded(values[lane]);
                errors[lane] += weights[lane] * difference * difference;
            }
        }
        errors.iter().sum()
    }

    /// Returns the value with the largest magnitude.
    pub(super) fn extreme(self) -> f32 {
        self.values.iter().fold(
            0.0,
            |largest, value| {
                if value.abs() > f32::abs(largest) { *value } else { largest }
            },
        )
    }

    /// Returns consecutive groups of `size` values.
    pub(super) fn split(self, size: usize) -> impl Iterator<Item = Group<'a>> {
        let pieces = self.values.chunks_exact(size).zip(self.weights.chunks_exact(size));
        pieces.map(|(values, weights)| Group { values, weights })
    }
}

/// Returns the scale with which levels represent a group best; its sign may be negative.
pub(super) fn fit_scale<L: Levels>(levels: L, group: Group<'_>) -> f32 {
    let extreme = group.extreme();
    if extreme == 0.0 {
        return 0.0;
    }
    // The error is that of zeros less this gain, so that a larger gain is a smaller error.
    let (mut best_gain, mut best) = (0.0, 0.0);
    let mut attempt = |inverse: f32| {
        let LevelSums { square, product, .. } = group.sums(|value| levels.nearest(value * inverse));
        let gain = product * product / square;
        if square > 0.0 && gain > best_gain {
            (best_gain, best) = (gain, product / square);
        }
    };
    let (low, high) = levels.range();
    for end in [low, high] {
        for step in -NARROWER..=WIDER {
            let beyond = levels.search_step() * step as f32;
            attempt(end.signum() * (end.abs() + beyond) / extreme);
        }
    }
    refine(levels, group, best)
}

/// Alternates between levels and the scale.
fn refine<L: Levels>(levels: L, group: Group<'_>, mut scale: f32) -> f32 {
    for _ in 0..REFINEMENTS {
        let inverse = inverse(scale);
        let sums = group.sums(|value| levels.nearest(value * inverse));
        if sums.square > 0.0 {
            scale = sums.product / sums.square;
        }
    }
    scale
}

/// Factors of a group whose value is `scale * level + minimum`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Affine {
    pub scale: f32,
    pub minimum: f32,
}

impl Affine {
    /// Returns the level from 0 to `highest` that is nearest to a value.
    #[inline(always)]
    pub(super) fn level(self, highest: f32, value: f32) -> f32 {
        nearest_integer(((value - self.minimum) * inverse(self.scale)).clamp(0.0, highest))
    }
}

/// Returns the factors with which levels from 0 to `highest` represent a group best. The scale is
/// not negative, and unless `any_minimum`, the minimum is not positive.
pub(super) fn fit_affine(highest: f32, any_minimum: bool, group: Group<'_>) -> Affine {
    let (mut low, mut high) = (f32::INFINITY, f32::NEG_INFINITY);
    for value in group.values {
        (low, high) = (low.min(*value), high.max(*value));
    }
    if !any_minimum {
        low = low.min(0.0);
    }
    if high <= low {
        return Affine { scale: 0.0, minimum: low };
    }
    let weight: f32 = group.weights.iter().sum();
    let value: f32 = group.weights.iter().zip(group.values).map(|(w, x)| w * x).sum();
    let totals = Totals { weight, value, any_minimum };
    let attempt = |best: &mut (Affine, f32), from: Affine| match totals
        .solve(group.sums(|value| from.level(highest, value)))
    {
        Some(found) if found.1 > best.1 => *best = found,
        _ => {}
    };
    let mut best = (Affine { scale: (high - low) / highest, minimum: low }, f32::NEG_INFINITY);
    for step in -NARROWER..=WIDER {
        let scale = (high - low) / (highest + AFFINE_STEP * step as f32);
        attempt(&mut best, Affine { scale, minimum: low });
    }
    for _ in 0..REFINEMENTS {
        let from = best.0;
        attempt(&mut best, from);
    }
    best.0
}

/// Sums of a group that do not depend on levels.
struct Totals {
    weight: f32,
    /// Weighted sum of values.
    value: f32,
    any_minimum: bool,
}

impl Totals {
    /// Returns the best factors for given levels and what they reduce the error by; `None` if no
    /// positive scale is.
    #[inline(always)]
    fn solve(&self, sums: LevelSums) -> Option<(Affine, f32)> {
        let LevelSums { level, square, product } = sums;
        let determinant = self.weight * square - level * level;
        let mut found = Affine { scale: 0.0, minimum: 0.0 };
        if determinant > 0.0 {
            found.scale = (self.weight * product - self.value * level) / determinant;
            found.minimum = (square * self.value - level * product) / determinant;
        }
        if !self.any_minimum && (found.minimum > 0.0 || determinant <= 0.0) {
            if square <= 0.0 {
                return None;
            }
            found = Affine { scale: product / square, minimum: 0.0 };
        }
        if found.scale.is_nan() || found.scale <= 0.0 {
            return None;
        }
        let Affine { scale, minimum } = found;
        let gain = 2.0 * (scale * product + minimum * self.value)
            - scale * scale * square
            - 2.0 * scale * minimum * level
            - minimum * minimum * self.weight;
        Some((found, gain))
    }
}
