//! Tests of selections by an indexer and of attention to them: against plain loops, the bits of
//! attention to all positions where all are selected, and bits that depend on a row alone.

use crate::common::{Random, bits, poison, variants};
use half::bf16;
use kernels::{
    AttentionPart, AttentionShape, AttentionUnit, AttentionUnits, Element, IndexedPlaces,
    IndexedScratch, IndexedShape, Kernels, PageLists, ScratchLimits, Variant,
};

const HEADS: usize = 5;
const VECTOR: usize = 40;
const LIMITS: ScratchLimits =
    ScratchLimits { rows: 64, linear_inputs: 64, positions: 2200, group: 6, head_dim: VECTOR };
const SHAPE: AttentionShape =
    AttentionShape { heads: HEADS, kv_heads: 1, head_dim: VECTOR, scale: 0.3, window: None };

fn indexed(top_k: usize) -> IndexedShape {
    IndexedShape { vector: VECTOR, place: VECTOR + 12, heads: 6, head_dim: 12, top_k }
}

/// Sequences of some past positions and rows, whose positions are in `places`.
struct Case<T> {
    shape: IndexedShape,
    units: Vec<AttentionUnit>,
    /// Places of each sequence's positions.
    sequences: Vec<Vec<T>>,
    fresh: Vec<T>,
    cache: Vec<T>,
    q: Vec<T>,
    queries: Vec<T>,
    weights: Vec<f32>,
}

impl<T: Element> Case<T> {
    /// Creates sequences of `(past, rows)`.
    fn new(top_k: usize, lengths: &[(usize, usize)], seed: u64) -> Case<T> {
        let (shape, mut random) = (indexed(top_k), Random::new(seed));
        let place = shape.place;
        let (mut units, mut sequences) = (Vec::new(), Vec::new());
        let (mut fresh, mut cache) = (Vec::new(), Vec::new());
        for (past, rows) in lengths {
            let all: Vec<T> = random.vector((past + rows) * place);
            units.push(AttentionUnit {
                row0: (fresh.len() / place) as u32,
                rows: *rows as u32,
                past: *past as u32,
                shared_row: None,
                kv_head: 0,
                cache_offset: cache.len(),
                cache_positions: 0,
                first_page: 0,
                scores_offset: 0,
            });
            cache.extend_from_slice(&all[..past * place]);
            fresh.extend_from_slice(&all[past * place..]);
            sequences.push(all);
        }
        let rows = fresh.len() / place;
        let q = random.vector(rows * HEADS * VECTOR);
        let queries = random.vector(rows * shape.heads * shape.head_dim);
        let weights = random.vector(rows * shape.heads);
        Case { shape, units, sequences, fresh, cache, q, queries, weights }
    }

    fn rows(&self) -> usize {
        self.fresh.len() / self.shape.place
    }

    /// Returns the selection and the result.
    fn run(&self, kernels: &Kernels, units: AttentionUnits<'_>, cache: &[T]) -> (Vec<u32>, Vec<T>) {
        let mut scratch = IndexedScratch::new(self.shape, kernels.threads(), &LIMITS, 4);
        let places = IndexedPlaces { fresh: &self.fresh, cache };
        let mut selection = vec![u32::MAX; self.rows() * self.shape.top_k];
        let (queries, weights) = (&self.queries, &self.weights);
        kernels.select_positions(
            &mut scratch,
            &self.shape,
            units,
            queries,
            weights,
            places,
            &mut selection,
        );
        let mut out = poison::<T>(self.q.len());
        let part = AttentionPart::Fused { q: &self.q, sinks: None, out: (&mut out).into() };
        kernels.attend_to_selection(
            &mut scratch,
            &self.shape,
            &SHAPE,
            units,
            places,
            &selection,
            part,
        );
        (selection, out)
    }

    fn whole(&self, kernels: &Kernels) -> (Vec<u32>, Vec<T>) {
        self.run(kernels, (&self.units).into(), &self.cache)
    }

    /// Returns the scores of a row of a unit at all positions up to its own, in f64.
    fn scores(&self, index: usize, row: usize) -> Vec<f64> {
        let IndexedShape { vector, place, heads, head_dim, .. } = self.shape;
        let unit = &self.units[index];
        let at = unit.row0 as usize + row;
        let number = |element: &T| f64::from(element.to_f32());
        let score = |position: usize| {
            let key = &self.sequences[index][position * place + vector..][..head_dim];
            let of_head = |head: usize| {
                let query = &self.queries[(at * heads + head) * head_dim..][..head_dim];
                let product: f64 = query.iter().zip(key).map(|(q, k)| number(q) * number(k)).sum();
                f64::from(self.weights[at * heads + head]) * product.max(0.0)
            };
            (0..heads).map(of_head).sum()
        };
        (0..=unit.past as usize + row).map(score).collect()
    }

