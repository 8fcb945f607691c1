//! Execution of one operation of the model's table as kernel launches.

use cuda::{CudaError, DeviceAddress, Stream};
use cuda_kernels::{
    DeviceLinear, DeviceLinearOut, DeviceNorm, DeviceWeight, add_rms_norm, decompress, epilogue,
    head_norm, linear, norm, rope,
};
use model::config::{Activation, QkNorm};
use model::ops::{Op, Value};
use model::quantized_format::WeightFormat;
use program::formats::on_device;
use program::ir::{Compute, ProgramId, Region};
use program::plan::Plan;
use program::products::multiplies_plain;
use program::weights::Weights;
use protocol::table::StepTable;

use super::open::Device;
use super::scratch::kind_of;
use super::uploads::{UploadContext, Uploads};
use crate::execute::{SWIGLU_ALPHA, SWIGLU_LIMIT};
use crate::lane_executor::WorkAmount;
use crate::work_items::row_counts;

/// Context of a compute instruction.
pub(super) struct ComputeContext<'a> {
    pub(super) plan: &'a Plan,
    pub(super) device: &'a Device,
    pub(super) stream: &'a Stream,
    pub(super) table: &'a StepTable,
    pub(super) program: ProgramId,
    pub(super) uploads: &'a mut Uploads,
}

