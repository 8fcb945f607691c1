//! Costs of serving a model on a described machine: times of a decoder layer by its rates.

use model::config::{Dtype, ModelConfig};
use model::experts::Experts;
use model::ops::Op;
use scheduler::hybrid::{LayerCosts, LinkCosts, MemoryShares};

use crate::machine::{Machine, MachineError, OperandRates};

/// ms per byte at 1 GB/s.
const MS_PER_GB: f64 = 1e3 / 1e9;
/// ms per operation at 1 TFLOPS.
const MS_PER_TERA: f64 = 1e3 / 1e12;

/// Times of a model on a machine. Different layers are averaged; windows are ignored, so that
/// attention of layers with a window counts all positions.
#[derive(Debug, Clone)]
pub struct ServingCosts {
    layers: u32,
    /// Reading a layer's weights on the device, and launching its operations.
    weights_ms: f64,
    /// Reading all experts of a layer, of which a small number of rows reads only some.
    experts_ms: f64,
    experts: Option<Experts>,
    /// Arithmetic and activations of a row.
    row_ms: f64,
    /// Arithmetic of attention of a row to a position, on the device.
    pair_ms: f64,
    /// Reading a cached position on the device, and on the host including arithmetic.
    device_position_ms: f64,
    host_position_ms: f64,
    /// Launching an operation of attention on the device.
    device_attention_ms: f64,
    launch_ms: f64,
    /// Reading the head's weights, and computing a row of it.
    head_ms: f64,
    sample_ms: f64,
    link: LinkCosts,
}

impl ServingCosts {
    /// Returns the times of a model of which `streamed` bytes of layers' weights are streamed to
    /// the device in each iteration.
    ///
    /// # Errors
    /// A number format that the description does not have.
    pub fn new(
        machine: &Machine,
        config: &ModelConfig,
        dtype: Dtype,
        streamed_bytes: u64,
    ) -> Result<ServingCosts, MachineError> {
        let device = machine.gpu_rates(dtype)?.stored(false);
        let host = machine.cpu_rates(dtype)?.stored(false);
        let layers = config.num_layers as f64;
        let work = LayerWork::average(config, dtype);
        let op_ms = machine.gpu.op_overhead_us / 1e3;
        let pair_flops = Op::Attention.flops(config, 0, 1) as f64;
        let position_bytes = config.kv_bytes_per_position(dtype) as f64;
        let position_ms = |rates: &OperandRates| {
            position_bytes / rates.attention_gbps * MS_PER_GB
                + pair_flops / rates.attention_tflops * MS_PER_TERA
        };
        let element = dtype.size_bytes() as f64;
        let out_ms = MS_PER_GB / machine.link.d2h_gbps;
        let in_ms = MS_PER_GB / machine.link.h2d_gbps;
        let row_elements = (config.q_size() + 2 * config.kv_size()) as f64;
        let head = Op::Head.weight_bytes(config, dtype) as f64;
        let head_flops = Op::Head.flops(config, 1, 0) as f64;
        Ok(ServingCosts {
            layers: config.num_layers as u32,
            weights_ms: work.dense_bytes / device.linear_gbps * MS_PER_GB + work.ops * op_ms,
            experts_ms: work.expert_bytes / device.linear_gbps * MS_PER_GB,
            experts: config.experts,
            row_ms: work.row_flops / device.linear_tflops * MS_PER_TERA
                + work.row_bytes / device.linear_gbps * MS_PER_GB,
            pair_ms: pair_flops / device.attention_tflops * MS_PER_TERA,
            device_position_ms: position_ms(&device),
            host_position_ms: position_ms(&host),
            device_attention_ms: op_ms,
            launch_ms: machine.cpu.stage_overhead_ms,
            head_ms: head / device.linear_gbps * MS_PER_GB + op_ms,
            sample_ms: head_flops / device.linear_tflops * MS_PER_TERA,
            link: LinkCosts {
                weights_ms: streamed_bytes as f64 / layers * in_ms,
                row_out_ms: row_elements * element * out_ms,
                row_back_ms: config.q_size() as f64 * element * in_ms,
                position_out_ms: position_bytes * out_ms,
                position_in_ms: position_bytes * in_ms,
                memory: MemoryShares {
                    attention: (host.attention_gbps / machine.memory.dram_gbps).min(1.0),
                    to_device: machine.link.h2d_gbps / machine.memory.dram_gbps,
                    to_host: machine.link.d2h_gbps / machine.memory.dram_gbps,
                },
            },
        })
    }
}

impl LayerCosts for ServingCosts {
    fn layers(&self) -> u32 {
        self.layers
    }

    fn linear_ms(&self, rows: u32) -> f64 {
        if rows == 0 {
            return 0.0;
        }
        let rows = f64::from(rows);
        let share = self.experts.map_or(0.0, |experts| experts.expected_share(rows));
        self.weights_ms + share * self.experts_ms + rows * self.row_ms
    }

    fn prefill_attention_ms(&self, tokens: u32) -> f64 {
        let tokens = f64::from(tokens);
        self.device_attention_ms + tokens * (tokens + 1.0) / 2.0 * self.pair_ms
    }

    fn device_decode_ms(&self, positions: u64) -> f64 {
        if positions == 0 {
            return 0.0;
        }
        self.device_attention_ms + positions as f64 * self.device_position_ms
    }

    fn host_decode_ms(&self, _sequences: u32, positions: u64) -> f64 {
        positions as f64 * self.host_position_ms
    }

    fn launch_ms(&self) -> f64 {
        self.launch_ms
    }

    fn ends_ms(&self, _rows: u32, samples: u32) -> f64 {
        if samples == 0 { 0.0 } else { self.head_ms + f64::from(samples) * self.sample_ms }
    }

    fn link(&self) -> LinkCosts {
        self.link
    }
}

/// Linears and norms of a layer, the mean over all layers.
#[derive(Debug, Clone, Copy, Default)]
struct LayerWork {
    ops: f64,
    dense_bytes: f64,
    expert_bytes: f64,
    row_flops: f64,
    /// Activations.
    row_bytes: f64,
}

impl LayerWork {
    fn average(config: &ModelConfig, dtype: Dtype) -> LayerWork {
        let mut sum = LayerWork::default();
        for layer in 0..config.num_layers {
            let model = config.of_layer(layer);
            let ops = config.layer_ops(layer).iter();
            for op in ops.filter(|op| !op.is_attention()) {
                sum.ops += 1.0;
                let bytes = op.weight_bytes(model, dtype) as f64;
                if op.is_expert() {
                    sum.expert_bytes += bytes
                } else {
                    sum.dense_bytes += bytes
                }
                sum.row_flops += op.flops(model, 1, 0) as f64;
                sum.row_bytes += op.activation_bytes(model, dtype, 1) as f64;
            }
        }
        let layers = config.num_layers as f64;
        LayerWork {
            ops: sum.ops / layers,
            dense_bytes: sum.dense_bytes / layers,
            expert_bytes: sum.expert_bytes / layers,
            row_flops: sum.row_flops / layers,
            row_bytes: sum.row_bytes / layers,
        }
    }
}
