//! Beyond the paper: whole layers that stay in device memory, so that the others' transfers have
//! their time too. How many, which, and how the rest is then split.

use super::closed_form::Candidate;
use super::steady::{LayerMap, Shape, timeline};
use super::table::Table;
use super::time::Ps;

/// Steps simulated; the last counts.
const STEPS: usize = 3;

/// Which layers stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// As far apart as possible: every streamed layer has the link for about as long.
    Even,
    /// The first ones (LIA §5.2, optimisation 1).
    Contiguous,
}

/// Indices of `count` of `layers` layers; all of them when there are not that many.
pub fn resident_layers(count: usize, layers: usize, spread: Spread) -> Vec<usize> {
    let count = count.min(layers);
    match spread {
        Spread::Contiguous => (0..count).collect(),
        // The middle of each of `count` equal shares.
        Spread::Even => (0..count).map(|index| (2 * index + 1) * layers / (2 * count)).collect(),
    }
}

/// What device memory has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Device memory beside slots and activations, bytes.
    pub free_bytes: u64,
    /// Weights of a layer, uncompressed.
    pub layer_weights_bytes: u64,
    /// KV of a layer, all batches, as the cache keeps it.
    pub layer_kv_bytes: u64,
}

/// A step with some layers resident.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Residency {
    pub layers: Vec<usize>,
    pub spread: Spread,
    /// KV of the resident layers stays too, so they use no link at all.
    pub with_kv: bool,
    /// The map of the other layers.
    pub split: Candidate,
    /// All layers, in the steady state.
    pub step: Ps,
}

/// The best of: every number of layers that fits, both spreads, with their KV and without, and
/// every `split` for the rest. Fewer layers win a tie, then even over contiguous, then the earlier
/// split. `None` without layers or splits.
pub fn choose(
    table: &Table,
    layers: usize,
    splits: &[Candidate],
    room: &Room,
) -> Option<Residency> {
    let mut best: Option<Residency> = None;
    for with_kv in [false, true] {
        let kv = if with_kv { room.layer_kv_bytes } else { 0 };
        let one = (room.layer_weights_bytes + kv).max(1);
        let most = usize::try_from(room.free_bytes / one).unwrap_or(layers).min(layers);
        for count in 0..=most {
            for spread in [Spread::Even, Spread::Contiguous] {
                for split in splits {
                    let resident = resident_layers(count, layers, spread);
                    let step = step(table, layers, &resident, with_kv, split)?;
                    let found =
                        Residency { layers: resident, spread, with_kv, split: split.clone(), step };
                    let rank = |one: &Residency| (one.step, one.layers.len());
                    if best.as_ref().is_none_or(|best| rank(&found) < rank(best)) {
                        best = Some(found);
                    }
                }
            }
        }
    }
    best
}

/// Time of a step in the steady state; `None` without layers.
pub fn step(
    table: &Table,
    layers: usize,
    resident: &[usize],
    with_kv: bool,
    split: &Candidate,
) -> Option<Ps> {
    let ops = table.ops.len();
    let streamed = LayerMap::streamed(split, ops);
    // Resident weights are not compressed; the KV cache has one form for all layers.
    let stays = LayerMap {
        weights_resident: true,
        kv_resident: with_kv,
        ..LayerMap::of(vec![true; ops], split.compressed)
    };
    let row = (0..STEPS * layers).map(|index| {
        if resident.contains(&(index % layers)) { stays.clone() } else { streamed.clone() }
    });
    let row: Vec<LayerMap> = row.collect();
    let ends = timeline(table, &row, &Shape::default()).layer_ends;
    let before = ends.get(((STEPS - 1) * layers).checked_sub(1)?)?;
    Some(ends.last()?.saturating_sub(*before))
}

#[cfg(test)]
mod tests {
    use super::{Room, Spread, choose, resident_layers, step};
    use crate::layer::closed_form::Candidate;
    use crate::layer::table::Table;

    fn table() -> Table {
        let text = r#"{"ops":[{"name":"a","cpu_ms":5,"gpu_ms":1,"h2d_ms":6},
            {"name":"b","cpu_ms":5,"gpu_ms":1,"h2d_ms":6}]}"#;
        Table::from_json(text).expect("a table")
    }

    #[test]
    fn even_layers_are_far_apart() {
        assert_eq!(resident_layers(3, 12, Spread::Even), [2, 6, 10]);
        assert_eq!(resident_layers(12, 12, Spread::Even), (0..12).collect::<Vec<_>>());
        assert_eq!(resident_layers(5, 3, Spread::Contiguous), [0, 1, 2]);
        assert!(resident_layers(0, 4, Spread::Even).is_empty());
        for count in 1..=48 {
            let found = resident_layers(count, 48, Spread::Even);
            assert_eq!(found.len(), count);
            assert!(found.windows(2).all(|pair| pair[0] < pair[1]), "{found:?}");
        }
    }

    #[test]
    fn resident_layers_lend_the_link_their_time() {
        let table = table();
        let gpu = Candidate::plain(0, 2);
        let ms = |resident: &[usize]| step(&table, 8, resident, true, &gpu).expect("layers").ms();
        // Eight layers of 12 ms of transfers; two fewer.
        assert_eq!(ms(&[]), 96.0);
        assert_eq!(ms(&[2, 6]), 72.0);
        // A step where all stay is computing alone.
        assert_eq!(ms(&[0, 1, 2, 3, 4, 5, 6, 7]), 16.0);
    }

    #[test]
    fn as_many_stay_as_pay_and_fit() {
        let table = table();
        let splits = [Candidate::plain(1, 2), Candidate::plain(0, 2), Candidate::plain(0, 0)];
        let room = |layers: u64| Room {
            free_bytes: layers * 10 + 5,
            layer_weights_bytes: 8,
            layer_kv_bytes: 2,
        };
        let none =
            choose(&table, 8, &splits, &Room { free_bytes: 0, ..room(0) }).expect("a choice");
        // 5 on the CPU, 1 on the GPU, a transfer of 6 beside both.
        assert_eq!((none.layers.len(), none.step.ms()), (0, 48.0));
        assert_eq!(none.split, splits[0]);
        let some = choose(&table, 8, &splits, &room(2)).expect("a choice");
        assert!(some.layers.len() >= 2 && some.step < none.step, "{some:?}");
        let all = choose(&table, 8, &splits, &room(100)).expect("a choice");
        assert_eq!((all.layers.len(), all.step.ms()), (8, 16.0));
        assert!(choose(&table, 8, &[], &room(1)).is_none());
    }
}
