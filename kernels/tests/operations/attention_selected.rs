//! Tests of attention to selected positions: the choice against a brute-force evaluation of the
//! rule, attention to the chosen positions against attention to a cache that holds nothing else, a
//! choice of all positions against attention to all, and independence of neighbours, threads and
//! pages. Values are small integers, so approximate scores are exact in any order of sums.

use crate::common::{Random, bits, kernels, poison, variants};
use half::bf16;
use kernels::quant::quantise_kv;
use kernels::{
    AttentionOperands, AttentionShape, AttentionUnit, AttentionUnits, Element, Kernels,
    KvCacheSlice, PageLists, PartialKeyOperands, ScratchLimits, SelectRule, Selection,
    SelectionCounts, Variant, partial_key,
};
use model::quantized_format::KvRecordFormat;

const SHAPE: AttentionShape =
    AttentionShape { heads: 6, kv_heads: 2, head_dim: 64, scale: 0.125, window: None };
const COLUMNS: usize = 16;
const RECENT: u32 = 8;
const PAGE: u32 = 16;

/// Rows of sequences with given numbers of cached positions.
struct Batch<T> {
    units: Vec<AttentionUnit>,
    q: Vec<T>,
    fresh: [Vec<T>; 2],
    caches: [Vec<T>; 2],
    /// Format of the caches that are attended to; records are of this one.
    format: Option<KvRecordFormat>,
    records: [Vec<u8>; 2],
    partial: Vec<bf16>,
    skew: Vec<f32>,
}

const FORMATS: [Option<KvRecordFormat>; 3] =
    [None, Some(KvRecordFormat::Four), Some(KvRecordFormat::Eight)];

/// Returns the bytes of a record; 0 without records.
fn record_bytes(format: Option<KvRecordFormat>) -> usize {
    format.map_or(0, |format| format.position_bytes(SHAPE.head_dim).expect("an even head"))
}

fn integers<T: Element>(random: &mut Random, len: usize) -> Vec<T> {
    (0..len).map(|_| T::from_f32(random.below(7) as f32 - 3.0)).collect()
}

fn batch<T: Element>(seed: u64, pasts: &[u32], format: Option<KvRecordFormat>) -> Batch<T> {
    let AttentionShape { heads, kv_heads, head_dim, .. } = SHAPE;
    let mut random = Random::new(seed);
    let skew: Vec<f32> = integers(&mut random, kv_heads * head_dim * COLUMNS);
    let skew: Vec<f32> = skew.into_iter().map(|factor| factor.clamp(-1.0, 1.0)).collect();
    let (mut units, mut places) = (Vec::new(), 0);
    for (row, past) in pasts.iter().enumerate() {
        for kv_head in 0..kv_heads {
            units.push(AttentionUnit {
                row0: row as u32,
                rows: 1,
                past: *past,
                shared_row: None,
                kv_head: kv_head as u32,
                cache_offset: places * head_dim,
                cache_positions: 0,
                first_page: 0,
                scores_offset: 0,
            });
            places += *past as usize + 1;
        }
    }
    let rows = pasts.len();
    let mut cached = || {
        let mut cached = poison::<T>(places * head_dim);
        for unit in &units {
            let len = unit.past as usize * head_dim;
            let values = integers(&mut random, len);
            cached[unit.cache_offset..][..len].copy_from_slice(&values);
        }
        cached
    };
    let caches = [cached(), cached()];
    let mut fresh = || integers(&mut random, rows * kv_heads * head_dim);
    let fresh = [fresh(), fresh()];
    let mut partial = vec![bf16::NAN; places * COLUMNS];
    let bytes = record_bytes(format);
    let mut records = [vec![0; places * bytes], vec![0; places * bytes]];
    for unit in &units {
        let own = &skew[unit.kv_head as usize * head_dim * COLUMNS..][..head_dim * COLUMNS];
        for position in 0..unit.past as usize {
            let place = unit.cache_offset / head_dim + position;
            let key = &caches[0][place * head_dim..][..head_dim];
            partial_key(key, own, &mut partial[place * COLUMNS..][..COLUMNS]);
            for (records, cache) in records.iter_mut().zip(&caches) {
                let head = &cache[place * head_dim..][..head_dim];
                let record = &mut records[place * bytes..][..bytes];
                if let Some(format) = format {
                    quantise_kv(Variant::best(), format, head, head_dim, record);
                }
            }
        }
    }
    let q = integers(&mut random, rows * heads * head_dim);
    Batch { units, q, fresh, caches, format, records, partial, skew }
}

