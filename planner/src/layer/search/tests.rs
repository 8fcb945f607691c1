//! Tests of the search space, its traversal, and the results that are kept.

use crate::layer::closed_form::TableTimes;
use crate::layer::table::{Compression, OpCost, OperationTable};

use super::subsets;
use super::subsets::SearchMethod;
use super::{SearchOutput, all_intervals, search};

fn table(ops: usize) -> OperationTable {
    let op = |index: usize| {
        let spread = |factor: usize| ((index * factor + 3) % 17) as f64 + 0.25;
        OpCost {
            cpu_ms: spread(5),
            gpu_ms: spread(3) / 10.0,
            h2d_ms: spread(7),
            h2d_compressed_ms: spread(7) / 4.0,
            decompress_ms: spread(11) / 3.0,
            s2d_ms: if index % 5 == 1 { 0.0 } else { spread(13) * 2.0 },
            kv: index % 5 == 3,
            ..OpCost::named(&format!("op{index}"))
        }
    };
    let ops = (0..ops).map(op).collect();
    let text = r#"{"ops":[{"name":"x"}],"compression":"search","nvme":true,"cost":"paper"}"#;
    OperationTable { ops, batches: 2, ..OperationTable::from_json(text).expect("a table") }
}

#[test]
fn the_space_has_every_interval_once() {
    let table = table(11);
    let intervals = all_intervals(&table);
    assert_eq!(intervals.len(), 67);
    assert!(intervals.contains(&(0, 11)) && intervals.contains(&(10, 11)));
    let plain = OperationTable { nvme: false, compression: Compression::Off, ..table.clone() };
    assert_eq!(search(&plain).expect("found").candidates, 67);
    let both = OperationTable { nvme: false, ..table };
    assert_eq!(search(&both).expect("found").candidates, 134);
}

#[test]
fn sets_count_as_candidates() {
    let mut table = table(2);
    table.ops[0].kv = false;
    (table.ops[0].s2d_ms, table.ops[1].s2d_ms) = (1.0, 1.0);
    // [0,0) 1, [0,1) 2, [1,2) 2, [0,2) 4; with and without compression.
    assert_eq!(search(&table).expect("found").candidates, 18);
}

#[test]
fn branch_and_bound_finds_what_the_exhaustive_walk_finds() {
    for ops in [3, 9, 13] {
        for batches in [1, 4] {
            let mut table = table(ops);
            table.batches = batches;
            if ops == 9 {
                // Equal neighbours, like chunks of a weight.
                for index in 4..7 {
                    table.ops[index] =
                        OpCost { name: format!("twin{index}"), ..table.ops[7].clone() };
                }
            }
            let costs = TableTimes::from_table(&table);
            for compressed in [false, true] {
                for interval in all_intervals(&table) {
                    let best = |walk| {
                        subsets::best(&costs, interval, compressed, true, walk, None)
                            .expect("an interval has a best")
                    };
                    let (rank, candidate, terms) = best(SearchMethod::BranchAndBound);
                    let exhaustive = best(SearchMethod::Exhaustive);
                    assert_eq!((&rank, &candidate), (&exhaustive.0, &exhaustive.1));
                    assert_eq!(terms, costs.terms(&candidate));
                    // A limit that the best candidate meets keeps it; a limit that it does not meet
                    // may drop it.
                    let limited = subsets::best(
                        &costs,
                        interval,
                        compressed,
                        true,
                        SearchMethod::BranchAndBound,
                        Some(&rank),
                    );
                    assert_eq!(limited.map(|found| found.1), Some(candidate));
                }
            }
        }
    }
}

#[test]
fn a_large_space_is_searched_by_bounds() {
    let found = search(&table(28)).expect("found");
    assert!(!found.exhaustive && found.candidates > 1 << 20, "{found:?}");
    let small = search(&table(6)).expect("found");
    assert!(small.exhaustive);
}

#[test]
fn the_cpu_alone_is_the_empty_interval() {
    let text = r#"{"ops":[{"name":"a","cpu_ms":1,"h2d_ms":9},{"name":"b","cpu_ms":1,"h2d_ms":9}]}"#;
    let mut table = OperationTable::from_json(text).expect("a table");
    for cost in ["paper", "simulated"] {
        table.cost = serde_json::from_value(cost.into()).expect("a cost model");
        let found = search(&table).expect("found");
        assert_eq!((found.cost, found.best.candidate.interval), (cost, (0, 0)));
        assert_eq!(found.best.latency.ms(), 2.0);
        assert!(found.runner_up.expect("another").latency > found.best.latency);
    }
}

#[test]
fn the_answer_has_exactly_its_fields() {
    let text = r#"{"ops":[{"name":"a","cpu_ms":9,"gpu_ms":1,"h2d_ms":2,"s2d_ms":1},
        {"name":"b","cpu_ms":1.5,"h2d_ms":9}],"nvme":true,"cost":"paper"}"#;
    let table = OperationTable::from_json(text).expect("a table");
    let output = SearchOutput::new(&table, &search(&table).expect("found"));
    let expected = r#"{"gpu_interval":[0,1],"gpu_ops":["a"],"compression":false,"nvme":["a"],"terms_ms":{"cpu":1.5,"h2d":0.0,"dc":0.0,"s2d":1.0},"latency_ms":1.5,"imbalance_ms":1.5,"candidates":6}"#;
    assert_eq!(serde_json::to_string(&output).expect("numbers and names"), expected);
}
