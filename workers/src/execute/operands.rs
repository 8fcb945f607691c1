//! Operands of a compute instruction in the memory that workers share.

use bytemuck::Pod;
use model::config::ModelConfig;
use model::ops::Value;
use model::quantized_format::{Grouped, WeightFormat};
use program::expert_portions::writes;
use program::formats::on_device;
use program::ir::{Compute, ProgramId, Region};
use program::map::ComputeDevice;
use program::plan::Plan;
use program::weights::Weights;
use protocol::table::StepTable;

use crate::memory::View;
use crate::skew::Skew;

/// Resolves the operands of one compute instruction.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a> {
    pub(super) plan: &'a Plan,
    /// The model with the sizes of the instruction's layer.
    pub(super) config: &'a ModelConfig,
    pub(super) view: &'a View,
    pub(super) table: &'a StepTable,
    pub(super) program: ProgramId,
    pub(super) device: ComputeDevice,
    /// Skew of a plan that selects positions.
    pub(super) skew: Option<&'a Skew>,
}

impl<'a> Operands<'a> {
    /// Returns the first `rows` rows of an input or output that consists of rows, for reading.
    pub(super) fn rows<T: Pod>(&self, region: Region, value: Value, rows: usize) -> &'a [T] {
        let elements = value.row_elements(self.config).unwrap_or(0);
        self.view.read(region.buffer, 0, rows * elements)
    }

    /// Returns the first `rows` rows of the output.
    pub(super) fn output<T: Pod>(&self, compute: &Compute, rows: usize) -> &'a mut [T] {
        let elements = self.output_elements(compute);
        self.view.write(output_region(compute).buffer, 0, rows * elements)
    }

    /// Returns the same rows as a pointer and a number of elements, for rows of which other lanes
    /// write other columns.
    pub(super) fn output_pointer<T: Pod>(&self, compute: &Compute, rows: usize) -> (*mut T, usize) {
        let elements = rows * self.output_elements(compute);
        self.first_of(output_region(compute), elements)
    }

    /// Returns the first `rows` rows of an input as a pointer and a number of elements.
    pub(super) fn pointer<T: Pod>(
        &self,
        region: Region,
        value: Value,
        rows: usize,
    ) -> (*mut T, usize) {
        self.first_of(region, rows * value.row_elements(self.config).unwrap_or(0))
    }

    fn first_of<T: Pod>(&self, region: Region, elements: usize) -> (*mut T, usize) {
        let first = self.view.pointer(region.buffer, 0, elements * size_of::<T>());
        assert!(first.cast::<T>().is_aligned(), "buffers begin on their boundaries");
        (first.cast(), elements)
    }

    fn output_elements(&self, compute: &Compute) -> usize {
        let value = writes(compute.op, self.config, compute.chunk);
        value.and_then(|value| value.row_elements(self.config)).unwrap_or(0)
    }

    /// Returns the shape of the operation's matrix.
    pub(super) fn matrix_shape(&self, compute: &Compute) -> (usize, usize) {
        let shape = compute.op.weights(self.config).and_then(|weights| weights.matrix);
        let Some(shape) = shape else { panic!("{:?} has no matrix", compute.op) };
        shape
    }

    /// Returns the operation's matrix, whose plain elements must be of type `T`.
    pub(super) fn matrix<T: Pod>(&self, compute: &Compute) -> &'a [T] {
        let (n, k) = self.matrix_shape(compute);
        self.view.read(compute.weights[0].buffer, 0, n * k)
    }

    /// Returns the records of the operation's matrix in a grouped format.
    pub(super) fn records(&self, compute: &Compute, form: Grouped) -> &'a [u8] {
        let (n, k) = self.matrix_shape(compute);
        self.view.read(compute.weights[0].buffer, 0, form.size_bytes(n, k))
    }

    /// Returns the format of the matrix as this lane's device reads it.
    pub(super) fn format(&self, compute: &Compute) -> WeightFormat {
        let weights = Weights::of(compute.op, compute.at.layer);
        let stored = self.plan.map.weight_formats.of(&self.plan.config, weights);
        match self.device {
            ComputeDevice::Gpu => on_device(stored),
            ComputeDevice::Cpu => stored,
        }
    }

    /// Returns a vector stored after the matrix, such as a bias or a gain.
    pub(super) fn vector(&self, compute: &Compute, index: usize) -> Option<&'a [f32]> {
        let shape = compute.op.weights(self.config)?;
        let count = shape.vectors[index]?;
        let layout = shape.layout(self.plan.shape.dtype, self.format(compute));
        let offset = layout.vector_offsets[index];
        Some(self.view.read(compute.weights[0].buffer, offset, count))
    }
}

/// Returns the region that the instruction writes.
pub(super) fn output_region(compute: &Compute) -> Region {
    let Some(region) = compute.output else { panic!("{:?} writes no value", compute.op) };
    region
}
