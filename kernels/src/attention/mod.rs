//! Causal grouped-query attention over a cache and the fresh rows that follow it.
//!
//! If the shape has a **window**, a row sees only the positions within it; earlier ones are neither
//! read nor computed. A cache may then be a ring with that number of positions
//! (`AttentionUnit::cache_positions`), which consists of two consecutive runs. Other caches may be
//! in **pages** (`pages.rs`), one run each. **Sinks** are one additional score for each head, which
//! takes part in the softmax and has no value (`probabilities.rs`).
//!
//! A **unit** is one (sequence, KV head). Its query heads share one read of K and V. Positions are
//! cut into **chunks**, counted from position 0, each with its own softmax and weighted values; a
//! block of rows takes chunk after chunk through scratch that stays in cache, and adds up their
//! results at its end (`run.rs`). The three operations `scores`, `softmax`, `weighted_values` and
//! the fused `attention` run the same steps, so both give the same bits (`softmax.rs` explains
//! how). If there are fewer units than the threads need, each chunk of a unit is a task
//! (`schedule.rs`).
//!
//! Order of sums: a score is two or four chains along head_dim (`scores.rs`), or sixteen of pairs
//! (`avx512_bf16.rs`: bf16 with AVX512-BF16); the sum of a chunk's weights distributes the
//! positions that a row sees over the lanes round-robin (`softmax.rs`); a weighted value adds
//! position after position (`values.rs`), or pair after pair (`pair_values.rs`, under the same
//! condition as scores); the chunks are added in order. A position gives the same terms whether its
//! K and V are cached, in a ring or not, or fresh, so prefill and decode agree bit for bit. Over a
//! 4-bit cache the products are summed as integers (`kv4/`), within the same structure; over an
//! 8-bit cache a few positions at a time become f32 first (`kv8.rs`).

#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_bf16;
mod block;
mod compiled;
mod compressed;
mod indexed;
mod keys;
mod kv4;
mod kv8;
mod pages;
#[cfg(target_arch = "x86_64")]
mod pair_keys;
#[cfg(target_arch = "x86_64")]
mod pair_tiles;
#[cfg(target_arch = "x86_64")]
mod pair_values;
mod prefetch;
mod probabilities;
mod run;
mod schedule;
mod scores;
mod segment;
mod select;
mod shape;
mod softmax;
mod steps;
mod strided;
mod task;
mod values;

use crate::Kernels;
use crate::columns::Columns;
use crate::number::Number;
use block::KvSource;
pub use compiled::AttentionTasks;
pub(crate) use compressed::thread_len as compress_thread_len;
pub use compressed::{
    CompressRules, CompressedSpan, EntryIndexer, EntryPlaces, EntryQueries, EntryShape,
};
pub use indexed::{AttentionPart, IndexedPlaces, IndexedScratch, IndexedShape};
pub use pages::{AttentionUnits, PageLists, paged_place};
pub(crate) use schedule::{Workspace, thread_len};
pub use select::{
    AttentionOperands, PartialKeyOperands, SelectRule, Selection, SelectionCounts, partial_key,
};
use shape::record_bytes;
pub use shape::{AttentionShape, AttentionUnit, KvCacheSlice, scores_len};
use strided::KvPointers;
use task::{AttentionSteps, Tensors};

const SCORES: AttentionSteps = AttentionSteps { scores: true, softmax: false, values: false };
const SOFTMAX: AttentionSteps = AttentionSteps { scores: false, softmax: true, values: false };
const VALUES: AttentionSteps = AttentionSteps { scores: false, softmax: false, values: true };
const FUSED: AttentionSteps = AttentionSteps { scores: true, softmax: true, values: true };

impl<T> Tensors<T> {
    /// Returns null tensors.
    fn none() -> Self {
        let none = KvPointers { fresh: std::ptr::null(), cache: std::ptr::null() };
        let none = KvSource::Plain(none);
        Tensors {
            q: std::ptr::null(),
            k: none,
            v: none,
            out: std::ptr::null_mut(),
            scores_in: std::ptr::null(),
            scores_out: std::ptr::null_mut(),
            sinks: std::ptr::null(),
        }
    }
}

