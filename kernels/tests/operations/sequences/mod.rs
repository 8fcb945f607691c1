//! Sequences with windows, rings of positions, quantised caches and sinks, for the attention tests.
//! Memory that a row must not see is NaN: in caches, in scores, in rings.
#![allow(dead_code, reason = "each test binary uses its part")]

use kernels::quant::{decode_kv, quantise_kv};
use kernels::{
    AttentionShape, AttentionUnit, AttentionUnits, Element, Kernels, KvCacheSlice, ScratchLimits,
    Variant, reference, scores_len,
};
use model::quantized_format::KvRecordFormat;

use crate::common::{Random, assert_close, poison, tolerance, values_tolerance};

/// Permitted errors of rounding queries, and weights, of 4-bit caches to 8 bits.
const FOUR_TOLERANCES: (f64, f64) = (4e-2, 6e-2);

/// All formats of caches; `None` is the run's own.
pub const FORMATS: [Option<KvRecordFormat>; 3] = [None, FOUR, EIGHT];
pub const FOUR: Option<KvRecordFormat> = Some(KvRecordFormat::Four);
pub const EIGHT: Option<KvRecordFormat> = Some(KvRecordFormat::Eight);

/// Parameters of the caches of a batch.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    pub window: Option<u32>,
    /// Number of places of each ring; 0 for one place per position.
    pub places: u32,
    pub format: Option<KvRecordFormat>,
    pub sinks: bool,
}

/// Ragged sequences, all KV heads as units.
#[derive(Debug, Clone)]
pub struct Batch<T> {
    pub shape: AttentionShape,
    pub units: Vec<AttentionUnit>,
    pub q: Vec<T>,
    /// K and V.
    pub fresh: [Vec<T>; 2],
    pub caches: [Kept<T>; 2],
    pub sinks: Option<Vec<f32>>,
    pub scores_len: usize,
}

/// A cache.
#[derive(Debug, Clone)]
pub enum Kept<T> {
    Plain(Vec<T>),
    Records(KvRecordFormat, Vec<u8>),
}

impl<T: Element> Kept<T> {
    /// Returns a cache for `positions` positions, all of them NaN.
    pub fn empty(positions: usize, head_dim: usize, format: Option<KvRecordFormat>) -> Self {
        match format {
            None => Kept::Plain(poison(positions * head_dim)),
            Some(format) => {
                let record = record_bytes(format, head_dim);
                Kept::Records(format, vec![0xff; positions * record])
            }
        }
    }

    /// Returns the format of the records; `None` for elements.
    pub fn format(&self) -> Option<KvRecordFormat> {
        match self {
            Kept::Plain(_) => None,
            Kept::Records(format, _) => Some(*format),
        }
    }

    /// Stores one position's head at `place`, counted in positions.
    pub fn put(&mut self, place: usize, head: &[T]) {
        match self {
            Kept::Plain(cache) => cache[place * head.len()..][..head.len()].copy_from_slice(head),
            Kept::Records(format, cache) => {
                let bytes = record_bytes(*format, head.len());
                let record = &mut cache[place * bytes..][..bytes];
                quantise_kv(Variant::Scalar, *format, head, head.len(), record);
            }
        }
    }

    /// Copies one position's head from a place of another cache of this kind.
    pub fn copy(&mut self, place: usize, from: &Kept<T>, from_place: usize, head_dim: usize) {
        match (self, from) {
            (Kept::Plain(to), Kept::Plain(from)) => to[place * head_dim..][..head_dim]
                .copy_from_slice(&from[from_place * head_dim..][..head_dim]),
            (Kept::Records(format, to), Kept::Records(other, from)) if format == other => {
                let bytes = record_bytes(*format, head_dim);
                to[place * bytes..][..bytes].copy_from_slice(&from[from_place * bytes..][..bytes]);
            }
            _ => panic!("both caches are of one kind"),
        }
    }

    /// Returns the decoded values of the cache.
    fn values(&self, head_dim: usize) -> Vec<f32> {
        match self {
            Kept::Plain(cache) => cache.iter().map(|value| value.to_f32()).collect(),
            Kept::Records(format, cache) => {
                let places = cache.len() / record_bytes(*format, head_dim);
                let mut out = vec![0.0; places * head_dim];
                decode_kv(*format, cache, head_dim, &mut out);
                out
            }
        }
    }

    /// Returns fresh rows as attention sees them with this cache.
    fn seen(&self, fresh: &[T], head_dim: usize) -> Vec<f32> {
        let mut kept = Kept::empty(fresh.len() / head_dim, head_dim, self.format());
        for (place, head) in fresh.chunks(head_dim).enumerate() {
            kept.put(place, head);
        }
        kept.values(head_dim)
    }
}

impl<'a, T> From<&'a Kept<T>> for KvCacheSlice<'a, T> {
    fn from(kept: &'a Kept<T>) -> Self {
        match kept {
            Kept::Plain(cache) => KvCacheSlice::Plain(cache),
            Kept::Records(format, cache) => KvCacheSlice::Records(*format, cache),
        }
    }
}

