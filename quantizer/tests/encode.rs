//! Encoded values against those of the `gguf` Python package: the same blocks where the rule is the
//! same, smaller errors where scales are searched for.

use model::source::StoredType;
use model::source::gguf::{expand, type_code};
use quantizer::encode::{ColumnWeights, ENCODED, encode_rows};

/// Values and blocks, made by `scripts/fixtures_quantizer.py`.
const FILE: &[u8] = include_bytes!("fixtures/encoded.bin");
const COLUMNS: usize = 1024;

fn word(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize
}

fn values() -> Vec<f32> {
    let bytes = &FILE[4..][..4 * word(FILE, 0)];
    let number = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().expect("four bytes"));
    bytes.chunks_exact(4).map(number).collect()
}

/// Returns the blocks of the other quantiser.
fn other(stored: StoredType) -> &'static [u8] {
    let code = type_code(stored).expect("a type of GGUF files") as usize;
    let mut rest = &FILE[4 + 4 * word(FILE, 0)..];
    while word(rest, 0) != code {
        rest = &rest[8 + word(rest, 4)..];
    }
    &rest[8..][..word(rest, 4)]
}

fn encoded(stored: StoredType, values: &[f32], weights: Option<&ColumnWeights>) -> Vec<u8> {
    let mut out = vec![0; values.len() / COLUMNS * stored.row_bytes(COLUMNS)];
    encode_rows(stored, COLUMNS, values, weights, &mut out);
    out
}

fn expanded(stored: StoredType, blocks: &[u8], count: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; count];
    expand(stored, blocks, &mut out);
    out
}

/// Returns the squared error of each row relative to its values.
fn errors(values: &[f32], found: &[f32]) -> Vec<f64> {
    let rows = values.chunks_exact(COLUMNS).zip(found.chunks_exact(COLUMNS));
    rows.map(|(values, found)| {
        let squares = values.iter().zip(found).map(|(a, b)| f64::from(a - b).powi(2));
        let total: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
        squares.sum::<f64>() / total
    })
    .collect()
}

fn errors_of(stored: StoredType, values: &[f32]) -> Vec<f64> {
    let blocks = encoded(stored, values, None);
    errors(values, &expanded(stored, &blocks, values.len()))
}

#[test]
fn q8_0_and_q4_0_are_the_same_blocks() {
    for stored in [StoredType::Q8_0, StoredType::Q4_0] {
        assert_eq!(encoded(stored, &values(), None), other(stored), "{stored:?}");
    }
}

#[test]
fn searched_scales_have_smaller_errors_than_those_of_the_extremes() {
    let values = values();
    for stored in [StoredType::Q4_1, StoredType::Q5_0, StoredType::Q5_1] {
        let theirs = errors(&values, &expanded(stored, other(stored), values.len()));
        let ours = errors_of(stored, &values);
        // Rows of weights; the last one has blocks that any scale represents badly.
        for row in 0..4 {
            let (ours, theirs) = (ours[row], theirs[row]);
            assert!(ours < theirs, "{stored:?}, row {row}: {ours:.3e} against {theirs:.3e}");
        }
    }
}

/// The package has no quantiser for types with blocks of 256 values, so each is compared with a
/// type of as many bits and larger factors.
#[test]
fn types_of_large_blocks_have_the_errors_of_their_bits() {
    let values = values();
    let bounds = [
        (StoredType::Q6K, StoredType::Q5_1, 0.26),
        (StoredType::Q5K, StoredType::Q5_1, 0.90),
        (StoredType::Q4K, StoredType::Q4_1, 0.92),
        (StoredType::Iq4Nl, StoredType::Q4_0, 0.74),
        (StoredType::Iq4Xs, StoredType::Q4_0, 0.75),
        (StoredType::Q3K, StoredType::Q4_0, 3.1),
        (StoredType::Q2K, StoredType::Q4_0, 10.0),
    ];
    for (stored, against, bound) in bounds {
        let theirs = errors(&values, &expanded(against, other(against), values.len()));
        let ours = errors_of(stored, &values);
        for row in 0..2 {
            let ratio = ours[row] / theirs[row];
            assert!(ratio < bound, "{stored:?}, row {row}: {ratio:.3} of {against:?}'s error");
        }
    }
}

