//! Storages in reports: bytes read from each, rates, and losses.

use std::collections::BTreeMap;
use std::fmt::Write;

use engine::RunStats;
use program::ir::Instruction;
use program::plan::Plan;
use program::topology::LaneId;
use serde::{Deserialize, Serialize};

use super::plain_table::{plain_table, right_aligned};

const GIB: f64 = (1u64 << 30) as f64;

/// A storage from which weights were read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StorageReport {
    /// Folder of its staging.
    pub path: String,
    /// Method of the reads: io_uring or threads, bypassing the page cache or through it.
    pub how: String,
    /// Bytes that are read from the storage in a decode step as long as no storage is lost.
    pub step_bytes: u64,
    /// Bytes that were read from the storage in total.
    pub read_bytes: u64,
    /// Number of requests of these reads.
    #[serde(default)]
    pub read_requests: u64,
    pub busy_s: f64,
    /// Loss of the storage and its cost; `None` if it was not lost.
    pub lost: Option<StorageLossReport>,
}

/// Loss of a storage, without which the run continued.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageLossReport {
    pub reason: String,
    /// Worker that took over its reads.
    pub successor: String,
    /// Milliseconds from the detection of the loss to the handover of its work.
    pub handover_ms: u64,
}

/// Returns the storages of a run by the names of their lanes.
pub fn storage_reports(plan: &Plan, measured: &RunStats) -> BTreeMap<String, StorageReport> {
    let mut all = BTreeMap::new();
    for (index, (_, lane)) in plan.topology.storages().into_iter().enumerate() {
        let worker = &plan.topology.worker(plan.topology.lane(lane).worker).name;
        let lost = measured.lost_storages.iter().find(|lost| lost.worker == *worker);
        let totals = &measured.totals;
        let report = StorageReport {
            path: measured.staged_paths.get(index).cloned().unwrap_or_default(),
            how: measured.kernel_variants.get(worker).cloned().unwrap_or_default(),
            step_bytes: step_bytes(plan, lane),
            read_bytes: totals.read_bytes.get(&lane).copied().unwrap_or(0),
            read_requests: totals.read_requests.get(&lane).copied().unwrap_or(0),
            busy_s: totals.busy_ns.get(&lane).copied().unwrap_or(0) as f64 / 1e9,
            lost: lost.map(|lost| StorageLossReport {
                reason: lost.reason.clone(),
                successor: lost.successor.clone(),
                handover_ms: lost.handover_ms,
            }),
        };
        all.insert(plan.lane_name(lane).trim_end_matches(".read").to_owned(), report);
    }
    all
}

/// Returns the bytes that a storage's lane reads in a decode step.
fn step_bytes(plan: &Plan, lane: LaneId) -> u64 {
    let Some(list) = plan.decode().lane(lane) else { return 0 };
    let reads = list.instructions.iter().filter_map(|instruction| match instruction {
        Instruction::Read(read) => Some(read),
        _ => None,
    });
    reads.map(|read| plan.read_bytes(read)).sum()
}

/// Formats a table of storages, and a line for each one that was lost.
pub fn format_storages(storages: &BTreeMap<String, StorageReport>) -> String {
    let mut table = plain_table();
    table.set_header(["drive", "GiB a step", "read GiB", "GB/s", "busy", "how", "staging"]);
    right_aligned(&mut table, 1..5);
    for (name, storage) in storages {
        let rate = match storage.busy_s > 0.0 {
            true => format!("{:.2}", storage.read_bytes as f64 / storage.busy_s / 1e9),
            false => "-".to_owned(),
        };
        table.add_row([
            name.clone(),
            format!("{:.2}", storage.step_bytes as f64 / GIB),
            format!("{:.2}", storage.read_bytes as f64 / GIB),
            rate,
            format!("{:.1} s", storage.busy_s),
            storage.how.clone(),
            storage.path.clone(),
        ]);
    }
    let mut text = format!("{table}\n");
    for (name, storage) in storages {
        let Some(lost) = &storage.lost else { continue };
        let _ = writeln!(
            text,
            "{name} was lost: {}. The {} went on with its reads after {} ms.",
            lost.reason.trim_end_matches('.'),
            lost.successor,
            lost.handover_ms
        );
    }
    text
}
