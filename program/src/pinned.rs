//! Host memory that programs copy from and to a device, which is pinned; all other host memory
//! stays pageable (Park-Egger §3.1, fig. 11).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::ir::{BufferId, Instruction};
use crate::plan::Plan;
use crate::topology::{MemoryKind, SegmentId};

/// Returns the ranges of host segments whose buffers any program copies from or to a device, in
/// bytes: ascending, in whole pages of `page_bytes`, and without gaps of less than a page.
pub fn copied_ranges(plan: &Plan, page_bytes: u64) -> BTreeMap<SegmentId, Vec<Range<u64>>> {
    let lists = plan.programs.iter().flat_map(|program| &program.lanes);
    let instructions = lists.flat_map(|list| &list.instructions);
    let copied = instructions.flat_map(|instruction| match instruction {
        Instruction::Copy(copy) => vec![copy.from.buffer, copy.to.buffer],
        _ => Vec::new(),
    });
    let buffers: BTreeSet<BufferId> = copied.collect();
    let mut bounds: Vec<(SegmentId, u64, u64)> = Vec::new();
    for buffer in buffers.into_iter().map(|id| plan.buffer(id)) {
        let kind = plan.topology.memory_kind(buffer.segment.memory);
        if kind == Some(MemoryKind::Dram) && buffer.size_bytes > 0 {
            let first = buffer.offset_bytes - buffer.offset_bytes % page_bytes;
            let end = (buffer.offset_bytes + buffer.size_bytes).next_multiple_of(page_bytes);
            bounds.push((buffer.segment, first, end));
        }
    }
    bounds.sort_unstable();
    let mut ranges: BTreeMap<SegmentId, Vec<Range<u64>>> = BTreeMap::new();
    for (segment, first, end) in bounds {
        let of_segment = ranges.entry(segment).or_default();
        match of_segment.last_mut() {
            Some(last) if first <= last.end => last.end = last.end.max(end),
            _ => of_segment.push(first..end),
        }
    }
    ranges
}
