//! Which positions are chosen, from approximate scores.

/// How a row chooses among the positions before it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SelectRule {
    /// Positions count whose approximate score is at most so far below the largest.
    pub alpha: f32,
    /// Most of all positions that are chosen, in thousandths.
    pub max_thousandths: u32,
    /// The row's own position and those right before it, which are seen whatever their scores; at
    /// least 1.
    pub recent: u32,
}

impl SelectRule {
    /// Positions that the row at `position` chooses among: those before the recent ones.
    pub fn older(&self, position: usize) -> usize {
        (position + 1).saturating_sub(self.recent as usize)
    }

    /// How many of them the row at `position` chooses at most.
    pub fn most(&self, position: usize) -> usize {
        let share = (position as u64 + 1) * u64::from(self.max_thousandths) / 1000;
        (share as usize).min(self.older(position))
    }

    /// Chooses for the row at `position`: `scores`, `[queries, older]`, are the approximate scores
    /// of the heads that share the KV head. A head counts the positions within alpha of its
    /// largest score; as many are chosen as the heads count on average, up to the bound, those
    /// first that are nearest to a head's largest score, and of equal ones the older.
    ///
    /// Returns how many; they are the first of `order`, ascending. Row 0 of `scores` is
    /// overwritten.
    pub(super) fn choose(&self, position: usize, scores: &mut [f32], order: &mut [u32]) -> usize {
        let older = order.len();
        let largest = |row: &[f32]| row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let (mut counted, mut rows) = (0, 0);
        let (nearest, others) = scores.split_at_mut(older);
        let below = |score: f32, top: f32| score - top;
        let top = largest(nearest);
        nearest.iter_mut().for_each(|score| *score = below(*score, top));
        let count = |row: &[f32], top: f32| {
            row.iter().filter(|score| below(**score, top) >= -self.alpha).count()
        };
        (counted, rows) = (counted + count(nearest, 0.0), rows + 1);
        for row in others.chunks_exact(older) {
            let top = largest(row);
            (counted, rows) = (counted + count(row, top), rows + 1);
            for (nearest, score) in nearest.iter_mut().zip(row) {
                *nearest = nearest.max(below(*score, top));
            }
        }
        let chosen = counted.div_ceil(rows).min(self.most(position));
        (0..).zip(order.iter_mut()).for_each(|(position, place)| *place = position);
        if chosen < older && chosen > 0 {
            let key = |place: &u32| nearest[*place as usize];
            order.select_nth_unstable_by(chosen - 1, |a, b| {
                key(b).total_cmp(&key(a)).then(a.cmp(b))
            });
        }
        order[..chosen].sort_unstable();
        chosen
    }
}
