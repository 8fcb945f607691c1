//! Bytes moved and operations computed by an instruction.

use model::config::{Dtype, ModelConfig};
use model::ops::{Kv, Op, Value};
use model::quantized_format::WeightFormat;
use program::formats::{KvFormat, is_narrow, on_device};
use program::ir::{At, BufferId, Compute, Copy, Instruction, Moved, Program, Rows};
use program::map::Chunk;
use program::plan::Plan;
use program::products::multiplies_plain;
use program::routing_counts::RoutingSkew;
use program::topology::{HardwareEngine, LaneKind, LaneSpec};
use program::weights::Weights;

use super::super::{Machine, MachineError};
use super::line::CappedLinear;
use super::stream::{StreamLength, StreamSize};

const NS: f64 = 1e9;
const GIGA: f64 = 1e9;
const TERA: f64 = 1e12;

/// Bandwidth that limits an instruction's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BandwidthKind {
    /// Weights, and computation with weights or with activations only.
    Linear,
    /// KV.
    Attention,
    /// Transfer of bytes.
    Moved,
    /// Expansion of stored weights to a wider format.
    Decompress,
}

/// Bytes and operations of an instruction.
#[derive(Debug, Clone, Copy)]
pub(super) struct InstructionWork {
    pub(super) kind: BandwidthKind,
    /// Weights or KV are in 4 bits.
    pub(super) four_bit: bool,
    /// Bytes of weights and KV, or of the transferred data.
    pub(super) operands: CappedLinear,
    /// Bytes of activations read and written.
    pub(super) activations: CappedLinear,
    pub(super) flops: CappedLinear,
    /// A drive reads directly to the device, bypassing host memory.
    pub(super) is_direct: bool,
    /// The operands are weights in this additional host memory.
    pub(super) slow_tier: Option<usize>,
}

impl InstructionWork {
    const NONE: InstructionWork = InstructionWork {
        kind: BandwidthKind::Moved,
        four_bit: false,
        operands: CappedLinear::ZERO,
        activations: CappedLinear::ZERO,
        flops: CappedLinear::ZERO,
        is_direct: false,
        slow_tier: None,
    };

    const fn transfer(bytes: CappedLinear) -> InstructionWork {
        InstructionWork { operands: bytes, ..InstructionWork::NONE }
    }
}

/// Computes the work of a plan's instructions.
#[derive(Debug, Clone, Copy)]
pub(super) struct WorkCalculator<'a> {
    plan: &'a Plan,
    length: StreamLength,
}

impl<'a> WorkCalculator<'a> {
    /// Returns the work for sequences of a length.
    pub(super) const fn new(plan: &'a Plan, length: StreamLength) -> WorkCalculator<'a> {
        WorkCalculator { plan, length }
    }

    /// Returns the work of an instruction of a program on a lane.
    pub(super) fn work(
        &self,
        program: &Program,
        lane: &LaneSpec,
        instruction: &Instruction,
    ) -> InstructionWork {
        let WorkCalculator { plan, length } = *self;
        let stream = |at: At| StreamSize::new(&plan.config, &plan.shape, program, at, length);
        match instruction {
            Instruction::Compute(compute) => {
                self.compute(program, lane, compute, &stream(compute.at))
            }
            Instruction::Copy(copy) => {
                let bytes = self.copied_bytes(program, copy, &stream(copy.at));
                InstructionWork {
                    slow_tier: self.slow_tier_index(copy.from.buffer),
                    ..InstructionWork::transfer(bytes)
                }
            }
            Instruction::Append(append) => {
                let model = self.config().at(append.at.layer);
                let stored = self.position_bytes(model, append.kv) * model.num_kv_heads as f64;
                let rate = model.cache_rate(append.kv) as f64;
                let fresh = (model.cache_size(append.kv) * self.dtype().size_bytes()) as f64 / rate;
                let rows = stream(append.at).rows.times(chunk_share(Some(append.chunk)));
                InstructionWork::transfer(rows.times(stored + fresh))
            }
            Instruction::Decompress(decompress) => {
                let weights = Weights::of(decompress.op, decompress.at.layer);
                let bytes = self.weight_bytes(weights, on_device(self.stored(weights)));
                InstructionWork {
                    kind: BandwidthKind::Decompress,
                    ..InstructionWork::transfer(CappedLinear::fixed(bytes))
                }
            }
            Instruction::Read(read) => {
                let bytes = CappedLinear::fixed(self.plan.read_bytes(read) as f64);
                let memory = self.plan.buffer(read.to.buffer).segment.memory;
                InstructionWork {
                    is_direct: self.plan.topology.is_vram(memory),
                    ..InstructionWork::transfer(bytes)
                }
            }
            Instruction::Wait(_) | Instruction::Signal => InstructionWork::NONE,
        }
    }

    const fn config(&self) -> &'a ModelConfig {
        &self.plan.config
    }

