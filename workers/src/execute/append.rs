//! Appends of fresh K and V rows after the cached positions of a chunk's units.

use half::bf16;
use kernels::quant::quantise_kv;
use kernels::{Element, Variant};
use model::config::Dtype;
use model::ops::Kv;
use model::quantized_format::KvRecordFormat;
use program::ir::{Append, ProgramId};
use program::plan::Plan;
use protocol::table::StepTable;

use crate::lane_executor::WorkAmount;
use crate::memory::View;
use crate::partial_keys;
use crate::skew::Skew;
use crate::work_items::{appended_units, cache_element, row_counts};

/// Calls `each(from, to)` for every fresh row of every unit of the chunk, including units that
/// share rows of another sequence: `from` is an offset in the `[rows, kv_heads * place]` value and
/// `to` in the chunk's cache, both in elements. Of a cache with a place for a group of positions,
/// those rows are listed with which groups end.
pub fn append_spans(
    table: &StepTable,
    program: ProgramId,
    append: &Append,
    mut each: impl FnMut(usize, usize),
) {
    let (at, kv) = (append.at, append.kv);
    let (kv_heads, place_dim) = (table.kv_heads(at.layer), table.place_dim(at.layer, kv));
    let rate = table.cache_rate(at.layer, kv);
    for unit in appended_units(table, program, at, append.chunk, kv) {
        let ended = unit.appended().filter(|(_, place)| (place + 1).is_multiple_of(rate));
        for (row, place) in ended {
            let from = (row * kv_heads + unit.kv_head as usize) * place_dim;
            each(from, cache_element(table, at, kv, &unit, place / rate));
        }
    }
}

/// Context of an append.
#[derive(Clone, Copy)]
pub(super) struct AppendContext<'a> {
    pub(super) plan: &'a Plan,
    pub(super) view: &'a View,
    pub(super) table: &'a StepTable,
    pub(super) variant: Variant,
    pub(super) program: ProgramId,
    /// Skew of a plan that selects positions.
    pub(super) skew: Option<&'a Skew>,
}

pub(super) fn execute(from: AppendContext<'_>, append: &Append) -> WorkAmount {
    let AppendContext { plan, table, program, .. } = from;
    let bytes = match (plan.map.kv_format.record_format(), plan.shape.dtype) {
        (None, dtype) => append_copied(from, append, dtype.size_bytes()),
        (Some(format), Dtype::Bf16) => append_quantised::<bf16>(from, append, format),
        (Some(format), Dtype::F32) => append_quantised::<f32>(from, append, format),
    };
    let bytes = bytes
        + match plan.shape.dtype {
            Dtype::Bf16 => append_partial_keys::<bf16>(from, append),
            Dtype::F32 => append_partial_keys::<f32>(from, append),
        };
    let (_, rows) = row_counts(table, program, append.at);
    WorkAmount { bytes: bytes as u64, rows: rows as u32 }
}

fn append_copied(
    AppendContext { view, table, program, .. }: AppendContext<'_>,
    append: &Append,
    element_bytes: usize,
) -> usize {
    let size_bytes = table.place_dim(append.at.layer, append.kv) * element_bytes;
    let mut bytes = 0;
    append_spans(table, program, append, |from, to| {
        let from = (append.from.buffer, from * element_bytes);
        view.copy(from, (append.to.buffer, to * element_bytes), size_bytes);
        bytes += size_bytes;
    });
    bytes
}

/// Appends the partial keys if new tokens select positions, and returns the number of bytes
/// written.
fn append_partial_keys<T: Element>(from: AppendContext<'_>, append: &Append) -> usize {
    let AppendContext { plan, view, table, program, skew, .. } = from;
    let Some(skew) = skew.filter(|_| append.kv == Kv::K) else { return 0 };
    let layer = append.at.layer;
    let (kv_heads, head_dim) = (table.kv_heads(layer), table.head_dim(layer));
    let layer = append.at.layer.map_or(0, usize::from);
    let mut bytes = 0;
    append_spans(table, program, append, |from, to| {
        let skew = skew.head(layer, kv_heads, from / head_dim % kv_heads);
        let key = view.read::<T>(append.from.buffer, from * size_of::<T>(), head_dim);
        bytes += partial_keys::append(plan, view, skew, key, append.to.buffer, to);
    });
    bytes
}

/// Appends each row as a record of its own, so that its bits depend on that row alone, and returns
/// the number of bytes written.
fn append_quantised<T: Element>(
    AppendContext { view, table, variant, program, .. }: AppendContext<'_>,
    append: &Append,
    format: KvRecordFormat,
) -> usize {
    let head_dim = table.place_dim(append.at.layer, append.kv);
    let Some(record_bytes) = format.position_bytes(head_dim) else {
        panic!("the compiler refuses heads of {head_dim} elements")
    };
    let mut bytes = 0;
    append_spans(table, program, append, |from, to| {
        let row = view.read::<T>(append.from.buffer, from * size_of::<T>(), head_dim);
        let at = to / head_dim * record_bytes;
        let record = view.write::<u8>(append.to.buffer, at, record_bytes);
        quantise_kv(variant, format, row, head_dim, record);
        bytes += record_bytes;
    });
    bytes
}
