//! Fused attention with selected positions: rows of prompts attend to all positions, all other rows
//! to those that they select.

use kernels::{
    AttentionOperands, AttentionUnit, AttentionUnits, Element, Kernels, PageLists, Selection,
};
use model::ops::{Kv, Value};
use program::ir::Compute;

use super::attention::{attended, cache, shape};
use super::operands::Operands;
use crate::partial_keys::{partial_operands, selects_positions};
use crate::work_items;

/// Runs the operation and returns the number of bytes of cached keys, values and partial keys read.
/// Lists the units in `units` and their pages in `pages`.
pub(super) fn run<T: Element>(
    kernels: &Kernels,
    selection: &mut Selection,
    units: &mut Vec<AttentionUnit>,
    pages: &mut Vec<u32>,
    operands: &Operands<'_>,
    compute: &Compute,
    count: usize,
) -> u64 {
    let Operands { plan, view, table, program, .. } = *operands;
    let shape = &shape(&plan.config, compute);
    let Some(skew) = operands.skew else { panic!("a plan that selects positions has a skew") };
    work_items::list_pages(table, program, compute.at, Kv::K, pages);
    let page_positions = table.page_places(compute.at.layer, Kv::K);
    let pages = PageLists { page_positions, pages };
    let q = operands.rows::<T>(compute.inputs[0], Value::Query, count);
    let k = operands.rows::<T>(compute.inputs[1], Value::Key, count);
    let v = operands.rows::<T>(compute.inputs[2], Value::Value, count);
    let (cached_k, cached_v) = (cache(operands, compute, Kv::K), cache(operands, compute, Kv::V));
    let position_bytes =
        2 * plan.map.kv_format.position_bytes(shape.head_dim, plan.shape.dtype) as u64;
    let mut bytes = 0;
    // Each sequence has a unit per KV head, in the order of the items.
    let list = |selects: bool, units: &mut Vec<AttentionUnit>| {
        units.clear();
        let all = work_items::units(table, program, compute.at, compute.chunk).enumerate();
        let item = |index: usize| index / shape.kv_heads;
        let wanted = all.filter(|(index, _)| {
            selects_positions(table, program, compute.at, item(*index)) == selects
        });
        units.extend(wanted.map(|(_, unit)| unit));
    };
    list(false, units);
    if !units.is_empty() {
        bytes += units.iter().map(|unit| u64::from(unit.cached())).sum::<u64>() * position_bytes;
        let out = attended::<T>(operands, compute, count);
        let units = AttentionUnits { units, pages };
        kernels.attention(shape, units, q, k, v, cached_k, cached_v, None, out);
    }
    list(true, units);
    if !units.is_empty() {
        let layer = compute.at.layer.map_or(0, usize::from);
        let keys = compute.caches.first().map(|region| region.buffer);
        let Some(keys) = keys else { panic!("attention reads caches") };
        let partial = partial_operands(plan, view, skew, layer, keys);
        let out = attended::<T>(operands, compute, count);
        let units = AttentionUnits { units, pages };
        let fresh_and_cached =
            AttentionOperands { q, k_fresh: k, v_fresh: v, k_cache: cached_k, v_cache: cached_v };
        let selected =
            kernels.attention_selected(selection, shape, units, fresh_and_cached, partial, out);
        table.count_selected(selected.attended, selected.existing);
        let partial_bytes = (partial.columns * size_of::<half::bf16>()) as u64;
        bytes += selected.attended * position_bytes + selected.existing * partial_bytes;
    }
    bytes
}