#[test]
fn values_that_a_type_represents_are_kept() {
    for stored in ENCODED.into_iter().filter(|stored| stored.block().0 > 1) {
        let levels = |count: i32, index: usize| ((index * 7) as i32 % count) as f32;
        // Integers times a power of two, of which every group has the extremes.
        let row: Vec<f32> = (0..COLUMNS)
            .map(|index| match stored {
                StoredType::Q8_0 => (levels(255, index) - 127.0) * 0.25,
                StoredType::Q2K => levels(4, index) * 0.25,
                StoredType::Q3K => (levels(8, index) - 4.0) * 0.25,
                StoredType::Q4_0 => (levels(16, index) - 8.0) * 0.25,
                StoredType::Q4_1 | StoredType::Q4K => levels(16, index) * 0.25,
                StoredType::Q5_0 => (levels(32, index) - 16.0) * 0.25,
                StoredType::Q5_1 | StoredType::Q5K => levels(32, index) * 0.25,
                StoredType::Q6K => (levels(16, index) * 4.0 - 32.0) * 0.25,
                _ => [-127.0, -22.0, 1.0, 53.0, 113.0, -104.0, 89.0][index % 7] * 0.25,
            })
            .collect();
        let found = expanded(stored, &encoded(stored, &row, None), COLUMNS);
        let worst = row.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // Q8_0's own rule scales by the largest magnitude of a block; the others' f16 factors
        // round.
        let bound = if stored == StoredType::Q8_0 { 0.13 } else { 2e-2 };
        assert!(worst <= bound, "{stored:?}: {worst}");
    }
}

#[test]
fn importance_moves_the_error_to_columns_that_matter_less() {
    let values = &values()[..2 * COLUMNS];
    let sums: Vec<f64> =
        (0..COLUMNS).map(|column| if column % 4 == 0 { 100.0 } else { 1.0 }).collect();
    let weights = ColumnWeights::from_sums(&sums).expect("positive sums");
    let weighted = |stored: StoredType, blocks: &[u8]| -> f64 {
        let found = expanded(stored, blocks, values.len());
        let errors = values.iter().zip(&found).enumerate();
        errors.map(|(at, (a, b))| sums[at % COLUMNS] * f64::from(a - b).powi(2)).sum()
    };
    for stored in ENCODED {
        if stored.block().0 == 1 || stored == StoredType::Q8_0 {
            continue;
        }
        let plain = weighted(stored, &encoded(stored, values, None));
        let calibrated = weighted(stored, &encoded(stored, values, Some(&weights)));
        assert!(calibrated < 0.9 * plain, "{stored:?}: {calibrated:.3e} against {plain:.3e}");
    }
}

#[test]
fn sums_that_are_no_measure_are_refused_and_small_ones_raised() {
    assert_eq!(ColumnWeights::from_sums(&[0.0; 8]), None);
    assert_eq!(ColumnWeights::from_sums(&[f64::NAN, 1.0]), None);
    assert_eq!(ColumnWeights::from_sums(&[f64::INFINITY, 1.0]), None);
    let values = &values()[..COLUMNS];
    // Blocks whose columns have no importance at all keep a finite error.
    let sums: Vec<f64> = (0..COLUMNS).map(|column| f64::from(u8::from(column >= 512))).collect();
    let weights = ColumnWeights::from_sums(&sums).expect("some are positive");
    let blocks = encoded(StoredType::Q4K, values, Some(&weights));
    let found = expanded(StoredType::Q4K, &blocks, COLUMNS);
    assert!(errors(values, &found)[0] < 0.01);
}

#[test]
fn rows_do_not_depend_on_each_other() {
    let values = values();
    for stored in ENCODED {
        let all = encoded(stored, &values, None);
        let row_bytes = stored.row_bytes(COLUMNS);
        for (row, values) in values.chunks_exact(COLUMNS).enumerate() {
            let alone = encoded(stored, values, None);
            assert_eq!(alone, all[row * row_bytes..][..row_bytes], "{stored:?}, row {row}");
        }
    }
}
