//! Cache of experts that were read from storages, on the lane that computes them: the router of a
//! layer assigns the slots, and the layer's linears find the experts there.

use kernels::ExpertPlaces;
use model::config::ModelConfig;
use model::experts::Experts as Mixture;
use program::expert_reads::ExpertBytes;
use program::ir::{Compute, Instruction, Program};
use program::plan::{ExpertCacheBuffer, Plan};
use scheduler::expert_cache::{Assigned, ExpertCache};

use super::operands::{Operands, output_region};
use crate::expert_list::{from_word, to_word};

/// Cache of experts whose slots the router assigns.
#[derive(Debug)]
pub(super) struct RoutedCache {
    cache: ExpertCache,
    assigned: Vec<Option<Assigned>>,
    /// Layers whose experts are cached, by program.
    layers: Vec<Vec<bool>>,
}

impl RoutedCache {
    /// Returns the cache of a plan that has one.
    pub(super) fn from_plan(plan: &Plan) -> Option<RoutedCache> {
        let Mixture { count, per_token, .. } = plan.config.experts?;
        let is_cached = |program: &Program, layer: usize| {
            let all = program.lanes.iter().flat_map(|list| &list.instructions);
            let mut reads = all.filter_map(|instruction| match instruction {
                Instruction::Read(read) => Some(read),
                _ => None,
            });
            reads.any(|read| {
                read.at.layer.map(usize::from) == Some(layer)
                    && plan.expert_cache_of(read.to.buffer).is_some()
            })
        };
        let layers = plan.config.num_layers;
        let cached = |program| (0..layers).map(|layer| is_cached(program, layer)).collect();
        let slots = plan.map.expert_slots as usize;
        (!plan.expert_cache.is_empty()).then(|| RoutedCache {
            cache: ExpertCache::new(slots, layers, count, per_token),
            assigned: vec![None; count],
            layers: plan.programs.iter().map(cached).collect(),
        })
    }

    /// Assigns slots to the experts of a layer, and writes the list of slots after the routing.
    /// Returns the number of missing experts; `None` if the layer's experts are not cached.
    pub(super) fn assign(
        &mut self,
        operands: &Operands<'_>,
        compute: &Compute,
        rows: &[u32],
    ) -> Option<u32> {
        let layer = usize::from(compute.at.layer?);
        if !self.layers[operands.program.index()][layer] {
            return None;
        }
        let missing = self.cache.assign(layer, rows, &mut self.assigned);
        let routing = output_region(compute).buffer;
        let offset = operands.plan.expert_list_offset(routing);
        let list = operands.view.write::<u32>(routing, offset, self.assigned.len());
        for (word, assigned) in list.iter_mut().zip(&self.assigned) {
            *word = to_word(*assigned);
        }
        Some(missing)
    }
}

/// Scratch for the places of cached experts.
#[derive(Debug)]
pub(super) struct PlaceScratch {
    matrices: Vec<usize>,
    biases: Vec<usize>,
}

impl PlaceScratch {
    /// Allocates capacity for the experts of a layer.
    pub(super) fn new(config: &ModelConfig) -> PlaceScratch {
        let count = config.experts.map_or(0, |experts| experts.count);
        PlaceScratch { matrices: vec![0; count], biases: vec![0; count] }
    }

    /// Computes the places of the experts of an operation in their cache.
    pub(super) fn find<'a>(
        &'a mut self,
        operands: &Operands<'_>,
        compute: &Compute,
        cache: &ExpertCacheBuffer,
    ) -> ExpertPlaces<'a> {
        let Operands { plan, view, .. } = *operands;
        let dtype = plan.shape.dtype;
        let bytes = ExpertBytes::new(&plan.config, compute.op, dtype, operands.format(compute));
        let Some(bytes) = bytes else { panic!("{:?} has no experts", compute.op) };
        let routing = compute.inputs[1].buffer;
        let offset = plan.expert_list_offset(routing);
        let list: &[u32] = view.read(routing, offset, self.matrices.len());
        let mut has_biases = false;
        for (expert, word) in list.iter().enumerate() {
            let Some(Assigned { slot, .. }) = from_word(*word) else { continue };
            let (matrix, bias) = bytes.places_in(cache.slot, expert as u64);
            let start = u64::from(slot) * cache.slot.size_bytes();
            self.matrices[expert] = (start + matrix) as usize;
            if let Some(bias) = bias {
                self.biases[expert] = (start + bias) as usize;
                has_biases = true;
            }
        }
        let biases = has_biases.then_some(&self.biases[..]);
        ExpertPlaces { matrices: &self.matrices, biases }
    }
}
