//! The grouped formats of weights and the 4-bit KV cache (`model::compressed`).

use model::config::Dtype;
use model::quantized_format::{Bits, Grouped, ROWS, ScaleLayout, kv4_position_bytes};

use crate::launch::{DevicePointer, KernelArgs, KernelLaunch};
use crate::named;
use crate::stored::{StoredKernels, stored_codes};

/// Threads of a block.
const THREADS: u32 = 256;
/// Number of records that a block processes.
const BLOCK_RECORDS: u32 = 4;

/// Launches a kernel over the records of a matrix, a few for each block.
fn over_records(name: &'static str, records: usize, args: KernelArgs) -> KernelLaunch {
    let records = u32::try_from(records).expect("a matrix has fewer than 2^32 records");
    let grid = [records.div_ceil(BLOCK_RECORDS), 1, 1];
    let args = args.u32(records);
    KernelLaunch { name, grid, block: [THREADS, 1, 1], shared_bytes: 0, args }
}

/// Decompresses a grouped matrix `[n, k]` of a format that linears read to row-major `[n, k]` of
/// `dtype`: `scale * q + min`, rounded to `dtype`. In f32 a [`linear`](crate::linear) over the
/// result gives the same bits as one straight from the records; in bf16 the latter does not round
/// the weights.
pub fn decompress(
    dtype: Dtype,
    format: Grouped,
    n: u32,
    k: u32,
    records: DevicePointer,
    out: DevicePointer,
) -> KernelLaunch {
    let (n_len, k_len) = (n as usize, k as usize);
    let args = KernelArgs::new().u64(records).u64(out).u32(n).u32(k);
    let groups = format.blocks(n_len) * format.groups(k_len);
    if let Some(kernels) = StoredKernels::find(format) {
        return over_records(named!(dtype, "decompress_stored"), groups, args.u32(kernels.form()));
    }
    let args = args.u32(format.bits.count() as u32).u32(format.group as u32);
    let args = args.u32(u32::from(has_floats(format)));
    over_records(named!(dtype, "decompress"), groups, args)
}

/// Returns true if a format that linears read has scales of f32.
///
/// # Panics
/// If linears do not read the format.
pub(crate) fn has_floats(format: Grouped) -> bool {
    match (format.bits, format.scales) {
        (Bits::Four | Bits::Eight, ScaleLayout::Halves) => false,
        (Bits::Eight, ScaleLayout::Floats) => true,
        _ => panic!("{format:?} is widened before kernels read it"),
    }
}

/// Returns the bytes that a format's codes select, in fours; zeros without a table.
fn table_of(format: Grouped) -> [u32; 4] {
    let Bits::Table(table) = format.bits else { return [0; 4] };
    let values = table.values().map(i8::cast_unsigned);
    std::array::from_fn(|at| {
        let [a, b, c, d] = std::array::from_fn(|byte| values[4 * at + byte]);
        u32::from_le_bytes([a, b, c, d])
    })
}

/// Widens records of `format`, not of 8 bits, of a matrix `[n, k]` to records of
/// `format.widened()`: the same scales, minimums and integers, one per byte.
pub fn widen(
    format: Grouped,
    n: u32,
    k: u32,
    records: DevicePointer,
    out: DevicePointer,
) -> KernelLaunch {
    let groups = format.groups(k as usize);
    let count = format.blocks(n as usize) * groups;
    let args = KernelArgs::new().u64(records).u64(out);
    if format.bits != Bits::Four || format.scales != ScaleLayout::Halves {
        let (codes, scales) = stored_codes(format);
        let args = args.u32(codes).u32(scales).u32(format.group as u32).u32(groups as u32);
        let args = table_of(format).into_iter().fold(args.f32(format.unit()), KernelArgs::u32);
        return over_records("expand", count, args);
    }
    let args = args.u32((ROWS * format.group / 8) as u32);
    over_records("widen", count, args)
}

/// Quantises positions of heads to 4-bit KV records, the same bytes as the CPU's: `x` is
/// `[positions, head_dim]` of `dtype`, `out` the same number of records of
/// `kv4_position_bytes(head_dim)`.
///
/// Attention over a 4-bit cache takes its fresh rows as such records too: `[rows * kv_heads]` of
/// them.
pub fn quantise_kv(
    dtype: Dtype,
    positions: u32,
    head_dim: u32,
    x: DevicePointer,
    out: DevicePointer,
) -> KernelLaunch {
    check_kv4(head_dim);
    let args = KernelArgs::new().u64(x).u64(out).u32(positions).u32(head_dim);
    // One warp for each position.
    let grid = [positions.div_ceil(THREADS / 32), 1, 1];
    let name = named!(dtype, "quantise_kv");
    KernelLaunch { name, grid, block: [THREADS, 1, 1], shared_bytes: 0, args }
}

pub(crate) fn check_kv4(head_dim: u32) {
    assert!(
        kv4_position_bytes(head_dim as usize).is_some(),
        "a 4-bit KV cache cannot hold heads of {head_dim} elements"
    );
}
