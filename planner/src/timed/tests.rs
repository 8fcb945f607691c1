//! Durations of tables' programs in the simulator, and the messages for rejected tables.

use model::ops::Op;
use program::ir::Instruction;
use program::map::layer_list;
use program::simulate::simulate;
use program::topology::LaneId;
use serde_json::{Value, json};

use super::{SteadyLayer, TimedTablePlan, steady};
use crate::layer::steady::{SlotLimits, steady_layer};
use crate::layer::table::{OperationTable, dataflow};

/// Rows of an OPT layer with the names of the paper: cpu, gpu, h2d, compressed h2d, decompression.
const LAYER: [(&str, [f64; 5]); 11] = [
    ("LN.0", [0.25, 0.04, 0.001, 0.001, 0.0]),
    ("Q", [5.0, 0.32, 4.2, 1.1, 6.6]),
    ("K", [5.0, 0.32, 4.2, 1.1, 6.6]),
    ("V", [5.0, 0.32, 4.2, 1.1, 6.6]),
    ("Scores", [36.0, 0.46, 7.8, 2.1, 5.0]),
    ("Softmax", [0.5, 0.07, 0.0, 0.0, 0.0]),
    ("WV", [36.0, 0.46, 7.8, 2.1, 5.0]),
    ("Output", [5.0, 0.32, 4.2, 1.1, 6.6]),
    ("LN.1", [0.25, 0.04, 0.001, 0.001, 0.0]),
    ("FC.0", [19.0, 1.1, 16.8, 4.3, 11.4]),
    ("FC.1", [20.0, 1.2, 16.8, 4.3, 11.4]),
];

fn row(name: &str, ms: [f64; 5]) -> Value {
    let kv = name.starts_with("Scores") || name == "WV";
    json!({
        "name": name, "cpu_ms": ms[0], "gpu_ms": ms[1], "h2d_ms": ms[2],
        "h2d_compressed_ms": ms[3], "decompress_ms": ms[4], "kv": kv,
    })
}

fn rows(chunks: usize) -> Vec<Value> {
    let part = |name: &str, ms: [f64; 5]| match (name, chunks) {
        ("Scores", 2..) => (0..chunks)
            .map(|chunk| row(&format!("Scores.{chunk}"), ms.map(|ms| ms / chunks as f64)))
            .collect(),
        _ => vec![row(name, ms)],
    };
    LAYER.iter().flat_map(|(name, ms)| part(name, *ms)).collect()
}

fn table(value: &Value) -> OperationTable {
    OperationTable::from_json(&value.to_string()).expect("a table")
}

/// Returns the simulated steady layer of a table's programs.
fn simulated(timed: &TimedTablePlan, steps: u32) -> SteadyLayer {
    let timeline = simulate(timed.plan.decode(), &timed.times, steps).expect("simulates");
    steady(&timed.plan, &timeline.spans).expect("layers")
}

/// The programs take as long as the table's own timeline estimates, provided that it knows that Q,
/// K and V do not wait for each other. With several batches they take up to 3% more, since values
/// leave the device in order (`planner/tests/estimates/steady_against_programs.rs`), and up to 1%
/// less if Scores is in chunks, since V then has as many slots as the chunks of K and arrives
/// further ahead.
#[test]
fn programs_take_what_the_table_says() {
    for (batches, chunks) in [(1, 1), (2, 1), (2, 8), (3, 8)] {
        for compression in ["off", "on"] {
            let value =
                json!({"ops": rows(chunks), "batches": batches, "compression": compression});
            let mut table = table(&value);
            // The cache's decompression is a separate stage in the table, but a part of the
            // operation that reads it in the programs.
            for op in table.ops.iter_mut().filter(|op| op.kv) {
                op.decompress_ms = 0.0;
            }
            let timed = TimedTablePlan::from_table(&table, 12, 6).expect("compiles");
            let list = layer_list(&timed.plan.config, 0, timed.plan.map.chunking);
            table.needs =
                (list.len() == table.ops.len()).then(|| dataflow(&timed.plan.config, &list));
            let candidate = &timed.search_result.best.candidate;
            let expected = steady_layer(&table, candidate, &SlotLimits::default()).latency.ms();
            let layer = simulated(&timed, 5);
            let longer = layer.layer_ms / expected - 1.0;
            assert!(
                (if chunks > 1 { -0.01 } else { -1e-4 }..0.03).contains(&longer),
                "{batches} batches, {chunks} chunks, compression {compression}: {expected} \
                 {layer:?}"
            );
            assert!(layer.overlap.is_some_and(|overlap| overlap > 0.3), "{layer:?}");
        }
    }
}

