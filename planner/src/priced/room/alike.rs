//! Which programs of placements take the same for activations and slots.

use program::ir::ProgramId;
use program::map::{DeviceMap, PhaseMap};

use crate::policy::ResidentAttention;

/// What the activations and slots of a program go by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Alike {
    pub(super) program: ProgramId,
    /// Of those of the placement.
    pub(super) shape: usize,
    /// Of those that were met ([`one_layer`]).
    pub(super) map: usize,
    pub(super) attention: ResidentAttention,
    pub(super) head: bool,
    /// Layers that stay and that do not; more than use all slots of caches count as so many.
    pub(super) counts: [usize; 2],
    /// So many layers use all slots of caches.
    pub(super) enough: usize,
    /// Layers whose streamed weights may be on the device at once.
    pub(super) weight_slots: usize,
    /// Slots of weights of these layers; weights that stay are widened into slots, where they are.
    pub(super) slots: [Vec<usize>; 2],
    /// Which layers stay, where layers are in different formats.
    pub(super) resident: Option<Vec<usize>>,
}

impl Alike {
    /// Which layers stay of a model of fewer layers that takes as much: it has as many of each kind
    /// in each slot of weights as use all slots of caches.
    pub(super) fn fewer_layers(&self, count: usize, resident: &[usize]) -> Vec<bool> {
        let is_resident = |layer: usize| resident.binary_search(&layer).is_ok();
        let mut kept: Vec<usize> = (0..count).collect();
        // Slots stay what they are where a layer goes from each of them.
        let mut first = 0;
        while first + self.weight_slots <= kept.len() {
            let run = first..first + self.weight_slots;
            let has_enough_others = kept[run.clone()].iter().all(|layer| {
                let others = kept[..first].iter().chain(&kept[run.end..]).filter(|other| {
                    *other % self.weight_slots == layer % self.weight_slots
                        && is_resident(**other) == is_resident(*layer)
                });
                others.count() >= self.enough
            });
            match has_enough_others {
                true => drop(kept.drain(run)),
                false => first += 1,
            }
        }
        kept.into_iter().map(is_resident).collect()
    }
}

/// A map of the first layer alone, whatever its policy is called, and of one phase.
pub(super) fn one_layer(map: &DeviceMap, phase: PhaseMap) -> DeviceMap {
    let mut map = DeviceMap { policy: String::new(), prefill: phase, ..map.clone() };
    map.prefill.layers.truncate(1);
    map.decode = map.prefill.clone();
    map.weights.truncate(1);
    map.kv.truncate(1);
    map.weight_formats.layers.clear();
    map
}
