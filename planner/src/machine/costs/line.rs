//! Quantities that grow with the positions that a decode step reads.

/// `fixed + each * min(positions, most)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Line {
    fixed: f64,
    each: f64,
    /// Positions beyond this number (a window) add nothing.
    most: u32,
}

impl Line {
    pub(super) const ZERO: Line = Line::fixed(0.0);

    /// Returns a quantity that is the same at every position.
    pub(super) const fn fixed(fixed: f64) -> Line {
        Line { fixed, each: 0.0, most: u32::MAX }
    }

    /// Returns `each` for every position, for at most `most` positions.
    pub(super) const fn per_position(each: f64, most: u32) -> Line {
        Line { fixed: 0.0, each, most }
    }

    pub(super) const fn times(self, factor: f64) -> Line {
        Line { fixed: self.fixed * factor, each: self.each * factor, most: self.most }
    }

    /// Returns the sum of two quantities of one instruction, whose lines end at the same window.
    pub(super) fn plus(self, other: Line) -> Line {
        Line {
            fixed: self.fixed + other.fixed,
            each: self.each + other.each,
            most: self.most.min(other.most),
        }
    }

    pub(super) fn at(self, positions: u32) -> f64 {
        self.fixed + f64::from(positions.min(self.most)) * self.each
    }
}
