//! Cache of experts that were read from storages, on the lane that computes them: the router of a
//! layer assigns the slots, and the layer's linears find the experts there.

use kernels::{ExpertPlaces, RoutedExpert};
use model::experts::Experts as Mixture;
use model::ops::Op;
use program::expert_portions::portion;
use program::ir::{Compute, Instruction, Program};
use program::map::ComputeDevice;
use program::plan::Plan;
use scheduler::expert_cache::{Assigned, ExpertCache, ExpertCacheSizes};

use super::operands::{Operands, output_region};
use crate::expert_list::{from_word, select_portion, to_word};

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
        let buffer = plan.expert_cache?;
        let mut cache = ExpertCache::new(ExpertCacheSizes {
            kept: plan.map.expert_slots as usize,
            slots: (plan.buffer(buffer.buffer).size_bytes / buffer.slot_bytes) as usize,
            layers,
            experts: count,
            per_token,
        });
        for pinned in &plan.map.pinned_experts {
            cache.pin(pinned.layer.into(), pinned.expert.into());
        }
        Some(RoutedCache {
            cache,
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
        let uses = (0..).zip(&self.assigned);
        let uses =
            uses.filter_map(|(expert, assigned)| Some((expert, assigned.as_ref()?.is_missing)));
        operands.table.log_lookup(layer as u16, uses);
        let routing = output_region(compute).buffer;
        let offset = operands.plan.expert_list_offset(routing);
        let list = operands.view.write::<u32>(routing, offset, self.assigned.len());
        for (word, assigned) in list.iter_mut().zip(&self.assigned) {
            *word = to_word(*assigned);
        }
        Some(missing)
    }
}

/// Location of the experts' matrices of a linear in the slots of host memory, after a read.
#[derive(Debug, Clone, Copy)]
struct MatrixPlace {
    slot_bytes: u64,
    /// Offset of the matrix in a slot.
    offset_bytes: u64,
    /// Offset of the bias from that of the matrix; `None` without a bias.
    bias_offset_bytes: Option<u64>,
}

/// The places of a layer's linears; none for those that are not read.
type LayerPlaces = [Option<MatrixPlace>; 3];

/// Places of experts that were read from storages into slots of host memory.
#[derive(Debug)]
pub(super) struct PlaceScratch {
    matrices: Vec<usize>,
    biases: Vec<usize>,
    /// Flags of the experts of the portion that is computed.
    included: Vec<bool>,
    /// By program and layer.
    places: Vec<Vec<LayerPlaces>>,
}

/// Experts that were read from storages.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlacedExperts<'a> {
    pub(super) places: ExpertPlaces<'a>,
    /// Flags of the experts of the portion that is computed; `None` for all.
    pub(super) included: Option<&'a [bool]>,
}

/// Returns the index of a linear of experts.
const fn linear_index(op: Op) -> usize {
    match op {
        Op::ExpertGate => 0,
        Op::ExpertUp => 1,
        _ => 2,
    }
}

impl PlaceScratch {
    /// Allocates capacity for the experts of a layer, and lists the places of the reads of all
    /// programs to host memory.
    pub(super) fn new(plan: &Plan) -> PlaceScratch {
        let count = plan.config.experts.map_or(0, |experts| experts.count);
        let of_program = |program: &Program| {
            let mut layers = vec![LayerPlaces::default(); plan.config.num_layers];
            for instruction in program.lanes.iter().flat_map(|list| &list.instructions) {
                let Instruction::Read(read) = instruction else { continue };
                let Some(slot_bytes) = plan.expert_slot_bytes(read) else { continue };
                let Some(layer) = read.at.layer else { continue };
                let ops = read.expert_ops();
                let Some(record) = plan.expert_record(Some(layer), ops) else { continue };
                for op in ops.iter() {
                    let found = record.part(op).zip(record.place_in_slot(ops, op));
                    let place = found.map(|(part, offset_bytes)| MatrixPlace {
                        slot_bytes,
                        offset_bytes,
                        bias_offset_bytes: (part.bias_bytes > 0).then_some(part.bias_offset_bytes),
                    });
                    layers[usize::from(layer)][linear_index(op)] = place;
                }
            }
            layers
        };
        PlaceScratch {
            matrices: vec![0; count],
            biases: vec![0; count],
            included: vec![false; count],
            places: plan.programs.iter().map(of_program).collect(),
        }
    }

    /// Computes the places of the experts of an operation in the buffer that they are read into,
    /// and which of them belong to its portion; `None` if they are not read from storages.
    pub(super) fn find<'a>(
        &'a mut self,
        operands: &Operands<'_>,
        compute: &Compute,
        routed: &[RoutedExpert],
    ) -> Option<PlacedExperts<'a>> {
        let Operands { plan, view, .. } = *operands;
        let layer = compute.at.layer.filter(|_| operands.device == ComputeDevice::Cpu)?;
        let places = &self.places[operands.program.index()][usize::from(layer)];
        let place = places[linear_index(compute.op)]?;
        let count = self.matrices.len();
        let mut set = |expert: usize, slot: u64| {
            let matrix = slot * place.slot_bytes + place.offset_bytes;
            self.matrices[expert] = matrix as usize;
            self.biases[expert] = (matrix + place.bias_offset_bytes.unwrap_or(0)) as usize;
        };
        let mut cached = None;
        if plan.expert_cache_of(compute.weights[0].buffer).is_some() {
            let routing = compute.inputs[1].buffer;
            let offset = plan.expert_list_offset(routing);
            let list: &[u32] = view.read(routing, offset, count);
            cached = Some(list);
            for (expert, word) in list.iter().enumerate() {
                if let Some(Assigned { slot, .. }) = from_word(*word) {
                    set(expert, slot.into());
                }
            }
        } else {
            (0..count).for_each(|expert| set(expert, expert as u64));
        }
        let portion = portion(compute.op, compute.chunk);
        if let Some(portion) = portion {
            self.included.fill(false);
            routed.iter().for_each(|one| self.included[one.expert as usize] = true);
            select_portion(&mut self.included, cached, portion);
        }
        let biases = place.bias_offset_bytes.map(|_| &self.biases[..]);
        Some(PlacedExperts {
            places: ExpertPlaces { matrices: &self.matrices, biases },
            included: portion.map(|_| &self.included[..]),
        })
    }
}
