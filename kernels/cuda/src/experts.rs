//! Mixtures of experts: routing, rows by expert, linears of every expert, weighted sums.
//!
//! A routing is `[rows, top_k]` entries of eight bytes: u32 expert, f32 weight, each row's in
//! ascending order of experts. A *place* of it is `row * top_k + j`. A place has the bits of an
//! ordinary [`linear`](crate::linear) of its row and its expert's matrix.

use model::config::Dtype;
use model::experts::ExpertScoring;

use crate::launch::{DevicePointer, KernelArgs, KernelLaunch, warps_of_segments};
use crate::linear::{
    DeviceLinearOut, DeviceWeight, EpilogueArgs, WIDE_BYTES, WeightKind, few_columns, few_warps,
    segments_bytes,
};

/// Maximum number of experts of a row: each has its own lane.
pub const EXPERTS_PER_ROW_MAX: u32 = 32;

/// Numbers of rows, experts of a row and experts of a mixture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceExpertShape {
    pub rows: u32,
    pub top_k: u32,
    pub experts: u32,
}

/// Computes the routing of each row of `logits`, f32 `[rows, experts]`, to `routed`, with every
/// weight times `factor`. Among equal logits the lower expert's comes first; NaN counts as minus
/// infinity; if a row's largest logit is infinite all its weights are NaN.
///
/// # Panics
/// If a row has more experts than there are, or more than [`EXPERTS_PER_ROW_MAX`], or weights are
/// not a softmax.
pub fn route(
    shape: DeviceExpertShape,
    scoring: ExpertScoring,
    factor: f32,
    logits: DevicePointer,
    routed: DevicePointer,
) -> KernelLaunch {
    let DeviceExpertShape { rows, top_k, experts } = shape;
    assert!(
        (1..=experts.min(EXPERTS_PER_ROW_MAX)).contains(&top_k),
        "{top_k} of {experts} experts"
    );
    let scoring = match scoring {
        ExpertScoring::SoftmaxTopK { renormalise: false } => 0,
        ExpertScoring::SoftmaxTopK { renormalise: true } => 1,
        ExpertScoring::TopKSoftmax => 2,
        ExpertScoring::SigmoidTopK { .. } | ExpertScoring::SqrtSoftplusTopK { .. } => {
            panic!("no kernel computes {scoring:?}")
        }
    };
    let args = KernelArgs::new().u64(logits).u64(routed).u32(rows).u32(experts).u32(top_k);
    let args = args.u32(scoring).f32(factor);
    // One warp for each row.
    let grid = [rows.div_ceil(8), 1, 1];
    KernelLaunch { name: "route", grid, block: [256, 1, 1], shared_bytes: 0, args }
}

/// Groups the places of a routing by expert: `slots`, u32 `[rows * top_k]`, each expert's in
/// ascending order, and the beginning of each expert's in `starts`, u32 `[experts + 1]`.
pub fn group_experts(
    shape: DeviceExpertShape,
    routed: DevicePointer,
    starts: DevicePointer,
    slots: DevicePointer,
) -> KernelLaunch {
    let args = KernelArgs::new().u64(routed).u64(starts).u64(slots).u32(shape.rows * shape.top_k);
    let grid = [shape.experts, 1, 1];
    KernelLaunch {
        name: "group_experts",
        grid,
        block: [256, 1, 1],
        shared_bytes: 2 * 256 * 4,
        args,
    }
}

/// A linear of every place of a routing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceExpertLinear {
    pub shape: DeviceExpertShape,
    /// `starts` of [`group_experts`].
    pub starts: DevicePointer,
    /// `slots` of [`group_experts`].
    pub slots: DevicePointer,
    /// Output width.
    pub n: u32,
    /// Input width.
    pub k: u32,
    /// `[rows, k]` or `[rows, top_k, k]` of the dtype, on a 16-byte boundary.
    pub x: DevicePointer,
    /// True if each place has its own row of x.
    pub x_by_place: bool,
    /// Consecutive matrices of the experts; each grouped one is padded to whole records.
    pub weight: DeviceWeight,
    /// f32 `[experts, n]`, or 0.
    pub bias: DevicePointer,
    /// `[rows, top_k, n]`.
    pub out: DeviceLinearOut,
}