fn selection(rule: SelectRule, threads: usize) -> Selection {
    let limits = ScratchLimits { head_dim: SHAPE.head_dim, ..crate::common::LIMITS };
    Selection::new(rule, threads, &limits, 4 * SHAPE.head_dim)
}

impl<T: Element> Batch<T> {
    fn cache(&self, place: usize) -> KvCacheSlice<'_, T> {
        match self.format {
            None => KvCacheSlice::Plain(&self.caches[place]),
            Some(format) => KvCacheSlice::Records(format, &self.records[place]),
        }
    }

    fn operands(&self) -> AttentionOperands<'_, T> {
        AttentionOperands {
            q: &self.q,
            k_fresh: &self.fresh[0],
            v_fresh: &self.fresh[1],
            k_cache: self.cache(0),
            v_cache: self.cache(1),
        }
    }

    fn selected(
        &self,
        kernels: &Kernels,
        rule: SelectRule,
        units: AttentionUnits<'_>,
    ) -> (Vec<T>, SelectionCounts) {
        let mut out = poison(self.q.len());
        let partial =
            PartialKeyOperands { keys: &self.partial, skew: &self.skew, columns: COLUMNS };
        let operands = self.operands();
        let mut selection = selection(rule, kernels.threads());
        let found =
            kernels.attention_selected(&mut selection, &SHAPE, units, operands, partial, &mut out);
        (out, found)
    }

    fn whole(&self, kernels: &Kernels, units: AttentionUnits<'_>) -> Vec<T> {
        let mut out = poison(self.q.len());
        let (k, v) = (self.cache(0), self.cache(1));
        let [k_fresh, v_fresh] = &self.fresh;
        kernels.attention(&SHAPE, units, &self.q, k_fresh, v_fresh, k, v, None, &mut out);
        out
    }

    /// Returns the positions that a unit should see, by the written definition of the rule.
    fn expected(&self, rule: SelectRule, unit: &AttentionUnit) -> Vec<usize> {
        let AttentionShape { heads, head_dim, scale, .. } = SHAPE;
        let group = SHAPE.group();
        let skew = &self.skew[unit.kv_head as usize * head_dim * COLUMNS..];
        let turned = |head: &[T], column: usize| -> f32 {
            let terms = head.iter().enumerate();
            terms.map(|(row, x)| x.to_f32() * skew[row * COLUMNS + column]).sum()
        };
        let count = unit.past as usize + 1;
        let older = count.saturating_sub(rule.recent as usize);
        let first = unit.cache_offset / head_dim;
        let scores: Vec<Vec<f32>> = (0..group)
            .map(|head| {
                let head = unit.row0 as usize * heads + unit.kv_head as usize * group + head;
                let query = &self.q[head * head_dim..][..head_dim];
                let score = |position: usize| -> f32 {
                    let key = &self.caches[0][(first + position) * head_dim..][..head_dim];
                    let products = (0..COLUMNS).map(|c| turned(query, c) * turned(key, c));
                    products.sum::<f32>() * scale
                };
                (0..older).map(score).collect()
            })
            .collect();
        let below = |head: &Vec<f32>, position: usize| {
            head[position] - head.iter().copied().fold(f32::NEG_INFINITY, f32::max)
        };
        let counted = scores.iter().map(|head| {
            (0..older).filter(|position| below(head, *position) >= -rule.alpha).count()
        });
        let counted = counted.sum::<usize>().div_ceil(group);
        let share = count * rule.max_thousandths as usize / 1000;
        let mut order: Vec<usize> = (0..older).collect();
        let nearest = |position: usize| {
            scores.iter().map(|head| below(head, position)).fold(f32::NEG_INFINITY, f32::max)
        };
        order.sort_by(|a, b| nearest(*b).total_cmp(&nearest(*a)).then(a.cmp(b)));
        order.truncate(counted.min(share));
        order.extend(older..count - 1);
        order.sort_unstable();
        order
    }

    /// Computes attention of a unit to a cache that holds only the positions that it should see.
    fn compact(&self, kernels: &Kernels, unit: &AttentionUnit, seen: &[usize]) -> Vec<T> {
        let head_dim = SHAPE.head_dim;
        let bytes = record_bytes(self.format);
        let first = unit.cache_offset / head_dim;
        let plain = |cache: &Vec<T>| -> Vec<T> {
            let heads = seen.iter().map(|at| &cache[(first + at) * head_dim..][..head_dim]);
            heads.flatten().copied().collect()
        };
        let selected_records = |records: &Vec<u8>| -> Vec<u8> {
            let records = seen.iter().map(|at| &records[(first + at) * bytes..][..bytes]);
            records.flatten().copied().collect()
        };
        let only = Batch {
            units: vec![AttentionUnit { past: seen.len() as u32, cache_offset: 0, ..*unit }],
            q: self.q.clone(),
            fresh: self.fresh.clone(),
            caches: [plain(&self.caches[0]), plain(&self.caches[1])],
            format: self.format,
            records: [selected_records(&self.records[0]), selected_records(&self.records[1])],
            partial: Vec::new(),
            skew: Vec::new(),
        };
        only.whole(kernels, (&only.units).into())
    }

    /// Returns the same batch with caches in pages, in reverse order, and the list of pages.
    fn paged(&self) -> (Batch<T>, Vec<u32>) {
        let AttentionShape { kv_heads, head_dim, .. } = SHAPE;
        let bytes = record_bytes(self.format);
        let of = |unit: &AttentionUnit| (unit.past as usize + 1).div_ceil(PAGE as usize);
        let count: usize = self.units.iter().step_by(kv_heads).map(of).sum();
        let pages: Vec<u32> = (0..count as u32).rev().collect();
        let places = count * kv_heads * PAGE as usize;
        let mut paged = Batch {
            units: self.units.clone(),
            q: self.q.clone(),
            fresh: self.fresh.clone(),
            caches: [poison(places * head_dim), poison(places * head_dim)],
            format: self.format,
            records: [vec![0; places * bytes], vec![0; places * bytes]],
            partial: vec![bf16::NAN; places * COLUMNS],
            skew: self.skew.clone(),
        };
        let mut first_page = 0;
        for (index, unit) in self.units.iter().enumerate() {
            let own = &mut paged.units[index];
            (own.cache_offset, own.first_page) = (0, first_page as u32);
            for position in 0..unit.past as usize {
                let page = pages[first_page + position / PAGE as usize];
                let kv_head = unit.kv_head;
                let to = kernels::paged_place(page, PAGE, kv_heads, kv_head, position);
                let from = unit.cache_offset / head_dim + position;
                copy(&mut paged.partial, to, &self.partial, from, COLUMNS);
                for (to_cache, from_cache) in paged.caches.iter_mut().zip(&self.caches) {
                    copy(to_cache, to, from_cache, from, head_dim);
                }
                for (to_cache, from_cache) in paged.records.iter_mut().zip(&self.records) {
                    copy(to_cache, to, from_cache, from, bytes);
                }
            }
            if (index + 1).is_multiple_of(kv_heads) {
                first_page += of(unit);
            }
        }
        (paged, pages)
    }
}

