//! Tests that attention over caches in pages has the same bits as over contiguous ones: every
//! variant and kind of cache, fused and in separate operations, for any order of pages. Places that
//! hold no position of a unit, and pages that no list names, are NaN.

use crate::common::{Random, bits, poison, runs_all_cases, variants};
use crate::sequences::{Batch, EIGHT, FOUR, Kept, Options, batch, roomy_kernels};
use half::bf16;
use kernels::{
    AttentionShape, AttentionUnit, AttentionUnits, Element, Kernels, PageLists, Variant,
    paged_place,
};
use model::quantized_format::KvRecordFormat;

/// Returns the numbers `0..count` in a random order.
fn shuffled(random: &mut Random, count: usize) -> Vec<u32> {
    let mut numbers: Vec<u32> = (0..count as u32).collect();
    for last in (1..count).rev() {
        numbers.swap(last, random.below(last + 1));
    }
    numbers
}

/// A batch whose caches are in pages, in a different order and with unused pages in between.
struct Paged<T> {
    batch: Batch<T>,
    page_positions: u32,
    pages: Vec<u32>,
}

impl<T: Element> Paged<T> {
    /// Copies the positions of `of` to pages, which have space for the fresh rows too.
    fn new(of: &Batch<T>, page_positions: u32, seed: u64) -> Paged<T> {
        let AttentionShape { kv_heads, head_dim, .. } = of.shape;
        let mut batch = of.clone();
        let mut count = 0;
        for units in batch.units.chunks_mut(kv_heads) {
            for unit in units.iter_mut() {
                (unit.cache_offset, unit.first_page) = (0, count);
            }
            count += (units[0].past + units[0].rows).div_ceil(page_positions);
        }
        let all = count as usize + 3;
        let mut pages = shuffled(&mut Random::new(seed), all);
        pages.truncate(count as usize);
        let places = all * kv_heads * page_positions as usize;
        batch.caches = [(); 2].map(|()| Kept::empty(places, head_dim, of.caches[0].format()));
        let paged = Paged { batch, page_positions, pages };
        let mut caches = paged.batch.caches.clone();
        for (cache, from) in caches.iter_mut().zip(&of.caches) {
            for (unit, before) in paged.batch.units.iter().zip(&of.units) {
                for position in of.shape.first_seen(unit.past as usize)..unit.past as usize {
                    let from_place = before.cache_offset / head_dim + position;
                    cache.copy(paged.place(unit, position), from, from_place, head_dim);
                }
            }
        }
        Paged { batch: Batch { caches, ..paged.batch }, ..paged }
    }

    fn place(&self, unit: &AttentionUnit, position: usize) -> usize {
        let page = self.pages[unit.first_page as usize + position / self.page_positions as usize];
        let kv_heads = self.batch.shape.kv_heads;
        paged_place(page, self.page_positions, kv_heads, unit.kv_head, position)
    }

    fn lists(&self) -> PageLists<'_> {
        PageLists { page_positions: self.page_positions, pages: &self.pages }
    }

    fn of<'a>(&'a self, units: &'a [AttentionUnit]) -> AttentionUnits<'a> {
        AttentionUnits { units, pages: self.lists() }
    }

    /// Checks that all results have the bits of `of`.
    fn check(&self, of: &Batch<T>, one: &Kernels, many: &Kernels, context: &str) {
        let context = format!("pages of {}, {context}", self.page_positions);
        let (probabilities, out) = of.separate(one);
        let whole = self.of(&self.batch.units);
        for kernels in [one, many] {
            let threads = kernels.threads();
            let paged = self.batch.separate_over(kernels, whole);
            assert_eq!(bits(&paged.0), bits(&probabilities), "{threads} threads, {context}");
            assert_eq!(bits(&paged.1), bits(&out), "separate on {threads} threads, {context}");
            let fused = self.batch.fused(kernels, whole);
            assert_eq!(bits(&fused), bits(&out), "fused on {threads} threads, {context}");
        }
        let mut alone = poison::<T>(out.len());
        for unit in self.batch.units.chunks(1).rev() {
            self.batch.fused_into(many, self.of(unit), &mut alone);
        }
        assert_eq!(bits(&alone), bits(&out), "unit by unit, {context}");
    }
}

