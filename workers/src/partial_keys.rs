//! Decode with attention to selected positions of the CPU's caches (`program::select`): partial
//! keys, which an append writes next to the keys, and the rows that select by them. The skew of
//! each KV head is computed at load (`calibrate.rs`).

use half::bf16;
use kernels::{Element, PartialKeyOperands, ScratchLimits, SelectRule, Selection, partial_key};
use program::ir::{At, BufferId, ProgramId};
use program::plan::Plan;
use program::select::{KvSelect, RECENT, partial_keys_offset};
use program::step_table::Field;
use protocol::table::StepTable;

use crate::memory::View;
use crate::skew::Skew;
use crate::work_items::list_of;

/// Returns the selection rule of a plan with its scratch; `None` if the plan does not select.
pub(crate) fn selection(plan: &Plan, threads: usize, limits: &ScratchLimits) -> Option<Selection> {
    let KvSelect { alpha_thousandths, max_thousandths, .. } = plan.map.kv_select?;
    let rule = SelectRule {
        alpha: alpha_thousandths as f32 / 1000.0,
        max_thousandths: max_thousandths.into(),
        recent: RECENT,
    };
    let position_bytes = plan.map.kv_format.position_bytes(limits.head_dim, plan.shape.dtype);
    Some(Selection::new(rule, threads, limits, position_bytes))
}

/// Returns the number of columns of the partial keys of a plan that selects, or 0.
pub(crate) fn columns(plan: &Plan) -> usize {
    plan.map.kv_select.map_or(0, |select| select.partial_columns(plan.config.head_dim))
}

/// Returns the offset of the partial keys in a cache of keys, in bytes.
fn first_partial(plan: &Plan, view: &View, cache: BufferId) -> usize {
    let position_bytes = plan.map.kv_format.position_bytes(plan.config.head_dim, plan.shape.dtype);
    let partial_bytes = columns(plan) * size_of::<bf16>();
    partial_keys_offset(view.size_bytes(cache), position_bytes, partial_bytes)
}

/// Returns the operands of selection over the keys in a cache of a layer.
pub(crate) fn partial_operands<'a>(
    plan: &Plan,
    view: &'a View,
    skew: &'a Skew,
    layer: usize,
    cache: BufferId,
) -> PartialKeyOperands<'a> {
    let first = first_partial(plan, view, cache);
    let count = (view.size_bytes(cache) - first) / size_of::<bf16>();
    PartialKeyOperands {
        keys: view.read(cache, first, count),
        skew: skew.layer(layer),
        columns: columns(plan),
    }
}

/// Writes the partial key of a fresh key into a cache and returns the number of bytes written. The
/// key itself starts at element `to` of the cache.
pub(crate) fn append<T: Element>(
    plan: &Plan,
    view: &View,
    skew: &[f32],
    key: &[T],
    cache: BufferId,
    to: usize,
) -> usize {
    let columns = columns(plan);
    let place = to / plan.config.head_dim * columns;
    let at = first_partial(plan, view, cache) + place * size_of::<bf16>();
    let partial = view.write::<bf16>(cache, at, columns);
    partial_key(key, skew, partial);
    columns * size_of::<bf16>()
}

/// Returns true if the item at an index of an instruction's work list is a new token, which selects
/// what it attends to, rather than part of a prompt.
pub(crate) fn selects_positions(
    table: &StepTable,
    program: ProgramId,
    at: At,
    index: usize,
) -> bool {
    let batch = usize::from(at.batch);
    let item = table.item(batch, list_of(program, at), index);
    item.first >= table.field(batch, item.slot, Field::PromptLen) as usize
}