fn copy<E: Copy>(to: &mut [E], to_place: usize, from: &[E], from_place: usize, len: usize) {
    to[to_place * len..][..len].copy_from_slice(&from[from_place * len..][..len]);
}

/// Returns the columns of a unit in `[rows, heads * head_dim]`.
fn columns<T: Element>(out: &[T], unit: &AttentionUnit) -> Vec<u32> {
    let AttentionShape { heads, head_dim, .. } = SHAPE;
    let head = unit.row0 as usize * heads + unit.kv_head as usize * SHAPE.group();
    bits(&out[head * head_dim..][..SHAPE.group() * head_dim])
}

const PASTS: [u32; 6] = [0, 3, 7, 40, 130, 333];

/// Returns rules that choose few, some and the maximum number of positions.
fn rules() -> Vec<SelectRule> {
    let rule = |alpha, max_thousandths| SelectRule { alpha, max_thousandths, recent: RECENT };
    vec![rule(0.0, 1000), rule(20.0, 500), rule(12.5, 200), rule(1e9, 100), rule(30.0, 1)]
}

fn chosen_is_seen<T: Element>(format: Option<KvRecordFormat>) {
    for variant in variants("attention_selected") {
        let one = kernels(variant, 1);
        let batch = batch::<T>(5, &PASTS, format);
        for rule in rules() {
            let (out, found) = batch.selected(&one, rule, (&batch.units).into());
            let (mut attended, mut existing) = (0, 0);
            for unit in &batch.units {
                let seen = batch.expected(rule, unit);
                let expected = batch.compact(&one, unit, &seen);
                let context = format!("{variant:?} {rule:?} behind {}", unit.past);
                assert_eq!(columns(&out, unit), columns(&expected, unit), "{context}");
                attended += seen.len() as u64 + 1;
                existing += u64::from(unit.past) + 1;
            }
            assert_eq!(found, SelectionCounts { attended, existing }, "{rule:?}");
            assert!(attended < existing, "{rule:?} leaves something out");
        }
    }
}

