//! Fresh K and V rows behind the cached positions of a chunk's units.

use program::ir::{Append, Phase};
use program::plan::Plan;

use super::Work;
use crate::memory::View;
use crate::rows::{counts, units};
use crate::table::StepTable;

/// Calls `each(from, to, size)` in elements, for every fresh row of every unit of the chunk: `from`
/// in the `[rows, kv_heads * head_dim]` value, `to` in the chunk's cache.
pub fn append_spans(
    table: &StepTable,
    phase: Phase,
    append: &Append,
    mut each: impl FnMut(usize, usize, usize),
) {
    let (kv_heads, head_dim) = (table.kv_heads(), table.head_dim());
    for unit in units(table, phase, append.at, Some(append.chunk)) {
        for row in 0..unit.rows as usize {
            let from = ((unit.row0 as usize + row) * kv_heads + unit.kv_head as usize) * head_dim;
            let to = unit.cache_offset + (unit.past as usize + row) * head_dim;
            each(from, to, head_dim);
        }
    }
}

pub(super) fn execute(
    plan: &Plan,
    view: &View,
    table: &StepTable,
    phase: Phase,
    append: &Append,
) -> Work {
    let element_bytes = plan.shape.dtype.size_bytes();
    let (from, to) = (append.from.buffer, append.to.buffer);
    let mut bytes = 0;
    append_spans(table, phase, append, |from_at, to_at, count| {
        let size_bytes = count * element_bytes;
        view.copy((from, from_at * element_bytes), (to, to_at * element_bytes), size_bytes);
        bytes += size_bytes as u64;
    });
    let (_, rows) = counts(table, phase, append.at);
    Work { bytes, rows: rows as u32 }
}
