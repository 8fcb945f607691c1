//! Summarises a profile as a few rates, as in a machine's description.
//!
//! Time is bytes over a bandwidth plus operations over a throughput plus a constant, by least
//! squares of relative errors over all points that were measured without contention. If the points
//! leave one of these undetermined, it is set to the highest rate that a description permits.

use model::config::{Dtype, ModelConfig};
use model::ops::Op;
use model::quantized_format::WeightFormat;
use program::formats::{KvFormat, decompressed, is_narrow, on_device};
use program::map::Phase;
use program::topology::{LaneId, LaneSet};
use program::weights::Weights;

use crate::contention::{find_rate, measure_contention};
use crate::fit::{Sample, non_negative};
use crate::key::ProfiledWork;
use crate::profile::{Profile, WorkMeasurement};

/// Range of rates that a description permits.
#[derive(Clone, Copy)]
struct RateRange {
    min: f64,
    max: f64,
}

const GBPS_RANGE: RateRange = RateRange { min: 0.01, max: 50_000.0 };
const TFLOPS_RANGE: RateRange = RateRange { min: 0.001, max: 50_000.0 };

/// Rates of one device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceRates {
    pub linear_gbps: f64,
    pub linear_tflops: f64,
    pub attention_gbps: f64,
    pub attention_tflops: f64,
    /// Overhead of each operation.
    pub overhead_us: f64,
    /// Rates for weights or KV in 4 bits, whose bytes are counted as stored.
    pub four_bit: Option<FourBitRates>,
}

/// Rates for 4 bits; those of plain weights or KV if they were not measured in 4 bits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FourBitRates {
    pub linear_gbps: f64,
    pub linear_tflops: f64,
    pub attention_gbps: f64,
    pub attention_tflops: f64,
}

/// Rates of decompression on a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DecompressRates {
    /// Bandwidth in bytes written.
    pub gbps: f64,
    pub overhead_ms: f64,
}

/// Rates of a machine; `None` for what was not measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MachineRates {
    pub cpu: Option<DeviceRates>,
    pub gpu: Option<DeviceRates>,
    pub h2d_gbps: Option<f64>,
    pub d2h_gbps: Option<f64>,
    pub decompress: Option<DecompressRates>,
    /// Combined bandwidth of the CPU and the link in host memory.
    pub dram_gbps: Option<f64>,
}

/// Returns the rates of a profile of a model.
pub fn derive_rates(profile: &Profile, config: &ModelConfig, dtype: Dtype) -> MachineRates {
    let points = MeasuredPoints { profile, config, dtype };
    let cpu = points.device_rates(LaneId::CPU_COMPUTE);
    let h2d_gbps = points.copy_gbps(LaneId::H2D_WEIGHTS);
    MachineRates {
        cpu,
        gpu: points.device_rates(LaneId::GPU_COMPUTE),
        h2d_gbps,
        d2h_gbps: points.copy_gbps(LaneId::D2H),
        decompress: points.decompress(),
        dram_gbps: cpu.map(|cpu| points.dram_gbps(cpu.linear_gbps, h2d_gbps)),
    }
}

/// Parameters that all operations of a device share.
#[derive(Debug, Clone, Copy)]
struct SharedOverhead {
    /// Time per byte of activations, and of plain weights.
    per_byte: f64,
    overhead_ns: f64,
}

/// Bytes of an operation's weights or KV, bytes of activations, arithmetic, and time.
#[derive(Debug, Clone, Copy)]
struct OperationSample {
    operands: f64,
    activations: f64,
    flops: f64,
    ns: f64,
}

impl OperationSample {
    /// Returns the sample with all terms to be explained; `None` if it took no time.
    fn full_sample(self) -> Option<Sample> {
        let columns = [self.operands + self.activations, self.flops, 1.0];
        (self.ns > 0.0).then_some(Sample { columns, target: self.ns, scale: self.ns })
    }

    /// Returns the sample with the terms that the law leaves unexplained.
    fn residual_sample(self, law: SharedOverhead) -> Option<Sample> {
        let target = self.ns - self.activations * law.per_byte - law.overhead_ns;
        let columns = [self.operands, self.flops, 0.0];
        (self.ns > 0.0).then_some(Sample { columns, target, scale: self.ns })
    }
}

