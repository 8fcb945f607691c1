//! Attention of single rows to some of their cached positions (InfiniGen, as in Park-Egger §5.6).
//!
//! In addition to keys, a cache stores *partial keys* (`partial.rs`). A row's query is multiplied
//! with these; the row sees its recent positions and those that its KV head chooses by these scores
//! (`rule.rs`). Their K and V are copied to contiguous memory, in the order of their positions, and
//! the kernels for whole caches attend to them as positions of a sequence that has no others. A row
//! that chooses all positions therefore has the bits of attention to all, and takes that path.
//!
//! Every (row, KV head) chooses independently: its bits depend on that row alone.

mod partial;
mod rule;

use half::bf16;

use super::compiled::AttentionTasks;
use super::pages::AttentionUnits;
use super::shape::{AttentionShape, AttentionUnit, KvCacheSlice, record_bytes};
use crate::Kernels;
use crate::columns::Columns;
use crate::number::Number;
use crate::scratch::{AlignedBuffer, ScratchLimits, SharedPointer, ThreadScratch};
use crate::variant::Variant;
use partial::{ApproximateScores, PartialKeys, partial_query};

pub use partial::partial_key;
pub use rule::SelectRule;

/// Maximum number of units that are gathered at a time, and maximum bytes of their K and V, unless
/// the threads need more.
const MAX_WAVE_UNITS: usize = 32;
const MAX_WAVE_BYTES: usize = 64 << 20;

/// Rows and caches of a call of attention; see [`Kernels::attention`].
#[derive(Debug, Clone, Copy)]
pub struct AttentionOperands<'a, T> {
    pub q: &'a [T],
    pub k_fresh: &'a [T],
    pub v_fresh: &'a [T],
    pub k_cache: KvCacheSlice<'a, T>,
    pub v_cache: KvCacheSlice<'a, T>,
}

/// Operands of selection in addition to those of attention.
#[derive(Debug, Clone, Copy)]
pub struct PartialKeyOperands<'a> {
    /// Partial keys of the layer's caches, in the order of their places; a unit's first is
    /// `cache_offset / head_dim`.
    pub keys: &'a [bf16],
    /// Factors of queries and keys for each KV head, `[head_dim, columns]`.
    pub skew: &'a [f32],
    /// Number of columns, a multiple of 8.
    pub columns: usize,
}

/// Numbers of positions of all units of a call, including the rows' own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SelectionCounts {
    /// Positions that were attended to.
    pub attended: u64,
    /// Positions that exist.
    pub existing: u64,
}

/// The selection rule and its scratch, which is allocated once.
#[derive(Debug)]
pub struct Selection {
    rule: SelectRule,
    /// Limits that the scratch is sized for, and bytes of a position of K, and of V.
    limits: ScratchLimits,
    position_bytes: usize,
    /// Scratch of each thread: a unit's scores, its partial queries, then positions in the order of
    /// choice.
    per_thread: ThreadScratch,
    /// Number of cached positions that each unit of a wave sees; [`ALL_POSITIONS`] for all.
    seen: Vec<u32>,
    /// Gathered K and V, one unit after the other.
    gathered: [AlignedBuffer; 2],
    /// Maximum number of gathered positions of a unit.
    capacity: usize,
    /// Units of a wave over gathered positions, and those that see all positions.
    units: Vec<AttentionUnit>,
    whole: Vec<AttentionUnit>,
}

/// Marks a unit that sees all positions.
const ALL_POSITIONS: u32 = u32::MAX;