impl<'a> ComputeContext<'a> {
    /// Returns the context in which the instruction uploads its lists.
    pub(super) fn upload_context(&self) -> UploadContext<'a> {
        let ComputeContext { device, stream, table, program, .. } = *self;
        UploadContext { device, stream, table, program }
    }

    /// Enqueues the operation. `Sample` does not run on the device.
    pub(super) fn run(&mut self, compute: &Compute) -> Result<WorkAmount, CudaError> {
        let (found, rows) = row_counts(self.table, self.program, compute.at);
        let rows = match compute.op {
            Op::FinalNorm | Op::Head => found,
            _ => rows,
        };
        if rows == 0 {
            return Ok(WorkAmount::default());
        }
        let (config, dtype) = (&self.plan.config, self.plan.shape.dtype);
        let weight_bytes = compute.op.weight_bytes_in(config, dtype, self.format(compute)) as u64;
        let cache_bytes = match compute.op {
            Op::Embed => panic!("the embedding always runs on the CPU"),
            Op::ExpertCombine => panic!("the CPU computes experts in portions"),
            Op::Norm0 | Op::Norm1 | Op::FinalNorm => {
                self.norm(compute, rows)?;
                0
            }
            Op::PostNorm0 | Op::PostNorm1 => {
                self.post_norm(compute, rows)?;
                0
            }
            Op::Router => {
                self.route(compute, rows)?;
                0
            }
            Op::ExpertGate | Op::ExpertUp | Op::ExpertDown => {
                self.experts(compute, rows)?;
                0
            }
            op if op.is_attention() => self.attention(compute)?,
            _ => {
                self.linear(compute, rows)?;
                0
            }
        };
        Ok(WorkAmount { bytes: weight_bytes + cache_bytes, rows: rows as u32 })
    }

    /// Returns the address of the first `rows` rows of a value.
    pub(super) fn rows(&self, region: Region, value: Value, rows: usize) -> DeviceAddress {
        let elements = value.row_elements(&self.plan.config).unwrap_or(0);
        let size_bytes = rows * elements * value.element_bytes(self.plan.shape.dtype);
        self.device.buffer_addresses().address(region.buffer, 0, size_bytes)
    }

    /// Returns the address of the first `rows` rows of the output.
    pub(super) fn output(&self, compute: &Compute, rows: usize) -> DeviceAddress {
        let (Some(region), Some(value)) = (compute.output, compute.op.writes(&self.plan.config))
        else {
            panic!("{:?} writes no value", compute.op)
        };
        self.rows(region, value, rows)
    }

    /// Returns the format of the matrix as the device reads it.
    fn format(&self, compute: &Compute) -> WeightFormat {
        let weights = Weights::of(compute.op, compute.at.layer);
        let stored = self.plan.map.weight_formats.of(&self.plan.config, weights);
        on_device(stored)
    }

    /// Returns the address of a vector stored after the matrix, or 0 if there is none.
    pub(super) fn vector(&self, compute: &Compute, index: usize) -> DeviceAddress {
        let Some(shape) = compute.op.weights(&self.plan.config) else { return 0 };
        let Some(count) = shape.vectors[index] else { return 0 };
        let layout = shape.layout(self.plan.shape.dtype, self.format(compute));
        let offset = layout.vector_offsets[index];
        let buffer = compute.weights[0].buffer;
        self.device.buffer_addresses().address(buffer, offset, count * size_of::<f32>())
    }

    pub(super) fn launch(&self, launch: cuda_kernels::KernelLaunch) -> Result<(), CudaError> {
        // SAFETY: needed to compute. All operands come from the plan's buffers through
        // `BufferAddresses`, which checks them against the step table's sizes; the program orders
        // other users of them.
        unsafe { self.device.launch(self.stream, launch) }
    }

    fn norm(&mut self, compute: &Compute, rows: usize) -> Result<(), CudaError> {
        let (config, dtype) = (&self.plan.config, self.plan.shape.dtype);
        let picks = compute.op == Op::FinalNorm;
        let (row_index, input_rows) = if picks {
            let context = self.upload_context();
            let lists = self.uploads.rows(config, context, compute.at)?;
            (lists.last_rows, row_counts(self.table, self.program, compute.at).1)
        } else {
            (0, rows)
        };
        let x = self.rows(compute.inputs[0], Value::Hidden, input_rows);
        let out = self.output(compute, rows);
        let (gain, bias) = (self.vector(compute, 0), self.vector(compute, 1));
        let (rows, hidden) = (rows as u32, config.hidden_size as u32);
        let operands = DeviceNorm { rows, hidden, x, gain, bias, eps: config.norm_eps, row_index };
        self.launch(norm(dtype, &operands, out))
    }

    fn post_norm(&self, compute: &Compute, rows: usize) -> Result<(), CudaError> {
        let (config, dtype) = (&self.plan.config, self.plan.shape.dtype);
        let x = self.rows(compute.inputs[0], compute.op.reads(config)[0], rows);
        let gain = self.vector(compute, 0);
        let out = self.output(compute, rows);
        let (rows, hidden) = (rows as u32, config.hidden_size as u32);
        self.launch(add_rms_norm(dtype, rows, hidden, x, gain, config.norm_eps, out))
    }

    /// Enqueues the sums of a linear if cuBLASLt computes them, and returns their address.
    fn sums(
        &self,
        compute: &Compute,
        product: &DeviceLinear,
    ) -> Result<Option<DeviceAddress>, CudaError> {
        let Some(products) = self.device.products() else { return Ok(None) };
        let (shape, rows) = (&self.plan.shape, self.table.program(self.program).rows);
        if !multiplies_plain(shape, rows, compute.op, self.format(compute)) {
            return Ok(None);
        }
        let weight = match product.weight {
            DeviceWeight::Plain(weight) => weight,
            DeviceWeight::Grouped(form, records) => {
                let (n, k, out) = (product.n, product.k, products.weight());
                self.launch(decompress(shape.dtype, form, n, k, records, out))?;
                products.weight()
            }
        };
        // SAFETY: needed to compute; as for launches. The matrix that was just expanded belongs to
        // this lane until the stream has multiplied it, since no other lane has that scratch.
        unsafe { products.enqueue(self.stream, product, weight) }.map(Some)
    }

    /// Enqueues the linear of an operation.
    pub(super) fn multiply(
        &self,
        compute: &Compute,
        product: &DeviceLinear,
    ) -> Result<(), CudaError> {
        let (dtype, DeviceLinear { rows, n, bias, out, .. }) = (self.plan.shape.dtype, *product);
        match self.sums(compute, product)? {
            Some(sums) => self.launch(epilogue(dtype, rows, n, sums, bias, out)),
            None => self.launch(linear(dtype, product)),
        }
    }

    /// Returns the shape of the operation's matrix.
    pub(super) fn matrix_shape(&self, compute: &Compute) -> (usize, usize) {
        let shape = compute.op.weights(&self.plan.config).and_then(|weights| weights.matrix);
        let Some(shape) = shape else { panic!("{:?} has no matrix", compute.op) };
        shape
    }

    /// Returns the operation's matrix.
    pub(super) fn weight(&self, compute: &Compute) -> DeviceWeight {
        let ((n, k), buffer) = (self.matrix_shape(compute), compute.weights[0].buffer);
        let places = self.device.buffer_addresses();
        match self.format(compute) {
            WeightFormat::Plain => {
                let size_bytes = n * k * self.plan.shape.dtype.size_bytes();
                DeviceWeight::Plain(places.address(buffer, 0, size_bytes))
            }
            WeightFormat::Grouped(form) => {
                DeviceWeight::Grouped(form, places.address(buffer, 0, form.size_bytes(n, k)))
            }
        }
    }

    fn linear(&mut self, compute: &Compute, rows: usize) -> Result<(), CudaError> {
        let config = &self.plan.config;
        let to = self.output(compute, rows);
        let scales = config.scales;
        let gate = compute.op.gate_of_up();
        let gate = gate.map(|value| self.rows(compute.inputs[1], value, rows));
        let out = match (compute.op, gate) {
            (_, Some(gate)) => gated(config.activation, gate, to),
            (op, _) if op.adds_to_residual(config) => {
                DeviceLinearOut::AddScaled { out: to, factor: scales.residual }
            }
            (Op::Head, _) => DeviceLinearOut::StoreScaled { out: to, factor: scales.logits },
            (Op::Fc0, _) if config.activation == Activation::Relu => DeviceLinearOut::Relu(to),
            (Op::Fc0, _) => DeviceLinearOut::Gelu(to),
            _ => DeviceLinearOut::Store(to),
        };
        let (n, k) = self.matrix_shape(compute);
        let x = self.rows(compute.inputs[0], compute.op.reads(config)[0], rows);
        let (weight, bias) = (self.weight(compute), self.vector(compute, 0));
        let (rows, n, k) = (rows as u32, n as u32, k as u32);
        self.multiply(compute, &DeviceLinear { rows, n, k, x, weight, bias, out })?;
        if matches!(compute.op, Op::Q | Op::K) {
            self.norm_heads(compute, rows, n, to)?;
            self.rotate(compute, rows, to)?;
        }
        Ok(())
    }

    /// Normalises q or k if the model has such a norm.
    fn norm_heads(
        &self,
        compute: &Compute,
        rows: u32,
        n: u32,
        to: DeviceAddress,
    ) -> Result<(), CudaError> {
        let (config, dtype) = (&self.plan.config, self.plan.shape.dtype);
        let head_dim = config.head_dim as u32;
        let (heads, head_dim) = match config.qk_norm {
            Some(QkNorm::PerHead) => (n / head_dim, head_dim),
            Some(QkNorm::FullWidth) => (1, n),
            None => return Ok(()),
        };
        let (gain, eps) = (self.vector(compute, 1), config.norm_eps);
        self.launch(head_norm(dtype, rows, heads, head_dim, gain, eps, to))
    }

    /// Rotates q or k if the layer does.
    fn rotate(&mut self, compute: &Compute, rows: u32, to: DeviceAddress) -> Result<(), CudaError> {
        let (config, dtype) = (&self.plan.config, self.plan.shape.dtype);
        let context = self.upload_context();
        let lists = self.uploads.rows(config, context, compute.at)?;
        let (kind, list) = (kind_of(config, compute.at), lists.positions);
        let frequencies = self.device.scratch_address(self.device.scratch().frequencies);
        let Some(tables) = lists.list.tables(config, kind, list, frequencies) else {
            return Ok(());
        };
        let heads = if compute.op == Op::Q { config.num_heads } else { config.num_kv_heads };
        let (heads, head_dim) = (heads as u32, config.head_dim as u32);
        self.launch(rope(dtype, rows, heads, head_dim, lists.positions, &tables, to))
    }
}

/// Returns the output that multiplies an activation of the gate by a linear's result.
///
/// # Panics
/// Panics if the activation has a single factor.
pub(super) fn gated(
    activation: Activation,
    gate: DeviceAddress,
    out: DeviceAddress,
) -> DeviceLinearOut {
    match activation {
        Activation::Silu => DeviceLinearOut::SiluMul { gate, out },
        Activation::GeluTanh => DeviceLinearOut::GeluTanhMul { gate, out },
        Activation::ClampedSwiGlu => {
            DeviceLinearOut::ClampedSwiGlu { gate, out, alpha: SWIGLU_ALPHA, limit: SWIGLU_LIMIT }
        }
        Activation::Relu
        | Activation::ReluSquared
        | Activation::Gelu
        | Activation::SiluOfLimited => {
            panic!("{activation:?} has no gate, or limits that devices lack")
        }
    }
}