impl Kernels {
    /// Computes `q · k * scale` of every unit. `q` is `[rows, heads * head_dim]`, `k_fresh`
    /// `[rows, kv_heads * head_dim]`.
    pub fn scores<'a, T: AttentionTasks>(
        &self,
        shape: &AttentionShape,
        units: impl Into<AttentionUnits<'a>>,
        q: &[T],
        k_fresh: &[T],
        k_cache: impl Into<KvCacheSlice<'a, T>>,
        out: &mut [f32],
    ) {
        let units = units.into();
        let rows = check_rows(shape, q.len());
        check_scores(shape, units.units, out.len());
        let k = self.source(shape, units, rows, 0, k_fresh, k_cache.into());
        let scores_out = out.as_mut_ptr();
        let tensors = Tensors { q: q.as_ptr(), k, scores_out, ..Tensors::none() };
        self.attention_steps(shape, units, SCORES, &tensors);
    }

    /// Computes the softmax over the visible positions of every (row, head) of every unit,
    /// including the head's sink, `[heads]`, whose probability is dropped.
    pub fn softmax(
        &self,
        shape: &AttentionShape,
        units: &[AttentionUnit],
        scores: &[f32],
        sinks: Option<&[f32]>,
        probabilities: &mut [f32],
    ) {
        check_scores(shape, units, scores.len());
        check_scores(shape, units, probabilities.len());
        let tensors = Tensors::<f32> {
            scores_in: scores.as_ptr(),
            scores_out: probabilities.as_mut_ptr(),
            sinks: check_sinks(shape, sinks),
            ..Tensors::none()
        };
        self.attention_steps(shape, units.into(), SOFTMAX, &tensors);
    }

    /// Computes `probabilities · v` of every unit. `v_fresh` is `[rows, kv_heads * head_dim]`,
    /// `out` `[rows, heads * head_dim]`.
    pub fn weighted_values<'a, T: AttentionTasks>(
        &self,
        shape: &AttentionShape,
        units: impl Into<AttentionUnits<'a>>,
        probabilities: &[f32],
        v_fresh: &[T],
        v_cache: impl Into<KvCacheSlice<'a, T>>,
        out: impl Into<Columns<'a, T>>,
    ) {
        let (units, out) = (units.into(), out.into());
        let rows = check_rows(shape, out.len());
        check_scores(shape, units.units, probabilities.len());
        let tensors = Tensors {
            v: self.source(shape, units, rows, 1, v_fresh, v_cache.into()),
            scores_in: probabilities.as_ptr(),
            out: out.first(),
            ..Tensors::none()
        };
        self.attention_steps(shape, units, VALUES, &tensors);
    }

    /// Computes the three operations in one pass, bit-equal to them, without scores in memory; see
    /// [`Kernels::softmax`] for `sinks`.
    #[allow(clippy::too_many_arguments)] // The mathematical operands, each with its own name.
    pub fn attention<'a, T: AttentionTasks>(
        &self,
        shape: &AttentionShape,
        units: impl Into<AttentionUnits<'a>>,
        q: &[T],
        k_fresh: &[T],
        v_fresh: &[T],
        k_cache: impl Into<KvCacheSlice<'a, T>>,
        v_cache: impl Into<KvCacheSlice<'a, T>>,
        sinks: Option<&[f32]>,
        out: impl Into<Columns<'a, T>>,
    ) {
        let (units, out) = (units.into(), out.into());
        let rows = check_rows(shape, q.len());
        assert_eq!(out.len(), q.len(), "out is [rows, heads * head_dim]");
        let tensors = Tensors {
            q: q.as_ptr(),
            k: self.source(shape, units, rows, 0, k_fresh, k_cache.into()),
            v: self.source(shape, units, rows, 1, v_fresh, v_cache.into()),
            out: out.first(),
            sinks: check_sinks(shape, sinks),
            ..Tensors::none()
        };
        self.attention_steps(shape, units, FUSED, &tensors);
    }

    /// Copies the fresh rows of every unit, `[rows, kv_heads * head_dim]`, after its `past`
    /// positions, which are copied too if they are rows of this call. In a ring they replace the
    /// oldest positions, which the rows may still have to see: run attention first.
    pub fn append<'a, T: Number>(
        &self,
        shape: &AttentionShape,
        units: impl Into<AttentionUnits<'a>>,
        fresh: &[T],
        cache: &mut [T],
    ) {
        let AttentionShape { kv_heads, head_dim, .. } = *shape;
        let AttentionUnits { units, pages } = units.into();
        for unit in units {
            for (row, place) in unit.appended() {
                let from = (row * kv_heads + unit.kv_head as usize) * head_dim;
                let to = unit.cache_offset + pages.place(unit, kv_heads, place) * head_dim;
                cache[to..to + head_dim].copy_from_slice(&fresh[from..from + head_dim]);
            }
        }
    }

    /// Checks K or V (`place` 0 or 1) and returns its location; fresh rows for a quantised cache
    /// are quantised first.
    fn source<T: Number>(
        &self,
        shape: &AttentionShape,
        AttentionUnits { units, pages }: AttentionUnits<'_>,
        rows: usize,
        place: usize,
        fresh: &[T],
        cache: KvCacheSlice<'_, T>,
    ) -> KvSource<T> {
        self.check_units(shape, units, rows, fresh);
        let (cache_len, position) = match cache {
            KvCacheSlice::Plain(cache) => (cache.len(), shape.head_dim),
            KvCacheSlice::Records(format, cache) => {
                (cache.len(), record_bytes(format, shape.head_dim))
            }
        };
        for unit in units {
            let first = unit.cache_offset / shape.head_dim;
            let places = pages.end(unit, shape.kv_heads);
            let end = match cache {
                KvCacheSlice::Plain(_) => unit.cache_offset + places * position,
                KvCacheSlice::Records(..) => (first + places) * position,
            };
            assert!(places == 0 || end <= cache_len, "a unit's positions lie within the cache");
        }
        match cache {
            KvCacheSlice::Plain(cache) => {
                KvSource::Plain(KvPointers { fresh: fresh.as_ptr(), cache: cache.as_ptr() })
            }
            KvCacheSlice::Records(format, cache) => {
                let fresh = self.quantise_fresh(format, shape, place, fresh);
                KvSource::records(format, KvPointers { fresh, cache: cache.as_ptr() })
            }
        }
    }

    fn check_units<T>(
        &self,
        shape: &AttentionShape,
        units: &[AttentionUnit],
        rows: usize,
        fresh: &[T],
    ) {
        let AttentionShape { heads, kv_heads, head_dim, .. } = *shape;
        let limits = &self.limits;
        assert!(
            kv_heads > 0 && heads % kv_heads == 0,
            "query heads are a multiple of the KV heads"
        );
        check_window(shape);
        assert!(shape.group() <= limits.group, "the group is beyond the scratch limits");
        assert!(head_dim <= limits.head_dim, "head_dim is beyond the scratch limits");
        assert_eq!(fresh.len(), rows * kv_heads * head_dim, "k, v are [rows, kv_heads * head_dim]");
        for unit in units {
            assert!(unit.row0 as usize + unit.rows as usize <= rows, "a unit lies within the rows");
            let shared = unit.shared_row.map_or(0, |row| row as usize + unit.past as usize);
            assert!(shared <= rows, "shared positions lie within the rows");
            assert!((unit.kv_head as usize) < kv_heads, "a unit's KV head exists");
            assert!(unit.positions() <= limits.positions, "positions beyond the scratch limits");
            assert!(
                unit.shared_row.is_some()
                    || unit.cached() == unit.past
                    || unit.cached() as usize >= shape.max_seen(),
                "a ring of positions holds the window"
            );
        }
    }
}

/// Returns the number of rows of a `[rows, heads * head_dim]` slice.
fn check_rows(shape: &AttentionShape, len: usize) -> usize {
    let row = shape.heads * shape.head_dim;
    assert!(row > 0 && len.is_multiple_of(row), "rows of heads * head_dim elements");
    len / row
}

fn check_window(shape: &AttentionShape) {
    assert!(shape.max_seen() > 0, "a window has a position");
}

/// Returns the address of the sinks; null if there are none.
fn check_sinks(shape: &AttentionShape, sinks: Option<&[f32]>) -> *const f32 {
    sinks.map_or(std::ptr::null(), |sinks| {
        assert_eq!(sinks.len(), shape.heads, "there is a sink for each query head");
        sinks.as_ptr()
    })
}

fn check_scores(shape: &AttentionShape, units: &[AttentionUnit], len: usize) {
    check_window(shape);
    for unit in units {
        let end = unit.scores_offset + scores_len(shape, unit.rows as usize, unit.past as usize);
        assert!(end <= len, "a unit's scores lie within their buffer");
    }
}
