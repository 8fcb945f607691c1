//! Tests of attention over windows, with full caches and with rings: every variant against the
//! reference, fused against separate, and a row's bits for any partition of its prompt and any
//! location of its past.

use crate::common::{Random, bits, poison, runs_all_cases, variants};
use crate::sequences::{
    Batch, EIGHT, FORMATS, FOUR, Kept, Options, batch, in_pieces, roomy_kernels,
};
use half::bf16;
use kernels::{AttentionShape, AttentionUnit, Element, Kernels, Variant};
use model::quantized_format::KvRecordFormat;

/// Small groups and large ones, odd heads and the longest.
const SHAPES: [(usize, usize, usize); 7] =
    [(1, 1, 6), (4, 2, 64), (9, 3, 64), (8, 1, 64), (5, 1, 128), (16, 1, 256), (8, 4, 256)];
/// Within a vector and a block of positions, at their edges, and beyond.
const WINDOWS: [u32; 7] = [1, 2, 7, 16, 63, 65, 128];

/// Returns a window for the shape at an index of [`SHAPES`], three if all cases run. All shapes
/// together get each window.
fn windows(shape_index: usize) -> Vec<u32> {
    let offsets = if runs_all_cases() { &[0, 2, 4][..] } else { &[0] };
    offsets.iter().map(|offset| WINDOWS[(shape_index + offset) % WINDOWS.len()]).collect()
}

/// Returns fresh rows and past positions around the multiples of a window.
fn around(window: u32) -> Vec<(usize, usize)> {
    let window = window as usize;
    let mut sequences = vec![(1, 0), (3, 1), (20, 0), (49, 3)];
    for rounds in 1..3 {
        let past = rounds * window;
        sequences.extend([(1, past - 1), (1, past), (1, past + 1), (5, past + 2)]);
    }
    sequences.push((33, 2 * window + 31));
    sequences
}

fn check<T: Element>(
    one: &Kernels,
    three: &Kernels,
    shape_index: usize,
    format: Option<KvRecordFormat>,
) {
    let dims = SHAPES[shape_index];
    for window in windows(shape_index) {
        let sequences = around(window);
        // A full cache, a ring, and one with spare capacity.
        let mut whole = None;
        for places in [0, window, window + 5] {
            let options = Options { window: Some(window), places, format, sinks: false };
            let seed = u64::from(window);
            let batch = batch::<T>(seed, dims, &sequences, options);
            let context = format!("{:?} {:?} {options:?}", one.variant(), batch.shape);
            let (probabilities, out) = batch.separate(one);
            let expected = bits(&out);
            assert_eq!(bits(&batch.fused(one, &batch.units)), expected, "fused, {context}");
            assert_eq!(bits(&batch.fused(three, &batch.units)), expected, "threads, {context}");
            let whole = whole.get_or_insert_with(|| {
                batch.check_reference(one.variant(), (&probabilities, &out), &context);
                expected.clone()
            });
            assert_eq!(*whole, expected, "{context}");
            let mut alone = poison::<T>(batch.q.len());
            for unit in batch.units.chunks(1).rev() {
                batch.fused_into(three, unit, &mut alone);
            }
            assert_eq!(bits(&alone), expected, "unit by unit, {context}");
        }
    }
}

#[test]
fn windows_agree_with_the_reference_over_full_caches_and_rings() {
    for variant in variants("windows_agree_with_the_reference_over_full_caches_and_rings") {
        let (one, three) = (roomy_kernels(variant, 1), roomy_kernels(variant, 3));
        for shape_index in 0..SHAPES.len() {
            check::<bf16>(&one, &three, shape_index, None);
        }
        for shape_index in [1, 5] {
            check::<f32>(&one, &three, shape_index, None);
        }
    }
}

#[test]
fn windows_over_quantised_caches_agree_with_the_reference() {
    for variant in variants("windows_over_quantised_caches_agree_with_the_reference") {
        let (one, three) = (roomy_kernels(variant, 1), roomy_kernels(variant, 3));
        for shape_index in 0..SHAPES.len() {
            check::<bf16>(&one, &three, shape_index, FOUR);
        }
        check::<f32>(&one, &three, 3, FOUR);
        check::<bf16>(&one, &three, 3, EIGHT);
    }
}