    /// Checks that every selection is of the highest scores, and that every result is attention to
    /// what is selected.
    fn check(&self, selection: &[u32], out: &[T], context: &str) {
        let IndexedShape { place, top_k, .. } = self.shape;
        for (index, unit) in self.units.iter().enumerate() {
            for row in 0..unit.rows as usize {
                let (own, at) = (unit.past as usize + row, unit.row0 as usize + row);
                let count = top_k.min(own + 1);
                let selected = &selection[at * top_k..][..count];
                assert!(selected.is_sorted_by(|a, b| a < b), "{context}: {selected:?}");
                assert!(selected[count - 1] as usize <= own, "{context}: after the row");
                let scores = self.scores(index, row);
                let is_in = |position: usize| selected.contains(&(position as u32));
                let lowest = selected.iter().map(|one| scores[*one as usize]);
                let lowest = lowest.fold(f64::INFINITY, f64::min);
                let others = (0..=own).filter(|one| !is_in(*one)).map(|one| scores[one]);
                let highest = others.fold(f64::NEG_INFINITY, f64::max);
                assert!(lowest >= highest - 1e-4, "{context}: {lowest} and {highest}");
                let vectors: Vec<&[T]> = selected
                    .iter()
                    .map(|one| &self.sequences[index][*one as usize * place..][..VECTOR])
                    .collect();
                for head in 0..HEADS {
                    let first = (at * HEADS + head) * VECTOR;
                    let expected = attended(&self.q[first..][..VECTOR], &vectors);
                    let tolerance = 2.0 * crate::common::values_tolerance::<T>(Variant::Avx512Bf16);
                    let found = &out[first..][..VECTOR];
                    crate::common::assert_close(
                        found,
                        &expected,
                        (VECTOR, 0.3),
                        tolerance,
                        context,
                    );
                }
            }
        }
    }
}

/// Returns attention of a head to some vectors, in f64.
fn attended<T: Element>(q: &[T], vectors: &[&[T]]) -> Vec<f64> {
    let number = |element: &T| f64::from(element.to_f32());
    let dot = |vector: &&[T]| -> f64 {
        q.iter().zip(*vector).map(|(q, k)| number(q) * number(k)).sum::<f64>()
            * f64::from(SHAPE.scale)
    };
    let scores: Vec<f64> = vectors.iter().map(dot).collect();
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - top).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let of_column = |column: usize| {
        let all = weights.iter().zip(vectors);
        all.map(|(weight, vector)| weight * number(&vector[column])).sum::<f64>() / sum
    };
    (0..VECTOR).map(of_column).collect()
}

fn new_kernels(variant: Variant, threads: usize) -> Kernels {
    Kernels::new(variant, threads, LIMITS).expect("threads start")
}

/// Lengths of sequences: without past and with it, within what is selected and beyond.
const LENGTHS: [(usize, usize); 6] = [(0, 1), (0, 19), (3, 6), (12, 1), (300, 5), (1500, 2)];

fn check_all<T: Element>(variant: Variant) {
    for top_k in [1, 2, 7, 33, 1100] {
        let case = Case::<T>::new(top_k, &LENGTHS, top_k as u64);
        let (selection, out) = case.whole(&new_kernels(variant, 1));
        case.check(&selection, &out, &format!("{variant:?}, {top_k} selected"));
        let (same_selection, same) = case.whole(&new_kernels(variant, 3));
        assert_eq!(bits(&same), bits(&out), "{variant:?}: threads change bits");
        let written = |selection: &[u32]| {
            selection.iter().filter(|one| **one != u32::MAX).copied().collect::<Vec<u32>>()
        };
        assert_eq!(written(&same_selection), written(&selection), "{variant:?}");
    }
}

#[test]
fn the_highest_scores_are_selected_and_attended_to() {
    for variant in variants("attention_indexed") {
        check_all::<f32>(variant);
        check_all::<bf16>(variant);
    }
}