impl Selection {
    /// Allocates scratch for `threads` threads and rows within `limits`, whose positions take at
    /// most `position_bytes` bytes each of K, and of V.
    ///
    /// # Panics
    /// If a row does not see itself by the rule.
    pub fn new(
        rule: SelectRule,
        threads: usize,
        limits: &ScratchLimits,
        position_bytes: usize,
    ) -> Selection {
        assert!(rule.recent > 0, "a row sees its own position");
        let last = limits.positions.saturating_sub(1);
        let capacity = rule.max_selected(last) + rule.recent as usize;
        let unit_bytes = (2 * capacity * position_bytes).max(1);
        let wave = (MAX_WAVE_BYTES / unit_bytes).clamp(threads, MAX_WAVE_UNITS.max(threads));
        let gathered = || AlignedBuffer::new((wave * capacity * position_bytes).div_ceil(4));
        let of_thread = limits.group * (limits.positions + limits.head_dim) + limits.positions;
        Selection {
            rule,
            limits: *limits,
            position_bytes,
            per_thread: ThreadScratch::new(threads, of_thread),
            seen: vec![ALL_POSITIONS; wave],
            gathered: [gathered(), gathered()],
            capacity,
            units: Vec::with_capacity(wave),
            whole: Vec::with_capacity(wave),
        }
    }

    /// Checks that the call satisfies the assumptions of the scratch.
    ///
    /// # Panics
    /// If units are not single rows with caches of their own, or exceed the scratch.
    fn check(&self, shape: &AttentionShape, units: &[AttentionUnit], position_bytes: usize) {
        let ScratchLimits { positions, group, head_dim, .. } = self.limits;
        let is_within = shape.group() <= group
            && shape.head_dim <= head_dim
            && position_bytes <= self.position_bytes;
        assert!(is_within, "heads are beyond the scratch of the selection");
        for unit in units {
            let is_single =
                unit.rows == 1 && unit.shared_row.is_none() && unit.cache_positions == 0;
            assert!(is_single, "units are rows with caches of their own");
            let is_within = unit.positions() <= positions;
            assert!(is_within, "positions are beyond the scratch of the selection");
        }
    }
}

/// A wave of units while each chooses and gathers.
struct Wave<'a, T> {
    variant: Variant,
    shape: &'a AttentionShape,
    units: &'a [AttentionUnit],
    rule: SelectRule,
    q: &'a [T],
    skew: &'a [f32],
    partial: PartialKeys<'a>,
    caches: [&'a [u8]; 2],
    position_bytes: usize,
    per_thread: &'a ThreadScratch,
    gathered: [SharedPointer<u8>; 2],
    seen: SharedPointer<u32>,
    capacity: usize,
}

