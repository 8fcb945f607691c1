//! Attention over a contiguous cache and the fresh rows behind it, causal, grouped-query.
//!
//! A **unit** is one (sequence, KV head). Its query heads share one reading of K and V. The three
//! operations `scores`, `softmax`, `weighted_values` and the fused `attention` are the same three
//! steps (`steps.rs`); the fused form runs them for a block of rows through scratch that stays in
//! cache, so both give the same bits.
//!
//! Order of sums: a score runs along head_dim like a linear; the softmax sum takes position `p` in
//! lane `p % LANES`; a weighted value adds position after position. A position gives the same
//! terms whether its K and V are cached or fresh, so prefill and decode agree bit for bit.

mod steps;
mod tiles;

use crate::element::Element;
use crate::scratch::{ScratchLimits, Shared};
use crate::simd::{MAX_LANES, Simd};
use crate::variant::SimdTask;
use crate::{Kernels, round_up};
use steps::{Steps, UnitBlock};

/// Query rows (row by head of the group) of one task, at least one row's whole group.
const BLOCK_QUERIES: usize = 16;

/// Shape and scale shared by all units of a call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// Query heads, a multiple of `kv_heads`.
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Factor of every score, normally `1 / sqrt(head_dim)`.
    pub scale: f32,
}

impl AttentionShape {
    /// Query heads that share a KV head.
    pub const fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
}

/// One (sequence, KV head). No two units of a call may share both rows and KV head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit {
    /// First fresh row in q, k and v.
    pub row0: u32,
    /// Fresh rows.
    pub rows: u32,
    /// Cached positions before them.
    pub past: u32,
    pub kv_head: u32,
    /// Element offset of position 0 in the K and V cache slices; positions are `head_dim` apart.
    pub cache_offset: usize,
    /// Element offset in the scores and probabilities: `[row][query head in group][past + rows]`.
    /// Entries a row must not see are neither written nor read. Unused by the fused form.
    pub scores_offset: usize,
}

impl Unit {
    fn positions(&self) -> usize {
        self.past as usize + self.rows as usize
    }
}

/// Elements that a unit of `rows` fresh rows behind `past` cached ones takes in the scores.
pub const fn scores_len(shape: &AttentionShape, rows: usize, past: usize) -> usize {
    rows * shape.group() * (past + rows)
}

/// Floats of scratch per thread: packed queries (later the weighted values) and a block's scores.
pub(crate) fn thread_len(limits: &ScratchLimits) -> usize {
    block_queries(limits.group) * (head_stride(limits.head_dim) + score_stride(limits.positions))
}

fn block_queries(group: usize) -> usize {
    (BLOCK_QUERIES / group.max(1)).max(1) * group
}

fn head_stride(head_dim: usize) -> usize {
    round_up(head_dim, 2 * MAX_LANES)
}

fn score_stride(positions: usize) -> usize {
    round_up(positions, MAX_LANES) + MAX_LANES
}

/// The two caches, or the fresh rows, or nothing where a step does not read them.
#[derive(Debug)]
pub struct Inputs<'a, T> {
    q: &'a [T],
    k_fresh: &'a [T],
    k_cache: &'a [T],
    v_fresh: &'a [T],
    v_cache: &'a [T],
}

/// Which steps a call runs, and where scores and results go.
#[derive(Debug, Clone, Copy)]
pub enum Stage<T> {
    Scores { out: Shared<f32> },
    Softmax { scores: *const f32, out: Shared<f32> },
    Values { probabilities: *const f32, out: Shared<T> },
    Fused { out: Shared<T> },
}

// SAFETY: the pointers come from slices borrowed for the whole call; units write disjoint parts.
unsafe impl<T: Send + Sync> Sync for Stage<T> {}

impl Kernels {
    /// `q · k * scale` of every unit. `q` is `[rows, heads * head_dim]`, `k_fresh`
    /// `[rows, kv_heads * head_dim]`.
    pub fn scores<T: Element>(
        &self,
        shape: &AttentionShape,
        units: &[Unit],
        q: &[T],
        k_fresh: &[T],
        k_cache: &[T],
        out: &mut [f32],
    ) {
        let rows = check_rows(shape, q);
        self.check_units(shape, units, rows, k_fresh, k_cache);
        check_scores(shape, units, out.len());
        let inputs = Inputs { q, k_fresh, k_cache, v_fresh: &[], v_cache: &[] };
        self.attention_stage(shape, units, inputs, Stage::Scores { out: Shared(out.as_mut_ptr()) });
    }

