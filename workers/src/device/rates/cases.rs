//! Measured cases: kernels at the shapes of OPT-30B and of a model with grouped queries.

use cuda::DeviceAddress;
use cuda_kernels::{
    DeviceAttentionShape, DeviceAttentionUnit, DeviceAttentionUnits, DeviceLinear, DeviceLinearOut,
    DeviceWeight, KernelLaunch, KvOperand, attention_decode, attention_decode_scratch_bytes,
    attention_prefill, decompress, linear,
};
use model::config::Dtype;
use model::quantized_format::{Grouped, kv4_position_bytes};

/// Memory of a case's operands. All of it contains finite numbers in every format.
#[derive(Debug, Clone, Copy)]
pub(super) struct CaseMemory {
    /// Activations, [`OPERAND_BYTES`].
    pub(super) x: DeviceAddress,
    /// Results, [`OPERAND_BYTES`].
    pub(super) out: DeviceAddress,
    /// Sums of decode attention, [`OPERAND_BYTES`].
    pub(super) scratch: DeviceAddress,
    /// Units of attention, [`OPERAND_BYTES`].
    pub(super) units: DeviceAddress,
    /// Weights and caches, [`RING_BYTES`].
    pub(super) ring: DeviceAddress,
}

pub(super) const OPERAND_BYTES: u64 = 256 << 20;
/// Size of the ring, a multiple of any device's L2 cache: successive launches take their operands
/// from successive places.
pub(super) const RING_BYTES: u64 = 4 << 30;

/// One kernel, or several that belong together, at one shape.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) name: String,
    /// Rows of activations; sequences in decode attention.
    pub(super) rows: u32,
    /// Minimum number of bytes read and written: weights or caches, and activations once.
    pub(super) bytes: u64,
    /// Floating-point operations, two per multiplication.
    pub(super) flops: f64,
    pub(super) units: Vec<DeviceAttentionUnit>,
    /// One run for each place of the ring.
    pub(super) runs: Vec<Vec<KernelLaunch>>,
}

/// Inner layers of OPT-30B: projections of attention, then both of the MLP.
const MATRICES: [(u32, u32); 3] = [(7168, 7168), (28672, 7168), (7168, 28672)];
const DECODE_ROWS: [u32; 8] = [1, 4, 8, 16, 32, 50, 60, 100];
const PREFILL_ROWS: u32 = 2048;
/// Heads of OPT-30B and of a Llama with 8B parameters.
const HEADS: [DeviceAttentionShape; 2] = [heads(56, 56), heads(32, 8)];
/// Numbers of sequences and of positions in decode.
const DECODE: [(u32, u32); 3] = [(50, 543), (60, 543), (4, 8191)];
/// Numbers of sequences and of rows in prefill.
const PREFILL: [(u32, u32); 2] = [(8, 512), (1, 8192)];

const fn heads(heads: u32, kv_heads: u32) -> DeviceAttentionShape {
    DeviceAttentionShape { heads, kv_heads, head_dim: 128, scale: 0.088, window: None }
}

pub(super) fn cases(memory: &CaseMemory) -> Vec<Case> {
    let mut cases = Vec::new();
    for (n, k) in MATRICES {
        for format in [None, Some(Grouped::W4)] {
            let rows = DECODE_ROWS.into_iter().chain([PREFILL_ROWS]);
            cases.extend(rows.map(|rows| linear_case(memory, rows, n, k, format)));
        }
        cases.push(decompress_case(memory, n, k));
    }
    for shape in HEADS {
        for four in [false, true] {
            cases.extend(DECODE.map(|(sequences, positions)| {
                attention_case(memory, shape, sequences, positions, four, true)
            }));
            cases.extend(PREFILL.map(|(sequences, positions)| {
                attention_case(memory, shape, sequences, positions, four, false)
            }));
        }
    }
    cases
}

/// Returns consecutive addresses of operands of `size_bytes`, as many as the ring can hold but at
/// most 16.
fn ring_addresses(memory: &CaseMemory, size_bytes: u64) -> impl Iterator<Item = DeviceAddress> {
    let size_bytes = size_bytes.next_multiple_of(256);
    let count = (RING_BYTES / size_bytes).clamp(1, 16);
    let ring = memory.ring;
    (0..count).map(move |index| ring + index * size_bytes)
}

fn linear_case(memory: &CaseMemory, rows: u32, n: u32, k: u32, format: Option<Grouped>) -> Case {
    let size_bytes = match format {
        None => u64::from(n) * u64::from(k) * 2,
        Some(format) => format.size_bytes(n as usize, k as usize) as u64,
    };
    let run = |at| {
        let weight = match format {
            None => DeviceWeight::Plain(at),
            Some(format) => DeviceWeight::Grouped(format, at),
        };
        let out = DeviceLinearOut::Store(memory.out);
        vec![linear(Dtype::Bf16, &DeviceLinear { rows, n, k, x: memory.x, weight, bias: 0, out })]
    };
    Case {
        name: format!("linear {n}x{k} {}", if format.is_some() { "w4" } else { "bf16" }),
        rows,
        bytes: size_bytes + u64::from(rows) * u64::from(n + k) * 2,
        flops: 2.0 * f64::from(rows) * f64::from(n) * f64::from(k),
        units: Vec::new(),
        runs: ring_addresses(memory, size_bytes).map(run).collect(),
    }
}

