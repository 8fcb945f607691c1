//! Tests of parsing tables, and of the messages for rejected ones.

use super::{Compression, CostModelName, OperationTable};

fn error(text: &str) -> String {
    OperationTable::from_json(text).expect_err("refused").to_string()
}

#[test]
fn absent_times_are_zero_and_absent_settings_the_defaults() {
    let table =
        OperationTable::from_json(r#"{"ops":[{"name":"q","cpu_ms":1.5}]}"#).expect("a table");
    assert_eq!(table.ops[0].cpu_ms, 1.5);
    assert_eq!(table.ops[0].s2d_ms, 0.0);
    assert_eq!((table.batches, table.compression), (1, Compression::Off));
    assert_eq!((table.nvme, table.cost), (false, CostModelName::Simulated));
}

#[test]
fn every_mistake_has_its_sentence() {
    let op = |fields: &str| format!(r#"{{"ops":[{{"name":"q",{fields}}}]}}"#);
    let cases = [
        (r#"{"ops":[]}"#.to_owned(), "at least one"),
        (op(r#""cpu_ms":-1"#), "cpu_ms of q is -1; a time cannot be negative"),
        (op(r#""gpu_ms":1e300"#), "more than a day"),
        (op(r#""gpu_ms":1e999"#), "number out of range"),
        (op(r#""gpu_ms":NaN"#), "expected value"),
        (op(r#""gpu_ms":"fast""#), "invalid type"),
        (op(r#""gpu_seconds":1"#), "unknown field `gpu_seconds`"),
        (r#"{"ops":[{"cpu_ms":1}]}"#.to_owned(), "missing field `name`"),
        (r#"{"ops":[{"name":" "}]}"#.to_owned(), "operation number 1 has no name"),
        (r#"{"ops":[{"name":"q"},{"name":"q"}]}"#.to_owned(), "q is used for two"),
        (r#"{"ops":[{"name":"q"}],"batches":0}"#.to_owned(), "between 1 and"),
        (r#"{"ops":[{"name":"q"}],"batches":-2}"#.to_owned(), "invalid value"),
        (r#"{"ops":[{"name":"q"}],"cost":"guess"}"#.to_owned(), "expected `paper` or `simulated`"),
        (r#"{"ops":[{"name":"q"}],"compression":true}"#.to_owned(), "compression"),
        (r#"{"ops":[{"name":"q"}],"policy":"x"}"#.to_owned(), "unknown field `policy`"),
        ("{".to_owned(), "EOF"),
        (String::new(), "EOF"),
    ];
    for (text, part) in cases {
        let sentence = error(&text);
        let named = part == "compression" || sentence.contains(part);
        assert!(named && !sentence.contains('\n'), "{text}: {sentence}");
    }
    let mut table = OperationTable::from_json(r#"{"ops":[{"name":"q"}]}"#).expect("a table");
    table.ops[0].h2d_ms = f64::NAN;
    let sentence = table.validate().expect_err("NaN").to_string();
    assert!(sentence.contains("h2d_ms of q is NaN"), "{sentence}");
}

#[test]
fn chunks_are_kv_neighbours_of_one_name() {
    let text = r#"{"ops":[{"name":"v"},{"name":"scores.0","kv":true},{"name":"scores.1","kv":true},
        {"name":"softmax"},{"name":"wv.0","kv":true},{"name":"FC.0"},{"name":"FC.1"}]}"#;
    let table = OperationTable::from_json(text).expect("a table");
    let chunks: Vec<_> = table.ops.iter().map(|op| op.chunk).collect();
    assert_eq!(chunks, [None, Some(0), Some(1), None, None, None, None]);
    let needs = table.dependencies();
    assert_eq!(needs, [vec![], vec![0], vec![0], vec![1, 2], vec![3], vec![4], vec![5]]);
    assert_eq!(table.exits(), [6]);
}

#[test]
fn whole_heads_depend_on_their_own_chunk_only() {
    let text = r#"{"ops":[{"name":"v"},{"name":"s0"},{"name":"w0"},{"name":"s1"},{"name":"w1"}]}"#;
    let mut table = OperationTable::from_json(text).expect("a table");
    for (index, chunk) in [(1, 0), (2, 0), (3, 1), (4, 1)] {
        table.ops[index].chunk = Some(chunk);
    }
    assert_eq!(table.dependencies(), [vec![], vec![0], vec![1], vec![0], vec![3]]);
    assert_eq!(table.exits(), [2, 4]);
}

#[test]
fn chunks_add_up_to_the_operation() {
    let text =
        r#"{"ops":[{"name":"q","cpu_ms":1},{"name":"scores","cpu_ms":8,"h2d_ms":4,"kv":true}]}"#;
    let table =
        OperationTable::from_json(text).expect("a table").with_chunks("scores", 8).expect("split");
    assert_eq!(table.ops.len(), 9);
    assert_eq!(table.ops[8].name, "scores.7");
    assert_eq!((table.ops[8].cpu_ms, table.ops[8].h2d_ms, table.ops[8].kv), (1.0, 0.5, true));
    assert!(table.with_chunks("wv", 8).is_none());
}
