//! Checkpoints of sequences: copies of those caches of which a sequence owns a slot and overwrites
//! it as it grows, the rings of windows and recurrent states. Together with the pages up to the
//! checkpoint's position they are the complete state of the sequence at that position.
//!
//! `Sample` takes them at the end of a step: it lists these caches as read and the checkpoints of
//! its batch as written, so that the order of all accesses is compiled and proved like any other.

use model::ops::{Kv, align_up};

use crate::ir::{BufferId, Compute, Instruction};
use crate::plan::Plan;
use crate::sizes::Sizes;

/// Place of the slots of a cache in a batch's checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotCache {
    pub cache: BufferId,
    /// Bytes of a slot. Slot `n` begins at `n` times this number.
    pub slot_bytes: usize,
    /// First byte of the slot within a checkpoint.
    pub offset_bytes: usize,
}

/// The checkpoints of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointLayout {
    pub buffer: BufferId,
    /// Bytes of a checkpoint. Checkpoint `n` begins at `n` times this number.
    pub size_bytes: usize,
    /// Caches of which a checkpoint has a slot, layer by layer, K before V.
    pub caches: Vec<SlotCache>,
}

impl CheckpointLayout {
    /// Returns each cache with the first byte of its part of a checkpoint.
    pub fn parts(&self, number: u32) -> impl Iterator<Item = (&SlotCache, usize)> {
        let first = number as usize * self.size_bytes;
        self.caches.iter().map(move |cache| (cache, first + cache.offset_bytes))
    }

    /// Returns the checkpoints of all batches; none if the plan has none.
    pub fn of_batches(plan: &Plan) -> Vec<CheckpointLayout> {
        (0..plan.shape.batches).filter_map(|batch| CheckpointLayout::of(plan, batch)).collect()
    }

    /// Returns the checkpoints of a batch; `None` if the plan has none.
    pub fn of(plan: &Plan, batch: u16) -> Option<CheckpointLayout> {
        let lists = plan.programs.iter().flat_map(|program| &program.lanes);
        let mut samples =
            lists.flat_map(|list| &list.instructions).filter_map(|instruction| match instruction {
                Instruction::Compute(compute) if instruction.is_sample() => Some(compute),
                _ => None,
            });
        let sample = samples.find(|compute| compute.at.batch == batch)?;
        CheckpointLayout::of_sample(plan, sample)
    }

    /// Returns the checkpoints that an instruction takes; `None` if it takes none.
    pub fn of_sample(plan: &Plan, sample: &Compute) -> Option<CheckpointLayout> {
        let buffer = sample.output?.buffer;
        let sizes = Sizes::new(&plan.config, &plan.shape, &plan.map);
        let mut offset_bytes = 0;
        let caches = slot_caches(&sizes).into_iter().zip(&sample.caches);
        let caches = caches.map(|((_, _, slot_bytes), region)| {
            let cache = SlotCache { cache: region.buffer, slot_bytes, offset_bytes };
            offset_bytes += slot_bytes;
            cache
        });
        let caches = caches.collect();
        Some(CheckpointLayout { buffer, size_bytes: size_bytes(&sizes), caches })
    }
}

/// Returns the layer, the kind and the bytes of a slot of every cache that a checkpoint includes,
/// layer by layer, K before V.
pub(crate) fn slot_caches(sizes: &Sizes<'_>) -> Vec<(u16, Kv, usize)> {
    let layers = 0..sizes.config.num_layers as u16;
    let caches = layers.flat_map(|layer| {
        sizes.config.layer_caches(usize::from(layer)).iter().map(move |kv| (layer, *kv))
    });
    caches
        .filter_map(|(layer, kv)| Some((layer, kv, sizes.slot_bytes(usize::from(layer), kv)?)))
        .collect()
}

/// Returns the size of a checkpoint; 0 if the model keeps all positions of every layer.
pub fn size_bytes(sizes: &Sizes<'_>) -> usize {
    align_up(slot_caches(sizes).iter().map(|(_, _, bytes)| bytes).sum())
}
