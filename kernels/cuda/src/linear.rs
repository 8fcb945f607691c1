//! Linears over plain and grouped weights.
//!
//! **The order of every sum.** In bf16 an output is, for each segment of 512 inputs, one chain of
//! tensor-core steps of 16 inputs, and the segments are added in order; all kernels take the inputs
//! of a step in the same places, so which one a batch size selects changes no bit. In f32 an output
//! is a chain of fused multiply-adds per segment, the segments added in order.
//!
//! Grouped weights are multiplied in bf16 as their integers. For each group of inputs, where a
//! group of 64 counts as two of 32, `scale * (sum of q * x) + minimum * (sum of x)` is added to its
//! segment's sum in order: both sums are chains of tensor-core steps from zero, and both products
//! are fused into f32 additions. Weights that are multiplied as stored therefore have the bits of
//! the same weights widened to 8 (formats without minimums add none, which differs only where a sum
//! of x is infinite), but a linear over [`decompress`](crate::decompress)ed weights, which are
//! rounded to bf16, has others. In f32 both are the same.

use model::config::Dtype;
use model::quantized_format::{Bits, Grouped};

use crate::compressed::has_floats;
use crate::launch::{DevicePointer, KernelArgs, KernelLaunch, warps_of_segments};
use crate::named;
use crate::stored::StoredKernels;

/// Maximum number of rows for which weights go from memory straight to registers.
const MAX_SMALL_ROWS: u32 = 32;
/// Minimum number of columns for which half the rows suffice for tiles of 64: they fill the device.
const MIN_MANY_COLUMNS: u32 = 16_384;

/// Number of tiles that keeps all multiprocessors of a large device busy; if there are fewer,
/// smaller tiles are used.
const MIN_TILES: u32 = 256;

/// Destination of the result of a linear: `[rows, n]`, of the linear's dtype unless stated
/// otherwise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DeviceLinearOut {
    Store(DevicePointer),
    /// `max(result, 0)`; NaN stays.
    Relu(DevicePointer),
    /// GELU by erf.
    Gelu(DevicePointer),
    /// `silu(gate) * result`; `out` may be `gate`.
    SiluMul {
        gate: DevicePointer,
        out: DevicePointer,
    },
    /// `gelu(gate) * result`, GELU by tanh; `out` may be `gate`.
    GeluTanhMul {
        gate: DevicePointer,
        out: DevicePointer,
    },
    /// `(u + 1) * g * sigmoid(alpha * g)`, where g is the gate clamped to at most `limit` and u the
    /// result clamped to `-limit..=limit`; `out` may be `gate`.
    ClampedSwiGlu {
        gate: DevicePointer,
        out: DevicePointer,
        alpha: f32,
        limit: f32,
    },
    /// `out += result`, f32: the residual stream, in place.
    AddTo(DevicePointer),
    /// `out += factor * result`, f32.
    AddScaled {
        out: DevicePointer,
        factor: f32,
    },
    /// The result in f32.
    StoreF32(DevicePointer),
    /// `factor * result`, f32.
    StoreScaled {
        out: DevicePointer,
        factor: f32,
    },
}

/// Parameters of the kernels for a [`DeviceLinearOut`].
pub(crate) struct EpilogueArgs {
    /// Number of the epilogue in `source/linear/finish.cuh`.
    pub(crate) number: u32,
    pub(crate) out: DevicePointer,
    pub(crate) gate: DevicePointer,
    pub(crate) factor: f32,
    pub(crate) limit: f32,
}

impl DeviceLinearOut {
    pub(crate) fn form(self) -> EpilogueArgs {
        // A factor of 1 changes no bit.
        let form = |number, out| EpilogueArgs { number, out, gate: 0, factor: 1.0, limit: 0.0 };
        match self {
            DeviceLinearOut::Store(out) => form(0, out),
            DeviceLinearOut::Relu(out) => form(1, out),
            DeviceLinearOut::Gelu(out) => form(2, out),
            DeviceLinearOut::SiluMul { gate, out } => EpilogueArgs { gate, ..form(3, out) },
            DeviceLinearOut::AddTo(out) => form(4, out),
            DeviceLinearOut::AddScaled { out, factor } => EpilogueArgs { factor, ..form(4, out) },
            DeviceLinearOut::StoreF32(out) => form(5, out),
            DeviceLinearOut::StoreScaled { out, factor } => EpilogueArgs { factor, ..form(5, out) },
            DeviceLinearOut::GeluTanhMul { gate, out } => EpilogueArgs { gate, ..form(6, out) },
            DeviceLinearOut::ClampedSwiGlu { gate, out, alpha, limit } => {
                EpilogueArgs { gate, factor: alpha, limit, ..form(7, out) }
            }
        }
    }
}