    /// Softmax over the visible positions of every (row, head) of every unit.
    pub fn softmax(
        &self,
        shape: &AttentionShape,
        units: &[Unit],
        scores: &[f32],
        probabilities: &mut [f32],
    ) {
        check_scores(shape, units, scores.len());
        check_scores(shape, units, probabilities.len());
        let out = Shared(probabilities.as_mut_ptr());
        let inputs =
            Inputs::<f32> { q: &[], k_fresh: &[], k_cache: &[], v_fresh: &[], v_cache: &[] };
        let stage = Stage::Softmax { scores: scores.as_ptr(), out };
        self.attention_stage(shape, units, inputs, stage);
    }

    /// `probabilities · v` of every unit. `v_fresh` is `[rows, kv_heads * head_dim]`, `out`
    /// `[rows, heads * head_dim]`.
    pub fn weighted_values<T: Element>(
        &self,
        shape: &AttentionShape,
        units: &[Unit],
        probabilities: &[f32],
        v_fresh: &[T],
        v_cache: &[T],
        out: &mut [T],
    ) {
        let rows = check_rows(shape, out);
        self.check_units(shape, units, rows, v_fresh, v_cache);
        check_scores(shape, units, probabilities.len());
        let inputs = Inputs { q: &[], k_fresh: &[], k_cache: &[], v_fresh, v_cache };
        let probabilities = probabilities.as_ptr();
        let stage = Stage::Values { probabilities, out: Shared(out.as_mut_ptr()) };
        self.attention_stage(shape, units, inputs, stage);
    }

    /// The three operations in one pass, bit-equal to them, without scores in memory.
    #[allow(clippy::too_many_arguments)] // The mathematical operands, each with its own name.
    pub fn attention<T: Element>(
        &self,
        shape: &AttentionShape,
        units: &[Unit],
        q: &[T],
        k_fresh: &[T],
        v_fresh: &[T],
        k_cache: &[T],
        v_cache: &[T],
        out: &mut [T],
    ) {
        let rows = check_rows(shape, q);
        assert_eq!(out.len(), q.len(), "out is [rows, heads * head_dim]");
        self.check_units(shape, units, rows, k_fresh, k_cache);
        self.check_units(shape, units, rows, v_fresh, v_cache);
        let inputs = Inputs { q, k_fresh, k_cache, v_fresh, v_cache };
        self.attention_stage(shape, units, inputs, Stage::Fused { out: Shared(out.as_mut_ptr()) });
    }

    /// Copies the fresh rows of every unit, `[rows, kv_heads * head_dim]`, behind its `past` cached
    /// positions.
    pub fn append<T: Element>(
        &self,
        shape: &AttentionShape,
        units: &[Unit],
        fresh: &[T],
        cache: &mut [T],
    ) {
        let AttentionShape { kv_heads, head_dim, .. } = *shape;
        for unit in units {
            for row in 0..unit.rows as usize {
                let from =
                    ((unit.row0 as usize + row) * kv_heads + unit.kv_head as usize) * head_dim;
                let to = unit.cache_offset + (unit.past as usize + row) * head_dim;
                cache[to..to + head_dim].copy_from_slice(&fresh[from..from + head_dim]);
            }
        }
    }

    /// Cuts the units into blocks of rows and runs `stage` on each.
    fn attention_stage<T: Element>(
        &self,
        shape: &AttentionShape,
        units: &[Unit],
        inputs: Inputs<'_, T>,
        stage: Stage<T>,
    ) {
        let group = shape.group();
        let block_rows = block_queries(group) / group;
        let most_rows = units.iter().map(|unit| unit.rows as usize).max().unwrap_or(0);
        let blocks = most_rows.div_ceil(block_rows);
        let positions: usize = units.iter().map(|unit| unit.positions() * unit.rows as usize).sum();
        let bytes = 2 * positions * shape.head_dim * size_of::<T>();
        let (variant, per_thread) = (self.variant, &self.per_thread);
        self.run_attention(units.len() * blocks, bytes, &|task, thread| {
            let unit = units[task / blocks];
            // The last rows see the most positions: heaviest first evens out the end of the run.
            let first = (blocks - 1 - task % blocks) * block_rows;
            let rows = first..(first + block_rows).min(unit.rows as usize);
            if rows.is_empty() {
                return;
            }
            let block = UnitBlock { unit, rows };
            let scratch = per_thread.of(thread);
            let task = BlockTask { shape, block, inputs: &inputs, stage, scratch };
            // SAFETY: the variant was checked when the kernels were built; every unit was checked
            // against every slice that this stage touches, and the scratch is this thread's.
            unsafe { T::attention_block(variant, task) };
        });
    }

