//! Experts that a program reads into the cache in portions.

use std::collections::BTreeMap;

use crate::expert_records::ExpertOps;
use crate::ir::{Instruction, Program, Region};
use crate::map::Chunk;
use crate::plan::Plan;

/// Experts of a layer that are read into the cache in portions.
pub(super) struct CachedExperts {
    /// Portion of those that are in the cache, in the chunks of all storages.
    pub(super) regions: Vec<Region>,
    pub(super) ops: ExpertOps,
}

/// Returns the experts that a program reads into the cache in portions, by layer.
pub(super) fn cached_experts(
    plan: &Plan,
    program: &Program,
) -> BTreeMap<Option<u16>, CachedExperts> {
    let all = program.lanes.iter().flat_map(|list| &list.instructions);
    let reads = all.filter_map(|instruction| match instruction {
        Instruction::Read(read) => Some(read),
        _ => None,
    });
    let storages = plan.topology.storages().len() as u16;
    let cached = reads.filter_map(|read| {
        let portion = read.to.portion?;
        plan.expert_cache_of(read.to.buffer)?;
        let region = |index| Region {
            chunk: Some(Chunk { index, of: storages }),
            portion: Some(Chunk { index: 0, ..portion }),
            ..read.to
        };
        let regions = (0..storages).map(region).collect();
        Some((read.at.layer, CachedExperts { regions, ops: read.expert_ops() }))
    });
    cached.collect()
}
