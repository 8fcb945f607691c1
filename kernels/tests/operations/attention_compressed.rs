//! Tests of compressed entries, of their selection and of attention to them: against plain loops,
//! and bits that do not depend on how a sequence is divided or where its caches are.

use crate::common::{Random, bits, poison, variants};
use half::bf16;
use kernels::{
    AttentionPart, AttentionShape, AttentionUnit, AttentionUnits, CompressRules, CompressedSpan,
    Element, EntryIndexer, EntryPlaces, EntryQueries, EntryShape, IndexedPlaces, IndexedScratch,
    Kernels, PageLists, RopeTables, ScratchLimits, Variant,
};

const HEADS: usize = 3;
const VECTOR: usize = 20;
const WINDOW: usize = 11;
const EPS: f32 = 1e-5;
const POSITIONS: usize = 61;
const LIMITS: ScratchLimits =
    ScratchLimits { rows: 64, linear_inputs: 64, positions: 64, group: 6, head_dim: VECTOR };
const FREQUENCIES: [f32; 4] = [1.0, 0.4, 0.09, 0.013];
const SHAPE: AttentionShape =
    AttentionShape { heads: HEADS, kv_heads: 1, head_dim: VECTOR, scale: 0.3, window: None };
/// Pages of 16 positions, in an order of their own.
const PAGES: [u32; 4] = [2, 0, 3, 1];
const PAGE: usize = 16;

/// Caches of a sequence.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Caches {
    /// A ring of this number of positions, and the entries in order.
    Ring(usize),
    /// Both in pages.
    Pages,
}

impl Caches {
    fn unit(self, past: usize, rows: usize) -> AttentionUnit {
        let cache_positions = match self {
            Caches::Ring(ring) => ring as u32,
            Caches::Pages => 0,
        };
        AttentionUnit { cache_positions, ..unit(past, rows) }
    }

    fn pages(self, places: usize) -> PageLists<'static> {
        match self {
            Caches::Ring(_) => PageLists::default(),
            Caches::Pages => PageLists { page_positions: places as u32, pages: &PAGES },
        }
    }

    fn place(self, position: usize) -> usize {
        match self {
            Caches::Ring(ring) => position % ring,
            Caches::Pages => paged(position, PAGE),
        }
    }

    fn entry(self, number: usize, places: usize) -> usize {
        match self {
            Caches::Ring(_) => number,
            Caches::Pages => paged(number, places),
        }
    }
}

fn paged(place: usize, places: usize) -> usize {
    PAGES[place / places] as usize * places + place % places
}

fn unit(past: usize, rows: usize) -> AttentionUnit {
    AttentionUnit {
        row0: 0,
        rows: rows as u32,
        past: past as u32,
        shared_row: None,
        kv_head: 0,
        cache_offset: 0,
        cache_positions: 0,
        first_page: 0,
        scores_offset: 0,
    }
}

/// A sequence of a layer with entries, as all its rows would compute it.
struct Case<T> {
    shape: EntryShape,
    series: usize,
    places: Vec<T>,
    biases: Vec<f32>,
    gains: Vec<f32>,
    q: Vec<T>,
    queries: Vec<T>,
    weights: Vec<f32>,
    sinks: Vec<f32>,
}

/// Results of all rows of a sequence.
#[derive(Debug, PartialEq)]
struct Results {
    entries: Vec<u32>,
    selection: Vec<u32>,
    out: Vec<u32>,
}

impl<T: Element> Case<T> {
    fn new(rate: usize, indexer: Option<EntryIndexer>, seed: u64) -> Case<T> {
        let mut random = Random::new(seed);
        let series = if indexer.is_some() { 2 } else { 1 };
        let key = indexer.map_or(0, |indexer| indexer.head_dim);
        let entry = VECTOR + key;
        let place = VECTOR + 2 * series * entry;
        let shape = EntryShape { vector: VECTOR, place, entry, rate, window: WINDOW, indexer };
        let heads = indexer.map_or(0, |indexer| indexer.heads);
        Case {
            shape,
            series,
            places: random.vector(POSITIONS * place),
            biases: random.vector(rate * series * entry),
            gains: random.vector(entry),
            q: random.vector(POSITIONS * HEADS * VECTOR),
            queries: random.vector(POSITIONS * heads * key),
            weights: random.vector(POSITIONS * heads),
            sinks: random.vector(HEADS),
        }
    }