/// Compares two prompts in one piece, in pieces, and row by row.
fn check_pieces<T: Element>(
    variant: Variant,
    dims: (usize, usize, usize),
    format: Option<KvRecordFormat>,
    windows: &[Option<u32>],
) {
    let kernels = roomy_kernels(variant, 1);
    let lengths = [110, 67];
    let cut = |piece: usize| {
        let mut left = lengths;
        let mut pieces = Vec::new();
        while left != [0, 0] {
            let of_piece = left.map(|left| left.min(piece));
            pieces.push(of_piece.to_vec());
            left = std::array::from_fn(|i| left[i] - of_piece[i]);
        }
        pieces
    };
    let ragged = vec![vec![1, 10], vec![50, 1], vec![1, 0], vec![43, 55], vec![15, 1]];
    for &window in windows {
        let options = Options { window, places: 0, format, sinks: false };
        let whole = batch::<T>(7, dims, &lengths.map(|rows| (rows, 0)), options);
        let expected = bits(&whole.fused(&kernels, &whole.units));
        // Without a window a ring must have space for all positions.
        let most = window.unwrap_or(110);
        let by_places = [
            (0, vec![cut(48), ragged.clone()]),
            (most, vec![cut(1), ragged.clone()]),
            (most + 9, vec![cut(48)]),
        ];
        for (places, all_pieces) in by_places {
            for pieces in all_pieces {
                let out = in_pieces(&whole, &kernels, &pieces, places);
                let context = format!("{variant:?} {dims:?} {window:?} {places}");
                assert!(bits(&out) == expected, "{context}, pieces like {:?}", pieces[0]);
            }
        }
    }
}

#[test]
fn a_prompt_has_the_same_bits_however_it_is_cut_and_kept() {
    for variant in variants("a_prompt_has_the_same_bits_however_it_is_cut_and_kept") {
        let all = [Some(1), Some(7), Some(48), Some(64), None];
        // Each window over plain caches and over quantised ones.
        let windows = |some: &[Option<u32>]| match runs_all_cases() {
            true => all.to_vec(),
            false => some.to_vec(),
        };
        for (format, [most, some, wide]) in [
            (None, [&[Some(1), Some(48)][..], &[Some(7), Some(64), None], &[None]]),
            (FOUR, [&[Some(7), Some(64), None], &[Some(1)], &[Some(48)]]),
            (EIGHT, [&[Some(48)], &[Some(64)], &[None]]),
        ] {
            check_pieces::<bf16>(variant, (6, 2, 64), format, &windows(most));
            check_pieces::<f32>(variant, (3, 1, 32), format, &windows(some));
            check_pieces::<bf16>(variant, (16, 1, 256), format, &windows(wide));
        }
    }
}

/// Checks windows longer than a chunk of positions, which threads share.
fn check_long<T: Element>(
    variant: Variant,
    format: Option<KvRecordFormat>,
    shape_indices: std::ops::Range<usize>,
) {
    let shapes = [(1024, (4, 2, 64)), (1500, (9, 1, 128)), (1999, (2, 2, 256))];
    let shapes = if runs_all_cases() { &shapes[..] } else { &shapes[shape_indices] };
    let sequences = [(1, 1022), (1, 1500), (1, 2500), (1, 3071), (2, 3100)];
    let one = roomy_kernels(variant, 1);
    for &(window, dims) in shapes {
        // Decode alone, which is split into chunks, and a mixture, which is not.
        for sequences in [&sequences[..4], &sequences[..]] {
            let mut whole = None;
            for places in [0, window] {
                let options = Options { window: Some(window), places, format, sinks: true };
                let batch = batch::<T>(3, dims, sequences, options);
                let context = format!("{variant:?} {dims:?} {options:?}");
                let (probabilities, out) = batch.separate(&one);
                let whole = whole.get_or_insert_with(|| {
                    batch.check_reference(variant, (&probabilities, &out), &context);
                    bits(&out)
                });
                assert_eq!(bits(&out), *whole, "{context}");
                for threads in [1, 2, 9] {
                    let many = roomy_kernels(variant, threads);
                    let fused = batch.fused(&many, &batch.units);
                    assert_eq!(bits(&fused), *whole, "fused on {threads}, {context}");
                    assert_eq!(bits(&batch.separate(&many).1), *whole, "on {threads}, {context}");
                    let mut alone = poison::<T>(batch.q.len());
                    for unit in batch.units.chunks(1) {
                        batch.fused_into(&many, unit, &mut alone);
                    }
                    assert_eq!(bits(&alone), *whole, "alone on {threads}, {context}");
                }
            }
        }
    }
}

