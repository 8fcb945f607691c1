//! Copies, which move only active data, without padding.

use model::ops::{Kv, Op, Value};
use program::expert_records::{ExpertOps, ExpertRecord};
use program::ir::{Copy, Moved, ProgramId, Rows};
use program::map::Chunk;
use program::pieces::weight_ranges;
use program::plan::Plan;
use program::weights::Weights;
use protocol::table::StepTable;

use super::copy_span::CopySpan;
use super::kv_owner;
use crate::lane_executor::WorkAmount;
use crate::memory::View;
use crate::work_items::{cache_units, heads_in, row_counts, sequences, units};

/// Calls `each` for every range that a copy moves in the table's current state, and returns the
/// number of rows. `weight_bytes` is the size of a whole blob.
pub fn copy_spans(
    plan: &Plan,
    table: &StepTable,
    program: ProgramId,
    copy: &Copy,
    weight_bytes: usize,
    mut each: impl FnMut(CopySpan),
) -> usize {
    let dtype = plan.shape.dtype;
    let (found, rows) = row_counts(table, program, copy.at);
    match copy.moved {
        Moved::Weights(op) => {
            weight_spans(plan, op, copy, weight_bytes, each);
            return 0;
        }
        Moved::Cache(kv) => {
            let is_paged = table.page_places(copy.at.layer, kv) > 0;
            assert!(!is_paged, "caches in pages stay where they are");
            cache_spans(plan, table, program, copy, kv, each);
        }
        Moved::Sequences(_) => kv_owner::migration_spans(plan, table, program, copy, each),
        Moved::Value(Value::Scores | Value::Probabilities) => {
            let rows = table.program(program).rows;
            assert!(rows == Rows::Single, "scores cross the link in decode only");
            let stride = table.scores_stride(copy.at.layer);
            let first = table.chunk_units(copy.at, copy.chunk).start * stride;
            let model = plan.config.at(copy.at.layer);
            for unit in units(table, program, copy.at, copy.chunk) {
                let scores = table.group(copy.at.layer) * model.attended(unit.past as usize);
                let offset_bytes = (first + unit.scores_offset) * size_of::<f32>();
                each(CopySpan::at(offset_bytes, scores * size_of::<f32>()));
            }
        }
        Moved::Deferred(value) => {
            return kv_owner::deferred_spans(plan, table, program, copy, value, each);
        }
        Moved::Value(value) if table.has_owners() && copy.chunk.is_some() => {
            return kv_owner::value_spans(plan, table, program, copy, value, each);
        }
        Moved::Value(Value::Attended) if copy.chunk.is_some() => {
            let (layer, units) = (copy.at.layer, table.chunk_units(copy.at, copy.chunk));
            let kv_heads = table.kv_heads(layer);
            let head_bytes = table.group(layer) * table.head_dim(layer) * dtype.size_bytes();
            let row_bytes = kv_heads * head_bytes;
            for found in sequences(table, program, copy.at) {
                let heads = heads_in(kv_heads, found.item.slot, &units);
                if heads.is_empty() {
                    continue;
                }
                for row in found.row0..found.row0 + found.item.rows {
                    let offset_bytes = row * row_bytes + heads.start * head_bytes;
                    each(CopySpan::at(offset_bytes, heads.len() * head_bytes));
                }
            }
        }
        Moved::Value(value) => {
            let elements = value.row_elements(plan.config.at(copy.at.layer)).unwrap_or(0);
            let moved = match value {
                Value::LastNormed | Value::Logits => found,
                _ => rows,
            };
            row_spans(moved, elements * value.element_bytes(dtype), copy.chunk, each);
            return moved;
        }
    }
    rows
}

/// Calls `each` for the cached places of every unit.
fn cache_spans(
    plan: &Plan,
    table: &StepTable,
    program: ProgramId,
    copy: &Copy,
    kv: Kv,
    mut each: impl FnMut(CopySpan),
) {
    let layer = copy.at.layer;
    let (place_dim, rate) = (table.place_dim(layer, kv), table.cache_rate(layer, kv));
    let place_bytes = plan.map.kv_format.position_bytes(place_dim, plan.shape.dtype);
    for unit in cache_units(table, program, copy.at, copy.chunk, kv) {
        let offset_bytes = unit.cache_offset / place_dim * place_bytes;
        each(CopySpan::at(offset_bytes, unit.cached() as usize / rate * place_bytes));
    }
}

