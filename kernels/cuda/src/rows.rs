//! Operations on rows: embedding, norms, rope, argmax.

use model::config::Dtype;
use model::quantized_format::Grouped;

use crate::compressed::has_floats;
use crate::launch::{DevicePointer, KernelArgs, KernelLaunch};
use crate::named;

/// Threads of a block that processes one row.
const ROW_THREADS: u32 = 256;
/// Bytes of shared memory in which the warps of a block store their parts of a sum.
const REDUCTION_BYTES: u32 = 32 * 8;
/// Maximum number of elements for which a warp norms a row in place; a wider one takes a block.
const WARP_WIDTH: u32 = 512;

fn one_block_per_row(name: &'static str, rows: u32, args: KernelArgs) -> KernelLaunch {
    KernelLaunch {
        name,
        grid: [rows, 1, 1],
        block: [ROW_THREADS, 1, 1],
        shared_bytes: REDUCTION_BYTES,
        args,
    }
}

/// Computes `out[i] = table[tokens[i]]`, plus `position_table[positions[i] + offset]` with
/// `Some((positions, position_table, offset))`.
///
/// `tokens` and `positions` are u32 `[rows]`; `table` is `[vocab, hidden]` and `position_table`
/// `[*, hidden]`, of `dtype`; `out` is f32 `[rows, hidden]`. Indices are not checked on the device.
pub fn embed(
    dtype: Dtype,
    rows: u32,
    hidden: u32,
    tokens: DevicePointer,
    table: DevicePointer,
    positions: Option<(DevicePointer, DevicePointer, u32)>,
    out: DevicePointer,
) -> KernelLaunch {
    let (positions, position_table, offset) = positions.unwrap_or((0, 0, 0));
    let args = KernelArgs::new().u64(tokens).u64(table).u64(positions).u64(position_table);
    let args = args.u32(offset).u64(out).u32(hidden);
    one_block_per_row(named!(dtype, "embed"), rows, args)
}

/// Writes row `tokens[i]` of a grouped table `[*, hidden]`, decoded to f32, to `out[i]`. `tokens`
/// is u32 `[rows]`, `records` the whole table, `out` f32 `[rows, hidden]`.
///
/// # Panics
/// If the format is not of 4 or 8 bits with scales of f16.
pub fn embed_grouped(
    rows: u32,
    hidden: u32,
    format: Grouped,
    tokens: DevicePointer,
    records: DevicePointer,
    out: DevicePointer,
) -> KernelLaunch {
    assert!(!has_floats(format), "a table of scales of f32");
    let args = KernelArgs::new().u64(tokens).u64(records).u64(out).u32(hidden);
    let args = args.u32(format.bits.count() as u32).u32(format.group as u32);
    one_block_per_row("embed_grouped", rows, args)
}

/// Operands of a norm of rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceNorm {
    /// Number of rows of the output.
    pub rows: u32,
    pub hidden: u32,
    /// f32 `[*, hidden]`.
    pub x: DevicePointer,
    /// f32 `[hidden]`.
    pub gain: DevicePointer,
    /// f32 `[hidden]`, or 0.
    pub bias: DevicePointer,
    pub eps: f32,
    /// Index in `x` of each row of the output, u32 `[rows]`; 0: each row's own index.
    pub row_index: DevicePointer,
}

/// Computes `out[i] = (x[r] - mean) / sqrt(variance + eps) * gain + bias`, where `r` is
/// `row_index[i]`, or `i` if `row_index` is 0. With a bias of 0 it computes `out[i] = x[r] /
/// sqrt(mean(x[r]²) + eps) * gain`. `out` is `[rows, hidden]` of `dtype`.
pub fn norm(dtype: Dtype, norm: &DeviceNorm, out: DevicePointer) -> KernelLaunch {
    let DeviceNorm { rows, hidden, x, gain, bias, eps, row_index } = *norm;
    assert!(hidden > 0, "a row has elements");
    let args = KernelArgs::new().u64(x).u64(gain).u64(bias).f32(eps).u64(row_index);
    one_block_per_row(named!(dtype, "norm"), rows, args.u64(out).u32(hidden))
}