/// Returns the single launch of all experts' linears. The kernel is chosen by the average number of
/// rows of an expert, which changes no bit.
pub fn expert_linear(dtype: Dtype, linear: &DeviceExpertLinear) -> KernelLaunch {
    let DeviceExpertLinear { shape, n, k, x, weight, bias, out, .. } = *linear;
    let DeviceExpertShape { rows, top_k, experts } = shape;
    assert!(k >= 1, "a linear has inputs");
    assert!((1..=experts).contains(&top_k), "{top_k} of {experts} experts");
    let EpilogueArgs { number, out, gate, factor, limit } = out.form();
    let (source, kind, group) = weight.parts();
    let per_row = if linear.x_by_place { 1 } else { top_k };
    let args = KernelArgs::new().u64(x).u64(source).u64(bias).u64(out).u64(gate);
    let args = args.u64(linear.starts).u64(linear.slots).u32(per_row);
    let args = args.u32(n).u32(k).u32(number).u32(group).f32(factor).f32(limit);
    let launch = |name, cols: u32, tile_rows: u32, shared_bytes| KernelLaunch {
        name,
        // A single expert may get every row.
        grid: [n.div_ceil(cols), rows.div_ceil(tile_rows), experts],
        block: [256, 1, 1],
        shared_bytes,
        args,
    };
    if dtype == Dtype::F32 {
        let name = match kind {
            WeightKind::Plain => "expert_f32",
            WeightKind::Four => "expert_four_f32",
            WeightKind::Eight => "expert_eight_f32",
            WeightKind::Expanded | WeightKind::Sixteens => "expert_expanded_f32",
            WeightKind::Stored(_) => "expert_stored_f32",
        };
        return launch(name, 64, 16, 64 * 33 * 4 + 16 * 33 * 4);
    }
    let mean_rows = (u64::from(rows) * u64::from(top_k)).div_ceil(u64::from(experts));
    let small = |name, cols: u32, tile_rows: u32, most_warps: u32| {
        let warps = warps_of_segments(k, most_warps);
        let launch = launch(name, cols, tile_rows, segments_bytes(warps, cols, tile_rows));
        KernelLaunch { block: [32 * warps, 1, 1], ..launch }
    };
    // The wide kernel copies rows in pieces of 16 bytes.
    if kind == WeightKind::Plain && mean_rows > 32 && k.is_multiple_of(8) {
        return launch("expert_wide_64_bf16", 64, 64, WIDE_BYTES);
    }
    let [few, some, many] = match kind {
        WeightKind::Stored(kernels) => {
            return kernels.launch(mean_rows as u32, k, true, launch);
        }
        WeightKind::Plain => {
            ["expert_small_8_bf16", "expert_small_16_bf16", "expert_small_32_bf16"]
        }
        WeightKind::Four => ["expert_four_8_bf16", "expert_four_16_bf16", "expert_four_32_bf16"],
        WeightKind::Eight => {
            ["expert_eight_8_bf16", "expert_eight_16_bf16", "expert_eight_32_bf16"]
        }
        WeightKind::Expanded => {
            ["expert_expanded_8_bf16", "expert_expanded_16_bf16", "expert_expanded_32_bf16"]
        }
        WeightKind::Sixteens => {
            ["expert_sixteens_8_bf16", "expert_sixteens_16_bf16", "expert_sixteens_32_bf16"]
        }
    };
    // The lists of rows take registers, so some blocks have fewer threads than in `linear`.
    let many_warps = if kind == WeightKind::Four { 6 } else { 7 };
    match mean_rows {
        ..=8 => small(few, few_columns(kind), 8, expert_few_warps(kind)),
        9..=16 => small(some, 32, 16, 7),
        _ => small(many, 32, 32, many_warps),
    }
}

/// Returns the maximum number of warps of a block of at most eight rows.
fn expert_few_warps(kind: WeightKind) -> u32 {
    if kind == WeightKind::Four { 12 } else { few_warps(kind) }
}

/// Computes `hidden += sum of weight * part` over each row's places: products are rounded, then
/// added up in ascending order of experts, and the sum is added to `hidden` once. `parts` is f32
/// `[rows, top_k, n]`, as stored by [`expert_linear`] with [`DeviceLinearOut::StoreF32`], `hidden`
/// f32 `[rows, n]`.
pub fn expert_combine(
    rows: u32,
    top_k: u32,
    n: u32,
    routed: DevicePointer,
    parts: DevicePointer,
    hidden: DevicePointer,
) -> KernelLaunch {
    assert!(top_k >= 1, "a row has an expert");
    let args = KernelArgs::new().u64(routed).u64(parts).u64(hidden).u32(top_k).u32(n);
    let grid = [rows, n.div_ceil(1024), 1];
    KernelLaunch { name: "expert_combine", grid, block: [256, 1, 1], shared_bytes: 0, args }
}