#[test]
fn long_windows_are_cut_into_chunks_without_changing_a_bit() {
    for variant in variants("long_windows_are_cut_into_chunks_without_changing_a_bit") {
        check_long::<bf16>(variant, None, 0..2);
        check_long::<bf16>(variant, FOUR, 0..1);
        check_long::<bf16>(variant, EIGHT, 0..1);
        check_long::<f32>(variant, None, 2..3);
    }
}

/// A window that no row fills has no effect.
#[test]
fn a_wide_window_changes_no_bit() {
    let sequences = [(1, 0), (17, 0), (5, 65), (1, 1500)];
    for variant in variants("a_wide_window_changes_no_bit") {
        let kernels = roomy_kernels(variant, 2);
        for format in FORMATS {
            let options = Options { format, ..Options::default() };
            let mut batch = batch::<bf16>(4, (6, 2, 64), &sequences, options);
            let expected = (bits(&batch.fused(&kernels, &batch.units)), batch.separate(&kernels));
            batch.shape.window = Some(1501);
            let (probabilities, out) = batch.separate(&kernels);
            assert_eq!(bits(&batch.fused(&kernels, &batch.units)), expected.0, "{variant:?}");
            assert_eq!(bits(&probabilities), bits(&expected.1.0), "{variant:?}");
            assert_eq!(bits(&out), bits(&expected.1.1), "{variant:?}");
        }
    }
}

/// Checks the second of two prompts with the same beginning, with the first one's rows instead of
/// its own.
fn check_shared<T: Element>(kernels: &Kernels, window: u32, format: Option<KvRecordFormat>) {
    let (rows, dims) = (90, (4, 2, 64));
    let options = Options { window: Some(window), places: 0, format, sinks: true };
    let mut whole = batch::<T>(9, dims, &[(5, 0), (rows, 0), (rows, 0)], options);
    let row = dims.1 * dims.2;
    for shared in [1, 6, 7, 8, 63, 89] {
        let (first, second) = (5, 5 + rows);
        for fresh in &mut whole.fresh {
            fresh.copy_within(first * row..(first + shared) * row, second * row);
        }
        let mut sharing = whole.clone();
        for unit in &mut sharing.units[2 * dims.1..] {
            unit.row0 = (second + shared) as u32;
            unit.rows = (rows - shared) as u32;
            (unit.past, unit.shared_row) = (shared as u32, Some(first as u32));
        }
        for fresh in &mut sharing.fresh {
            fresh[second * row..][..shared * row].copy_from_slice(&poison(shared * row));
        }
        let expected = whole.fused(kernels, &whole.units);
        let actual = sharing.fused(kernels, &sharing.units);
        let at = (second + shared) * dims.0 * dims.2;
        let context = format!("{:?} {window} {shared}", kernels.variant());
        assert_eq!(bits(&actual[at..]), bits(&expected[at..]), "{context}");
    }
}

#[test]
fn windows_reach_into_shared_rows() {
    for variant in variants("windows_reach_into_shared_rows") {
        let kernels = roomy_kernels(variant, 2);
        for window in [1, 7, 64, 80] {
            check_shared::<bf16>(&kernels, window, None);
            check_shared::<bf16>(&kernels, window, FOUR);
            check_shared::<f32>(&kernels, window, None);
            check_shared::<f32>(&kernels, window, EIGHT);
        }
    }
}

fn unit(past: u32, rows: u32, places: u32) -> AttentionUnit {
    AttentionUnit {
        row0: 2,
        rows,
        past,
        shared_row: None,
        kv_head: 1,
        cache_offset: 8,
        cache_positions: places,
        first_page: 0,
        scores_offset: 0,
    }
}