#[test]
fn every_instruction_has_its_rows_time() {
    let value = json!({"ops": rows(8), "batches": 2, "compression": "on"});
    let timed = TimedTablePlan::from_table(&table(&value), 4, 3).expect("compiles");
    let mut decompressed = 0;
    for (lane, times) in timed.times.lanes() {
        let list = timed.plan.decode().lane(*lane).expect("a lane with work");
        assert_eq!(list.instructions.len(), times.len());
        for (work, ns) in list.instructions.iter().zip(times) {
            match work {
                Instruction::Decompress(_) => {
                    assert!([6_600_000, 11_400_000].contains(ns), "{work:?} {ns}");
                    decompressed += 1;
                }
                Instruction::Wait(_) | Instruction::Signal => assert_eq!(*ns, 0),
                Instruction::Append(_) | Instruction::Read(_) => assert_eq!(*ns, 0),
                // Includes the decompression of its cache.
                Instruction::Compute(compute) if compute.op == Op::Wv => {
                    assert_eq!(
                        *ns,
                        if *lane == LaneId::GPU_COMPUTE { 5_460_000 } else { 36_000_000 }
                    );
                }
                Instruction::Compute(compute) if compute.at.layer.is_some() => {
                    assert!(*ns > 0, "{lane:?} {work:?}");
                }
                Instruction::Compute(_) => assert_eq!(*ns, 0),
                Instruction::Copy(_) if *lane == LaneId::H2D_WEIGHTS => {
                    assert!(*ns > 0, "{work:?}")
                }
                Instruction::Copy(_) => assert_eq!(*ns, 0),
            }
        }
    }
    assert!(decompressed > 0);
}

#[test]
fn what_a_table_leaves_out_takes_no_time() {
    // Only linears: the rest of the layer costs nothing and runs where the row before it runs.
    let value = json!({"ops": [row("q", [4.0, 1.0, 2.0, 0.0, 0.0]), row("fc0", [4.0, 1.0, 4.0, 0.0, 0.0])]});
    let timed = TimedTablePlan::from_table(&table(&value), 6, 4).expect("compiles");
    let layer = simulated(&timed, 3);
    assert!((layer.layer_ms - timed.search_result.best.latency.ms()).abs() < 1e-3, "{layer:?}");
    let alone = json!({"ops": [row("down", [1.0, 5.0, 5.0, 0.0, 0.0])]});
    let timed = TimedTablePlan::from_table(&table(&alone), 2, 2).expect("compiles");
    assert!(!timed.plan.map.uses_gpu());
    assert_eq!(simulated(&timed, 1).layer_ms, 1.0);
}

#[test]
fn every_table_without_programs_has_its_sentence() {
    let zero = [0.0; 5];
    let kv = |name: &str| json!({"name": name, "h2d_ms": 1, "kv": true});
    let cases = [
        (vec![row("mlp", zero)], "mlp is not one of a layer"),
        (vec![row("q", zero), row("Q", zero)], "Q names the same"),
        (vec![row("k", zero), row("q", zero)], "q comes after"),
        (vec![row("fc0", zero), row("gate", zero)], "fc0 is not one of a layer"),
        (vec![kv("q")], "q and \"kv\" do not go together"),
        (vec![row("wv", [0.0, 0.0, 1.0, 0.0, 0.0])], "wv and \"kv\""),
        (vec![row("softmax", [0.0, 0.0, 1.0, 0.0, 0.0])], "softmax has a transfer time"),
        (vec![kv("wv.0"), kv("wv.1")], "wv.0 cannot be split"),
        (vec![kv("scores.1"), kv("scores.2")], "scores.2 must be numbered"),
        (vec![row("q", [120_001.0, 0.0, 0.0, 0.0, 0.0])], "cpu_ms of q is 120001 ms"),
    ];
    for (ops, part) in cases {
        let refused = TimedTablePlan::from_table(&table(&json!({"ops": ops})), 2, 2)
            .expect_err(part)
            .to_string();
        assert!(refused.contains(part) && !refused.contains('\n'), "{part}: {refused}");
    }
    let good = table(&json!({"ops": rows(1)}));
    for (layers, gen_len, part) in
        [(0, 2, "--layers 0"), (1025, 2, "--layers 1025"), (2, 0, "--gen-len 0")]
    {
        let refused =
            TimedTablePlan::from_table(&good, layers, gen_len).expect_err(part).to_string();
        assert!(refused.contains(part), "{refused}");
    }
    let mut slow = row("fc0", [40.0, 0.1, 30.0, 0.0, 0.0]);
    slow["s2d_ms"] = json!(5.0);
    let nvme = table(&json!({"ops": [row("q", [20.0, 0.1, 10.0, 0.0, 0.0]), slow], "nvme": true}));
    let refused = TimedTablePlan::from_table(&nvme, 2, 2).expect_err("NVMe").to_string();
    assert!(refused.contains("fc0 from NVMe"), "{refused}");
}
