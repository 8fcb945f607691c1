//! Which weights are read from storages in every step.

use model::config::ModelConfig;
use model::ops::Op;
use program::map::DeviceMap;
use program::topology::MemoryId;

use super::spread_evenly;

/// Matrices that live on storages, of layers whose weights would be on the host. What has no matrix
/// stays: a norm's gains are some kilobytes, which take longer to ask for than to read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Staged {
    /// Layers of which all matrices are read.
    pub layers: usize,
    /// Further layers, of which those of `ops` are.
    pub partly: usize,
    pub ops: Vec<Op>,
    /// Final norm and head, where the head is not the embedding.
    pub outer: bool,
}

/// Which of some layers are read, by their places among them, ascending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StagedLayers {
    /// Those of which everything is.
    pub(crate) whole: Vec<usize>,
    /// Those of which some operations are.
    pub(crate) partly: Vec<usize>,
}

impl Staged {
    /// Nothing is read.
    pub const NONE: Staged = Staged { layers: 0, partly: 0, ops: Vec::new(), outer: false };

    /// All matrices of the layers.
    pub fn all_layers(config: &ModelConfig) -> Staged {
        Staged { layers: config.num_layers, ..Staged::NONE }
    }

    /// Everything that can be read.
    pub fn all(config: &ModelConfig) -> Staged {
        Staged { outer: true, ..Staged::all_layers(config) }
    }

    /// Some operations of every layer; the head, and the final norm with it, where it is one of
    /// them.
    pub fn of_every_layer(ops: &[Op], config: &ModelConfig) -> Staged {
        let of_layers: Vec<Op> = ops.iter().copied().filter(|op| op.has_matrix(config)).collect();
        Staged {
            layers: 0,
            partly: if of_layers.is_empty() { 0 } else { config.num_layers },
            ops: of_layers,
            outer: ops.contains(&Op::Head),
        }
    }

    /// Whether nothing is read.
    pub const fn is_none(&self) -> bool {
        self.layers == 0 && self.partly == 0 && !self.outer
    }

    /// Which of `count` layers are read: as far apart as possible, so that each has the time of as
    /// many others to be read in.
    pub(crate) fn of_layers(&self, count: usize) -> StagedLayers {
        let chosen = spread_evenly(self.layers + self.partly, count);
        let partly = spread_evenly(self.partly, chosen.len());
        let is_partly = |place: &usize| partly.binary_search(place).is_ok();
        let (partly, whole): (Vec<usize>, Vec<usize>) = (0..chosen.len()).partition(is_partly);
        let layers = |places: Vec<usize>| places.into_iter().map(|place| chosen[place]).collect();
        StagedLayers { whole: layers(whole), partly: layers(partly) }
    }

    /// Moves what is read of a map to its storages: weights on the host alone. Those in device
    /// memory were loaded, and are read no more.
    ///
    /// # Panics
    /// For a map of another model.
    pub fn apply(&self, map: &mut DeviceMap, config: &ModelConfig) {
        let hosted = hosted_layers(map);
        let StagedLayers { whole, partly } = self.of_layers(hosted.len());
        let of_layer = |place: usize| config.layer_ops(hosted[place]);
        let whole = whole.into_iter().map(|place| (place, of_layer(place)));
        let partly = partly.into_iter().map(|place| (place, self.ops.as_slice()));
        for (place, ops) in whole.chain(partly) {
            let homes = map.weights[hosted[place]].iter_mut().zip(of_layer(place));
            let read = homes.filter(|(home, op)| {
                **home == MemoryId::DRAM && ops.contains(op) && op.has_matrix(config)
            });
            read.for_each(|(home, _)| *home = MemoryId::STORAGES);
        }
        if self.outer && !config.tied_embeddings && map.outer_weights == MemoryId::DRAM {
            map.outer_weights = MemoryId::STORAGES;
        }
    }

    /// The same for a model of fewer layers: as large a share of them.
    #[must_use]
    pub fn scaled(&self, from_layers: usize, to_layers: usize) -> Staged {
        let scaled = |count: usize| (count * to_layers + from_layers / 2) / from_layers.max(1);
        let (all, partly) = (scaled(self.layers + self.partly), scaled(self.partly));
        Staged { layers: all - partly, partly, ..self.clone() }
    }
}

/// The layers of a map with weights on the host, ascending.
pub(crate) fn hosted_layers(map: &DeviceMap) -> Vec<usize> {
    let is_hosted = |layer: &usize| map.weights[*layer].contains(&MemoryId::DRAM);
    (0..map.weights.len()).filter(is_hosted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_that_are_read_are_far_apart() {
        let staged = |layers, partly| Staged { layers, partly, ops: vec![Op::Fc0], outer: false };
        let of = |layers, partly| {
            let StagedLayers { whole, partly } = staged(layers, partly).of_layers(12);
            (whole, partly)
        };
        assert_eq!(of(2, 1), (vec![2, 10], vec![6]));
        assert_eq!(of(0, 12), (vec![], (0..12).collect()));
        assert_eq!(of(0, 0), (vec![], vec![]));
        assert_eq!(of(20, 0), ((0..12).collect(), vec![]));
        assert_eq!(staged(12, 1).scaled(48, 4), staged(1, 0));
        assert_eq!(staged(0, 48).scaled(48, 4), staged(0, 4));
        assert!(staged(1, 0).scaled(48, 4).is_none());
    }
}
