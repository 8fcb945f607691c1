//! Attention over units, and appending to caches.
//!
//! **The order of every sum** depends on positions alone: they are taken in fixed blocks, counted
//! from position 0, and the blocks are combined in order.

use bytemuck::{Pod, Zeroable};
use model::config::Dtype;

use crate::compressed::check_kv4;
use crate::launch::{DevicePointer, KernelArgs, KernelLaunch};
use crate::named;

/// Positions of one block of decode attention (`source/attention/decode.cuh`).
const SPLIT_POSITIONS: u32 = 256;
/// Queries and positions of a tile of prefill attention (`source/attention/prefill.cuh`).
const TILE_QUERIES: u32 = 16;
/// Queries, and positions, of a tile of prefill attention on tensor cores
/// (`source/attention/matrix.cuh`).
const MATRIX_TILE: u32 = 64;
/// Threads of a block.
const THREADS: u32 = 128;
/// Maximum number of query heads that share one read of K and V in a block of decode attention.
const HEADS_MAX: u32 = 8;
/// Length of the longest head that the kernels' registers and shared memory hold.
pub const HEAD_DIM_MAX: u32 = 256;

/// Shape and scale shared by all units of a launch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceAttentionShape {
    /// Query heads, a multiple of `kv_heads`.
    pub heads: u32,
    pub kv_heads: u32,
    /// At most [`HEAD_DIM_MAX`].
    pub head_dim: u32,
    /// Factor of every score, normally `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Maximum number of positions that a row sees, at least one: its own and those right before
    /// it. `None`: all before it.
    pub window: Option<u32>,
}

impl DeviceAttentionShape {
    /// Returns the number of query heads that share a KV head.
    pub const fn group(&self) -> u32 {
        self.heads / self.kv_heads
    }

    fn check(&self) {
        let DeviceAttentionShape { heads, kv_heads, head_dim, .. } = *self;
        assert!(kv_heads > 0 && heads.is_multiple_of(kv_heads), "heads are a multiple of kv_heads");
        assert!((1..=HEAD_DIM_MAX).contains(&head_dim), "heads have 1 to {HEAD_DIM_MAX} elements");
        assert!(self.window != Some(0), "a window has a position");
    }

    /// Returns the maximum number of blocks of positions that a row sees.
    fn splits(&self, positions_max: u32) -> u32 {
        let all = positions_max.div_ceil(SPLIT_POSITIONS);
        self.window.map_or(all, |window| all.min((window - 1).div_ceil(SPLIT_POSITIONS) + 1))
    }
}

/// One (sequence, KV head) in the layout of device memory: corresponds to
/// `kernels::DeviceAttentionUnit`, field by field.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct DeviceAttentionUnit {
    /// First fresh row in q, k and v.
    pub row0: u32,
    /// Fresh rows.
    pub rows: u32,
    /// Number of positions before them.
    pub past: u32,
    pub kv_head: u32,
    /// Element offset of the first place in the K and V caches, a multiple of `head_dim`, which is
    /// the distance between places; a 4-bit cache has a record for each `head_dim` elements.
    pub cache_offset: u64,
    /// Element offset in scores and probabilities: `[row][query head in group][past + rows]`.
    pub scores_offset: u64,
    /// First of the rows that hold the positions before the fresh ones, or
    /// [`DeviceAttentionUnit::CACHED`].
    pub shared_row: u32,
    /// Number of places in each cache, at least the window: position `p` is stored at place `p %
    /// cache_positions`. 0: at place `p`.
    pub cache_positions: u32,
}

impl DeviceAttentionUnit {
    /// Value of `shared_row` if the positions before the fresh ones are in the caches.
    pub const CACHED: u32 = u32::MAX;

    /// Returns the number of rows that [`append`] writes: all, or the last ones if the cache has
    /// too few places.
    pub fn appended(&self) -> u32 {
        let all = if self.shared_row == DeviceAttentionUnit::CACHED {
            self.rows
        } else {
            self.past + self.rows
        };
        if self.cache_positions == 0 { all } else { all.min(self.cache_positions) }
    }
}

const _: () = assert!(size_of::<DeviceAttentionUnit>() == 40, "the kernels' Unit has this size");

/// Units of a launch, in device memory, and bounds that size its grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceAttentionUnits {
    /// `[count]` of [`DeviceAttentionUnit`], on an 8-byte boundary.
    pub pointer: DevicePointer,
    pub count: u32,
    /// Upper bound on `rows` of a unit; 1 in decode.
    pub rows_max: u32,
    /// Upper bound on the number of rows of a unit that are stored in its cache.
    pub appended_max: u32,
    /// Upper bound on `past + rows` of a unit. A larger bound changes no bit.
    pub positions_max: u32,
}