    /// Returns the first value of each span in a place, its first element in an entry, and its
    /// size.
    fn spans(&self) -> Vec<[usize; 3]> {
        let EntryShape { vector, entry, .. } = self.shape;
        let all = [[vector, 0, vector], [vector * (1 + 2 * self.series), vector, entry - vector]];
        all.into_iter().filter(|[.., size]| *size > 0).collect()
    }

    /// Computes all rows, in chunks.
    fn run(&self, kernels: &Kernels, chunk: usize, caches: Caches) -> Results {
        let EntryShape { place, entry, rate, indexer, .. } = self.shape;
        let mut scratch = IndexedScratch::for_entries(&[self.shape], kernels.threads(), &LIMITS, 4)
            .expect("a shape");
        let mut cache = vec![T::from_f32(f32::NAN); PAGES.len() * PAGE * place];
        let mut entry_cache = vec![T::from_f32(f32::NAN); PAGES.len() * PAGE / rate * entry];
        let top_k = indexer.map_or(0, |indexer| indexer.top_k);
        let (mut all_entries, mut selected) = (Vec::new(), Vec::new());
        let mut out = poison::<T>(self.q.len());
        for past in (0..POSITIONS).step_by(chunk) {
            let rows = chunk.min(POSITIONS - past);
            let (units, entry_units) = ([caches.unit(past, rows)], [unit(past, rows)]);
            let units = AttentionUnits { units: &units, pages: caches.pages(PAGE) };
            let entry_units =
                AttentionUnits { units: &entry_units, pages: caches.pages(PAGE / rate) };
            let fresh = &self.places[past * place..][..rows * place];
            let mut fresh_entries = vec![T::from_f32(f32::NAN); rows * entry];
            let positions = IndexedPlaces { fresh, cache: &cache };
            self.compress(kernels, units, positions, &mut fresh_entries);
            let entries = IndexedPlaces { fresh: &fresh_entries, cache: &entry_cache };
            let mut selection = vec![u32::MAX; rows * top_k];
            if let Some(indexer) = indexer {
                let range = |size: usize| past * size..(past + rows) * size;
                let from = EntryQueries {
                    queries: &self.queries[range(indexer.heads * indexer.head_dim)],
                    weights: &self.weights[range(indexer.heads)],
                    units: entry_units,
                    entries,
                };
                kernels.select_entries(&mut scratch, &self.shape, &from, &mut selection);
            }
            let places = EntryPlaces { units, positions, entry_units, entries };
            let of = past * HEADS * VECTOR..(past + rows) * HEADS * VECTOR;
            let part = AttentionPart::Fused {
                q: &self.q[of.clone()],
                sinks: Some(&self.sinks),
                out: (&mut out[of]).into(),
            };
            kernels.attend_to_entries(&mut scratch, &self.shape, &SHAPE, &places, &selection, part);
            for row in 0..rows {
                let position = past + row;
                let to = caches.place(position);
                cache[to * place..][..place].copy_from_slice(&fresh[row * place..][..place]);
                if (position + 1).is_multiple_of(rate) {
                    let to = caches.entry(position / rate, PAGE / rate);
                    let one = &fresh_entries[row * entry..][..entry];
                    entry_cache[to * entry..][..entry].copy_from_slice(one);
                    all_entries.extend_from_slice(one);
                }
                let count = top_k.min((position + 1) / rate);
                selected.extend_from_slice(&selection[row * top_k..][..count]);
            }
        }
        Results { entries: bits(&all_entries), selection: selected, out: bits(&out) }
    }

    fn compress(
        &self,
        kernels: &Kernels,
        units: AttentionUnits<'_>,
        places: IndexedPlaces<'_, T>,
        out: &mut [T],
    ) {
        let EntryShape { place, entry, rate, .. } = self.shape;
        let series = self.series;
        let spans: Vec<_> = self
            .spans()
            .into_iter()
            .map(|[values, first, size]| CompressedSpan {
                size,
                values,
                first,
                biases: &self.biases[rate * series * first..][..rate * series * size],
                gains: &self.gains[first..][..size],
            })
            .collect();
        let tables = RopeTables::whole(&FREQUENCIES);
        let rules = CompressRules { place, entry, rate, series, norm_eps: EPS, tables };
        kernels.compress(&rules, &spans, units, places, out);
    }