    fn check_units<T>(
        &self,
        shape: &AttentionShape,
        units: &[Unit],
        rows: usize,
        fresh: &[T],
        cache: &[T],
    ) {
        let AttentionShape { heads, kv_heads, head_dim, .. } = *shape;
        let limits = &self.limits;
        assert!(
            kv_heads > 0 && heads % kv_heads == 0,
            "query heads are a multiple of the KV heads"
        );
        assert!(shape.group() <= limits.group, "the group is beyond the scratch limits");
        assert!(head_dim <= limits.head_dim, "head_dim is beyond the scratch limits");
        assert_eq!(fresh.len(), rows * kv_heads * head_dim, "k, v are [rows, kv_heads * head_dim]");
        for unit in units {
            assert!(unit.row0 as usize + unit.rows as usize <= rows, "a unit lies within the rows");
            assert!((unit.kv_head as usize) < kv_heads, "a unit's KV head exists");
            assert!(unit.positions() <= limits.positions, "positions beyond the scratch limits");
            let end = unit.cache_offset + unit.past as usize * head_dim;
            assert!(
                unit.past == 0 || end <= cache.len(),
                "a unit's positions lie within the cache"
            );
        }
    }
}

/// Rows of a `[rows, heads * head_dim]` slice.
fn check_rows<T>(shape: &AttentionShape, slice: &[T]) -> usize {
    let row = shape.heads * shape.head_dim;
    assert!(row > 0 && slice.len().is_multiple_of(row), "rows of heads * head_dim elements");
    slice.len() / row
}

fn check_scores(shape: &AttentionShape, units: &[Unit], len: usize) {
    for unit in units {
        let end = unit.scores_offset + scores_len(shape, unit.rows as usize, unit.past as usize);
        assert!(end <= len, "a unit's scores lie within their buffer");
    }
}

/// One task: some rows of one unit through one stage.
#[derive(Debug)]
pub struct BlockTask<'a, T> {
    shape: &'a AttentionShape,
    block: UnitBlock,
    inputs: &'a Inputs<'a, T>,
    stage: Stage<T>,
    scratch: *mut f32,
}

impl<T: Element> SimdTask for BlockTask<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let BlockTask { shape, block, inputs, stage, scratch } = self;
        let group = shape.group();
        // Where this block's first row lies in the unit's scores.
        let stride = block.unit.positions();
        let at = block.unit.scores_offset + block.rows.start * group * stride;
        let steps = Steps { s, shape, block: &block, heads_scratch: scratch };
        // SAFETY: units were checked against all slices; scratch has room for a block's heads and
        // behind them its scores.
        unsafe {
            match stage {
                Stage::Scores { out } => {
                    let k = (inputs.k_fresh.as_ptr(), inputs.k_cache.as_ptr());
                    steps.scores(inputs.q.as_ptr(), k, k.1, out.pointer().add(at), stride);
                }
                Stage::Softmax { scores, out } => {
                    steps.softmax(scores.add(at), out.pointer().add(at), stride);
                }
                Stage::Values { probabilities, out } => {
                    let v = (inputs.v_fresh.as_ptr(), inputs.v_cache.as_ptr());
                    steps.values(probabilities.add(at), stride, v, out.pointer());
                }
                Stage::Fused { out } => {
                    let stride = score_stride(stride);
                    let scores = scratch.add(block_queries(group) * head_stride(shape.head_dim));
                    let k = (inputs.k_fresh.as_ptr(), inputs.k_cache.as_ptr());
                    let v = (inputs.v_fresh.as_ptr(), inputs.v_cache.as_ptr());
                    steps.scores(inputs.q.as_ptr(), k, v.1, scores, stride);
                    steps.softmax(scores, scores, stride);
                    steps.values(scores, stride, v, out.pointer());
                }
            }
        }
    }
}