pub fn record_bytes(format: KvRecordFormat, head_dim: usize) -> usize {
    format.position_bytes(head_dim).expect("an even head")
}

/// Returns kernels with scratch for groups of 16, heads of 256 and a few thousand positions.
pub fn roomy_kernels(variant: Variant, threads: usize) -> Kernels {
    let limits =
        ScratchLimits { rows: 300, linear_inputs: 64, positions: 3200, group: 16, head_dim: 256 };
    Kernels::new(variant, threads, limits).expect("threads start")
}

/// Builds sequences of `(fresh rows, cached positions)`; `dims` are query heads, KV heads and
/// elements of a head.
pub fn batch<T: Element>(
    seed: u64,
    (heads, kv_heads, head_dim): (usize, usize, usize),
    sequences: &[(usize, usize)],
    options: Options,
) -> Batch<T> {
    let Options { window, places, format, sinks } = options;
    let scale = 1.0 / (head_dim as f32).sqrt();
    let shape = AttentionShape { heads, kv_heads, head_dim, scale, window };
    let mut random = Random::new(seed);
    let mut units = Vec::new();
    let (mut rows, mut cached, mut scores) = (0, 0, 0);
    for &(fresh, past) in sequences {
        for kv_head in 0..kv_heads {
            units.push(AttentionUnit {
                row0: rows as u32,
                rows: fresh as u32,
                past: past as u32,
                shared_row: None,
                kv_head: kv_head as u32,
                cache_offset: cached * head_dim,
                cache_positions: places,
                first_page: 0,
                scores_offset: scores,
            });
            cached += if places == 0 { past + fresh + 1 } else { places as usize };
            scores += scores_len(&shape, fresh, past);
        }
        rows += fresh;
    }
    let mut kept = || {
        let mut kept = Kept::empty(cached, head_dim, format);
        for unit in &units {
            let past = unit.past as usize;
            for position in shape.first_seen(past)..past {
                let place = if places == 0 { position } else { position % places as usize };
                let head = random.vector::<T>(head_dim);
                kept.put(unit.cache_offset / head_dim + place, &head);
            }
        }
        kept
    };
    let caches = [kept(), kept()];
    Batch {
        q: random.vector(rows * heads * head_dim),
        fresh: [(); 2].map(|()| random.vector(rows * kv_heads * head_dim)),
        caches,
        sinks: sinks.then(|| (0..heads).map(|_| 2.0 * random.unit()).collect()),
        scores_len: scores,
        shape,
        units,
    }
}

impl<T: Element> Batch<T> {
    pub fn fused<'a>(&self, kernels: &Kernels, units: impl Into<AttentionUnits<'a>>) -> Vec<T> {
        let mut out = poison::<T>(self.q.len());
        self.fused_into(kernels, units, &mut out);
        out
    }

    pub fn fused_into<'a>(
        &self,
        kernels: &Kernels,
        units: impl Into<AttentionUnits<'a>>,
        out: &mut [T],
    ) {
        let units = units.into();
        let ([k_fresh, v_fresh], [k, v]) = (&self.fresh, &self.caches);
        let sinks = self.sinks.as_deref();
        kernels.attention(&self.shape, units, &self.q, k_fresh, v_fresh, k, v, sinks, out);
    }

    /// Returns `(probabilities, values)` of the three separate operations.
    pub fn separate(&self, kernels: &Kernels) -> (Vec<f32>, Vec<T>) {
        self.separate_over(kernels, (&self.units).into())
    }

    /// Returns the results of the separate operations for units with pages.
    pub fn separate_over(
        &self,
        kernels: &Kernels,
        units: AttentionUnits<'_>,
    ) -> (Vec<f32>, Vec<T>) {
        let shape = &self.shape;
        let ([k_fresh, v_fresh], [k, v]) = (&self.fresh, &self.caches);
        let mut scores = poison::<f32>(self.scores_len);
        let mut probabilities = poison::<f32>(self.scores_len);
        let mut out = poison::<T>(self.q.len());
        kernels.scores(shape, units, &self.q, k_fresh, k, &mut scores);
        kernels.softmax(shape, units.units, &scores, self.sinks.as_deref(), &mut probabilities);
        kernels.weighted_values(shape, units, &probabilities, v_fresh, v, &mut out);
        (probabilities, out)
    }

    /// Compares all rows with the reference, and checks that nothing hidden was written.
    pub fn check_reference(
        &self,
        variant: Variant,
        (probabilities, out): (&[f32], &[T]),
        context: &str,
    ) {
        let AttentionShape { heads, head_dim, .. } = self.shape;
        let group = self.shape.group();
        let (of_probabilities, of_values) = match self.caches[0] {
            Kept::Records(KvRecordFormat::Four, _) => FOUR_TOLERANCES,
            // Nothing but K and V is rounded, and the reference reads the decoded ones.
            Kept::Plain(_) | Kept::Records(KvRecordFormat::Eight, _) => {
                (tolerance(), values_tolerance::<T>(variant))
            }
        };
        let q: Vec<f32> = self.q.iter().map(|value| value.to_f32()).collect();
        let seen = |kv: usize| {
            let cache = &self.caches[kv];
            (cache.seen(&self.fresh[kv], head_dim), cache.values(head_dim))
        };
        let (k, v) = (seen(0), seen(1));
        let sinks = self.sinks.as_deref();
        for unit in &self.units {
            let context = format!("{context} {unit:?}");
            let stride = (unit.past + unit.rows) as usize;
            let (k, v) = (
                reference::KvSlices { fresh: &k.0, cache: &k.1 },
                reference::KvSlices { fresh: &v.0, cache: &v.1 },
            );
            let expected = reference::attention(&self.shape, unit, &q, k, v, sinks);
            for (query, (expected_probabilities, expected)) in expected.iter().enumerate() {
                let end = unit.past as usize + query / group + 1;
                let start = end - expected_probabilities.len();
                let all = &probabilities[unit.scores_offset + query * stride..][..stride];
                let row = (end - start, 1.0);
                let actual = &all[start..end];
                assert_close(actual, expected_probabilities, row, of_probabilities, &context);
                let mut hidden = all[..start].iter().chain(&all[end..]);
                assert!(hidden.all(|value| value.is_nan()), "{context}: hidden, written");
                let row = unit.row0 as usize + query / group;
                let head = unit.kv_head as usize * group + query % group;
                let actual = &out[(row * heads + head) * head_dim..][..head_dim];
                assert_close(actual, expected, (head_dim, 0.1), of_values, &context);
            }
        }
    }
}

