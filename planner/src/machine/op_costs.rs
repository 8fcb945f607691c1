//! The operation table that a description predicts.

use model::config::{Dtype, ModelConfig};
use model::ops::Op;
use program::map::{Chunking, OpChunk, layer_list};

use crate::layer::table::{Compression, CostName, Fused, OpCost, Table, dataflow};

use super::{Machine, MachineError, Rates};

/// Bytes of a 4-bit element with its group's scale and offset (groups of 64, two halves each).
const FOUR_BIT_BYTES: f64 = 4.5 / 8.0;
/// Scores and probabilities are f32 in memory.
const SCORE_BYTES: f64 = 4.0;

/// In which form weights and KV lie in host memory and cross the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stored {
    /// 4-bit weights.
    pub w4: bool,
    /// 4-bit KV.
    pub kv4: bool,
}

impl Stored {
    pub const PLAIN: Stored = Stored { w4: false, kv4: false };
    pub const W4KV4: Stored = Stored { w4: true, kv4: true };

    /// Whether anything is compressed.
    pub const fn any(self) -> bool {
        self.w4 || self.kv4
    }

    /// Bytes of an element of the weights.
    pub fn weight_bytes(self, dtype: Dtype) -> f64 {
        if self.w4 { FOUR_BIT_BYTES } else { dtype.size_bytes() as f64 }
    }

    /// Bytes of an element of the KV cache.
    pub fn kv_bytes(self, dtype: Dtype) -> f64 {
        if self.kv4 { FOUR_BIT_BYTES } else { dtype.size_bytes() as f64 }
    }
}

/// What a decode step works on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Workload {
    /// N of `--batches NxB`.
    pub batches: u32,
    /// B, sequences.
    pub batch_size: u32,
    /// Cached positions of a sequence.
    pub positions: u32,
    pub dtype: Dtype,
    pub stored: Stored,
    pub chunking: Option<Chunking>,
}

/// Bytes and operations of one entry, one batch.
#[derive(Debug, Clone, Copy)]
struct Work {
    /// Elements of the weight matrix.
    weights: f64,
    /// Elements of the cache.
    kv: f64,
    /// Bytes of activations, scores among them.
    activations: f64,
    flops: f64,
    attention: bool,
}

const GIGA: f64 = 1e9;
const TERA: f64 = 1e12;
const MS: f64 = 1e3;

/// The table of a decoder layer in decode. Weights that are compressed are so for the CPU too,
/// which computes from the 4-bit form; compressed maps are then the only ones. Weights may come
/// from NVMe where the machine has it, uncompressed.
///
/// # Errors
/// A number format or a decompression that the description leaves out.
pub fn op_costs(
    machine: &Machine,
    config: &ModelConfig,
    workload: &Workload,
) -> Result<Table, MachineError> {
    let Workload { dtype, stored, .. } = *workload;
    let (cpu, gpu) = (machine.cpu_rates(dtype)?, machine.gpu_rates(dtype)?);
    let list = layer_list(config, workload.chunking);
    let ops = list
        .iter()
        .map(|entry| op_cost(machine, cpu, gpu, config, workload, entry))
        .collect::<Result<Vec<OpCost>, MachineError>>()?;
    let fused = workload.chunking.is_none().then(|| fused(cpu, gpu, config, workload)).flatten();
    Ok(Table {
        ops,
        batches: workload.batches,
        compression: if stored.any() { Compression::On } else { Compression::Off },
        nvme: false,
        cost: CostName::Simulated,
        fused,
        needs: Some(dataflow(&list)),
    })
}

fn op_cost(
    machine: &Machine,
    cpu: &Rates,
    gpu: &Rates,
    config: &ModelConfig,
    workload: &Workload,
    entry: &OpChunk,
) -> Result<OpCost, MachineError> {
    let Workload { dtype, stored, .. } = *workload;
    let work = work(config, workload, entry);
    let plain = dtype.size_bytes() as f64;
    let operand = |weight: f64, kv: f64| work.weights * weight + work.kv * kv;
    let as_stored = operand(stored.weight_bytes(dtype), stored.kv_bytes(dtype));
    let uncompressed = operand(plain, plain);
    let compressed = (stored.w4 && work.weights > 0.0) || (stored.kv4 && work.kv > 0.0);
    let decompress_ms = if compressed {
        let absent = || MachineError::NoDecompression { machine: machine.name.clone() };
        let gbps = machine.gpu.decompress_gbps.ok_or_else(absent)?;
        machine.gpu.decompress_overhead_ms + uncompressed / (gbps * GIGA) * MS
    } else {
        0.0
    };
    let nvme = machine.nvme_gbps();
    let from_nvme = nvme > 0.0 && work.weights > 0.0;
    Ok(OpCost {
        cpu_ms: time_ms(cpu, &work, as_stored),
        gpu_ms: time_ms(gpu, &work, uncompressed),
        h2d_ms: uncompressed / (machine.link.h2d_gbps * GIGA) * MS,
        h2d_compressed_ms: as_stored / (machine.link.h2d_gbps * GIGA) * MS,
        decompress_ms,
        s2d_ms: if from_nvme { uncompressed / (nvme * GIGA) * MS } else { 0.0 },
        kv: work.kv > 0.0,
        chunk: entry.chunk.map(|chunk| chunk.index),
        ..OpCost::named(&entry.name(config))
    })
}