impl<T: Number> Wave<'_, T> {
    /// Chooses for a unit and gathers.
    ///
    /// # Safety
    /// Each unit has one call, on the thread that it names; scratch is sized by [`Selection::new`],
    /// and the unit is within its limits.
    unsafe fn run(&self, index: usize, thread: usize) {
        let unit = self.units[index];
        let position = unit.past as usize;
        let older = self.rule.older(position);
        let group = self.shape.group();
        let scratch = self.per_thread.for_thread(thread);
        // SAFETY: this thread alone uses its scratch, whose parts are consecutive; no other thread
        // writes this unit's count.
        let (scores, queries, order, seen) = unsafe {
            let queries = scratch.add(group * older);
            let order = queries.add(group * self.partial.columns).cast::<u32>();
            (
                std::slice::from_raw_parts_mut(scratch, group * older),
                std::slice::from_raw_parts_mut(queries, group * self.partial.columns),
                std::slice::from_raw_parts_mut(order, older),
                &mut *self.seen.pointer().add(index),
            )
        };
        if older == 0 {
            *seen = ALL_POSITIONS;
            return;
        }
        self.queries(&unit, queries);
        let (partial, queries) = (self.partial, &*queries);
        let approximate = ApproximateScores { unit, queries, partial, positions: older, scores };
        approximate.compute(self.variant);
        let chosen = self.rule.choose(position, scores, order);
        *seen = ALL_POSITIONS;
        if chosen < older {
            *seen = (chosen + position - older) as u32;
            let recent = older as u32..unit.past;
            let all = order[..chosen].iter().copied().chain(recent);
            // SAFETY: the caller's promise; units have disjoint parts of what is gathered.
            unsafe { self.gather(index, &unit, all) };
        }
    }

    fn queries(&self, unit: &AttentionUnit, to: &mut [f32]) {
        let AttentionShape { heads, head_dim, scale, .. } = *self.shape;
        let columns = self.partial.columns;
        let kv_head = unit.kv_head as usize;
        let skew = &self.skew[kv_head * head_dim * columns..][..head_dim * columns];
        let first = (unit.row0 as usize * heads + kv_head * self.shape.group()) * head_dim;
        for (head, to) in to.chunks_exact_mut(columns).enumerate() {
            let query = &self.q[first + head * head_dim..][..head_dim];
            partial_query(query, skew, scale, to);
        }
    }

    /// Copies K and V of `positions`, which are cached, to contiguous memory.
    ///
    /// # Safety
    /// There is space for them at the unit's place, which no other thread writes.
    unsafe fn gather(
        &self,
        index: usize,
        unit: &AttentionUnit,
        positions: impl Iterator<Item = u32>,
    ) {
        let bytes = self.position_bytes;
        let first = unit.cache_offset / self.shape.head_dim;
        for (to, position) in (index * self.capacity..).zip(positions) {
            let place = self.partial.pages.place(unit, self.shape.kv_heads, position as usize);
            for (cache, gathered) in self.caches.iter().zip(self.gathered) {
                let from = &cache[(first + place) * bytes..][..bytes];
                // SAFETY: the caller's promise.
                unsafe {
                    let to = gathered.pointer().add(to * bytes);
                    to.copy_from_nonoverlapping(from.as_ptr(), bytes);
                }
            }
        }
    }
}