/// Computes the rows of a batch without cached positions in pieces over growing caches: the given
/// number of rows of every sequence per piece. See [`Options`] for `places`. In every piece the
/// separate operations are compared with the fused one.
pub fn in_pieces<T: Element>(
    whole: &Batch<T>,
    kernels: &Kernels,
    pieces: &[Vec<usize>],
    places: u32,
) -> Vec<T> {
    let AttentionShape { heads, kv_heads, head_dim, .. } = whole.shape;
    let of_sequence: Vec<&AttentionUnit> =
        whole.units.iter().filter(|unit| unit.kv_head == 0).collect();
    let most = of_sequence.iter().map(|unit| unit.rows).max().unwrap_or(0);
    let room = if places == 0 { most } else { places } as usize;
    let empty = Kept::empty(room * whole.units.len(), head_dim, whole.caches[0].format());
    let mut caches = [empty.clone(), empty];
    let mut past = vec![0; of_sequence.len()];
    let mut out = poison::<T>(whole.q.len());
    for piece in pieces {
        let mut part = Batch {
            units: Vec::new(),
            q: Vec::new(),
            fresh: [Vec::new(), Vec::new()],
            caches: caches.clone(),
            scores_len: 0,
            ..whole.clone()
        };
        let mut rows = 0;
        for (sequence, (&count, of)) in piece.iter().zip(&of_sequence).enumerate() {
            let first = of.row0 as usize + past[sequence];
            let rows_of = |values: &[T], heads: usize| {
                values[first * heads * head_dim..][..count * heads * head_dim].to_vec()
            };
            part.q.extend(rows_of(&whole.q, heads));
            for (to, from) in part.fresh.iter_mut().zip(&whole.fresh) {
                to.extend(rows_of(from, kv_heads));
            }
            for kv_head in 0..kv_heads {
                part.units.push(AttentionUnit {
                    row0: rows as u32,
                    rows: count as u32,
                    past: past[sequence] as u32,
                    shared_row: None,
                    kv_head: kv_head as u32,
                    cache_offset: (sequence * kv_heads + kv_head) * room * head_dim,
                    cache_positions: places,
                    first_page: 0,
                    scores_offset: part.scores_len,
                });
                part.scores_len += scores_len(&whole.shape, count, past[sequence]);
            }
            rows += count;
        }
        let fused = part.fused(kernels, &part.units);
        let (_, separate) = part.separate(kernels);
        let same = crate::common::bits(&fused) == crate::common::bits(&separate);
        assert!(same, "{piece:?} after {past:?}: separate differs from fused");
        append(&part, &mut caches);
        let mut row = 0;
        for (sequence, (&count, of)) in piece.iter().zip(&of_sequence).enumerate() {
            let (width, to) = (heads * head_dim, of.row0 as usize + past[sequence]);
            out[to * width..][..count * width]
                .copy_from_slice(&fused[row * width..][..count * width]);
            row += count;
            past[sequence] += count;
        }
    }
    out
}

/// Appends the fresh rows of a batch, a head at a time.
fn append<T: Element>(part: &Batch<T>, caches: &mut [Kept<T>; 2]) {
    let AttentionShape { kv_heads, head_dim, .. } = part.shape;
    for (cache, fresh) in caches.iter_mut().zip(&part.fresh) {
        for unit in &part.units {
            for (row, place) in unit.appended() {
                let head = &fresh[(row * kv_heads + unit.kv_head as usize) * head_dim..];
                cache.put(unit.cache_offset / head_dim + place, &head[..head_dim]);
            }
        }
    }
}
