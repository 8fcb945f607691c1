//! Independent brute-force search: writes out every map, adds its terms from the table's own
//! numbers in integer millionths of a millisecond, and keeps the minimum. Shares no code with the
//! planner.

use planner::layer::table::{Compression, OperationTable};

/// Expected result of the search.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct BestPlacement {
    pub latency: i64,
    pub imbalance: i64,
    pub gpu_ops: usize,
    pub nvme_count: usize,
    pub start: usize,
    pub end: usize,
    pub compressed: bool,
    pub nvme: Vec<usize>,
    /// Terms in the order cpu, h2d, dc, s2d.
    pub terms: [i64; 4],
}

/// Converts to millionths of a millisecond. The tests' tables have no finer times.
pub fn units(ms: f64) -> i64 {
    (ms * 1e6).round() as i64
}

/// Returns the best map and the number of maps.
pub fn search(table: &OperationTable) -> (BestPlacement, u64) {
    let cases: &[bool] = match table.compression {
        Compression::Off => &[false],
        Compression::On => &[true],
        Compression::Search => &[false, true],
    };
    let count = table.ops.len();
    let mut best: Option<BestPlacement> = None;
    let mut maps = 0;
    for &compressed in cases {
        for start in 0..count.max(1) {
            for end in start..=count {
                if start == end && start > 0 {
                    continue;
                }
                let choices: Vec<usize> = (start..end)
                    .filter(|k| table.nvme && table.ops[*k].s2d_ms > 0.0 && !table.ops[*k].kv)
                    .collect();
                for bits in 0u32..1 << choices.len() {
                    let nvme: Vec<usize> = choices
                        .iter()
                        .enumerate()
                        .filter(|(bit, _)| bits >> bit & 1 == 1)
                        .map(|(_, k)| *k)
                        .collect();
                    maps += 1;
                    let answer = price(table, start, end, compressed, nvme);
                    if best.as_ref().is_none_or(|best| answer < *best) {
                        best = Some(answer);
                    }
                }
            }
        }
    }
    (best.expect("all-CPU is a map"), maps)
}

fn price(
    table: &OperationTable,
    start: usize,
    end: usize,
    compressed: bool,
    nvme: Vec<usize>,
) -> BestPlacement {
    let n = i64::from(table.batches);
    let (mut cpu, mut h2d, mut dc, mut s2d) = (0, 0, 0, 0);
    let mut first_compressed = None;
    for (k, op) in table.ops.iter().enumerate() {
        if k < start || k >= end {
            cpu += n * units(op.cpu_ms);
            continue;
        }
        let moved = units(if compressed { op.h2d_compressed_ms } else { op.h2d_ms });
        h2d += (n - 1) * units(op.gpu_ms);
        if nvme.contains(&k) {
            s2d += units(op.s2d_ms);
            continue;
        }
        h2d += if op.kv { n * moved } else { moved };
        if compressed && op.decompress_ms > 0.0 {
            dc += units(op.decompress_ms) * if op.kv { n } else { 1 };
            first_compressed = first_compressed.or(Some(moved));
        }
    }
    dc += first_compressed.unwrap_or(0);
    let mut in_use = vec![cpu, h2d];
    if compressed {
        in_use.push(dc);
    }
    if !nvme.is_empty() {
        in_use.push(s2d);
    }
    let latency = *in_use.iter().max().expect("two terms");
    let imbalance = latency - in_use.iter().min().expect("two terms");
    BestPlacement {
        latency,
        imbalance,
        gpu_ops: end - start,
        nvme_count: nvme.len(),
        start,
        end,
        compressed,
        nvme,
        terms: [cpu, h2d, dc, s2d],
    }
}
