//! Compares the search of random tables with an independent brute force.

use crate::brute;
use planner::layer::search::search;
use planner::layer::table::{Compression, CostModelName, OpCost, OperationTable};
use proptest::prelude::*;

/// Generates times with few digits and few values, which cause ties that the rules must decide.
fn time_ms() -> impl Strategy<Value = f64> {
    prop_oneof![
        2 => Just(0.0),
        3 => (1u32..6).prop_map(f64::from),
        3 => (1u32..4000).prop_map(|thousandths| f64::from(thousandths) / 1000.0),
        1 => (1u32..90_000_000).prop_map(|millionths| f64::from(millionths) / 1e6),
    ]
}

fn op() -> impl Strategy<Value = OpCost> {
    (time_ms(), time_ms(), time_ms(), time_ms(), time_ms(), time_ms(), prop::bool::weighted(0.25))
        .prop_map(|(cpu_ms, gpu_ms, h2d_ms, h2d_compressed_ms, decompress_ms, s2d_ms, kv)| OpCost {
            cpu_ms,
            gpu_ms,
            h2d_ms,
            h2d_compressed_ms,
            decompress_ms,
            s2d_ms,
            kv,
            ..OpCost::named("")
        })
}

fn table(ops: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = OperationTable> {
    let compression =
        prop_oneof![Just(Compression::Off), Just(Compression::On), Just(Compression::Search)];
    (prop::collection::vec(op(), ops), 1u32..=8, compression, any::<bool>()).prop_map(
        |(mut ops, batches, compression, nvme)| {
            for (index, op) in ops.iter_mut().enumerate() {
                op.name = format!("op{index}");
            }
            OperationTable {
                ops,
                batches,
                compression,
                nvme,
                cost: CostModelName::Paper,
                fused: None,
                needs: None,
            }
        },
    )
}

fn check(table: &OperationTable) -> Result<(), TestCaseError> {
    let found = search(table).expect("a valid table");
    let (answer, maps) = brute::search(table);
    let best = &found.best;
    prop_assert_eq!(best.candidate.interval, (answer.start, answer.end));
    prop_assert_eq!(best.candidate.compressed, answer.compressed);
    prop_assert_eq!(&best.candidate.nvme, &answer.nvme);
    prop_assert_eq!(brute::units(best.latency.ms()), answer.latency);
    prop_assert_eq!(brute::units(best.terms.imbalance().ms()), answer.imbalance);
    let output = planner::layer::search::SearchOutput::new(table, &found).terms_ms;
    let terms = [output.cpu, output.h2d, output.dc, output.s2d].map(brute::units);
    prop_assert_eq!(terms, answer.terms);
    prop_assert_eq!(found.candidates, maps);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_search_equals_a_brute_force(table in table(2..=9)) {
        check(&table)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// Up to 2^17 maps, so that some tables are searched by branch and bound.
    #[test]
    fn also_where_there_are_many_maps(table in table(10..=14)) {
        check(&table)?;
    }
}

/// Every operation may come from NVMe: more than 2^16 maps, so that the search prunes.
#[test]
fn also_by_branch_and_bound() {
    let mut ops = Vec::new();
    for index in 0u32..14 {
        let spread = |factor: u32| f64::from((index * factor + 7) % 23 + 1) * 0.37;
        ops.push(OpCost {
            cpu_ms: spread(5),
            gpu_ms: spread(9) / 8.0,
            h2d_ms: spread(3),
            h2d_compressed_ms: spread(3) / 4.0,
            decompress_ms: spread(11) / 2.0,
            s2d_ms: spread(13) * 1.5,
            ..OpCost::named(&format!("op{index}"))
        });
    }
    for batches in [1, 3, 8] {
        for compression in [Compression::Off, Compression::On, Compression::Search] {
            let table = OperationTable {
                ops: ops.clone(),
                batches,
                compression,
                nvme: true,
                cost: CostModelName::Paper,
                fused: None,
                needs: None,
            };
            let found = search(&table).expect("a valid table");
            if compression == Compression::Search {
                assert!(!found.exhaustive);
            }
            check(&table).expect("equal");
        }
    }
}
