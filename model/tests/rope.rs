//! Frequencies and factors of every kind of rotary embedding, against those of Hugging Face
//! transformers (`scripts/fixtures_rope.py` makes the file).

use model::rope::{
    Rope, RopeScaling, SequenceLength, longrope_attention_factor, yarn_attention_factor,
};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Case {
    name: String,
    /// As in a `config.json`.
    parameters: Value,
    rope: Rope,
    head_dim: usize,
    max_positions: u32,
    length: u32,
    attention_factor: f64,
    frequencies: Vec<f64>,
}

fn cases() -> Vec<Case> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/rope.json");
    let text = std::fs::read_to_string(file).expect("the fixture is there");
    serde_json::from_str(&text).expect("the fixture is a list of cases")
}

fn close(a: f64, b: f64) -> bool {
    // transformers takes powers in f32.
    (a - b).abs() <= 2e-6 * b.abs()
}

#[test]
fn frequencies_and_factors_are_those_of_transformers() {
    for case in cases() {
        let Case { name, rope, head_dim, .. } = &case;
        let length = SequenceLength(case.length);
        let frequencies = rope.inverse_frequencies_for(*head_dim, length);
        assert_eq!(frequencies.len(), rope.rotary_dim(*head_dim) / 2, "{name}");
        assert_eq!(frequencies.len(), case.frequencies.len(), "{name}");
        for (index, (ours, theirs)) in frequencies.iter().zip(&case.frequencies).enumerate() {
            assert!(close(f64::from(*ours), *theirs), "{name}: {index}: {ours}, not {theirs}");
        }
        assert!(close(f64::from(rope.attention_factor()), case.attention_factor), "{name}");
    }
}

#[test]
fn the_factor_that_a_file_leaves_open_is_that_of_transformers() {
    let mut seen = 0;
    for case in cases() {
        let number = |field: &str| case.parameters.get(field).and_then(Value::as_f64);
        if number("attention_factor").is_some() {
            continue;
        }
        let factor = match case.rope.scaling {
            RopeScaling::Yarn { factor, .. } => {
                yarn_attention_factor(factor, number("mscale"), number("mscale_all_dim"))
            }
            RopeScaling::Longrope { original_max_positions, .. } => {
                let factor = f64::from(case.max_positions) / f64::from(original_max_positions);
                longrope_attention_factor(factor, original_max_positions)
            }
            _ => continue,
        };
        seen += 1;
        assert!((factor - case.attention_factor).abs() < 1e-12, "{}: {factor}", case.name);
    }
    assert!(seen >= 8, "only {seen} cases leave the factor open");
    assert_eq!(yarn_attention_factor(0.5, None, None), 1.0);
    assert_eq!(longrope_attention_factor(1.0, 4096), 1.0);
}

/// What makes tables by class right: equal frequencies within a class, others in another.
#[test]
fn a_class_is_what_has_the_same_frequencies() {
    for case in cases() {
        let Case { name, rope, head_dim, .. } = &case;
        let lengths = [0, 1, 1024, 1025, 2048, 2049, 4096, 4097, 8192, 100_000, u32::MAX];
        let lengths = lengths.map(SequenceLength);
        for a in lengths {
            for b in lengths {
                let of = |length| rope.inverse_frequencies_for(*head_dim, length);
                let same_class = rope.frequency_class(a) == rope.frequency_class(b);
                assert_eq!(of(a) == of(b), same_class, "{name}: {a:?} and {b:?}");
            }
        }
        let plain = rope.inverse_frequencies(*head_dim);
        assert_eq!(plain, rope.inverse_frequencies_for(*head_dim, SequenceLength(1)), "{name}");
    }
}

#[test]
fn what_was_written_without_a_rotary_dim_is_of_whole_heads() {
    let read: Rope = serde_json::from_str(r#"{"theta": 1e4, "scaling": "None"}"#).expect("read");
    assert_eq!(read, Rope::new(1e4, RopeScaling::None));
    assert_eq!(read.rotary_dim(96), 96);
}
