//! Amounts that grow with the positions that a decode step reads.

/// `fixed + each * min(positions, most)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Line {
    fixed: f64,
    each: f64,
    /// Positions beyond these add nothing: a window.
    most: u32,
}

impl Line {
    pub(super) const ZERO: Line = Line::fixed(0.0);

    /// The same at every position.
    pub(super) const fn fixed(fixed: f64) -> Line {
        Line { fixed, each: 0.0, most: u32::MAX }
    }

    /// `each` for every position up to `most` of them.
    pub(super) const fn per_position(each: f64, most: u32) -> Line {
        Line { fixed: 0.0, each, most }
    }

    pub(super) const fn times(self, factor: f64) -> Line {
        Line { fixed: self.fixed * factor, each: self.each * factor, most: self.most }
    }

    /// The sum of amounts of one instruction, whose lines end at one window.
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