/// Points that a profile measured without contention.
struct MeasuredPoints<'a> {
    profile: &'a Profile,
    config: &'a ModelConfig,
    dtype: Dtype,
}

impl MeasuredPoints<'_> {
    fn alone_on(&self, lane: LaneId) -> impl Iterator<Item = &WorkMeasurement> {
        let work = self.profile.measurements.work.iter();
        work.filter(move |one| one.concurrent.is_empty() && one.key.lane == lane)
    }

    fn device_rates(&self, lane: LaneId) -> Option<DeviceRates> {
        let linears: Vec<Sample> =
            self.alone_on(lane).filter_map(|one| self.linear(one, false)?.full_sample()).collect();
        if linears.is_empty() {
            return None;
        }
        let [per_byte, per_flop, overhead_ns] = non_negative(&linears);
        let law = SharedOverhead { per_byte, overhead_ns };
        let fitted = |works: Vec<OperationSample>| {
            let samples: Vec<Sample> =
                works.iter().filter_map(|work| work.residual_sample(law)).collect();
            let [per_operand, per_flop, _] = non_negative(&samples);
            (!samples.is_empty())
                .then(|| (rate(per_operand, GBPS_RANGE), rate(per_flop * 1e3, TFLOPS_RANGE)))
        };
        let attention = |four_bit| {
            self.alone_on(lane).filter_map(|one| self.attention(one, four_bit)).collect()
        };
        let linear = (rate(per_byte, GBPS_RANGE), rate(per_flop * 1e3, TFLOPS_RANGE));
        let plain = fitted(attention(false)).unwrap_or((GBPS_RANGE.max, TFLOPS_RANGE.max));
        let four_linear =
            fitted(self.alone_on(lane).filter_map(|one| self.linear(one, true)).collect());
        let four = fitted(attention(true));
        let four_bit = (four_linear.is_some() || four.is_some()).then(|| {
            let (linear, attention) = (four_linear.unwrap_or(linear), four.unwrap_or(plain));
            FourBitRates {
                linear_gbps: linear.0,
                linear_tflops: linear.1,
                attention_gbps: attention.0,
                attention_tflops: attention.1,
            }
        });
        Some(DeviceRates {
            linear_gbps: linear.0,
            linear_tflops: linear.1,
            attention_gbps: plain.0,
            attention_tflops: plain.1,
            overhead_us: overhead_ns / 1e3,
            four_bit,
        })
    }

    /// Returns a linear of a layer whose matrix is plain, or multiplied in 4 bits.
    fn linear(&self, measured: &WorkMeasurement, four_bit: bool) -> Option<OperationSample> {
        let ProfiledWork::Compute { op, chunk: None, weights, .. } = measured.key.work else {
            return None;
        };
        let is_such = match four_bit {
            true if measured.key.lane == LaneId::GPU_COMPUTE => is_narrow(on_device(weights)),
            true => is_narrow(weights),
            false => weights == WeightFormat::Plain,
        };
        let has_matrix = op.has_matrix(self.config);
        if !is_such || !has_matrix || !self.config.has_layer_op(op) {
            return None;
        }
        let rows = u64::from(measured.point.rows);
        // The experts to which this number of rows is routed.
        let experts = self.config.experts.filter(|_| op.is_expert());
        let share = experts.map_or(1.0, |experts| experts.expected_share(rows as f64));
        Some(OperationSample {
            operands: share * self.weight_bytes(op, weights),
            activations: op.activation_bytes(self.config, self.dtype, rows) as f64,
            flops: op.flops(self.config, rows, 0) as f64,
            ns: measured.time.mean_ns,
        })
    }

    /// Returns attention over caches that are plain, or in 4 bits. Descriptions have no rates of
    /// caches in 8 bits.
    fn attention(&self, measured: &WorkMeasurement, four_bit: bool) -> Option<OperationSample> {
        let ProfiledWork::Compute { op, chunk: None, kv, .. } = measured.key.work else {
            return None;
        };
        let kv = kv.unwrap_or(KvFormat::Plain);
        let wanted = if four_bit { KvFormat::Four } else { KvFormat::Plain };
        if !op.is_attention() || kv != wanted {
            return None;
        }
        let sequences = f64::from(measured.point.rows);
        let positions = f64::from(measured.point.positions);
        let (rows, pairs, cached) = match measured.key.phase {
            Some(Phase::Prefill) => (positions, positions * (positions + 1.0) / 2.0, 0.0),
            _ => (1.0, positions + 1.0, positions),
        };
        let config = self.config;
        let position = kv.position_bytes(config.head_dim, self.dtype) as f64;
        let caches = op.caches(config).len() as f64 * position * config.num_kv_heads as f64;
        let values = op.activation_bytes(config, self.dtype, 1) as f64;
        let scores = op.score_bytes(config, self.dtype, 1) as f64;
        Some(OperationSample {
            operands: sequences * cached * caches,
            activations: sequences * (rows * values + pairs * scores),
            flops: sequences * pairs * op.flops(config, 0, 1) as f64,
            ns: measured.time.mean_ns,
        })
    }

    fn weight_bytes(&self, op: Op, format: WeightFormat) -> f64 {
        Weights::of(op, Some(0)).size_bytes(self.config, self.dtype, format) as f64
    }

    /// Returns all bytes that a lane copied divided by the time it took.
    fn copy_gbps(&self, lane: LaneId) -> Option<f64> {
        let (mut bytes, mut time_ns) = (0.0, 0.0);
        for one in self.alone_on(lane) {
            let copied = match one.key.work {
                ProfiledWork::CopyWeights { op, weights } if self.config.has_layer_op(op) => {
                    self.weight_bytes(op, weights)
                }
                ProfiledWork::CopyValue { value, chunk: None } => {
                    let Some(row) = value.row_elements(self.config) else { continue };
                    let element = value.element_bytes(self.dtype) as f64;
                    f64::from(one.point.rows) * row as f64 * element
                }
                _ => continue,
            };
            (bytes, time_ns) = (bytes + copied, time_ns + one.time.mean_ns);
        }
        (bytes > 0.0 && time_ns > 0.0)
            .then(|| (bytes / time_ns).clamp(GBPS_RANGE.min, GBPS_RANGE.max))
    }

    fn decompress(&self) -> Option<DecompressRates> {
        let sample = |one: &WorkMeasurement| {
            let ProfiledWork::Decompress { op, weights } = one.key.work else { return None };
            let wide = decompressed(weights)?;
            let bytes = self.weight_bytes(op, WeightFormat::Grouped(wide));
            let time_ns = one.time.mean_ns;
            Some(Sample { columns: [bytes, 1.0, 0.0], target: time_ns, scale: time_ns })
        };
        let samples: Vec<Sample> =
            self.alone_on(LaneId::GPU_DECOMPRESS).filter_map(sample).collect();
        let [per_byte, overhead_ns, _] = non_negative(&samples);
        let overhead_ms = overhead_ns / 1e6;
        (!samples.is_empty())
            .then(|| DecompressRates { gbps: rate(per_byte, GBPS_RANGE), overhead_ms })
    }

    /// Returns the combined bandwidth of the CPU and the link, at least what either reads alone.
    fn dram_gbps(&self, linear_gbps: f64, h2d_gbps: Option<f64>) -> f64 {
        let Some(h2d_gbps) = h2d_gbps else { return linear_gbps };
        let (by_lane, _) = measure_contention(self.profile);
        let concurrent_rate = |lane: LaneId, other: LaneId| {
            let others: LaneSet = [other].into_iter().collect();
            by_lane.get(&lane).and_then(|rates| find_rate(rates, others)).unwrap_or(1.0)
        };
        let (cpu, link) = (LaneId::CPU_COMPUTE, LaneId::H2D_WEIGHTS);
        let both = linear_gbps * concurrent_rate(cpu, link) + h2d_gbps * concurrent_rate(link, cpu);
        both.max(linear_gbps).max(h2d_gbps).clamp(GBPS_RANGE.min, GBPS_RANGE.max)
    }
}

/// Returns the rate for a time per unit, limited to what a description permits.
fn rate(each_ns: f64, range: RateRange) -> f64 {
    if each_ns > 0.0 { (1.0 / each_ns).clamp(range.min, range.max) } else { range.max }
}

#[cfg(test)]
mod tests;
