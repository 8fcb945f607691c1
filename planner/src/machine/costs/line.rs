//! Quantities that grow with the positions that a decode step reads.

/// `fixed + each * min(positions, max_positions)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct CappedLinear {
    fixed: f64,
    each: f64,
    /// Positions beyond this number (a window) add nothing.
    max_positions: u32,
}

impl CappedLinear {
    pub(super) const ZERO: CappedLinear = CappedLinear::fixed(0.0);

    /// Returns a quantity that is the same at every position.
    pub(super) const fn fixed(fixed: f64) -> CappedLinear {
        CappedLinear { fixed, each: 0.0, max_positions: u32::MAX }
    }

    /// Returns `each` for every position, for at most `max_positions` positions.
    pub(super) const fn per_position(each: f64, max_positions: u32) -> CappedLinear {
        CappedLinear { fixed: 0.0, each, max_positions }
    }

    pub(super) const fn times(self, factor: f64) -> CappedLinear {
        CappedLinear {
            fixed: self.fixed * factor,
            each: self.each * factor,
            max_positions: self.max_positions,
        }
    }

    /// Returns the sum of two quantities of one instruction, whose lines end at the same window.
    pub(super) fn plus(self, other: CappedLinear) -> CappedLinear {
        CappedLinear {
            fixed: self.fixed + other.fixed,
            each: self.each + other.each,
            max_positions: self.max_positions.min(other.max_positions),
        }
    }

    pub(super) fn at(self, positions: u32) -> f64 {
        self.fixed + f64::from(positions.min(self.max_positions)) * self.each
    }
}