/// Returns single rows and chunks of prompts after pasts around the ends of pages and of vectors.
fn around(page_positions: u32) -> Vec<(usize, usize)> {
    let page = page_positions as usize;
    let mut sequences = vec![(1, 0), (20, 0), (1, 1), (3, page - 1), (7, page), (50, page + 1)];
    for past in [page - 1, page, page + 1, 2 * page + 15, 3 * page, 5 * page - 3] {
        sequences.push((1, past));
    }
    sequences
}

/// Query heads, KV heads, elements of a head.
const SHAPES: [(usize, usize, usize); 6] =
    [(1, 1, 6), (4, 2, 64), (9, 3, 80), (8, 1, 128), (3, 3, 128), (16, 1, 256)];

fn check<T: Element>(variant: Variant, format: Option<KvRecordFormat>) {
    let (one, three) = (roomy_kernels(variant, 1), roomy_kernels(variant, 3));
    for (seed, dims) in SHAPES.into_iter().enumerate() {
        let pages = if seed % 2 == 0 { [16, 80] } else { [32, 256] };
        // All shapes together get each length of a page.
        let sampled = &pages[seed / 2 % 2..][..1];
        for &page_positions in if runs_all_cases() { &pages[..] } else { sampled } {
            let options = Options { format, ..Options::default() };
            let of = batch::<T>(seed as u64, dims, &around(page_positions), options);
            let paged = Paged::new(&of, page_positions, seed as u64);
            paged.check(&of, &one, &three, &format!("{variant:?} {dims:?}"));
        }
    }
}

#[test]
fn pages_of_elements_change_no_bit() {
    for variant in variants("pages_of_elements_change_no_bit") {
        check::<bf16>(variant, None);
        check::<f32>(variant, None);
    }
}

#[test]
fn pages_of_records_change_no_bit() {
    for variant in variants("pages_of_records_change_no_bit") {
        check::<bf16>(variant, FOUR);
        check::<f32>(variant, FOUR);
        check::<bf16>(variant, EIGHT);
    }
}

/// Checks sequences whose positions threads share, with sinks, and with windows over caches that
/// keep all positions.
fn check_long<T: Element>(variant: Variant, format: Option<KvRecordFormat>) {
    let (one, nine) = (roomy_kernels(variant, 1), roomy_kernels(variant, 9));
    for (window, dims) in [(None, (4, 2, 64)), (Some(1500), (9, 1, 128))] {
        for sequences in [&[(1, 1023), (1, 1500), (1, 3071)][..], &[(1, 2500), (2, 3100)]] {
            for page_positions in [16, 256] {
                let options = Options { window, places: 0, format, sinks: true };
                let of = batch::<T>(3, dims, sequences, options);
                let paged = Paged::new(&of, page_positions, 5);
                paged.check(&of, &one, &nine, &format!("{variant:?} {dims:?} {window:?}"));
            }
        }
    }
}

#[test]
fn pages_of_long_sequences_change_no_bit() {
    for variant in variants("pages_of_long_sequences_change_no_bit") {
        check_long::<bf16>(variant, None);
        check_long::<bf16>(variant, FOUR);
        check_long::<bf16>(variant, EIGHT);
        check_long::<f32>(variant, None);
    }
}

/// Compares prompts in pieces, whose rows are appended to pages, with the same prompts whole.
fn check_append<T: Element>(variant: Variant, format: Option<KvRecordFormat>) {
    let kernels = roomy_kernels(variant, 1);
    let dims = (6, 2, 64);
    let options = Options { format, ..Options::default() };
    let whole = batch::<T>(7, dims, &[(90, 0), (67, 0)], options);
    let pieces = [[1, 10], [31, 1], [1, 0], [15, 55], [41, 0], [1, 1]];
    let expected = bits(&whole.fused(&kernels, &whole.units));
    for page_positions in [16, 32, 256] {
        let mut paged = Paged::new(&whole, page_positions, 11);
        let mut past = [0, 0];
        let mut out = poison::<T>(whole.q.len());
        for piece in pieces {
            for (index, unit) in paged.batch.units.iter_mut().enumerate() {
                let sequence = index / dims.1;
                unit.row0 = whole.units[index].row0 + past[sequence] as u32;
                (unit.past, unit.rows) = (past[sequence] as u32, piece[sequence] as u32);
            }
            paged.batch.fused_into(&kernels, paged.of(&paged.batch.units), &mut out);
            append(&mut paged, &kernels);
            past = std::array::from_fn(|i| past[i] + piece[i]);
        }
        assert_eq!(bits(&out), expected, "{variant:?} pages of {page_positions}");
    }
}