/// Calls `each` for a whole blob, or for the ranges of it that a piece of the linear reads.
fn weight_spans(
    plan: &Plan,
    op: Op,
    copy: &Copy,
    weight_bytes: usize,
    mut each: impl FnMut(CopySpan),
) {
    let Some(piece) = copy.chunk.filter(|piece| piece.of > 1) else {
        let weights = Weights::of(op, copy.at.layer);
        match plan.expert_record(copy.at.layer, ExpertOps::from_ops([op])) {
            Some(record) if plan.reads_from_storages(weights) => {
                expert_spans(plan, &record, op, copy, each);
            }
            _ => each(CopySpan::at(0, weight_bytes)),
        }
        return;
    };
    let format = plan.map.weight_formats.of(&plan.config, Weights::of(op, copy.at.layer));
    let model = plan.config.at(copy.at.layer);
    let ranges = weight_ranges(model, plan.shape.dtype, format, op, piece);
    for range in ranges.into_iter().filter(|range| !range.is_empty()) {
        each(CopySpan::at(range.start, range.len()));
    }
}

/// Calls `each` for the matrices and biases of all experts, which are in slots and are moved to one
/// after the other.
fn expert_spans(
    plan: &Plan,
    record: &ExpertRecord,
    op: Op,
    copy: &Copy,
    mut each: impl FnMut(CopySpan),
) {
    let ops = ExpertOps::from_ops([op]);
    let shape = op.weights(plan.config.at(copy.at.layer));
    let (Some(part), Some(place), Some(shape)) =
        (record.part(op), record.place_in_slot(ops, op), shape)
    else {
        panic!("{op:?} is not a linear of the layer's experts")
    };
    let format = plan.map.weight_formats.of(&plan.config, Weights::of(op, copy.at.layer));
    let first_bias = shape.layout(plan.shape.dtype, format).vector_offsets[0] as u64;
    for expert in 0..record.count {
        let from = expert * record.slot_bytes(ops) + place;
        let pieces = [
            (from, expert * part.matrix_bytes, part.matrix_bytes),
            (from + part.bias_offset_bytes, first_bias + expert * part.bias_bytes, part.bias_bytes),
        ];
        for (from_bytes, to_bytes, size_bytes) in pieces.into_iter().filter(|piece| piece.2 > 0) {
            each(CopySpan {
                from_bytes: from_bytes as usize,
                to_bytes: to_bytes as usize,
                size_bytes: size_bytes as usize,
            });
        }
    }
}

/// Calls `each` for whole rows, or for the columns that a piece of a linear writes.
fn row_spans(rows: usize, row_bytes: usize, chunk: Option<Chunk>, mut each: impl FnMut(CopySpan)) {
    let Some(part) = chunk.filter(|part| part.of > 1) else {
        each(CopySpan::at(0, rows * row_bytes));
        return;
    };
    let part_bytes = row_bytes / usize::from(part.of);
    let first = usize::from(part.index) * part_bytes;
    (0..rows).for_each(|row| each(CopySpan::at(row * row_bytes + first, part_bytes)));
}

pub(super) fn execute(
    plan: &Plan,
    view: &View,
    table: &StepTable,
    program: ProgramId,
    copy: &Copy,
) -> WorkAmount {
    let (from, to) = (copy.from.buffer, copy.to.buffer);
    let weight_bytes = match copy.moved {
        // A slot may serve several blobs of one operation, and has the size of the largest.
        Moved::Weights(_) => view.size_bytes(from).min(view.size_bytes(to)),
        _ => 0,
    };
    let mut bytes = 0;
    let rows = copy_spans(plan, table, program, copy, weight_bytes, |span| {
        view.copy((from, span.from_bytes), (to, span.to_bytes), span.size_bytes);
        bytes += span.size_bytes as u64;
    });
    WorkAmount { bytes, rows: rows as u32 }
}