    /// Returns an entry, in f64.
    fn entry(&self, number: usize) -> Vec<f64> {
        let EntryShape { place, rate, .. } = self.shape;
        let number_of = |element: &T| f64::from(element.to_f32());
        let mut entry = Vec::new();
        for [values, first, size] in self.spans() {
            let sum = |channel: usize| {
                let mut terms = Vec::new();
                for series in 0..self.series {
                    let Some(group) = (number + series + 1).checked_sub(self.series) else {
                        continue;
                    };
                    for index in 0..rate {
                        let position = &self.places[(group * rate + index) * place..][..place];
                        let value = &position[values + series * size + channel];
                        let gate = &position[values + (self.series + series) * size + channel];
                        let of = (rate * first + index * size) * self.series;
                        let bias = self.biases[of + series * size + channel];
                        terms.push((number_of(gate) + f64::from(bias), number_of(value)));
                    }
                }
                let weights: f64 = terms.iter().map(|(gate, _)| gate.exp()).sum();
                terms.iter().map(|(gate, value)| gate.exp() * value).sum::<f64>() / weights
            };
            let sums: Vec<f64> = (0..size).map(sum).collect();
            let square = sums.iter().map(|x| x * x).sum::<f64>() / size as f64;
            let factor = 1.0 / (square + f64::from(EPS)).sqrt();
            let gains = &self.gains[first..];
            let mut normed: Vec<f64> =
                sums.iter().zip(gains).map(|(x, gain)| x * factor * f64::from(*gain)).collect();
            let half = FREQUENCIES.len();
            for (index, frequency) in FREQUENCIES.iter().enumerate() {
                let angle = (number * rate) as f64 * f64::from(*frequency);
                let (low, high) = (normed[index], normed[half + index]);
                normed[index] = low * angle.cos() - high * angle.sin();
                normed[half + index] = high * angle.cos() + low * angle.sin();
            }
            entry.extend(normed);
        }
        entry
    }

    /// Returns the result of a row's attention to some entries and its window, in f64.
    fn attention(&self, entries: &[f64], selected: &[u32], position: usize) -> Vec<f64> {
        let EntryShape { place, entry, .. } = self.shape;
        let number_of = |element: &T| f64::from(element.to_f32());
        let window = (position + 1).saturating_sub(WINDOW)..=position;
        let of_window = |one: usize| self.places[one * place..][..VECTOR].iter().map(number_of);
        let vectors =
            selected.iter().map(|one| entries[*one as usize * entry..][..VECTOR].to_vec());
        let vectors: Vec<Vec<f64>> =
            vectors.chain(window.map(|one| of_window(one).collect())).collect();
        let mut out = Vec::new();
        for head in 0..HEADS {
            let q = &self.q[(position * HEADS + head) * VECTOR..][..VECTOR];
            let score = |vector: &Vec<f64>| {
                let product: f64 = q.iter().zip(vector).map(|(q, x)| number_of(q) * x).sum();
                (product * f64::from(SHAPE.scale)).exp()
            };
            let scores: Vec<f64> = vectors.iter().map(score).collect();
            let all = scores.iter().sum::<f64>() + f64::from(self.sinks[head]).exp();
            for channel in 0..VECTOR {
                let terms = scores.iter().zip(&vectors).map(|(score, x)| score * x[channel]);
                out.push(terms.sum::<f64>() / all);
            }
        }
        out
    }
}

fn numbers(bits: &[u32]) -> Vec<f64> {
    bits.iter().map(|bits| f64::from(f32::from_bits(*bits))).collect()
}

fn assert_close(found: &[f64], expected: &[f64], tolerance: f64, context: &str) {
    assert_eq!(found.len(), expected.len(), "{context}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs();
        let bound = tolerance * expected.abs().max(1.0);
        assert!(error <= bound, "{context} at {index}: {found} and {expected}");
    }
}

fn check<T: Element>(rate: usize, indexer: Option<EntryIndexer>, tolerance: f64) {
    let case = Case::<T>::new(rate, indexer, 90 + rate as u64);
    for variant in variants("attention to entries") {
        let kernels = Kernels::new(variant, 2, LIMITS).expect("threads");
        let whole = case.run(&kernels, POSITIONS, Caches::Ring(WINDOW));
        let context = format!("{variant:?}, rate {rate}");
        let entries = numbers(&whole.entries);
        let expected: Vec<f64> =
            (0..POSITIONS / rate).flat_map(|number| case.entry(number)).collect();
        assert_close(&entries, &expected, tolerance, &context);
        let out = numbers(&whole.out);
        let mut selected = whole.selection.iter().copied();
        for position in 0..POSITIONS {
            let count = (position + 1) / rate;
            let list: Vec<u32> = match indexer {
                None => (0..count as u32).collect(),
                Some(indexer) => selected.by_ref().take(count.min(indexer.top_k)).collect(),
            };
            check_selection(&case, &entries, &list, position, &context);
            let found = &out[position * HEADS * VECTOR..][..HEADS * VECTOR];
            let context = format!("{context}, position {position}");
            let expected = case.attention(&entries, &list, position);
            assert_close(found, &expected, tolerance, &context);
        }
        for chunk in [1, 3, 7, 24] {
            for caches in [Caches::Ring(WINDOW), Caches::Ring(WINDOW + 4), Caches::Pages] {
                let divided = case.run(&kernels, chunk, caches);
                assert!(divided == whole, "{context}, chunks of {chunk}, {caches:?}");
            }
        }
    }
}

