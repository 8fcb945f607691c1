//! Weights that are read from storages in every step.

use model::config::ModelConfig;
use model::ops::Op;
use program::map::DeviceMap;
use program::topology::MemoryId;

use super::spread_evenly;

/// Matrices that are read from storages, of layers whose weights would be on the host. Weights
/// without a matrix stay: a norm's gains are a few kilobytes, which take longer to request than to
/// read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StagedMatrices {
    /// Number of layers of which all matrices are read.
    pub layers: usize,
    /// Number of further layers, of which the matrices of `ops` are read.
    pub partial_layers: usize,
    pub ops: Vec<Op>,
    /// Final norm and head are read, if the head is not the embedding.
    pub outer: bool,
}

/// Layers that are read, as ascending indices into a list of layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StagedLayers {
    /// Layers of which all matrices are read.
    pub(crate) whole: Vec<usize>,
    /// Layers of which the matrices of some operations are read.
    pub(crate) partly: Vec<usize>,
}

impl StagedMatrices {
    /// No weights are read.
    pub const NONE: StagedMatrices =
        StagedMatrices { layers: 0, partial_layers: 0, ops: Vec::new(), outer: false };

    /// Returns all matrices of the layers.
    pub fn all_layers(config: &ModelConfig) -> StagedMatrices {
        StagedMatrices { layers: config.num_layers, ..StagedMatrices::NONE }
    }

    /// Returns all weights that can be read.
    pub fn all(config: &ModelConfig) -> StagedMatrices {
        StagedMatrices { outer: true, ..StagedMatrices::all_layers(config) }
    }

    /// Returns some operations of every layer, and the head with the final norm if it is one of
    /// them.
    pub fn ops_of_every_layer(ops: &[Op], config: &ModelConfig) -> StagedMatrices {
        let of_layers: Vec<Op> = ops.iter().copied().filter(|op| op.has_matrix(config)).collect();
        StagedMatrices {
            layers: 0,
            partial_layers: if of_layers.is_empty() { 0 } else { config.num_layers },
            ops: of_layers,
            outer: ops.contains(&Op::Head),
        }
    }

    /// Returns true if no weights are read.
    pub const fn is_none(&self) -> bool {
        self.layers == 0 && self.partial_layers == 0 && !self.outer
    }

    /// Returns which of `count` layers are read: spaced as far apart as possible, so that each has
    /// the time of equally many others to be read.
    pub(crate) fn select_layers(&self, count: usize) -> StagedLayers {
        let selected = spread_evenly(self.layers + self.partial_layers, count);
        let partly = spread_evenly(self.partial_layers, selected.len());
        let is_partly = |place: &usize| partly.binary_search(place).is_ok();
        let (partly, whole): (Vec<usize>, Vec<usize>) = (0..selected.len()).partition(is_partly);
        let layers = |places: Vec<usize>| places.into_iter().map(|place| selected[place]).collect();
        StagedLayers { whole: layers(whole), partly: layers(partly) }
    }

    /// Moves the weights of a map that are read to its storages; only weights on the host are
    /// moved. Weights in device memory were loaded, and are not read again.
    ///
    /// # Panics
    /// For a map of another model.
    pub fn apply(&self, map: &mut DeviceMap, config: &ModelConfig) {
        let hosted = hosted_layers(map);
        let StagedLayers { whole, partly } = self.select_layers(hosted.len());
        let of_layer = |place: usize| config.layer_ops(hosted[place]);
        let whole = whole.into_iter().map(|place| (place, of_layer(place)));
        let partly = partly.into_iter().map(|place| (place, self.ops.as_slice()));
        for (place, ops) in whole.chain(partly) {
            let tiers = map.weights[hosted[place]].iter_mut().zip(of_layer(place));
            let read = tiers.filter(|(tier, op)| {
                **tier == MemoryId::DRAM && ops.contains(op) && op.has_matrix(config)
            });
            read.for_each(|(tier, _)| *tier = MemoryId::STORAGES);
        }
        if self.outer && !config.tied_embeddings && map.outer_weights == MemoryId::DRAM {
            map.outer_weights = MemoryId::STORAGES;
        }
    }

    /// Scales to a model with fewer layers, preserving the fraction.
    #[must_use]
    pub fn scaled(&self, from_layers: usize, to_layers: usize) -> StagedMatrices {
        let scaled = |count: usize| (count * to_layers + from_layers / 2) / from_layers.max(1);
        let (all, partial_layers) =
            (scaled(self.layers + self.partial_layers), scaled(self.partial_layers));
        StagedMatrices { layers: all - partial_layers, partial_layers, ..self.clone() }
    }
}

/// Returns the layers of a map with weights on the host, ascending.
pub(crate) fn hosted_layers(map: &DeviceMap) -> Vec<usize> {
    let is_hosted = |layer: &usize| map.weights[*layer].contains(&MemoryId::DRAM);
    (0..map.weights.len()).filter(is_hosted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_that_are_read_are_far_apart() {
        let staged = |layers, partial_layers| StagedMatrices {
            layers,
            partial_layers,
            ops: vec![Op::Fc0],
            outer: false,
        };
        let of = |layers, partial_layers| {
            let StagedLayers { whole, partly: partial_layers } =
                staged(layers, partial_layers).select_layers(12);
            (whole, partial_layers)
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