/// Appends the fresh rows of the units, elements with the kernel.
fn append<T: Element>(paged: &mut Paged<T>, kernels: &Kernels) {
    let AttentionShape { kv_heads, head_dim, .. } = paged.batch.shape;
    let mut caches = paged.batch.caches.clone();
    for (cache, fresh) in caches.iter_mut().zip(&paged.batch.fresh) {
        if let Kept::Plain(cache) = cache {
            kernels.append(&paged.batch.shape, paged.of(&paged.batch.units), fresh, cache);
            continue;
        }
        for unit in &paged.batch.units {
            for (row, position) in unit.appended() {
                let head = &fresh[(row * kv_heads + unit.kv_head as usize) * head_dim..];
                cache.put(paged.place(unit, position), &head[..head_dim]);
            }
        }
    }
    paged.batch.caches = caches;
}

#[test]
fn rows_appended_to_pages_are_read_from_them() {
    for variant in variants("rows_appended_to_pages_are_read_from_them") {
        check_append::<bf16>(variant, None);
        check_append::<f32>(variant, None);
        check_append::<bf16>(variant, FOUR);
        check_append::<f32>(variant, EIGHT);
    }
}

fn unit(past: u32, rows: u32) -> AttentionUnit {
    AttentionUnit {
        row0: 0,
        rows,
        past,
        shared_row: None,
        kv_head: 1,
        cache_offset: 0,
        cache_positions: 0,
        first_page: 1,
        scores_offset: 0,
    }
}

const SHAPE: AttentionShape =
    AttentionShape { heads: 2, kv_heads: 2, head_dim: 4, scale: 1.0, window: None };

#[test]
fn append_writes_the_places_of_pages_and_nothing_else() {
    let kernels = roomy_kernels(Variant::Scalar, 1);
    let mut random = Random::new(1);
    let fresh: Vec<f32> = random.vector(20 * 8);
    let before: Vec<f32> = random.vector(4 * 2 * 16 * 4);
    let mut cache = before.clone();
    let pages = PageLists { page_positions: 16, pages: &[9, 3, 0, 9] };
    let units = [unit(14, 4)];
    kernels.append(&SHAPE, AttentionUnits { units: &units, pages }, &fresh, &mut cache);
    let mut expected = before;
    // Positions 14 and 15 end the second head of page 3, 16 and 17 begin that of page 0.
    for (row, place) in [(0, 7 * 16 + 14), (1, 7 * 16 + 15), (2, 16), (3, 17)] {
        expected[place * 4..][..4].copy_from_slice(&fresh[row * 8 + 4..][..4]);
    }
    assert_eq!(bits(&cache), bits(&expected));
}

/// Attends with one row after 20 positions in pages of 16, of which the cache has four.
fn attend(unit: AttentionUnit, page_positions: u32, pages: &[u32]) {
    let kernels = roomy_kernels(Variant::Scalar, 1);
    let (fresh, cache, mut out) = ([1.0f32; 8], [1.0f32; 4 * 2 * 16 * 4], [0.0f32; 8]);
    let units = [unit];
    let units = AttentionUnits { units: &units, pages: PageLists { page_positions, pages } };
    let (fresh, cache) = (&fresh[..], &cache[..]);
    kernels.attention(&SHAPE, units, fresh, fresh, fresh, cache, cache, None, &mut out[..]);
}

#[test]
fn the_last_page_is_read() {
    attend(unit(20, 1), 16, &[9, 0, 3]);
}

#[test]
#[should_panic(expected = "a unit's positions lie within the cache")]
fn a_page_behind_the_cache_is_refused() {
    attend(unit(20, 1), 16, &[0, 0, 4]);
}

#[test]
#[should_panic(expected = "a unit's pages lie within the list")]
fn a_list_without_a_unit_s_last_page_is_refused() {
    attend(unit(20, 1), 16, &[0, 0]);
}

#[test]
#[should_panic(expected = "a ring is never in pages")]
fn a_ring_in_pages_is_refused() {
    attend(AttentionUnit { cache_positions: 32, ..unit(20, 1) }, 16, &[0, 0, 3]);
}

#[test]
#[should_panic(expected = "a page is a multiple of 16")]
fn odd_pages_are_refused() {
    attend(unit(20, 1), 24, &[0, 0, 1]);
}
