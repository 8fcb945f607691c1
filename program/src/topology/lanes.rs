//! Sets of lanes.

use super::ids::LaneId;

/// Most lanes of a topology.
pub const LANES_MAX: usize = u64::BITS as usize;

/// A set of lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct LaneSet(u64);

impl LaneSet {
    pub const EMPTY: LaneSet = LaneSet(0);

    /// The set and `lane`.
    #[must_use]
    pub const fn with(self, lane: LaneId) -> LaneSet {
        LaneSet(self.0 | 1 << lane.index())
    }

    /// The set but `lane`.
    #[must_use]
    pub const fn without(self, lane: LaneId) -> LaneSet {
        LaneSet(self.0 & !(1 << lane.index()))
    }

    /// Whether `lane` is in the set.
    pub const fn contains(self, lane: LaneId) -> bool {
        self.0 & 1 << lane.index() != 0
    }

    /// Those lanes of the set that are in `other` too.
    #[must_use]
    pub const fn within(self, other: LaneSet) -> LaneSet {
        LaneSet(self.0 & other.0)
    }

    /// The lanes in the order of their ids.
    pub fn iter(self) -> impl Iterator<Item = LaneId> {
        (0..LANES_MAX as u8).map(LaneId).filter(move |lane| self.contains(*lane))
    }

    /// Whether the sets have a lane in common.
    pub const fn intersects(self, other: LaneSet) -> bool {
        self.0 & other.0 != 0
    }
}

impl FromIterator<LaneId> for LaneSet {
    fn from_iter<I: IntoIterator<Item = LaneId>>(lanes: I) -> LaneSet {
        lanes.into_iter().fold(LaneSet::EMPTY, LaneSet::with)
    }
}
