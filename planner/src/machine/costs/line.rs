//! Amounts that grow with the positions that a decode step reads.

/// `fixed + positions * each`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Line {
    fixed: f64,
    each: f64,
}

impl Line {
    pub(super) const ZERO: Line = Line::fixed(0.0);

    /// The same at every position.
    pub(super) const fn fixed(fixed: f64) -> Line {
        Line { fixed, each: 0.0 }
    }

    /// `each` for every position.
    pub(super) const fn per_position(each: f64) -> Line {
        Line { fixed: 0.0, each }
    }

    pub(super) const fn times(self, factor: f64) -> Line {
        Line { fixed: self.fixed * factor, each: self.each * factor }
    }

    pub(super) const fn plus(self, other: Line) -> Line {
        Line { fixed: self.fixed + other.fixed, each: self.each + other.each }
    }

    pub(super) fn at(self, positions: u32) -> f64 {
        self.fixed + f64::from(positions) * self.each
    }
}