/// K or V: the fresh rows of this step and the cached rows before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvOperand {
    /// Elements of the launch's dtype: fresh `[rows, kv_heads * head_dim]`, and the cache that
    /// `cache_offset` refers to (0 if nothing is cached).
    Plain { fresh: DevicePointer, cache: DevicePointer },
    /// 4-bit records, on 8-byte boundaries, or 4-byte ones if their size is no multiple of 8: fresh
    /// `[rows * kv_heads]`, made by [`quantise_kv`](crate::quantise_kv), and the cache.
    Kv4 { fresh: DevicePointer, cache: DevicePointer },
}

impl KvOperand {
    fn pointers(self) -> (DevicePointer, DevicePointer) {
        match self {
            KvOperand::Plain { fresh, cache } | KvOperand::Kv4 { fresh, cache } => (fresh, cache),
        }
    }

    fn is_kv4(self, shape: &DeviceAttentionShape) -> bool {
        let is_kv4 = matches!(self, KvOperand::Kv4 { .. });
        if is_kv4 {
            check_kv4(shape.head_dim);
        }
        is_kv4
    }
}

fn with_shape(args: KernelArgs, shape: &DeviceAttentionShape) -> KernelArgs {
    let window = shape.window.unwrap_or(u32::MAX);
    args.u32(shape.heads).u32(shape.kv_heads).u32(shape.head_dim).u32(window)
}

/// Computes `q · k * scale` of every unit and row: f32 at each unit's `scores_offset`. `q` is
/// `[rows, heads * head_dim]` of `dtype`. Entries that a row does not see are not written.
pub fn scores(
    dtype: Dtype,
    shape: &DeviceAttentionShape,
    units: &DeviceAttentionUnits,
    q: DevicePointer,
    k: KvOperand,
    out: DevicePointer,
) -> KernelLaunch {
    shape.check();
    let (fresh, cache) = k.pointers();
    let args = KernelArgs::new().u64(units.pointer).u64(q).u64(fresh).u64(cache).u64(out);
    let args = with_shape(args, shape).f32(shape.scale);
    KernelLaunch {
        name: if k.is_kv4(shape) { named!(dtype, "scores_four") } else { named!(dtype, "scores") },
        grid: [units.count, shape.splits(units.positions_max), units.rows_max],
        block: [THREADS, 1, 1],
        shared_bytes: HEADS_MAX * shape.head_dim * 4,
        args,
    }
}

/// Computes the softmax over the visible positions of every (row, head) of every unit, and over its
/// head's sink, whose probability is dropped: `sinks` are `[heads]` of f32, or 0. Scores and
/// probabilities are f32 at each unit's `scores_offset`, and may be the same memory.
pub fn softmax(
    shape: &DeviceAttentionShape,
    units: &DeviceAttentionUnits,
    scores: DevicePointer,
    sinks: DevicePointer,
    probabilities: DevicePointer,
) -> KernelLaunch {
    shape.check();
    let args = KernelArgs::new().u64(units.pointer).u64(scores).u64(sinks).u64(probabilities);
    let args = with_shape(args, shape);
    let grid = [units.count, shape.group(), units.rows_max];
    KernelLaunch { name: "softmax", grid, block: [THREADS, 1, 1], shared_bytes: 32 * 8, args }
}

/// Computes `probabilities · v` of every unit and row. `out` is `[rows, heads * head_dim]` of
/// `dtype`.
pub fn weighted_values(
    dtype: Dtype,
    shape: &DeviceAttentionShape,
    units: &DeviceAttentionUnits,
    probabilities: DevicePointer,
    v: KvOperand,
    out: DevicePointer,
) -> KernelLaunch {
    shape.check();
    let (fresh, cache) = v.pointers();
    let args =
        KernelArgs::new().u64(units.pointer).u64(probabilities).u64(fresh).u64(cache).u64(out);
    KernelLaunch {
        name: if v.is_kv4(shape) {
            named!(dtype, "weighted_values_four")
        } else {
            named!(dtype, "weighted_values")
        },
        grid: [units.count, shape.group().div_ceil(HEADS_MAX), units.rows_max],
        block: [THREADS, 1, 1],
        shared_bytes: value_parts_bytes(shape.head_dim),
        args: with_shape(args, shape),
    }
}

/// Number of elements of a head that a thread processes at a time.
const VECTOR: u32 = 8;

/// Returns the bytes of shared memory for the sums of one query head over the positions of each
/// team of threads that together hold a head.
const fn value_parts_bytes(head_dim: u32) -> u32 {
    let padded = head_dim.next_multiple_of(VECTOR);
    THREADS / (padded / VECTOR) * padded * 4
}

/// Returns the bytes of scratch for [`attention_decode`].
pub fn attention_decode_scratch_bytes(
    shape: &DeviceAttentionShape,
    units: u32,
    positions_max: u32,
) -> u64 {
    let parts = u64::from(units) * u64::from(shape.group() * shape.splits(positions_max));
    parts * u64::from(shape.head_dim + 2) * 4
}

