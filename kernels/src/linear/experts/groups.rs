//! The rows of each expert: a counting sort of a routing.

use crate::router::RoutedExpert;

/// Routing entries `row * top_k + j`, expert after expert, each expert's entries in ascending
/// order.
#[derive(Debug)]
pub(super) struct Groups {
    /// End of each expert's entries.
    ends: Vec<usize>,
    slots: Vec<u32>,
}

impl Groups {
    /// Allocates capacity for the given numbers of experts and entries.
    pub(super) fn new(experts: usize, slots: usize) -> Groups {
        Groups { ends: Vec::with_capacity(experts), slots: Vec::with_capacity(slots) }
    }

    /// Sorts the entries of `routed`, whose experts are below `experts`.
    pub(super) fn sort(&mut self, experts: usize, routed: &[RoutedExpert]) {
        let Groups { ends, slots } = self;
        ends.clear();
        ends.resize(experts, 0);
        slots.clear();
        slots.resize(routed.len(), 0);
        for routed in routed {
            ends[routed.expert as usize] += 1;
        }
        let mut start = 0;
        for end in ends.iter_mut() {
            start += std::mem::replace(end, start);
        }
        // `ends` holds the start of each expert's entries, which the loop advances to their end.
        for (slot, routed) in (0..).zip(routed) {
            let next = &mut ends[routed.expert as usize];
            slots[*next] = slot;
            *next += 1;
        }
    }

    /// Returns the index of an expert's first entry among the sorted ones, and the number of its
    /// entries.
    pub(super) fn of(&self, expert: usize) -> (usize, usize) {
        let start = expert.checked_sub(1).map_or(0, |before| self.ends[before]);
        (start, self.ends[expert] - start)
    }

    /// Returns all entries, sorted.
    pub(super) fn slots(&self) -> &[u32] {
        &self.slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_sorted_by_expert_and_ascend() {
        let mut groups = Groups::new(4, 8);
        for (experts, expected) in [
            (&[0u32, 2, 2, 3, 0, 3][..], [&[0u32, 4][..], &[], &[1, 2], &[3, 5]]),
            (&[1, 1, 1], [&[], &[0, 1, 2], &[], &[]]),
            (&[], [&[], &[], &[], &[]]),
        ] {
            let routed: Vec<RoutedExpert> =
                experts.iter().map(|&expert| RoutedExpert { expert, weight: 0.5 }).collect();
            groups.sort(4, &routed);
            for (expert, expected) in expected.into_iter().enumerate() {
                let (first, rows) = groups.of(expert);
                assert_eq!(&groups.slots()[first..first + rows], expected, "expert {expert}");
            }
        }
    }
}