impl Kernels {
    /// Runs [`Kernels::attention`] of units of one row each, whose caches are whole and no rings,
    /// on the positions that each chooses by `selection`'s rule. All caches have one format.
    ///
    /// # Panics
    /// If units are of another kind, or exceed the limits of `selection`.
    pub fn attention_selected<'a, T: AttentionTasks>(
        &self,
        selection: &mut Selection,
        shape: &AttentionShape,
        units: impl Into<AttentionUnits<'a>>,
        operands: AttentionOperands<'a, T>,
        partial: PartialKeyOperands<'a>,
        out: impl Into<Columns<'a, T>>,
    ) -> SelectionCounts {
        let (AttentionUnits { units, pages }, out) = (units.into(), out.into());
        let AttentionShape { kv_heads, head_dim, .. } = *shape;
        let AttentionOperands { q, k_fresh, v_fresh, k_cache, v_cache } = operands;
        let PartialKeyOperands { skew, columns, .. } = partial;
        assert!(shape.window.is_none(), "a window is no choice");
        assert!(columns <= head_dim && columns.is_multiple_of(8), "columns in eights");
        assert_eq!(skew.len(), kv_heads * head_dim * columns, "a skew for each KV head");
        let position_bytes = position_bytes(k_cache, head_dim);
        selection.check(shape, units, position_bytes);
        let mut selected = SelectionCounts::default();
        for wave in units.chunks(selection.seen.len()) {
            let wave_units = AttentionUnits { units: wave, pages };
            self.choose(selection, shape, wave_units, &operands, &partial);
            let Selection { seen, units, whole, gathered, capacity, .. } = selection;
            units.clear();
            whole.clear();
            for (index, (unit, seen)) in wave.iter().zip(seen.iter()).enumerate() {
                selected.existing += u64::from(unit.past) + 1;
                if *seen == ALL_POSITIONS {
                    selected.attended += u64::from(unit.past) + 1;
                    whole.push(*unit);
                    continue;
                }
                selected.attended += u64::from(*seen) + 1;
                let cache_offset = index * *capacity * head_dim;
                units.push(AttentionUnit { past: *seen, cache_offset, first_page: 0, ..*unit });
            }
            let columns = || {
                // SAFETY: the calls write the columns of different units, one after the other.
                unsafe { Columns::new(out.first(), out.len()) }
            };
            if !whole.is_empty() {
                let units = AttentionUnits { units: whole, pages };
                let (k, v) = (k_cache, v_cache);
                self.attention(shape, units, q, k_fresh, v_fresh, k, v, None, columns());
            }
            if !units.is_empty() {
                let used = wave.len() * *capacity * position_bytes;
                let [k, v] =
                    [&gathered[0], &gathered[1]].map(|part| gathered_cache(k_cache, part, used));
                self.attention(shape, &*units, q, k_fresh, v_fresh, k, v, None, columns());
            }
        }
        selected
    }

    /// Lets every unit of a wave choose, and gathers the chosen positions.
    fn choose<T: AttentionTasks>(
        &self,
        selection: &mut Selection,
        shape: &AttentionShape,
        AttentionUnits { units, pages }: AttentionUnits<'_>,
        operands: &AttentionOperands<'_, T>,
        partial: &PartialKeyOperands<'_>,
    ) {
        let AttentionShape { kv_heads, head_dim, .. } = *shape;
        let AttentionOperands { q, k_cache, v_cache, .. } = *operands;
        let PartialKeyOperands { keys, skew, columns } = *partial;
        let partial = PartialKeys { keys, columns, kv_heads, head_dim, pages };
        let Selection { rule, per_thread, seen, gathered, capacity, .. } = selection;
        let wave = Wave {
            variant: self.variant,
            shape,
            units,
            rule: *rule,
            q,
            skew,
            partial,
            caches: [bytes(k_cache), bytes(v_cache)],
            position_bytes: position_bytes(k_cache, head_dim),
            per_thread,
            gathered: [&gathered[0], &gathered[1]]
                .map(|part| SharedPointer(part.as_mut_ptr().cast())),
            seen: SharedPointer(seen.as_mut_ptr()),
            capacity: *capacity,
        };
        let cached: usize = units.iter().map(|unit| unit.past as usize).sum();
        self.run_attention(
            units.len(),
            cached * partial.columns * size_of::<bf16>(),
            &|task, thread| {
                // SAFETY: a task for each unit; units are within the limits of the scratch.
                unsafe { wave.run(task, thread) }
            },
        );
    }
}

/// Returns a cache as bytes.
fn bytes<T: Number>(cache: KvCacheSlice<'_, T>) -> &[u8] {
    match cache {
        KvCacheSlice::Plain(cache) => bytemuck::cast_slice(cache),
        KvCacheSlice::Records(_, cache) => cache,
    }
}

/// Returns the bytes of a position of a KV head.
fn position_bytes<T>(cache: KvCacheSlice<'_, T>, head_dim: usize) -> usize {
    match cache {
        KvCacheSlice::Plain(_) => head_dim * size_of::<T>(),
        KvCacheSlice::Records(format, _) => record_bytes(format, head_dim),
    }
}

/// Returns the gathered positions as a cache in the format of `like`.
fn gathered_cache<'a, T: Number>(
    like: KvCacheSlice<'_, T>,
    part: &'a AlignedBuffer,
    size_bytes: usize,
) -> KvCacheSlice<'a, T> {
    assert!(size_bytes <= part.len() * size_of::<f32>(), "what is gathered has room");
    // SAFETY: needed to view scratch as the cache that it is; it is aligned to 64 bytes, its bytes
    // are initialised, and it is not written while the view lives.
    let bytes = unsafe { std::slice::from_raw_parts(part.as_mut_ptr().cast::<u8>(), size_bytes) };
    match like {
        KvCacheSlice::Plain(_) => KvCacheSlice::Plain(bytemuck::cast_slice(bytes)),
        KvCacheSlice::Records(format, _) => KvCacheSlice::Records(format, bytes),
    }
}