/// Checks that a row selects the entries with the highest scores.
fn check_selection<T: Element>(
    case: &Case<T>,
    entries: &[f64],
    list: &[u32],
    position: usize,
    context: &str,
) {
    let Some(EntryIndexer { heads, head_dim, top_k }) = case.shape.indexer else { return };
    let count = (position + 1) / case.shape.rate;
    assert_eq!(list.len(), count.min(top_k), "{context}");
    assert!(list.is_sorted_by(|a, b| a < b), "{context}: {list:?}");
    let score = |number: usize| -> f64 {
        let key = &entries[number * case.shape.entry + VECTOR..][..head_dim];
        let of_head = |head: usize| {
            let query = &case.queries[(position * heads + head) * head_dim..][..head_dim];
            let product: f64 = query.iter().zip(key).map(|(q, k)| f64::from(q.to_f32()) * k).sum();
            f64::from(case.weights[position * heads + head]) * product.max(0.0)
        };
        (0..heads).map(of_head).sum()
    };
    let is_in = |number: &usize| list.contains(&(*number as u32));
    let lowest = (0..count).filter(is_in).map(score).fold(f64::INFINITY, f64::min);
    let highest = (0..count).filter(|one| !is_in(one)).map(score).fold(f64::NEG_INFINITY, f64::max);
    assert!(lowest >= highest - 1e-4, "{context}: {lowest} and {highest}");
}

#[test]
fn rows_attend_to_all_entries_and_a_window() {
    check::<f32>(8, None, 2e-5);
    check::<bf16>(8, None, 2e-2);
}

#[test]
fn rows_attend_to_selected_entries_of_overlapping_groups() {
    let indexer = Some(EntryIndexer { heads: 5, head_dim: 12, top_k: 4 });
    check::<f32>(4, indexer, 2e-5);
    check::<bf16>(4, indexer, 2e-2);
}

/// Scores, softmax and weighted sums apart have the bits of one pass.
#[test]
fn parts_of_attention_equal_the_whole() {
    let case = Case::<f32>::new(4, None, 7);
    let kernels = Kernels::new(Variant::Scalar, 1, LIMITS).expect("threads");
    let whole = case.run(&kernels, POSITIONS, Caches::Pages);
    let entries: Vec<f32> = whole.entries.iter().map(|bits| f32::from_bits(*bits)).collect();
    let (place, past) = (case.shape.place, POSITIONS - 1);
    let unit = unit(past, 1);
    let units = [unit];
    let no_entry = vec![0.0; case.shape.entry];
    let places = EntryPlaces {
        units: (&units).into(),
        positions: IndexedPlaces { fresh: &case.places[past * place..], cache: &case.places },
        entry_units: (&units).into(),
        entries: IndexedPlaces { fresh: &no_entry, cache: &entries },
    };
    let mut scratch = IndexedScratch::for_entries(&[case.shape], 1, &LIMITS, 4).expect("a shape");
    let listed = WINDOW + POSITIONS / 4;
    let mut scores = vec![f32::NAN; HEADS * listed];
    let q = &case.q[past * HEADS * VECTOR..];
    let part = AttentionPart::Scores { q, out: &mut scores };
    kernels.attend_to_entries(&mut scratch, &case.shape, &SHAPE, &places, &[], part);
    let of_listed = [AttentionUnit { past: listed as u32 - 1, ..unit }];
    let mut probabilities = vec![f32::NAN; scores.len()];
    kernels.softmax(&SHAPE, &of_listed, &scores, Some(&case.sinks), &mut probabilities);
    let mut out = vec![f32::NAN; HEADS * VECTOR];
    let part = AttentionPart::Values { probabilities: &probabilities, out: (&mut out).into() };
    kernels.attend_to_entries(&mut scratch, &case.shape, &SHAPE, &places, &[], part);
    assert_eq!(bits(&out), whole.out[past * HEADS * VECTOR..]);
}
