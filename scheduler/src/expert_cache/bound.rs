//! Belady's bound: the fewest experts that any rule could have read, knowing all later uses.

use std::collections::{BTreeSet, HashMap};

/// Uses of experts in the order of the lookups, of which each is a list of distinct experts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExpertUses {
    /// Keys of the experts, lookup by lookup.
    keys: Vec<u32>,
    /// Index after the last key of each lookup.
    ends: Vec<usize>,
}

impl ExpertUses {
    /// Begins another lookup.
    pub fn begin_lookup(&mut self) {
        self.ends.push(self.keys.len());
    }

    /// Adds an expert to the present lookup.
    ///
    /// # Panics
    /// Panics if no lookup has begun.
    pub fn push(&mut self, key: u32) {
        self.keys.push(key);
        *self.ends.last_mut().expect("a lookup has begun") = self.keys.len();
    }

    /// Returns the number of uses.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns true if nothing was used.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Calls `on_missing` with each use that a cache of `slots` experts, which begins with
    /// `initial`, lacks if it always keeps those whose next use is soonest. No other rule lacks
    /// fewer.
    pub fn min_missing(&self, slots: usize, initial: &[u32], mut on_missing: impl FnMut(u32)) {
        let mut next = vec![usize::MAX; self.keys.len()];
        let mut later: HashMap<u32, usize> = HashMap::new();
        for (lookup, range) in self.lookups().enumerate().rev() {
            for place in range {
                next[place] = later.insert(self.keys[place], lookup).unwrap_or(usize::MAX);
            }
        }
        let mut held: HashMap<u32, usize> = HashMap::new();
        let mut by_next: BTreeSet<(usize, u32)> = BTreeSet::new();
        for key in initial.iter().take(slots) {
            let first_use = later.get(key).copied().unwrap_or(usize::MAX);
            held.insert(*key, first_use);
            by_next.insert((first_use, *key));
        }
        for range in self.lookups() {
            for place in range {
                let key = self.keys[place];
                match held.insert(key, next[place]) {
                    Some(present) => {
                        by_next.remove(&(present, key));
                    }
                    None => on_missing(key),
                }
                by_next.insert((next[place], key));
            }
            while by_next.len() > slots {
                let Some((_, key)) = by_next.pop_last() else { break };
                held.remove(&key);
            }
        }
    }

    fn lookups(
        &self,
    ) -> impl DoubleEndedIterator<Item = std::ops::Range<usize>> + ExactSizeIterator {
        self.ends.iter().enumerate().map(|(index, end)| {
            let start = if index == 0 { 0 } else { self.ends[index - 1] };
            start..*end
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uses(lookups: &[&[u32]]) -> ExpertUses {
        let mut uses = ExpertUses::default();
        for lookup in lookups {
            uses.begin_lookup();
            lookup.iter().for_each(|key| uses.push(*key));
        }
        uses
    }

    fn missing(uses: &ExpertUses, slots: usize, initial: &[u32]) -> Vec<u32> {
        let mut missing = Vec::new();
        uses.min_missing(slots, initial, |key| missing.push(key));
        missing
    }

    #[test]
    fn bounds_by_hand() {
        let uses = uses(&[&[1, 2], &[3], &[1], &[2], &[3, 1]]);
        assert_eq!(uses.len(), 7);
        // With two slots 3 is not kept, since it is used last.
        assert_eq!(missing(&uses, 2, &[]), [1, 2, 3, 3]);
        assert_eq!(missing(&uses, 3, &[]), [1, 2, 3]);
        assert_eq!(missing(&uses, 3, &[1, 2, 3]), [0; 0]);
        assert_eq!(missing(&uses, 0, &[]), [1, 2, 3, 1, 2, 3, 1]);
        assert_eq!(missing(&uses, 1, &[3]), [1, 2, 1, 2, 3]);
    }

    /// Returns the fewest missing experts over all choices of what is kept.
    fn brute_force(lookups: &[&[u32]], slots: usize, held: &[u32]) -> usize {
        let Some((lookup, later)) = lookups.split_first() else { return 0 };
        let missing = lookup.iter().filter(|key| !held.contains(key)).count();
        let mut known: Vec<u32> = held.iter().chain(*lookup).copied().collect();
        known.sort_unstable();
        known.dedup();
        let kept = (0u32..1 << known.len()).filter(|bits| bits.count_ones() as usize <= slots);
        let choices = kept.map(|bits| {
            let chosen = known.iter().enumerate().filter(|(place, _)| bits >> place & 1 == 1);
            let chosen: Vec<u32> = chosen.map(|(_, key)| *key).collect();
            brute_force(later, slots, &chosen)
        });
        missing + choices.min().unwrap_or(0)
    }

    #[test]
    fn no_choice_of_experts_lacks_fewer() {
        let mut state = 1u32;
        let mut random = move |bound: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % bound
        };
        for _ in 0..40 {
            let drawn: Vec<Vec<u32>> = (0..6)
                .map(|_| {
                    let mut lookup: Vec<u32> = (0..1 + random(2)).map(|_| random(5)).collect();
                    lookup.sort_unstable();
                    lookup.dedup();
                    lookup
                })
                .collect();
            let lookups: Vec<&[u32]> = drawn.iter().map(Vec::as_slice).collect();
            for slots in 0..4 {
                let bound = missing(&uses(&lookups), slots, &[]).len();
                assert_eq!(bound, brute_force(&lookups, slots, &[]), "{drawn:?} {slots}");
            }
        }
    }
}