/// Computes `x[r] = x[r] / sqrt(mean(x[r]²) + eps) * gain` in place for each head. A single head
/// with the width of a row normalises whole rows.
///
/// `x` is `[rows, heads, head_dim]` of `dtype`, `gain` f32 `[head_dim]`.
pub fn head_norm(
    dtype: Dtype,
    rows: u32,
    heads: u32,
    head_dim: u32,
    gain: DevicePointer,
    eps: f32,
    x: DevicePointer,
) -> KernelLaunch {
    assert!(head_dim > 0, "a head has elements");
    let (count, args) = (rows * heads, KernelArgs::new().u64(x).u64(gain).f32(eps));
    if head_dim > WARP_WIDTH {
        return one_block_per_row(named!(dtype, "row_norm"), count, args.u32(head_dim));
    }
    let (name, args) = (named!(dtype, "head_norm"), args.u32(count).u32(head_dim));
    let grid = [count.div_ceil(ROW_THREADS / 32), 1, 1];
    KernelLaunch { name, grid, block: [ROW_THREADS, 1, 1], shared_bytes: 0, args }
}

/// Computes `out[i] += x[i] / sqrt(mean(x[i]²) + eps) * gain`: a norm after a block, added to the
/// residual stream.
///
/// `x` is `[rows, hidden]` of `dtype`, `gain` f32 `[hidden]`, `out` f32 `[rows, hidden]`.
pub fn add_rms_norm(
    dtype: Dtype,
    rows: u32,
    hidden: u32,
    x: DevicePointer,
    gain: DevicePointer,
    eps: f32,
    out: DevicePointer,
) -> KernelLaunch {
    assert!(hidden > 0, "a row has elements");
    let args = KernelArgs::new().u64(x).u64(gain).f32(eps).u64(out).u32(hidden);
    one_block_per_row(named!(dtype, "add_norm"), rows, args)
}

/// Parameters of the rotation of a call's rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceRopeTables {
    /// f32 `[tables, rotary_dim / 2]`, with the model's scaling applied
    /// (`Rope::inverse_frequencies_for`).
    pub inverse_frequencies: DevicePointer,
    /// Number of elements rotated at the start of each head; even.
    pub rotary_dim: u32,
    /// Factor of every sine and cosine.
    pub attention_factor: f32,
    /// Index of the table of each row, u32 `[rows]`; 0: the first one for all rows.
    pub table_of_row: DevicePointer,
}

/// Rotates each pair `(x[i], x[i + rotary_dim/2])` of every head by `position * frequency[i]`, in
/// place, and multiplies it by the attention factor. Elements from `rotary_dim` on are unchanged.
///
/// `x` is `[rows, heads, head_dim]` of `dtype`, `positions` u32 `[rows]`.
pub fn rope(
    dtype: Dtype,
    rows: u32,
    heads: u32,
    head_dim: u32,
    positions: DevicePointer,
    tables: &DeviceRopeTables,
    x: DevicePointer,
) -> KernelLaunch {
    let DeviceRopeTables { inverse_frequencies, rotary_dim, attention_factor, table_of_row } =
        *tables;
    let fits = rotary_dim > 0 && rotary_dim <= head_dim.min(2 * ROW_THREADS);
    assert!(fits, "rotary_dim is at most head_dim and 512");
    assert!(rotary_dim.is_multiple_of(2), "rotary_dim is even");
    let args = KernelArgs::new().u64(positions).u64(inverse_frequencies).u64(table_of_row).u64(x);
    let args = args.u32(heads).u32(head_dim).u32(rotary_dim).f32(attention_factor);
    one_block_per_row(named!(dtype, "rope"), rows, args)
}

/// Writes the index of the largest logit of row `i` to `tokens[i]`, the lowest one on ties, and
/// `u32::MAX` if it is infinite or all logits are NaN; other NaN never win. `logits` is f32 `[rows,
/// vocab]`, `tokens` u32 `[rows]`.
pub fn argmax(rows: u32, vocab: u32, logits: DevicePointer, tokens: DevicePointer) -> KernelLaunch {
    one_block_per_row("argmax", rows, KernelArgs::new().u64(logits).u64(tokens).u32(vocab))
}