/// A matrix `[n, k]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceWeight {
    /// Row-major, of the linear's dtype, on a 16-byte boundary.
    Plain(DevicePointer),
    /// Records of 4 or 8 bits with ranges of f16 for groups of 32 or 64, of a format that is
    /// multiplied as stored ([`multiplies_stored`](crate::multiplies_stored)), or of 8 bits with
    /// ranges of f32, on a 64-byte boundary. Other formats are widened first
    /// ([`widen`](crate::widen)).
    Grouped(Grouped, DevicePointer),
}

/// Selects the kernels that read a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WeightKind {
    Plain,
    Four,
    Eight,
    /// 8 bits with ranges of f32, in groups of 32 or 64.
    Expanded,
    /// 8 bits with ranges of f32, in groups of 16.
    Sixteens,
    /// Records as files have them.
    Stored(&'static StoredKernels),
}

impl DeviceWeight {
    /// Returns its address, the kernels that read it, and the inputs of a group, the number of a
    /// stored format, or 0.
    pub(crate) fn parts(self) -> (DevicePointer, WeightKind, u32) {
        match self {
            DeviceWeight::Plain(weight) => (weight, WeightKind::Plain, 0),
            DeviceWeight::Grouped(format, records) => {
                if let Some(kernels) = StoredKernels::find(format) {
                    return (records, WeightKind::Stored(kernels), kernels.form());
                }
                let kind = if has_floats(format) && format.group == 16 {
                    WeightKind::Sixteens
                } else if has_floats(format) {
                    WeightKind::Expanded
                } else if format.bits == Bits::Four {
                    WeightKind::Four
                } else {
                    WeightKind::Eight
                };
                let fits = kind == WeightKind::Sixteens || matches!(format.group, 32 | 64);
                assert!(fits, "groups have 32 or 64 inputs, or 16 with ranges of f32");
                (records, kind, format.group as u32)
            }
        }
    }
}

/// Operands of `out = epilogue(x · weightᵀ + bias)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceLinear {
    pub rows: u32,
    /// Output width.
    pub n: u32,
    /// Input width.
    pub k: u32,
    /// `[rows, k]` of the dtype, on a 16-byte boundary.
    pub x: DevicePointer,
    pub weight: DeviceWeight,
    /// f32 `[n]`, or 0.
    pub bias: DevicePointer,
    pub out: DeviceLinearOut,
}