fn check_dense<T: Element>(variant: Variant) {
    let case = Case::<T>::new(2048, &LENGTHS, 5);
    let kernels = new_kernels(variant, 2);
    let (_, found) = case.whole(&kernels);
    let vectors = |places: &[T]| -> Vec<T> {
        places.chunks(case.shape.place).flat_map(|place| place[..VECTOR].to_vec()).collect()
    };
    let (fresh, cache) = (vectors(&case.fresh), vectors(&case.cache));
    let of_vectors = |offset: usize| offset / case.shape.place * VECTOR;
    let units = case.units.iter();
    let units: Vec<AttentionUnit> = units
        .map(|unit| AttentionUnit { cache_offset: of_vectors(unit.cache_offset), ..*unit })
        .collect();
    let mut expected = poison::<T>(case.q.len());
    let (k, out) = (&cache, &mut expected);
    kernels.attention(&SHAPE, &units, &case.q, &fresh, &fresh, k, k, None, out);
    assert_eq!(bits(&found), bits(&expected), "{variant:?}");
}

#[test]
fn rows_that_select_all_positions_have_the_bits_of_attention_to_all() {
    for variant in variants("attention_indexed") {
        check_dense::<f32>(variant);
        check_dense::<bf16>(variant);
    }
}

/// A row's bits are those that it has in a step of its own, after positions that are cached by
/// then, and in pages.
#[test]
fn bits_depend_on_neither_chunks_nor_pages() {
    const PAGE: usize = 16;
    for variant in variants("attention_indexed") {
        let case = Case::<f32>::new(9, &[(21, 17), (0, 30)], 3);
        let kernels = new_kernels(variant, 2);
        let (selection, out) = case.whole(&kernels);
        let place = case.shape.place;
        // Pages of both sequences with all positions, in descending order.
        let counts: Vec<usize> =
            case.sequences.iter().map(|all| (all.len() / place).div_ceil(PAGE)).collect();
        let pages: Vec<u32> = (0..counts.iter().sum::<usize>() as u32).rev().collect();
        let mut cache = poison::<f32>(pages.len() * PAGE * place);
        for (index, all) in case.sequences.iter().enumerate() {
            let first: usize = counts[..index].iter().sum();
            for (position, from) in all.chunks(place).enumerate() {
                let page = pages[first + position / PAGE] as usize;
                cache[(page * PAGE + position % PAGE) * place..][..place].copy_from_slice(from);
            }
        }
        for (index, unit) in case.units.iter().enumerate() {
            let first_page = counts[..index].iter().sum::<usize>() as u32;
            for row in 0..unit.rows {
                let single = AttentionUnit {
                    row0: unit.row0 + row,
                    rows: 1,
                    past: unit.past + row,
                    cache_offset: 0,
                    first_page,
                    ..*unit
                };
                let lists = PageLists { page_positions: PAGE as u32, pages: &pages };
                let units = AttentionUnits { units: &[single], pages: lists };
                let (own_selection, own) = case.run(&kernels, units, &cache);
                let at = single.row0 as usize;
                let of_row = at * 9..(at + 1) * 9;
                assert_eq!(own_selection[of_row.clone()], selection[of_row], "row {at}");
                let of_row = at * HEADS * VECTOR..(at + 1) * HEADS * VECTOR;
                assert_eq!(bits(&own[of_row.clone()]), bits(&out[of_row]), "{variant:?} row {at}");
            }
        }
    }
}

/// Separate operations of single rows give the bits of the fused one.
#[test]
fn separate_operations_have_the_bits_of_the_fused_one() {
    for variant in variants("attention_indexed") {
        let mut case = Case::<bf16>::new(9, &[(4, 1), (60, 1), (8, 1)], 4);
        let mut offset = 0;
        for unit in &mut case.units {
            unit.scores_offset = offset;
            offset += HEADS * (unit.past as usize + 1);
        }
        let kernels = new_kernels(variant, 2);
        let (selection, fused) = case.whole(&kernels);
        let mut scratch = IndexedScratch::new(case.shape, 2, &LIMITS, 4);
        let places = IndexedPlaces { fresh: &case.fresh, cache: &case.cache };
        let mut scores = vec![f32::NAN; offset];
        let mut run = |part: AttentionPart<'_, bf16>| {
            let (units, shape) = (&case.units, &case.shape);
            kernels.attend_to_selection(
                &mut scratch,
                shape,
                &SHAPE,
                units,
                places,
                &selection,
                part,
            );
        };
        run(AttentionPart::Scores { q: &case.q, out: &mut scores });
        let units = case.units.iter();
        let units: Vec<AttentionUnit> =
            units.map(|unit| AttentionUnit { past: unit.past.min(8), ..*unit }).collect();
        let mut probabilities = vec![f32::NAN; offset];
        kernels.softmax(&SHAPE, &units, &scores, None, &mut probabilities);
        let mut out = poison::<bf16>(case.q.len());
        let probabilities = &probabilities;
        run(AttentionPart::Values { probabilities, out: (&mut out).into() });
        assert_eq!(bits(&out), bits(&fused), "{variant:?}");
    }
}
