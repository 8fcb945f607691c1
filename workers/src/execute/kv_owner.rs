//! Copies for one KV owner: rows of its sequences, and caches that change their owner.

use model::ops::Value;
use program::ir::{Copy, ProgramId};
use program::kv_owner::{DEVICE, HOST};
use program::plan::Plan;
use protocol::table::StepTable;

use super::copy_span::CopySpan;
use crate::work_items::{deferred_rows, sequences};

/// Calls `each` for the rows of a value whose sequences belong to an owner, or for which that owner
/// attends, and returns their number. Consecutive rows form one range.
pub(super) fn value_spans(
    plan: &Plan,
    table: &StepTable,
    program: ProgramId,
    copy: &Copy,
    value: Value,
    mut each: impl FnMut(CopySpan),
) -> usize {
    let elements = value.row_elements(plan.config.at(copy.at.layer)).unwrap_or(0);
    let row_bytes = elements * value.element_bytes(plan.shape.dtype);
    let batch = usize::from(copy.at.batch);
    let (mut all, mut pending) = (0, 0..0);
    for found in sequences(table, program, copy.at) {
        let side = match value {
            Value::Key | Value::Value => table.owner(batch, found.item.slot),
            _ => table.attention_side(copy.at, &found.item),
        };
        if copy.chunk != Some(side) {
            continue;
        }
        all += found.item.rows;
        let rows = found.row0..found.row0 + found.item.rows;
        if pending.end == rows.start {
            pending.end = rows.end;
        } else {
            each(CopySpan::at(pending.start * row_bytes, pending.len() * row_bytes));
            pending = rows;
        }
    }
    each(CopySpan::at(pending.start * row_bytes, pending.len() * row_bytes));
    all
}

/// Calls `each` for the deferred rows of a value, copied between their places after all other rows
/// and the places of their slots, where they are kept. Returns their number.
pub(super) fn deferred_spans(
    plan: &Plan,
    table: &StepTable,
    program: ProgramId,
    copy: &Copy,
    value: Value,
    mut each: impl FnMut(CopySpan),
) -> usize {
    let elements = value.row_elements(plan.config.at(copy.at.layer)).unwrap_or(0);
    let size_bytes = elements * value.element_bytes(plan.shape.dtype);
    let is_to_host = copy.from.chunk == Some(HOST);
    let mut rows = 0;
    for found in deferred_rows(table, program, copy.at) {
        let [joined, kept] = [found.row0, found.item.slot].map(|row| row * size_bytes);
        let (from_bytes, to_bytes) = if is_to_host { (joined, kept) } else { (kept, joined) };
        each(CopySpan { from_bytes, to_bytes, size_bytes });
        rows += 1;
    }
    rows
}

/// Calls `each` for the cached positions of the listed sequences, copied from one owner's part to
/// the other's.
pub(super) fn migration_spans(
    plan: &Plan,
    table: &StepTable,
    program: ProgramId,
    copy: &Copy,
    mut each: impl FnMut(CopySpan),
) {
    let batch = usize::from(copy.at.batch);
    let (from, to) = if copy.chunk == Some(HOST) { (DEVICE, HOST) } else { (HOST, DEVICE) };
    let head_dim = table.head_dim(copy.at.layer);
    let position_bytes = plan.map.kv_format.position_bytes(head_dim, plan.shape.dtype);
    for found in sequences(table, program, copy.at) {
        let kept = table.kept_positions(batch, found.item.slot, copy.at.layer);
        let positions = found.item.first.min(kept);
        for head in 0..table.kv_heads(copy.at.layer) {
            let place = |owner| {
                let elements = table.owned_offset(copy.at, found.item.slot, head, owner);
                elements / head_dim * position_bytes
            };
            each(CopySpan {
                from_bytes: place(from),
                to_bytes: place(to),
                size_bytes: positions * position_bytes,
            });
        }
    }
}
