//! Tests with rows of layers whose times can be computed by hand.

use crate::layer::closed_form::LayerCandidate;
use crate::layer::table::OperationTable;

use super::{LayerLane, LayerMap, SlotLimits, simulate_layers, steady_layer};

fn table(text: &str) -> OperationTable {
    OperationTable::from_json(text).expect("a table")
}

fn latency_ms(table: &OperationTable, candidate: &LayerCandidate) -> f64 {
    steady_layer(table, candidate, &SlotLimits::default()).latency.ms()
}

const PAIR: &str = r#"{"ops":[{"name":"a","cpu_ms":5,"gpu_ms":1,"h2d_ms":4},
    {"name":"b","cpu_ms":7,"gpu_ms":2,"h2d_ms":6}]}"#;

#[test]
fn one_batch_is_a_chain_behind_its_transfers() {
    let table = table(PAIR);
    assert_eq!(latency_ms(&table, &LayerCandidate::plain(0, 0)), 12.0);
    // a on the CPU, then b on the GPU: 5 + 2 in a chain, its transfer of 6 concurrently.
    assert_eq!(latency_ms(&table, &LayerCandidate::plain(1, 2)), 7.0);
    // 1 + 7 in a chain, transfer 4.
    assert_eq!(latency_ms(&table, &LayerCandidate::plain(0, 1)), 8.0);
    // Transfers of 10 hide 1 + 2.
    assert_eq!(latency_ms(&table, &LayerCandidate::plain(0, 2)), 10.0);
}

#[test]
fn two_batches_fill_each_others_gaps() {
    let table = OperationTable { batches: 2, ..table(PAIR) };
    // The CPU takes 2 x 5, which hides 2 x 2 on the GPU.
    assert_eq!(latency_ms(&table, &LayerCandidate::plain(1, 2)), 10.0);
    assert_eq!(latency_ms(&table, &LayerCandidate::plain(0, 0)), 24.0);
    // A weight is transferred once for both batches.
    assert_eq!(latency_ms(&table, &LayerCandidate::plain(0, 2)), 10.0);
}

#[test]
fn a_single_kv_slot_stalls_the_link() {
    let text = r#"{"ops":[{"name":"s","gpu_ms":3,"h2d_ms":4,"kv":true}],"batches":3}"#;
    let table = table(text);
    let latency = |kv_slots| {
        let shape = SlotLimits { kv_slots, ..SlotLimits::default() };
        steady_layer(&table, &LayerCandidate::plain(0, 1), &shape).latency.ms()
    };
    // Transfer and computation alternate, or overlap.
    assert_eq!((latency(1), latency(2)), (21.0, 12.0));
}

#[test]
fn decompression_and_nvme_have_lanes_of_their_own() {
    let text = r#"{"ops":[
        {"name":"a","gpu_ms":1,"h2d_ms":8,"h2d_compressed_ms":2,"decompress_ms":5,"s2d_ms":6},
        {"name":"b","gpu_ms":1,"h2d_ms":8,"h2d_compressed_ms":2,"decompress_ms":5}]}"#;
    let table = table(text);
    let mut candidate = LayerCandidate { compressed: true, ..LayerCandidate::plain(0, 2) };
    assert_eq!(latency_ms(&table, &candidate), 10.0);
    candidate.nvme = vec![0];
    assert_eq!(latency_ms(&table, &candidate), 6.0);
    let steady = steady_layer(&table, &candidate, &SlotLimits::default());
    assert_eq!(steady.usage.busy(LayerLane::Decompress).ms(), 12.0 * 5.0);
    assert_eq!(steady.usage.busy(LayerLane::S2d).ms(), 12.0 * 6.0);
}

#[test]
fn chunks_run_on_both_sides_at_once() {
    let text = r#"{"ops":[{"name":"v","cpu_ms":1},
        {"name":"s.0","cpu_ms":6,"gpu_ms":1,"h2d_ms":2,"kv":true},
        {"name":"s.1","cpu_ms":6,"gpu_ms":1,"h2d_ms":2,"kv":true},
        {"name":"out","cpu_ms":1}]}"#;
    let table = table(text);
    // 1 + 6 + 1 on the CPU; the GPU's chunk runs concurrently with the CPU's.
    assert_eq!(latency_ms(&table, &LayerCandidate::plain(2, 3)), 8.0);
}

#[test]
fn overlap_is_the_share_of_the_link_beside_the_cpu() {
    let table = table(PAIR);
    let steady = steady_layer(&table, &LayerCandidate::plain(1, 2), &SlotLimits::default());
    // Per layer of 7: the CPU computes for 5, the link works for 6, and its slots let it start when
    // b of two layers before is done: it never idles for more than 1 ms.
    let overlap = steady.usage.overlap().expect("transfers");
    assert!((4.0 / 6.0..=5.0 / 6.0).contains(&overlap), "{overlap}");
    assert_eq!(steady.usage.busy(LayerLane::Cpu).ms(), 12.0 * 5.0);
}

#[test]
fn resident_layers_need_no_link() {
    let table = table(PAIR);
    let streamed = LayerMap::streamed(&LayerCandidate::plain(0, 2), 2);
    let resident = LayerMap { weights_resident: true, kv_resident: true, ..streamed.clone() };
    let row = |layers: &[LayerMap]| {
        simulate_layers(&table, layers, &SlotLimits::default()).layer_ends[layers.len() - 1].ms()
    };
    assert_eq!(row(&[resident.clone(), resident.clone()]), 6.0);
    // The transfers of the second layer are hidden by the first.
    assert_eq!(row(&[resident, streamed]), 10.0 + 2.0);
}