#[test]
fn appended_rows_take_the_places_of_the_oldest() {
    let places = |unit: AttentionUnit| unit.appended().collect::<Vec<_>>();
    assert_eq!(places(unit(3, 2, 0)), [(2, 3), (3, 4)]);
    assert_eq!(places(unit(3, 2, 5)), [(2, 3), (3, 4)]);
    assert_eq!(places(unit(4, 2, 5)), [(2, 4), (3, 0)]);
    assert_eq!(places(unit(12, 1, 5)), [(2, 2)]);
    // The last rows of a prompt longer than the ring.
    assert_eq!(places(unit(0, 7, 3)), [(6, 1), (7, 2), (8, 0)]);
    assert_eq!(places(unit(5, 4, 3)), [(3, 0), (4, 1), (5, 2)]);
    // Rows of another sequence, some of which are too old.
    let sharing = AttentionUnit { shared_row: Some(20), ..unit(3, 2, 4) };
    assert_eq!(places(sharing), [(21, 1), (22, 2), (2, 3), (3, 0)]);
    assert_eq!(places(AttentionUnit { cache_positions: 2, ..sharing }), [(2, 1), (3, 0)]);
}

#[test]
fn append_writes_the_places_of_a_ring_and_nothing_else() {
    let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 4, scale: 1.0, window: Some(3) };
    let kernels = roomy_kernels(Variant::Scalar, 1);
    let mut random = Random::new(1);
    let fresh: Vec<f32> = random.vector(9 * 8);
    let before: Vec<f32> = random.vector(24);
    let mut cache = before.clone();
    kernels.append(&shape, &[unit(1, 7, 3)], &fresh, &mut cache);
    let mut expected = before;
    // Positions 5, 6 and 7 are rows 6, 7 and 8, head 1.
    for (row, place) in [(6, 2), (7, 0), (8, 1)] {
        expected[8 + place * 4..][..4].copy_from_slice(&fresh[row * 8 + 4..][..4]);
    }
    assert_eq!(bits(&cache), bits(&expected));
}

#[test]
fn cached_positions_are_those_that_a_ring_holds() {
    let shape = AttentionShape { heads: 2, kv_heads: 2, head_dim: 4, scale: 1.0, window: Some(3) };
    let counts = |unit: AttentionUnit| (unit.cached(), unit.cached_seen(&shape));
    assert_eq!(counts(unit(0, 1, 3)), (0, 0));
    assert_eq!(counts(unit(1, 1, 3)), (1, 1));
    assert_eq!(counts(unit(9, 1, 3)), (3, 2));
    assert_eq!(counts(unit(9, 1, 0)), (9, 2));
    let all = AttentionShape { window: None, ..shape };
    assert_eq!(unit(9, 1, 0).cached_seen(&all), 9);
    assert_eq!(counts(AttentionUnit { shared_row: Some(0), ..unit(9, 1, 3) }), (0, 0));
}

fn decoded(shape: (usize, usize, usize), past: usize, options: Options) -> Batch<f32> {
    let batch = batch::<f32>(1, shape, &[(1, past)], options);
    batch.fused(&roomy_kernels(Variant::Scalar, 1), &batch.units);
    batch
}

#[test]
#[should_panic(expected = "a ring of positions holds the window")]
fn a_ring_shorter_than_the_window_is_refused() {
    decoded((1, 1, 4), 9, Options { window: Some(5), places: 4, ..Options::default() });
}

#[test]
#[should_panic(expected = "a ring of positions holds the window")]
fn a_ring_that_lost_positions_is_refused_without_a_window() {
    decoded((1, 1, 4), 9, Options { places: 8, ..Options::default() });
}

#[test]
#[should_panic(expected = "a window has a position")]
fn an_empty_window_is_refused() {
    decoded((1, 1, 4), 9, Options { window: Some(0), ..Options::default() });
}

#[test]
fn caches_of_rings_are_as_short_as_the_window() {
    let options = Options { window: Some(5), places: 5, ..Options::default() };
    let batch = decoded((1, 1, 4), 900, options);
    let [Kept::Plain(k), Kept::Plain(_)] = &batch.caches else { panic!("plain caches") };
    assert_eq!(k.len(), 5 * 4);
}
