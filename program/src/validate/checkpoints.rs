//! Checkpoints: which caches a sample reads for them, and where it writes them.

use model::ops::Kv;

use crate::checkpoints::CheckpointLayout;
use crate::ir::{Compute, Instruction};
use crate::plan::Plan;

use super::error::{NamedProgram, Names, Site, ValidateError};

/// Maximum number of bytes by which a buffer exceeds its contents.
const PADDING_BYTES_MAX: u64 = 64;

/// Returns the caches that a checkpoint must include: states, and windows shorter than the longest
/// sequence.
pub(super) fn included(plan: &Plan) -> impl Iterator<Item = (u16, Kv)> {
    let config = &plan.config;
    let is_overwritten = |(layer, kv): &(u16, Kv)| {
        let kind = config.layers.kind(usize::from(*layer));
        let window = kind.cached_window().unwrap_or(usize::MAX);
        // The entries of groups of positions are all kept.
        let has_entries = kind.compression.is_some() && *kv == Kv::V;
        kind.has_state() || (window < plan.shape.max_context as usize && !has_entries)
    };
    (0..config.num_layers)
        .flat_map(|layer| config.layer_caches(layer).iter().map(move |kv| (layer as u16, *kv)))
        .filter(is_overwritten)
}

/// Checks that every sample of a plan with checkpoints takes them of all caches of its batch,
/// within the buffers, and that no other instruction touches them. The contents of these caches
/// are checked by `content`.
pub(super) fn check(plan: &Plan) -> Result<(), ValidateError> {
    let layouts = CheckpointLayout::of_batches(plan);
    let buffers: Vec<_> = layouts.iter().map(|layout| layout.buffer).collect();
    let names = Names { topology: &plan.topology, family: plan.config.family };
    for program in &plan.programs {
        for list in &program.lanes {
            for (index, instruction) in list.instructions.iter().enumerate() {
                let problem = match instruction {
                    Instruction::Compute(compute) if instruction.is_sample() => {
                        check_sample(plan, compute)
                    }
                    _ => {
                        let mut regions = instruction.accesses().into_iter();
                        let touches = regions.any(|(region, _)| buffers.contains(&region.buffer));
                        if touches { Err("it touches checkpoints") } else { Ok(()) }
                    }
                };
                if let Err(problem) = problem {
                    let program = NamedProgram::new(program);
                    let site = Site::new(program, list.lane, index, 0, instruction, names);
                    return Err(ValidateError::Malformed { site, problem: problem.into() });
                }
            }
        }
    }
    Ok(())
}

fn check_sample(plan: &Plan, sample: &Compute) -> Result<(), &'static str> {
    let count = u64::from(plan.shape.checkpoints);
    let Some(layout) = CheckpointLayout::of_sample(plan, sample) else {
        let is_none = count == 0 && sample.caches.is_empty();
        return if is_none { Ok(()) } else { Err("it takes no checkpoints of its caches") };
    };
    let expected = included(plan).count();
    if count == 0 || (layout.caches.len(), sample.caches.len()) != (expected, expected) {
        return Err("its checkpoints do not consist of all caches that sequences overwrite");
    }
    let slots = u64::from(plan.shape.batch_size);
    let mut end_bytes = 0;
    for cache in &layout.caches {
        let (bytes, size_bytes) =
            (slots * cache.slot_bytes as u64, plan.buffer(cache.cache).size_bytes);
        if bytes > size_bytes || size_bytes - bytes >= PADDING_BYTES_MAX {
            return Err("the slots of a cache are not those of its checkpoints");
        }
        if cache.offset_bytes != end_bytes {
            return Err("the parts of a checkpoint overlap");
        }
        end_bytes += cache.slot_bytes;
    }
    let fits = end_bytes <= layout.size_bytes
        && count * layout.size_bytes as u64 <= plan.buffer(layout.buffer).size_bytes;
    if fits { Ok(()) } else { Err("its checkpoints leave their buffer") }
}
