//! Selection of positions by approximate scores.

/// Rule by which a row chooses among the positions before it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SelectRule {
    /// Maximum distance of an approximate score from the largest for its position to count.
    pub alpha: f32,
    /// Maximum number of chosen positions, in thousandths of all.
    pub max_thousandths: u32,
    /// Number of positions that are seen regardless of their scores: the row's own and those right
    /// before it; at least 1.
    pub recent: u32,
}

impl SelectRule {
    /// Returns the number of positions that the row at `position` chooses among: those before the
    /// recent ones.
    pub fn older(&self, position: usize) -> usize {
        (position + 1).saturating_sub(self.recent as usize)
    }

    /// Returns the maximum number of them that the row at `position` chooses.
    pub fn max_selected(&self, position: usize) -> usize {
        let share = (position as u64 + 1) * u64::from(self.max_thousandths) / 1000;
        (share as usize).min(self.older(position))
    }

    /// Chooses for the row at `position`: `scores`, `[queries, older]`, are the approximate scores
    /// of the heads that share the KV head. A head counts the positions within alpha of its largest
    /// score. The number of chosen positions is the average count of the heads, up to the bound;
    /// those nearest to a head's largest score come first, and older ones among equals.
    ///
    /// Returns the number of chosen positions, which are the first of `order`, ascending. Row 0 of
    /// `scores` is overwritten.
    pub(super) fn choose(&self, position: usize, scores: &mut [f32], order: &mut [u32]) -> usize {
        let older = order.len();
        let largest = |row: &[f32]| row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let counts = |below: f32| usize::from(below >= -self.alpha);
        let queries = scores.len() / older;
        // Minimum distance of each position below a largest score.
        let (min_distances, other_heads) = scores.split_at_mut(older);
        let top = largest(min_distances);
        min_distances.iter_mut().for_each(|score| *score -= top);
        let mut counted: usize = min_distances.iter().map(|below| counts(*below)).sum();
        for row in other_heads.chunks_exact(older) {
            let top = largest(row);
            for (nearest, score) in min_distances.iter_mut().zip(row) {
                let below = score - top;
                counted += counts(below);
                *nearest = nearest.max(below);
            }
        }
        let chosen = counted.div_ceil(queries).min(self.max_selected(position));
        (0..).zip(order.iter_mut()).for_each(|(position, place)| *place = position);
        if chosen < older && chosen > 0 {
            let key = |place: &u32| min_distances[*place as usize];
            let nearer = |a: &u32, b: &u32| key(b).total_cmp(&key(a)).then(a.cmp(b));
            order.select_nth_unstable_by(chosen - 1, nearer);
        }
        order[..chosen].sort_unstable();
        chosen
    }
}
