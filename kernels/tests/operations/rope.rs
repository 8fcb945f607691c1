//! Tests of rope against the reference and transformers, and of its independence of batch and
//! threads.

use std::time::Duration;

use crate::common::{LIMITS, Random, assert_close, bits, kernels, tolerance, variants};
use half::bf16;
use kernels::{Element, Kernels, RopeTables, Variant, reference};
use serde_json::Value;

/// Returns kernels that distribute small work too: with spinning threads a hand-over costs little.
fn sharing(variant: Variant) -> Kernels {
    let kernels = kernels(variant, 2);
    kernels.set_spin(Duration::from_micros(20));
    kernels
}

/// `(rows, heads, head_dim, rotary_dim, tables)`.
const SHAPES: [(usize, usize, usize, usize, usize); 9] = [
    (1, 1, 2, 2, 1),
    (3, 5, 6, 6, 1),
    (9, 3, 64, 64, 1),
    (70, 9, 80, 80, 1),
    (2, 1, 128, 128, 2),
    (5, 2, 6, 2, 3),
    (9, 3, 80, 32, 1),
    (70, 4, 96, 66, 2),
    (7, 3, 128, 96, 4),
];

fn check_rope<T: Element>(variant: Variant) {
    for (rows, heads, head_dim, rotary_dim, tables) in SHAPES {
        let context = format!("{variant:?} {rows} {heads} {head_dim} {rotary_dim} {tables}");
        let mut random = Random::new(rows as u64);
        let half = rotary_dim / 2;
        let frequencies: Vec<f32> = (0..tables * half)
            .map(|i| 10_000f32.powf(-((i % half) as f32) / half as f32) / (1 + i / half) as f32)
            .collect();
        let positions: Vec<u32> = (0..rows).map(|_| random.below(5_000) as u32).collect();
        let table_of_row: Vec<u32> = (0..rows).map(|_| random.below(tables) as u32).collect();
        let attention_factor = if head_dim == rotary_dim { 1.0 } else { 1.19 };
        let all = RopeTables {
            inverse_frequencies: &frequencies,
            rotary_dim,
            attention_factor,
            table_of_row: (tables > 1).then_some(&table_of_row),
        };
        let before: Vec<T> = random.vector(rows * heads * head_dim);
        let mut x = before.clone();
        sharing(variant).rope(rows, heads, head_dim, &positions, &all, &mut x);
        let own = |row: usize| &frequencies[table_of_row[row] as usize * half..][..half];
        let expected: Vec<f64> = before
            .chunks(head_dim)
            .enumerate()
            .flat_map(|(index, head)| {
                let head: Vec<f64> = head.iter().map(|x| f64::from(x.to_f32())).collect();
                let row = index / heads;
                reference::rope(&head, positions[row], own(row), f64::from(attention_factor))
            })
            .collect();
        assert_close(&x, &expected, (head_dim, 1.0), tolerance(), &context);
        for (head, old) in x.chunks(head_dim).zip(before.chunks(head_dim)) {
            assert_eq!(bits(&head[rotary_dim..]), bits(&old[rotary_dim..]), "{context}");
        }

        let row_elements = heads * head_dim;
        for row in [0, rows / 2, rows - 1] {
            // A row alone uses its table as the only one.
            let alone = RopeTables { inverse_frequencies: own(row), table_of_row: None, ..all };
            let mut one = before[row * row_elements..][..row_elements].to_vec();
            let position = &positions[row..=row];
            kernels(variant, 1).rope(1, heads, head_dim, position, &alone, &mut one);
            assert_eq!(bits(&one), bits(&x[row * row_elements..][..row_elements]), "{context}");
        }
    }
}

#[test]
fn rope_agrees_with_the_reference() {
    for variant in variants("rope_agrees_with_the_reference") {
        check_rope::<bf16>(variant);
        check_rope::<f32>(variant);
    }
}

/// Heads rotated by transformers, with every kind of scaling.
#[test]
fn rope_agrees_with_transformers() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../model/tests/fixtures/rope.json");
    let text = std::fs::read_to_string(file).expect("the fixture is there");
    let cases: Vec<Value> = serde_json::from_str(&text).expect("the fixture is a list of cases");
    assert!(cases.len() > 15, "only {} cases", cases.len());
    for case in &cases {
        let list = |field: &str| -> Vec<f64> {
            let list = case[field].as_array().unwrap_or_else(|| panic!("{field} is a list"));
            list.iter().map(|value| value.as_f64().expect("a number")).collect()
        };
        let narrow = |field: &str| list(field).iter().map(|x| *x as f32).collect::<Vec<f32>>();
        let (frequencies, rotated) = (narrow("frequencies"), list("rotated"));
        let tables = RopeTables {
            attention_factor: case["attention_factor"].as_f64().expect("a number") as f32,
            ..RopeTables::whole(&frequencies)
        };
        let positions = [case["position"].as_u64().expect("a position") as u32];
        for variant in variants("rope_agrees_with_transformers") {
            let mut x = narrow("x");
            let head_dim = x.len();
            assert!(head_dim <= LIMITS.head_dim, "the limits are those of the cases");
            kernels(variant, 1).rope(1, 1, head_dim, &positions, &tables, &mut x);
            let context = format!("{variant:?} {}", case["name"]);
            assert_close(&x, &rotated, (head_dim, 1.0), tolerance(), &context);
        }
    }
}

#[test]
fn tables_that_do_not_fit_are_refused() {
    let kernels = kernels(Variant::Scalar, 1);
    let frequencies = [0.5f32; 8];
    let whole = RopeTables::whole(&frequencies);
    let cases = [
        RopeTables { rotary_dim: 6, ..whole },
        RopeTables { rotary_dim: 0, ..whole },
        RopeTables { table_of_row: Some(&[1]), ..whole },
        RopeTables { table_of_row: Some(&[0, 0]), ..whole },
        RopeTables { rotary_dim: 8, table_of_row: Some(&[2]), ..whole },
    ];
    let run = |tables: &RopeTables<'_>, head_dim: usize| {
        let mut x = vec![1.0f32; head_dim];
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            kernels.rope(1, 1, head_dim, &[3], tables, &mut x);
        }))
    };
    for tables in cases {
        assert!(run(&tables, 16).is_err(), "{tables:?}");
    }
    assert!(run(&whole, 14).is_err(), "heads are narrower than what is rotated");
    let second = RopeTables { rotary_dim: 8, table_of_row: Some(&[1]), ..whole };
    assert!(run(&whole, 16).is_ok() && run(&second, 16).is_ok());
}