/// LIA eq. 8: bytes over bandwidth and operations over throughput, one after the other.
fn time_ms(rates: &Rates, work: &Work, operand_bytes: f64) -> f64 {
    let (operands, flops) = if work.attention {
        (operand_bytes / rates.attention_gbps, work.flops / rates.attention_tflops)
    } else {
        (operand_bytes / rates.linear_gbps, work.flops / rates.linear_tflops)
    };
    ((operands + work.activations / rates.linear_gbps) / GIGA + flops / TERA) * MS
}

fn work(config: &ModelConfig, workload: &Workload, entry: &OpChunk) -> Work {
    let op = entry.op;
    let rows = u64::from(workload.batch_size);
    let pairs = rows * u64::from(workload.positions);
    let share = entry.chunk.map_or(1.0, |chunk| 1.0 / f64::from(chunk.of));
    let kv = op.kv_bytes(config, Dtype::Bf16, pairs) as f64 / Dtype::Bf16.size_bytes() as f64;
    let matrix = op.weights(config).and_then(|shape| shape.matrix);
    let scores = (pairs * config.num_heads as u64) as f64 * SCORE_BYTES;
    let passes = match op {
        Op::Scores | Op::Wv => 1.0,
        Op::Softmax => 2.0,
        _ => 0.0,
    };
    let values = op.activation_bytes(config, workload.dtype, rows) as f64;
    Work {
        weights: matrix.map_or(0.0, |(n, k)| n as f64 * k as f64) * share,
        kv: kv * share,
        activations: (values + passes * scores) * share,
        flops: op.flops(config, rows, pairs) as f64 * share,
        attention: op.is_attention(),
    }
}

/// Attention whole on one device writes no scores: four passes over them fall away.
fn fused(cpu: &Rates, gpu: &Rates, config: &ModelConfig, workload: &Workload) -> Option<Fused> {
    let start = config.layer_ops().iter().position(|op| *op == Op::Scores)?;
    let pairs = f64::from(workload.batch_size) * f64::from(workload.positions);
    let bytes = 4.0 * pairs * config.num_heads as f64 * SCORE_BYTES;
    Some(Fused {
        range: start..start + 3,
        cpu_saved_ms: bytes / (cpu.linear_gbps * GIGA) * MS,
        gpu_saved_ms: bytes / (gpu.linear_gbps * GIGA) * MS,
    })
}

/// Time of the model's head for one batch on the CPU, or streamed to the GPU, ms.
///
/// # Errors
/// A number format that the description leaves out.
pub fn head_ms(
    machine: &Machine,
    config: &ModelConfig,
    workload: &Workload,
    on_gpu: bool,
) -> Result<f64, MachineError> {
    let entry = OpChunk { op: Op::Head, chunk: None };
    let work = work(config, workload, &entry);
    let bytes = work.weights * workload.dtype.size_bytes() as f64;
    if !on_gpu {
        return Ok(time_ms(machine.cpu_rates(workload.dtype)?, &work, bytes));
    }
    let once = bytes / (machine.link.h2d_gbps * GIGA) * MS / f64::from(workload.batches);
    Ok(once.max(time_ms(machine.gpu_rates(workload.dtype)?, &work, bytes)))
}

/// What one layer of prefill on the GPU consists of, ms; `prompt` tokens a sequence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefillLayer {
    /// The layer's weights over the link, once.
    pub weights_ms: f64,
    /// Decompression of the weights, once.
    pub decompress_ms: f64,
    /// One batch on the GPU.
    pub compute_ms: f64,
    /// One batch's fresh KV to the host.
    pub kv_store_ms: f64,
}

/// The parts of a prefill layer.
///
/// # Errors
/// A number format or a decompression that the description leaves out.
pub fn prefill_layer(
    machine: &Machine,
    config: &ModelConfig,
    workload: &Workload,
    prompt: u32,
) -> Result<PrefillLayer, MachineError> {
    let gpu = machine.gpu_rates(workload.dtype)?;
    let table = op_costs(machine, config, &Workload { chunking: None, ..*workload })?;
    let compressed = workload.stored.any();
    let sum = |time: &dyn Fn(&OpCost) -> f64| -> f64 {
        table.ops.iter().filter(|op| !op.kv).map(time).sum()
    };
    let rows = u64::from(workload.batch_size) * u64::from(prompt);
    // Causal: a row sees half of the prompt on average.
    let pairs = rows * u64::from(prompt) / 2;
    let compute_ms: f64 = config
        .layer_ops()
        .iter()
        .map(|op| {
            let flops = op.flops(config, rows, pairs) as f64;
            let matrix = op.weights(config).and_then(|shape| shape.matrix);
            let weights = matrix.map_or(0.0, |(n, k)| n as f64 * k as f64);
            let activations = op.activation_bytes(config, workload.dtype, rows) as f64;
            let attention = op.is_attention();
            let work = Work { weights, kv: 0.0, activations, flops, attention };
            time_ms(gpu, &work, weights * workload.dtype.size_bytes() as f64)
        })
        .sum();
    let kv = 2.0 * (rows * config.kv_size() as u64) as f64;
    let kv_bytes = kv * workload.stored.kv_bytes(workload.dtype);
    Ok(PrefillLayer {
        weights_ms: sum(&|op| op.transfer_ms(compressed)),
        decompress_ms: sum(&|op| op.decompress_ms),
        compute_ms,
        kv_store_ms: kv_bytes / (machine.link.d2h_gbps * GIGA) * MS,
    })
}
