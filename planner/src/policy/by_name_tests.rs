//! Names, the family on one table, and FlexGen's schedule by hand.

use crate::layer::table::Table;
use crate::layer::time::Ps;

use super::{Context, Flexgen, PolicyName, family, flexgen_layer, predict};

fn table(batches: u32) -> Table {
    let text = r#"{"ops":[
        {"name":"q","cpu_ms":4,"gpu_ms":1,"h2d_ms":6},
        {"name":"s","cpu_ms":9,"gpu_ms":1,"h2d_ms":3,"kv":true},
        {"name":"o","cpu_ms":4,"gpu_ms":1,"h2d_ms":6},
        {"name":"f","cpu_ms":16,"gpu_ms":4,"h2d_ms":20}]}"#;
    Table { batches, ..Table::from_json(text).expect("a table") }
}

#[test]
fn names_are_read_back() {
    for policy in PolicyName::ALL {
        assert_eq!(policy.name().parse(), Ok(policy));
    }
    let error = "two_split".parse::<PolicyName>().expect_err("unknown").to_string();
    assert!(error.contains("no policy two_split") && error.contains("flexgen:spread"), "{error}");
}

#[test]
fn auto_is_the_fastest_of_the_family() {
    for batches in [1, 3] {
        let table = table(batches);
        let lia = Some(vec![true, false, true, true]);
        let context = Context { lia, ..Context::default() };
        let found = family(&table, &context).expect("a valid table");
        assert_eq!(found.len(), PolicyName::ALL.len() - 1);
        let auto = predict(PolicyName::Auto, &table, &context).expect("valid").expect("a layer");
        assert!(found.iter().all(|other| other.latency >= auto.latency));
        let time = |policy: PolicyName| {
            found.iter().find(|one| one.policy == policy).expect("in the family").latency
        };
        // Each chooses among what the next one has.
        assert!(time(PolicyName::TwoSplit) <= time(PolicyName::OneSplit));
        assert!(time(PolicyName::OneSplit) <= time(PolicyName::GpuOnly));
        assert!(time(PolicyName::OneSplit) <= time(PolicyName::CpuOnly));
        assert!(time(PolicyName::GpuOnly) <= time(PolicyName::Flexgen));
        assert_eq!(time(PolicyName::CpuOnly), Ps::from_ms(33.0 * f64::from(batches)));
        assert!(predict(PolicyName::Lia, &table, &Context::default()).expect("valid").is_none());
    }
}

/// Attention: weights 12, KV 3 a batch, 3 of computing. FFN: weights 20, 4 of computing.
#[test]
fn flexgen_by_hand() {
    let time =
        |batches, flexgen: Flexgen, pinning| flexgen_layer(&table(batches), &flexgen, pinning).ms();
    let plain = Flexgen::default();
    // One batch: attention beside the FFN's weights (20, no KV), FFN beside attention's weights and
    // KV (12 + 3).
    assert_eq!(time(1, plain, 0.0), 20.0 + 15.0);
    // Three: attention max(20 + 3, 3), max(3, 3), max(0, 3); FFN max(12, 4), 4, and 4 beside the
    // next attention's first KV (3).
    assert_eq!(time(3, plain, 0.0), 23.0 + 3.0 + 3.0 + 12.0 + 4.0 + 4.0);
    // Spread: attention max(20/3 + 3, 3) twice, 20/3; FFN 4, 4, max(4 + 3, 4).
    let spread = Flexgen { spread: true, ..plain };
    assert!((time(3, spread, 0.0) - (3.0 * 20.0 / 3.0 + 6.0 + 4.0 + 4.0 + 7.0)).abs() < 1e-6);
    // Pinning as long as the transfer: attention 20 + 3, 3 + 3, 3; FFN 12, 4, 3 + 4.
    assert_eq!(time(3, plain, 1.0), 23.0 + 6.0 + 3.0 + 12.0 + 4.0 + 7.0);
    // Attention on the CPU: no KV, 1 + 9 + 1 of computing.
    let cpu = Flexgen { cpu_attention: true, ..plain };
    assert_eq!(time(3, cpu, 0.0), 20.0 + 11.0 + 11.0 + 12.0 + 4.0 + 4.0);
}