/// Computes attention of one fresh row per unit without scores in memory: first blocks of 256
/// positions separately, then their combination in order. Launch both, in order.
///
/// `q` and `out` are `[rows, heads * head_dim]` of `dtype`, `scratch` has
/// [`attention_decode_scratch_bytes`] on a 16-byte boundary. K and V are both plain or both 4-bit.
/// See [`softmax`] for `sinks`. The result is near that of [`scores`], [`softmax`] and
/// [`weighted_values`], not bit-equal to it. In bf16 and with heads of 64 or 128 elements, 4-bit
/// caches and plain ones that query heads share are processed by tensor cores, with weights in two
/// parts of bf16.
#[allow(clippy::too_many_arguments, reason = "the mathematical operands, each with its own name")]
pub fn attention_decode(
    dtype: Dtype,
    shape: &DeviceAttentionShape,
    units: &DeviceAttentionUnits,
    q: DevicePointer,
    k: KvOperand,
    v: KvOperand,
    sinks: DevicePointer,
    out: DevicePointer,
    scratch: DevicePointer,
) -> [KernelLaunch; 2] {
    shape.check();
    assert!(units.rows_max <= 1, "a unit of decode attention has one fresh row");
    let is_kv4 = k.is_kv4(shape);
    assert_eq!(is_kv4, v.is_kv4(shape), "K and V are kept in one format");
    let ((k_fresh, k_cache), (v_fresh, v_cache)) = (k.pointers(), v.pointers());
    let splits = shape.splits(units.positions_max);
    let (heads, name) = match (shape.group(), is_kv4) {
        (1, false) => (1, named!(dtype, "attention_decode_1")),
        (2..=4, false) => (4, named!(dtype, "attention_decode_4")),
        (_, false) => (8, named!(dtype, "attention_decode_8")),
        (1, true) => (1, named!(dtype, "attention_decode_four_1")),
        (2..=4, true) => (4, named!(dtype, "attention_decode_four_4")),
        (_, true) => (8, named!(dtype, "attention_decode_four_8")),
    };
    let args = KernelArgs::new().u64(units.pointer).u64(q).u64(k_fresh).u64(v_fresh);
    let args = args.u64(k_cache).u64(v_cache).u64(scratch);
    // The sums of values later replace the queries.
    let queries_bytes = heads * shape.head_dim * 4;
    let plain_bytes =
        heads * SPLIT_POSITIONS * 4 + queries_bytes.max(value_parts_bytes(shape.head_dim));
    // On tensor cores: all records of K and V, later replaced by the warps' values; weights; and
    // eight highest scores and sums of each warp.
    let records_bytes = 2 * SPLIT_POSITIONS * (shape.head_dim / 2 + shape.head_dim / 16);
    let values_bytes = 4 * heads * shape.head_dim * 4;
    let staged_bytes = if is_kv4 { records_bytes } else { values_bytes };
    let matrix_bytes = staged_bytes + heads * SPLIT_POSITIONS * 4 + 2 * 4 * 8 * 4;
    let on_matrices = match (is_kv4, shape.head_dim, heads) {
        (true, 64, 1) => Some("attention_decode_four_1_64_bf16"),
        (true, 64, 4) => Some("attention_decode_four_4_64_bf16"),
        (true, 64, _) => Some("attention_decode_four_8_64_bf16"),
        (true, 128, 1) => Some("attention_decode_four_1_128_bf16"),
        (true, 128, 4) => Some("attention_decode_four_4_128_bf16"),
        (true, 128, _) => Some("attention_decode_four_8_128_bf16"),
        (false, 64, 4) => Some("attention_decode_4_64_bf16"),
        (false, 64, 8) => Some("attention_decode_8_64_bf16"),
        (false, 128, 4) => Some("attention_decode_4_128_bf16"),
        (false, 128, 8) => Some("attention_decode_8_128_bf16"),
        _ => None,
    };
    let on_matrices = on_matrices.filter(|_| dtype == Dtype::Bf16);
    let (name, shared_bytes) = on_matrices.map_or((name, plain_bytes), |name| (name, matrix_bytes));
    let part = KernelLaunch {
        name,
        grid: [units.count, splits, shape.group().div_ceil(heads)],
        block: [THREADS, 1, 1],
        shared_bytes,
        args: with_shape(args, shape).f32(shape.scale),
    };
    let args = KernelArgs::new().u64(units.pointer).u64(scratch).u64(sinks).u64(out);
    let whole = KernelLaunch {
        name: named!(dtype, "attention_combine"),
        grid: [units.count, shape.group(), 1],
        block: [THREADS, 1, 1],
        shared_bytes: 0,
        args: with_shape(args, shape).u32(splits),
    };
    [part, whole]
}