#[test]
fn rows_attend_to_what_the_rule_chooses_and_to_nothing_else() {
    chosen_is_seen::<bf16>(None);
    chosen_is_seen::<f32>(None);
    chosen_is_seen::<bf16>(Some(KvRecordFormat::Four));
    chosen_is_seen::<bf16>(Some(KvRecordFormat::Eight));
}

#[test]
fn everything_chosen_has_the_bits_of_attention_to_everything() {
    let rule = SelectRule { alpha: 1e9, max_thousandths: 1000, recent: RECENT };
    for variant in variants("attention_selected") {
        let one = kernels(variant, 1);
        for format in FORMATS {
            let batch = batch::<bf16>(6, &PASTS, format);
            let (out, found) = batch.selected(&one, rule, (&batch.units).into());
            assert_eq!(bits(&out), bits(&batch.whole(&one, (&batch.units).into())));
            assert_eq!(found.attended, found.existing);
        }
    }
}

#[test]
fn neighbours_threads_and_pages_change_no_bit() {
    for format in FORMATS {
        let batch = batch::<bf16>(7, &PASTS, format);
        let (paged, pages) = batch.paged();
        let lists = PageLists { page_positions: PAGE, pages: &pages };
        for variant in variants("attention_selected") {
            for rule in rules() {
                let one = kernels(variant, 1);
                let (expected, _) = batch.selected(&one, rule, (&batch.units).into());
                for threads in [2, 3] {
                    let many = kernels(variant, threads);
                    let units = AttentionUnits { units: &paged.units, pages: lists };
                    let (found, _) = paged.selected(&many, rule, units);
                    assert_eq!(bits(&found), bits(&expected), "{variant:?} {rule:?} {threads}");
                }
                for unit in &batch.units {
                    let alone = [*unit];
                    let (found, _) = batch.selected(&one, rule, (&alone).into());
                    assert_eq!(columns(&found, unit), columns(&expected, unit), "{rule:?}");
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "positions are beyond the scratch of the selection")]
fn more_positions_than_the_selection_is_made_for_are_refused() {
    let batch = batch::<bf16>(8, &[40], None);
    let limits = ScratchLimits { positions: 40, ..crate::common::LIMITS };
    let mut selection = Selection::new(rules()[0], 1, &limits, 2 * SHAPE.head_dim);
    let partial = PartialKeyOperands { keys: &batch.partial, skew: &batch.skew, columns: COLUMNS };
    let (operands, units) = (batch.operands(), &batch.units);
    let one = kernels(Variant::Scalar, 1);
    let mut out = poison(batch.q.len());
    one.attention_selected(&mut selection, &SHAPE, units, operands, partial, &mut out);
}