    const fn dtype(&self) -> Dtype {
        self.plan.shape.dtype
    }

    /// Returns the bytes of a cached position of one KV head of a layer.
    fn position_bytes(&self, model: &ModelConfig, kv: Kv) -> f64 {
        let place_bytes = self.plan.map.kv_format.position_bytes(model.cache_dim(kv), self.dtype());
        place_bytes as f64 / model.cache_rate(kv) as f64
    }

    fn stored(&self, weights: Weights) -> WeightFormat {
        self.plan.map.weight_formats.of(self.config(), weights)
    }

    fn weight_bytes(&self, weights: Weights, format: WeightFormat) -> f64 {
        weights.size_bytes(self.config(), self.dtype(), format) as f64
    }

    /// Returns the bytes of an operation's matrix for `rows` rows, and whether it is multiplied in
    /// 4 bits. A quantised matrix that is expanded first is read as stored, written expanded and
    /// read again.
    fn matrix(
        &self,
        program: &Program,
        lane: &LaneSpec,
        compute: &Compute,
        rows: f64,
    ) -> (f64, bool) {
        let (op, config) = (compute.op, self.config().at(compute.at.layer));
        let weights = Weights::of(op, compute.at.layer);
        let stored = self.stored(weights);
        let read = |format| {
            read_share(op, config, &self.plan.map.routing, rows)
                * self.weight_bytes(weights, format)
        };
        if !matches!(lane.engine, HardwareEngine::Gpu { .. }) {
            return (read(stored), is_narrow(stored));
        }
        let format = on_device(stored);
        let made_plain = format != WeightFormat::Plain
            && multiplies_plain(&self.plan.shape, program.shape.rows, op, format);
        match op.weights(config).and_then(|shape| shape.matrix) {
            Some((n, k)) if made_plain => {
                let plain = (n * k * self.dtype().size_bytes()) as f64;
                (read(format) + 2.0 * plain, false)
            }
            _ => (read(format), is_narrow(format)),
        }
    }

    fn compute(
        &self,
        program: &Program,
        lane: &LaneSpec,
        compute: &Compute,
        stream: &StreamSize,
    ) -> InstructionWork {
        let (op, share) = (compute.op, chunk_share(compute.chunk));
        let config = self.config().at(compute.at.layer);
        let values = op.activation_bytes(config, self.dtype(), 1) as f64;
        let scores = op.score_bytes(config, self.dtype(), 1) as f64;
        let rows = match op {
            Op::FinalNorm | Op::Head | Op::Sample => stream.sampled,
            _ => stream.rows,
        };
        let activations = rows.times(values).plus(stream.pairs.times(scores));
        let (linear, looked_at) = (op.flops(config, 1, 0) as f64, op.flops(config, 0, 1) as f64);
        let flops = rows.times(linear).plus(stream.pairs.times(looked_at));
        if op.is_attention() {
            let caches = op.caches(config).iter();
            let one: f64 = caches.map(|kv| self.position_bytes(config, *kv)).sum();
            let one = one * config.num_kv_heads as f64;
            return InstructionWork {
                kind: BandwidthKind::Attention,
                four_bit: self.plan.map.kv_format == KvFormat::Four,
                operands: stream.cached.times(one * share),
                activations: activations.times(share),
                flops: flops.times(share),
                ..InstructionWork::NONE
            };
        }
        if op.updates_state() {
            // Read and written.
            let state_bytes = 2.0 * op.state_bytes(config) as f64;
            let operands = stream.sequences.times(state_bytes);
            return InstructionWork {
                kind: BandwidthKind::Attention,
                operands,
                activations,
                flops,
                ..InstructionWork::NONE
            };
        }
        let (operands, four_bit) = match op {
            // Only some rows of the table are read.
            Op::Embed => (0.0, false),
            _ if op.weights(config).is_some() => {
                self.matrix(program, lane, compute, rows.at(self.length.prompt))
            }
            _ => (0.0, false),
        };
        InstructionWork {
            kind: BandwidthKind::Linear,
            four_bit,
            operands: CappedLinear::fixed(operands * share),
            activations: activations.times(share),
            flops: flops.times(share),
            slow_tier: compute
                .weights
                .first()
                .and_then(|region| self.slow_tier_index(region.buffer)),
            ..InstructionWork::NONE
        }
    }

