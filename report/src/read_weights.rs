//! Summary of the weights that are read from storages in every step.

use model::config::ModelConfig;
use model::ops::Op;
use planner::budget::step_read_bytes;
use program::map::DeviceMap;
use program::plan::Plan;
use program::topology::MemoryId;

/// Operations whose weights are read in the same layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerReads {
    pub ops: Vec<Op>,
    /// Indices of the layers, ascending.
    pub layers: Vec<usize>,
}

/// Weights that a plan reads in every step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadWeights {
    /// Operations by layers, those with the most layers first.
    pub layer_reads: Vec<LayerReads>,
    /// The final norm and the head are read.
    pub head: bool,
    pub bytes_per_step: u64,
    pub storages: u16,
}

impl ReadWeights {
    /// Returns the weights that a plan reads; `None` if it reads nothing.
    pub fn for_plan(plan: &Plan) -> Option<ReadWeights> {
        let map = &plan.map;
        map.uses_storages().then(|| ReadWeights {
            layer_reads: layer_reads(map, &plan.config),
            head: map.outer_weights == MemoryId::STORAGES,
            bytes_per_step: step_read_bytes(plan),
            storages: map.shares.storages(),
        })
    }

    /// Formats the weights: `all matrices of 21 of 48 layers, fc0 of 1; 27.43 GB from 2 drives`.
    pub fn summary(&self, config: &ModelConfig) -> String {
        let matrices = matrices(config);
        let format_ops = |ops: &[Op]| match ops == matrices {
            true => "all matrices".to_owned(),
            false => ops.iter().map(|op| op.name(config.family)).collect::<Vec<_>>().join(" "),
        };
        let mut parts: Vec<String> = Vec::new();
        for LayerReads { ops, layers } in &self.layer_reads {
            let count = layers.len();
            parts.push(match parts.is_empty() {
                true => format!("{} of {count} of {} layers", format_ops(ops), config.num_layers),
                false => format!("{} of {count}", format_ops(ops)),
            });
        }
        if self.head {
            parts.push("the head".to_owned());
        }
        let drives = if self.storages == 1 { "drive" } else { "drives" };
        format!(
            "{}; {:.2} GB from {} {drives}",
            parts.join(", "),
            self.bytes_per_step as f64 / 1e9,
            self.storages
        )
    }
}

fn layer_reads(map: &DeviceMap, config: &ModelConfig) -> Vec<LayerReads> {
    let mut all: Vec<LayerReads> = Vec::new();
    for (layer, tiers) in map.weights.iter().enumerate() {
        let ops_read = config.layer_ops(layer).iter().zip(tiers);
        let ops_read = ops_read.filter(|(_, tier)| **tier == MemoryId::STORAGES);
        let ops: Vec<Op> = ops_read.map(|(op, _)| *op).collect();
        match all.iter_mut().find(|other| other.ops == ops) {
            _ if ops.is_empty() => {}
            Some(other) => other.layers.push(layer),
            None => all.push(LayerReads { ops, layers: vec![layer] }),
        }
    }
    all.sort_by_key(|reads| std::cmp::Reverse(reads.layers.len()));
    all
}

fn matrices(config: &ModelConfig) -> Vec<Op> {
    config.every_layer_op().into_iter().filter(|op| op.has_matrix(config)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_named_with_its_bytes_and_drives() {
        let config = model::known::find_known("opt-30b").expect("known").config;
        let read = |ops: Vec<Op>, count: usize| LayerReads { ops, layers: (0..count).collect() };
        let mut weights = ReadWeights {
            layer_reads: vec![read(matrices(&config), 21), read(vec![Op::Q, Op::Fc0], 1)],
            head: false,
            bytes_per_step: 27_430_000_000,
            storages: 2,
        };
        assert_eq!(
            weights.summary(&config),
            "all matrices of 21 of 48 layers, q fc0 of 1; 27.43 GB from 2 drives"
        );
        (weights.head, weights.storages) = (true, 1);
        weights.layer_reads.remove(0);
        assert_eq!(
            weights.summary(&config),
            "q fc0 of 1 of 48 layers, the head; 27.43 GB from 1 drive"
        );
    }
}
