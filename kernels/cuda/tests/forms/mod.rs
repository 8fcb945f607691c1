//! The variants of attention on a batch, and the reference result.
#![allow(dead_code, reason = "each test binary uses its part")]

use cuda_kernels::{
    DeviceAttentionUnits, KvOperand, attention_decode, attention_decode_scratch_bytes,
    attention_prefill, scores, softmax, weighted_values,
};
use kernels::{Element, reference};

use crate::batch::Batch;
use crate::device::{Output, dtype, of, run};

/// Returns the reference result of a batch, `[rows, heads * head_dim]`; with K and V of any
/// element.
pub fn expected<T: Element, U: Element>(
    batch: &Batch<T>,
    q: &[U],
    (k_fresh, k_cache): (&[U], &[U]),
    (v_fresh, v_cache): (&[U], &[U]),
) -> Vec<f64> {
    let shape = kernels::AttentionShape {
        heads: batch.shape.heads as usize,
        kv_heads: batch.shape.kv_heads as usize,
        head_dim: batch.shape.head_dim as usize,
        scale: batch.shape.scale,
        window: batch.shape.window,
    };
    let mut out = vec![f64::NAN; batch.out_len()];
    for unit in &batch.units {
        let unit = kernels::AttentionUnit {
            row0: unit.row0,
            rows: unit.rows,
            past: unit.past,
            shared_row: None,
            kv_head: unit.kv_head,
            cache_offset: unit.cache_offset as usize,
            cache_positions: unit.cache_positions,
            first_page: 0,
            scores_offset: 0,
        };
        let k = reference::KvSlices { fresh: k_fresh, cache: k_cache };
        let v = reference::KvSlices { fresh: v_fresh, cache: v_cache };
        let sinks = batch.sinks.as_deref();
        let queries = reference::attention(&shape, &unit, q, k, v, sinks);
        for (index, (_, values)) in queries.into_iter().enumerate() {
            let (row, head) = (index / shape.group(), index % shape.group());
            let row = unit.row0 as usize + row;
            let head = unit.kv_head as usize * shape.group() + head;
            out[(row * shape.heads + head) * shape.head_dim..][..shape.head_dim]
                .copy_from_slice(&values);
        }
    }
    out
}

pub fn plainly<T: Element>(batch: &Batch<T>) -> Vec<f64> {
    let (k, v) =
        ((&batch.k_fresh[..], &batch.k_cache[..]), (&batch.v_fresh[..], &batch.v_cache[..]));
    expected(batch, &batch.q, k, v)
}

pub fn decoded<T: Element>(
    batch: &Batch<T>,
    units: &DeviceAttentionUnits,
    k: KvOperand,
    v: KvOperand,
) -> Vec<T> {
    let bytes = attention_decode_scratch_bytes(&batch.shape, units.count, units.positions_max);
    // A guard after the scratch shows that its size is right.
    let mut scratch = Output::<f32>::new(bytes as usize / 4);
    let mut out = Output::<T>::new(batch.out_len());
    let (q, to) = (of(&batch.q), out.pointer());
    let (shape, sinks, scratch_pointer) = (&batch.shape, batch.sinks(), scratch.pointer());
    run(&attention_decode(dtype::<T>(), shape, units, q, k, v, sinks, to, scratch_pointer));
    scratch.take();
    out.take()
}

pub fn apart<T: Element>(
    batch: &Batch<T>,
    units: &DeviceAttentionUnits,
    k: KvOperand,
    v: KvOperand,
) -> Vec<T> {
    let (dtype, shape) = (dtype::<T>(), &batch.shape);
    let mut raw = Output::<f32>::new(batch.scores_len);
    let mut weights = Output::<f32>::new(batch.scores_len);
    let mut out = Output::<T>::new(batch.out_len());
    run(&[
        scores(dtype, shape, units, of(&batch.q), k, raw.pointer()),
        softmax(shape, units, raw.pointer(), batch.sinks(), weights.pointer()),
        weighted_values(dtype, shape, units, weights.pointer(), v, out.pointer()),
    ]);
    raw.take();
    weights.take();
    out.take()
}

pub fn prefilled<T: Element>(
    batch: &Batch<T>,
    units: &DeviceAttentionUnits,
    k: KvOperand,
    v: KvOperand,
) -> Vec<T> {
    let mut out = Output::<T>::new(batch.out_len());
    let (shape, q, sinks, to) = (&batch.shape, of(&batch.q), batch.sinks(), out.pointer());
    run(&[attention_prefill(dtype::<T>(), shape, units, q, k, v, sinks, to)]);
    out.take()
}