/// Computes attention of any number of fresh rows per unit, causal and ragged, without scores in
/// memory. Operands are those of [`attention_decode`].
///
/// In bf16 and with heads of 64 or 128 elements it runs on tensor cores, with weights, and elements
/// of 4-bit caches, rounded to bf16, and a different exponential function for weights: results are
/// near the CPU's, not bit-equal. K and V of all fresh rows must then be finite.
#[allow(clippy::too_many_arguments, reason = "the mathematical operands, each with its own name")]
pub fn attention_prefill(
    dtype: Dtype,
    shape: &DeviceAttentionShape,
    units: &DeviceAttentionUnits,
    q: DevicePointer,
    k: KvOperand,
    v: KvOperand,
    sinks: DevicePointer,
    out: DevicePointer,
) -> KernelLaunch {
    shape.check();
    let is_kv4 = k.is_kv4(shape);
    assert_eq!(is_kv4, v.is_kv4(shape), "K and V are kept in one format");
    let ((k_fresh, k_cache), (v_fresh, v_cache)) = (k.pointers(), v.pointers());
    let args = KernelArgs::new().u64(units.pointer).u64(q).u64(k_fresh).u64(v_fresh);
    let args = args.u64(k_cache).u64(v_cache).u64(sinks).u64(out);
    let args = with_shape(args, shape).f32(shape.scale);
    let queries = units.rows_max * shape.group();
    let head_dim = shape.head_dim;
    let launch = |name, tile_queries, shared_bytes| KernelLaunch {
        name,
        grid: [units.count, queries.div_ceil(tile_queries), 1],
        block: [THREADS, 1, 1],
        shared_bytes,
        args,
    };
    // A tile of K and one of V; for 4-bit caches their records too.
    let record_bytes = if is_kv4 { head_dim / 2 + head_dim / 16 } else { 0 };
    let matrix_bytes = 2 * MATRIX_TILE * (head_dim * 2 + record_bytes);
    // Queries, one tile of K or V, scores; rows of odd length, so that columns differ in banks.
    let positions = if head_dim <= 128 { 32 } else { 16 };
    let shared_bytes = ((TILE_QUERIES + positions) * (head_dim | 1) + TILE_QUERIES * 33) * 4;
    match (dtype, is_kv4, head_dim) {
        (Dtype::Bf16, false, 64) => launch("attention_prefill_64_bf16", MATRIX_TILE, matrix_bytes),
        (Dtype::Bf16, false, 128) => {
            launch("attention_prefill_128_bf16", MATRIX_TILE, matrix_bytes)
        }
        (Dtype::Bf16, true, 64) => {
            launch("attention_prefill_four_64_bf16", MATRIX_TILE, matrix_bytes)
        }
        (Dtype::Bf16, true, 128) => {
            launch("attention_prefill_four_128_bf16", MATRIX_TILE, matrix_bytes)
        }
        (_, false, _) => launch(named!(dtype, "attention_prefill"), TILE_QUERIES, shared_bytes),
        (_, true, _) => launch(named!(dtype, "attention_prefill_four"), TILE_QUERIES, shared_bytes),
    }
}

/// Copies the fresh rows of every unit, `[rows, kv_heads * head_dim]` of `dtype`, after its `past`
/// positions, which are copied too if they are rows. In a ring they replace the oldest positions,
/// which the rows may still have to see: run attention first.
pub fn append(
    dtype: Dtype,
    shape: &DeviceAttentionShape,
    units: &DeviceAttentionUnits,
    fresh: DevicePointer,
    cache: DevicePointer,
) -> KernelLaunch {
    shape.check();
    let args = KernelArgs::new().u64(units.pointer).u64(fresh).u64(cache);
    append_launch(named!(dtype, "append"), shape, units, args)
}

/// Appends rows like [`append`], quantised to 4-bit records: the same bytes as the CPU's.
pub fn append_kv4(
    dtype: Dtype,
    shape: &DeviceAttentionShape,
    units: &DeviceAttentionUnits,
    fresh: DevicePointer,
    cache: DevicePointer,
) -> KernelLaunch {
    shape.check();
    check_kv4(shape.head_dim);
    let args = KernelArgs::new().u64(units.pointer).u64(fresh).u64(cache);
    append_launch(named!(dtype, "append_four"), shape, units, args)
}

fn append_launch(
    name: &'static str,
    shape: &DeviceAttentionShape,
    units: &DeviceAttentionUnits,
    args: KernelArgs,
) -> KernelLaunch {
    KernelLaunch {
        name,
        grid: [units.count, units.appended_max, 1],
        block: [32, 1, 1],
        shared_bytes: 0,
        args: args.u32(shape.kv_heads).u32(shape.head_dim),
    }
}
