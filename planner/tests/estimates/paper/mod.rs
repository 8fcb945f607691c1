//! The tables printed by Park & Egger: OPT-30B on the machine of their table 1.

use planner::layer::table::{Compression, CostModelName, OpCost, OperationTable};

const NAMES: [&str; 11] =
    ["LN.0", "Q", "K", "V", "Scores", "Softmax", "WV", "Output", "LN.1", "FC.0", "FC.1"];

/// Fig. 6a: a single batch of 50, ms. H2D, CPU. GPU times are not printed, and not used by a single
/// batch.
const FIG_6A: [[f64; 2]; 11] = [
    [0.001, 0.255],
    [4.214, 5.775],
    [4.214, 5.775],
    [4.214, 5.775],
    [15.344, 77.527],
    [0.000, 0.776],
    [15.344, 77.527],
    [4.214, 5.775],
    [0.001, 0.255],
    [16.856, 23.216],
    [16.856, 24.193],
];

/// Fig. 7a: two batches of 25, times of one batch. H2D, CPU, GPU.
const FIG_7A: [[f64; 3]; 11] = [
    [0.001, 0.255, 0.038],
    [4.214, 5.030, 0.323],
    [4.214, 5.030, 0.323],
    [4.214, 5.030, 0.323],
    [7.884, 36.450, 0.463],
    [0.000, 0.491, 0.066],
    [7.884, 36.450, 0.463],
    [4.214, 5.030, 0.323],
    [0.001, 0.255, 0.038],
    [16.856, 18.910, 1.097],
    [16.856, 19.891, 1.174],
];

/// Fig. 8a: a single batch of 50. Compressed H2D, decompression, storage to device.
const FIG_8A: [[f64; 3]; 11] = [
    [0.001, 0.000, 0.000],
    [1.083, 6.623, 20.700],
    [1.083, 6.623, 20.700],
    [1.083, 6.623, 20.700],
    [4.110, 10.963, 0.000],
    [0.000, 0.000, 0.000],
    [4.110, 10.963, 0.000],
    [1.083, 6.623, 20.700],
    [0.001, 0.000, 0.000],
    [4.332, 11.446, 82.798],
    [4.332, 11.446, 82.798],
];

fn table(batches: u32, fill: impl Fn(usize, &mut OpCost)) -> OperationTable {
    let op = |(index, name): (usize, &&str)| {
        let mut op = OpCost { kv: matches!(*name, "Scores" | "WV"), ..OpCost::named(name) };
        fill(index, &mut op);
        op
    };
    OperationTable {
        ops: NAMES.iter().enumerate().map(op).collect(),
        batches,
        compression: Compression::Off,
        nvme: false,
        cost: CostModelName::Paper,
        fused: None,
        needs: None,
    }
}

/// Returns the table of figs. 6a and 8a: one batch of 50, compressible, weights also on NVMe.
pub fn single_batch() -> OperationTable {
    table(1, |index, op| {
        [op.h2d_ms, op.cpu_ms] = FIG_6A[index];
        [op.h2d_compressed_ms, op.decompress_ms, op.s2d_ms] = FIG_8A[index];
    })
}

/// Returns the table of fig. 7a: two batches of 25.
pub fn two_batches() -> OperationTable {
    table(2, |index, op| [op.h2d_ms, op.cpu_ms, op.gpu_ms] = FIG_7A[index])
}