/// Returns the linear's single launch.
pub fn linear(dtype: Dtype, linear: &DeviceLinear) -> KernelLaunch {
    let DeviceLinear { rows, n, k, x, weight, bias, out } = *linear;
    assert!(k >= 1, "a linear has inputs");
    let EpilogueArgs { number, out, gate, factor, limit } = out.form();
    let (source, kind, group) = weight.parts();
    let args = KernelArgs::new().u64(x).u64(source).u64(bias).u64(out).u64(gate);
    let args = args.u32(rows).u32(n).u32(k).u32(number).u32(group).f32(factor).f32(limit);
    let launch = |name, cols: u32, tile_rows: u32, shared_bytes| KernelLaunch {
        name,
        grid: [n.div_ceil(cols), rows.div_ceil(tile_rows), 1],
        block: [256, 1, 1],
        shared_bytes,
        args,
    };
    if dtype == Dtype::F32 {
        let name = match kind {
            WeightKind::Plain => "linear_f32",
            WeightKind::Four => "linear_four_f32",
            WeightKind::Eight => "linear_eight_f32",
            WeightKind::Expanded | WeightKind::Sixteens => "linear_expanded_f32",
            WeightKind::Stored(_) => "linear_stored_f32",
        };
        return launch(name, 64, 16, 64 * 33 * 4 + 16 * 33 * 4);
    }
    // The wide kernel copies rows in pieces of 16 bytes.
    let few = if n >= MIN_MANY_COLUMNS { MAX_SMALL_ROWS / 2 } else { MAX_SMALL_ROWS };
    if kind == WeightKind::Plain && rows > few && k.is_multiple_of(8) {
        let tiles = n.div_ceil(128) * rows.div_ceil(128);
        return match rows {
            ..=64 => launch("linear_wide_64_bf16", 64, 64, WIDE_BYTES),
            _ if tiles < MIN_TILES => launch("linear_wide_128_narrow_bf16", 64, 128, WIDE_BYTES),
            _ => launch("linear_wide_128_bf16", 128, 128, WIDE_BYTES),
        };
    }
    if kind == WeightKind::Four && rows > MAX_SMALL_ROWS && k.is_multiple_of(8) {
        return launch("linear_four_wide_bf16", 64, 64, GROUPED_WIDE_BYTES);
    }
    let small = |name, cols: u32, tile_rows: u32, most_warps: u32| {
        let warps = warps_of_segments(k, most_warps);
        let launch = launch(name, cols, tile_rows, segments_bytes(warps, cols, tile_rows));
        KernelLaunch { block: [32 * warps, 1, 1], ..launch }
    };
    let [few, some, many] = match kind {
        WeightKind::Stored(kernels) => return kernels.launch(rows, k, false, launch),
        WeightKind::Plain => {
            ["linear_small_8_bf16", "linear_small_16_bf16", "linear_small_32_bf16"]
        }
        WeightKind::Four => ["linear_four_8_bf16", "linear_four_16_bf16", "linear_four_32_bf16"],
        WeightKind::Expanded => {
            ["linear_expanded_8_bf16", "linear_expanded_16_bf16", "linear_expanded_32_bf16"]
        }
        WeightKind::Sixteens => {
            ["linear_sixteens_8_bf16", "linear_sixteens_16_bf16", "linear_sixteens_32_bf16"]
        }
        WeightKind::Eight => {
            ["linear_eight_8_bf16", "linear_eight_16_bf16", "linear_eight_32_bf16"]
        }
    };
    match rows {
        ..=8 => small(few, few_columns(kind), 8, few_warps(kind)),
        9..=16 => small(some, 32, 16, 7),
        _ => small(many, 32, 32, 7),
    }
}

/// Returns the columns of a block of at most eight rows.
pub(crate) fn few_columns(kind: WeightKind) -> u32 {
    match kind {
        WeightKind::Plain => 16,
        _ => 32,
    }
}

/// Returns the maximum number of warps of such a block.
pub(crate) fn few_warps(kind: WeightKind) -> u32 {
    match kind {
        WeightKind::Plain | WeightKind::Four => 14,
        _ => 7,
    }
}

/// Returns the bytes of the sums of each warp, and their totals.
pub(crate) const fn segments_bytes(warps: u32, cols: u32, tile_rows: u32) -> u32 {
    (warps + 1) * cols * tile_rows * 4
}

/// Bytes of all stages of a wide kernel: three of 64 + 64 rows of 64 bf16 or of 128 + 128 rows of
/// 32, or four of 64 + 128 rows of 32.
pub(crate) const WIDE_BYTES: u32 = 48 << 10;

/// Bytes of four stages of 64 rows of 64 bf16, and of the sums of 32 inputs of those rows in two of
/// them.
const GROUPED_WIDE_BYTES: u32 = 4 * 64 * 64 * 2 + 4 * 64 * 4;

/// Completes a linear whose sums another library computed: `sums` is f32 `[rows, n]`, `bias` f32
/// `[n]` or 0; see [`linear`] for `out`. `sums` may be the destination of `StoreF32`.
pub fn epilogue(
    dtype: Dtype,
    rows: u32,
    n: u32,
    sums: DevicePointer,
    bias: DevicePointer,
    out: DeviceLinearOut,
) -> KernelLaunch {
    let EpilogueArgs { number, out, gate, factor, limit } = out.form();
    let args = KernelArgs::new().u64(sums).u64(bias).u64(out).u64(gate).u32(n).u32(number);
    let args = args.f32(factor).f32(limit);
    let grid = [rows, n.div_ceil(1024), 1];
    KernelLaunch {
        name: named!(dtype, "epilogue"),
        grid,
        block: [256, 1, 1],
        shared_bytes: 0,
        args,
    }
}
