//! Identifies programs of placements that take equal memory for activations and slots.

use program::ir::ProgramId;
use program::map::{DeviceMap, PhaseMap};

use crate::policy::ResidentAttention;

/// Parameters that determine the activations and slots of a program.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct FootprintKey {
    pub(super) program: ProgramId,
    /// Index of the shape among those of the placement.
    pub(super) shape: usize,
    /// Index of the map among those met ([`first_layer_map`]).
    pub(super) map: usize,
    pub(super) attention: ResidentAttention,
    pub(super) head: bool,
    /// Numbers of layers that stay and that do not, capped at the number that uses all slots of
    /// caches.
    pub(super) capped_layers: [usize; 2],
    /// Number of layers that use all slots of caches.
    pub(super) kv_slot_layers: usize,
    /// Maximum number of layers whose streamed weights are on the device at once.
    pub(super) weight_slots: usize,
    /// Slots of the weights of these layers; resident weights are expanded into slots, if they are.
    pub(super) slots: [Vec<usize>; 2],
    /// The layers that stay, if layers have different formats.
    pub(super) resident: Option<Vec<usize>>,
}

impl FootprintKey {
    /// Returns which layers stay in a model with fewer layers that takes equal memory: it has
    /// enough layers of each kind in each slot of weights to use all slots of caches.
    pub(super) fn reduce_layers(&self, count: usize, resident: &[usize]) -> Vec<bool> {
        let is_resident = |layer: usize| resident.binary_search(&layer).is_ok();
        let mut kept: Vec<usize> = (0..count).collect();
        // Slots remain the same if a layer is removed from each of them.
        let mut first = 0;
        while first + self.weight_slots <= kept.len() {
            let run = first..first + self.weight_slots;
            let has_enough_others = kept[run.clone()].iter().all(|layer| {
                let others = kept[..first].iter().chain(&kept[run.end..]).filter(|other| {
                    *other % self.weight_slots == layer % self.weight_slots
                        && is_resident(**other) == is_resident(*layer)
                });
                others.count() >= self.kv_slot_layers
            });
            match has_enough_others {
                true => drop(kept.drain(run)),
                false => first += 1,
            }
        }
        kept.into_iter().map(is_resident).collect()
    }
}

/// Returns a map of the first layer alone and of one phase, without the name of its policy.
pub(super) fn first_layer_map(map: &DeviceMap, phase: PhaseMap) -> DeviceMap {
    let mut map = DeviceMap { policy: String::new(), prefill: phase, ..map.clone() };
    map.prefill.layers.truncate(1);
    map.decode = map.prefill.clone();
    map.weights.truncate(1);
    map.kv.truncate(1);
    map.weight_formats.layers.clear();
    map
}
