//! Sets of lanes.

use super::ids::LaneId;

/// Maximum number of lanes of a topology.
pub const LANES_MAX: usize = u64::BITS as usize;

/// A set of lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct LaneSet(u64);

impl LaneSet {
    pub const EMPTY: LaneSet = LaneSet(0);

    /// Returns the set with `lane` added.
    #[must_use]
    pub const fn with(self, lane: LaneId) -> LaneSet {
        LaneSet(self.0 | 1 << lane.index())
    }

    /// Returns the set without `lane`.
    #[must_use]
    pub const fn without(self, lane: LaneId) -> LaneSet {
        LaneSet(self.0 & !(1 << lane.index()))
    }

    /// Returns true if `lane` is in the set.
    pub const fn contains(self, lane: LaneId) -> bool {
        self.0 & 1 << lane.index() != 0
    }

    /// Returns the intersection with `other`.
    #[must_use]
    pub const fn within(self, other: LaneSet) -> LaneSet {
        LaneSet(self.0 & other.0)
    }

    /// Returns the lanes in the order of their ids.
    pub fn iter(self) -> impl Iterator<Item = LaneId> {
        (0..LANES_MAX as u8).map(LaneId).filter(move |lane| self.contains(*lane))
    }

    /// Returns true if the sets have a lane in common.
    pub const fn intersects(self, other: LaneSet) -> bool {
        self.0 & other.0 != 0
    }
}

impl FromIterator<LaneId> for LaneSet {
    fn from_iter<I: IntoIterator<Item = LaneId>>(lanes: I) -> LaneSet {
        lanes.into_iter().fold(LaneSet::EMPTY, LaneSet::with)
    }
}
