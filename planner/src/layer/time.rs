//! Exact time. The search compares sums in many different orders and breaks ties by them, so it
//! counts whole picoseconds: a sum is the same in any order, and two equal latencies are equal.

/// Picoseconds in a millisecond.
const PER_MS: f64 = 1e9;

/// A duration or an instant in picoseconds. 2^128 of them exceed any table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Ps(pub u128);

impl Ps {
    pub const ZERO: Ps = Ps(0);

    /// Rounds to the nearest picosecond; `ms` is finite and not negative.
    pub fn from_ms(ms: f64) -> Ps {
        Ps((ms * PER_MS).round() as u128)
    }

    /// Returns milliseconds, exact up to hours.
    pub fn ms(self) -> f64 {
        self.0 as f64 / PER_MS
    }

    /// Returns the difference, or zero.
    #[must_use]
    pub const fn saturating_sub(self, other: Ps) -> Ps {
        Ps(self.0.saturating_sub(other.0))
    }

    /// Returns the duration multiplied by `count`.
    #[must_use]
    pub const fn times(self, count: u128) -> Ps {
        Ps(self.0 * count)
    }
}

impl std::ops::Add for Ps {
    type Output = Ps;

    fn add(self, other: Ps) -> Ps {
        Ps(self.0 + other.0)
    }
}

impl std::ops::AddAssign for Ps {
    fn add_assign(&mut self, other: Ps) {
        self.0 += other.0;
    }
}

impl std::iter::Sum for Ps {
    fn sum<I: Iterator<Item = Ps>>(iter: I) -> Ps {
        Ps(iter.map(|ps| ps.0).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::Ps;

    #[test]
    fn sums_of_printed_decimals_are_exact() {
        let sum: Ps = [0.1, 0.2].into_iter().map(Ps::from_ms).sum();
        assert_eq!(sum, Ps::from_ms(0.3));
        assert_eq!(sum.ms().to_string(), "0.3");
        assert_eq!(Ps::from_ms(57.945).ms(), 57.945);
    }
}