    /// Returns the additional host memory that contains a buffer.
    fn slow_tier_index(&self, buffer: BufferId) -> Option<usize> {
        self.plan.topology.slow_tier_index(self.plan.buffer(buffer).segment.memory)
    }

    fn copied_bytes(&self, program: &Program, copy: &Copy, stream: &StreamSize) -> CappedLinear {
        let (config, share) = (self.config().at(copy.at.layer), chunk_share(copy.chunk));
        match copy.moved {
            Moved::Weights(op) => {
                let weights = Weights::of(op, copy.at.layer);
                CappedLinear::fixed(self.weight_bytes(weights, self.stored(weights)) * share)
            }
            Moved::Cache(kv) | Moved::Sequences(kv) => {
                let one = self.position_bytes(config, kv) * config.num_kv_heads as f64;
                let cached = match program.shape.rows {
                    Rows::WholePrompts => CappedLinear::ZERO,
                    Rows::Chunks | Rows::Single | Rows::Moves(_) => stream.cached,
                };
                cached.times(one * share)
            }
            Moved::Value(value) | Moved::Deferred(value) => {
                let element = value.element_bytes(self.dtype()) as f64;
                let elements = match (value, value.row_elements(config)) {
                    (Value::LastNormed | Value::Logits, Some(row)) => {
                        stream.sampled.times(row as f64)
                    }
                    (_, Some(row)) => stream.rows.times(row as f64),
                    (_, None) => stream.pairs.times(config.num_heads as f64),
                };
                elements.times(element * share)
            }
        }
    }
}

/// Returns the fraction of its weights that an operation for `rows` rows reads: of experts those
/// that are expected to be hit. Copies, decompressions and reads from a drive always transfer all
/// experts.
fn read_share(op: Op, config: &ModelConfig, routing: &RoutingSkew, rows: f64) -> f64 {
    let experts = config.experts.filter(|_| op.is_expert());
    experts.map_or(1.0, |experts| routing.expected_share(&experts, rows))
}

fn chunk_share(chunk: Option<Chunk>) -> f64 {
    chunk.map_or(1.0, |chunk| 1.0 / f64::from(chunk.of))
}

/// Returns the duration in nanoseconds of a work on an engine of a machine.
///
/// # Errors
/// A number format, a decompression or a drive that the description does not have.
pub(super) fn work_ns(
    machine: &Machine,
    lane: &LaneSpec,
    dtype: Dtype,
    work: &InstructionWork,
) -> Result<CappedLinear, MachineError> {
    let moved = |gbps: f64| work.operands.times(NS / (gbps * GIGA));
    let tier = work.slow_tier.map(|number| machine.tier(number)).transpose()?;
    let (rates, overhead_us) = match lane.engine {
        HardwareEngine::Link { .. } => {
            let down = lane.kind == LaneKind::Download;
            let gbps = if down { machine.link.d2h_gbps } else { machine.link.h2d_gbps };
            return Ok(moved(tier.map_or(gbps, |tier| tier.link_gbps.min(gbps))));
        }
        HardwareEngine::Storage { device } => {
            let gbps = machine.read_gbps(device)?;
            let max_gbps = if work.is_direct { machine.link.h2d_gbps } else { f64::INFINITY };
            return Ok(moved(gbps.min(max_gbps)));
        }
        HardwareEngine::Cpu => (machine.cpu_rates(dtype)?, machine.cpu.op_overhead_us),
        HardwareEngine::Gpu { .. } => (machine.gpu_rates(dtype)?, machine.gpu.op_overhead_us),
    };
    if work.kind == BandwidthKind::Decompress {
        let absent = || MachineError::NoDecompression { machine: machine.name.clone() };
        let gbps = machine.gpu.decompress_gbps.ok_or_else(absent)?;
        let overhead = CappedLinear::fixed(machine.gpu.decompress_overhead_ms * 1e6);
        return Ok(moved(gbps).plus(overhead));
    }
    let stored = rates.stored(work.four_bit);
    let (gbps, tflops) = match work.kind {
        BandwidthKind::Attention => (stored.attention_gbps, stored.attention_tflops),
        _ => (stored.linear_gbps, stored.linear_tflops),
    };
    let gbps = tier.map_or(gbps, |tier| tier.cpu_gbps.min(gbps));
    let bytes = moved(gbps).plus(work.activations.times(NS / (rates.linear_gbps * GIGA)));
    let flops = work.flops.times(NS / (tflops * TERA));
    Ok(bytes.plus(flops).plus(CappedLinear::fixed(overhead_us * 1e3)))
}