fn decompress_case(memory: &CaseMemory, n: u32, k: u32) -> Case {
    let size_bytes = Grouped::W4.size_bytes(n as usize, k as usize) as u64;
    let plain_bytes = u64::from(n) * u64::from(k) * 2;
    let out = memory.ring + RING_BYTES / 2;
    let run = |at| vec![decompress(Dtype::Bf16, Grouped::W4, n, k, at, out)];
    let before = ring_addresses(memory, size_bytes).take_while(|at| at + size_bytes <= out);
    Case {
        name: format!("decompress {n}x{k}"),
        rows: 0,
        bytes: size_bytes + plain_bytes,
        flops: 0.0,
        units: Vec::new(),
        runs: before.map(run).collect(),
    }
}

/// Returns the units of sequences with consecutive caches.
fn units_of(
    shape: DeviceAttentionShape,
    sequences: u32,
    rows: u32,
    past: u32,
) -> Vec<DeviceAttentionUnit> {
    let unit = |sequence: u32, kv_head: u32| DeviceAttentionUnit {
        row0: sequence * rows,
        rows,
        past,
        kv_head,
        cache_offset: u64::from(sequence * shape.kv_heads + kv_head)
            * u64::from(past * shape.head_dim),
        scores_offset: 0,
        shared_row: DeviceAttentionUnit::CACHED,
        cache_positions: 0,
    };
    let heads = |sequence| (0..shape.kv_heads).map(move |kv_head| unit(sequence, kv_head));
    (0..sequences).flat_map(heads).collect()
}

/// Returns a case of attention. In decode, `sequences` single rows attend to `positions` cached
/// positions each; in prefill, `sequences` prompts have `positions` rows each.
fn attention_case(
    memory: &CaseMemory,
    shape: DeviceAttentionShape,
    sequences: u32,
    positions: u32,
    four: bool,
    decode: bool,
) -> Case {
    let DeviceAttentionShape { heads, kv_heads, head_dim, .. } = shape;
    let (rows, past) = if decode { (1, positions) } else { (positions, 0) };
    let units = units_of(shape, sequences, rows, past);
    let count = units.len() as u32;
    let position_bytes = match four {
        true => kv4_position_bytes(head_dim as usize).unwrap_or(0) as u64,
        false => u64::from(head_dim) * 2,
    };
    let cache_bytes = u64::from(count) * u64::from(positions) * position_bytes;
    let unit_list = DeviceAttentionUnits {
        pointer: memory.units,
        count,
        rows_max: rows,
        appended_max: rows,
        positions_max: past + rows,
    };
    let run = |at| {
        // Fresh rows of prefill are separate operands; in decode they are negligible.
        let fresh = if decode { [memory.x, memory.x] } else { [at, at + cache_bytes] };
        let cached = [at, at + cache_bytes];
        let [k, v] = [0, 1].map(|i| match four {
            true => KvOperand::Kv4 { fresh: fresh[i], cache: cached[i] },
            false => KvOperand::Plain { fresh: fresh[i], cache: cached[i] },
        });
        let (out, scratch) = (memory.out, memory.scratch);
        if decode {
            attention_decode(Dtype::Bf16, &shape, &unit_list, memory.x, k, v, 0, out, scratch)
                .to_vec()
        } else {
            vec![attention_prefill(Dtype::Bf16, &shape, &unit_list, memory.x, k, v, 0, out)]
        }
    };
    assert!(
        !decode || attention_decode_scratch_bytes(&shape, count, past + 1) <= OPERAND_BYTES,
        "sums of decode attention have room"
    );
    // With causal attention a row sees half of the fresh positions, on average.
    let seen = if decode { f64::from(past + 1) } else { f64::from(positions + 1) / 2.0 };
    let products = f64::from(sequences * rows) * f64::from(heads * head_dim) * seen;
    let kind = if decode { "decode" } else { "prefill" };
    let format = if four { "kv4" } else { "bf16" };
    Case {
        name: format!("{kind} attention {heads}/{kv_heads} heads, {positions} positions {format}"),
        rows: sequences,
        bytes: 2 * cache_bytes + u64::from(sequences * rows * heads * head_dim) * 4,
        // Scores and weighted values.
        flops: 4.0 * products,
        units,
        runs: ring_addresses(memory, 2 * cache_bytes).map(run).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_runs_whose_operands_fit() {
        let at = |index: u64| RING_BYTES + index * OPERAND_BYTES;
        let memory = CaseMemory { x: at(0), out: at(1), scratch: at(2), units: at(3), ring: 0 };
        for case in cases(&memory) {
            let Case { name, rows, bytes, units, runs, .. } = case;
            assert!(!runs.is_empty(), "{name}, {rows} rows: nothing fits the ring");
            assert!(runs.iter().flatten().all(|launch| !launch.is_empty()), "{name}");
            assert!(size_of_val(&*units) as u64 <= OPERAND_BYTES, "{name}");
            assert!(bytes <= RING_BYTES + 2 * OPERAND_BYTES, "{name}");
        }
    }
}
