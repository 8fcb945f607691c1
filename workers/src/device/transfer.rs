//! Copies, appends and decompression on a stream.

use cuda::{CudaError, Stream};
use cuda_kernels::{append, append_kv4, widen};
use model::quantized_format::WeightFormat;
use program::cuda_gaps::CACHES_OF_8_BITS;
use program::formats::{KvFormat, decompressed};
use program::ir::{Append, Copy, Decompress, Moved, ProgramId};
use program::plan::Plan;
use program::weights::Weights;
use protocol::table::StepTable;

use super::depth::Marks;
use super::open::Device;
use super::scratch::{attention_shape, kind_of};
use super::uploads::{UploadContext, Uploads};
use crate::execute::copy_spans;
use crate::lane_executor::WorkAmount;
use crate::memory::View;
use crate::work_items::row_counts;

/// Context of an instruction that moves bytes.
#[derive(Clone, Copy)]
pub(super) struct TransferContext<'a> {
    pub(super) plan: &'a Plan,
    pub(super) device: &'a Device,
    pub(super) stream: &'a Stream,
    pub(super) view: &'a View,
    pub(super) table: &'a StepTable,
    pub(super) program: ProgramId,
    pub(super) marks: &'a Marks,
}

impl TransferContext<'_> {
    /// Enqueues the spans of a copy, one by one.
    pub(super) fn copy(&self, copy: &Copy) -> Result<WorkAmount, CudaError> {
        let TransferContext { plan, device, stream, view, table, program, marks } = *self;
        let (from, to) = (copy.from.buffer, copy.to.buffer);
        let places = device.buffer_addresses();
        let weight_bytes = match copy.moved {
            Moved::Weights(_) => view.size_bytes(from).min(view.size_bytes(to)),
            _ => 0,
        };
        let (mut bytes, mut outcome, mut pace) = (0, Ok(()), marks.pace(stream));
        let rows = copy_spans(plan, table, program, copy, weight_bytes, |span| {
            let size_bytes = span.size_bytes;
            if size_bytes == 0 || outcome.is_err() {
                return;
            }
            bytes += size_bytes as u64;
            let source = || places.address(from, span.from_bytes, size_bytes);
            let target = || places.address(to, span.to_bytes, size_bytes);
            // SAFETY: needed to move the bytes. Both ranges were checked against their buffers,
            // host segments are mapped for as long as the view, and the program orders other users
            // of the ranges after this lane's signals, which come after the stream is done.
            outcome = unsafe {
                match (places.contains(from), places.contains(to)) {
                    (false, true) => {
                        let from = view.pointer(from, span.from_bytes, size_bytes);
                        stream.copy_to_device(target(), from, size_bytes)
                    }
                    (true, false) => {
                        let to = view.pointer(to, span.to_bytes, size_bytes);
                        stream.copy_to_host(to, source(), size_bytes)
                    }
                    (true, true) => stream.copy_on_device(target(), source(), size_bytes),
                    (false, false) => panic!("a copy of a device lane has an end on the device"),
                }
            };
            if outcome.is_ok() {
                outcome = pace.step();
            }
        });
        outcome.map(|()| WorkAmount { bytes, rows: rows as u32 })
    }

    /// Enqueues the append of fresh rows to a cache on the device.
    pub(super) fn append(
        &self,
        instruction: &Append,
        uploads: &mut Uploads,
    ) -> Result<WorkAmount, CudaError> {
        let TransferContext { plan, device, stream, table, program, .. } = *self;
        let kind = kind_of(&plan.config, instruction.at);
        let context = UploadContext { device, stream, table, program };
        let units = uploads.appended(context, instruction.at, kind, instruction.chunk)?;
        let (shape, dtype) = (attention_shape(&plan.config, kind), plan.shape.dtype);
        let address =
            |id| device.buffer_addresses().address(id, 0, device.buffer_addresses().size_bytes(id));
        let (from, to) = (address(instruction.from.buffer), address(instruction.to.buffer));
        let launch = match plan.map.kv_format {
            KvFormat::Plain => append(dtype, &shape, &units, from, to),
            KvFormat::Four => append_kv4(dtype, &shape, &units, from, to),
            KvFormat::Eight => {
                panic!("{CACHES_OF_8_BITS} was refused before the device was opened")
            }
        };
        // SAFETY: needed to append. The plan sizes both buffers for the units of the step table.
        unsafe { device.launch(stream, launch) }?;
        let (_, rows) = row_counts(table, program, instruction.at);
        let position_bytes = plan.map.kv_format.position_bytes(plan.config.head_dim, dtype);
        let bytes = (units.count as usize * units.appended_max as usize * position_bytes) as u64;
        Ok(WorkAmount { bytes, rows: rows as u32 })
    }

    /// Enqueues the expansion of streamed records to the bytes that linears read.
    pub(super) fn decompress(&self, decompress: &Decompress) -> Result<WorkAmount, CudaError> {
        let TransferContext { plan, device, stream, .. } = *self;
        let (config, dtype) = (&plan.config, plan.shape.dtype);
        let (from, to) = (decompress.from.buffer, decompress.to.buffer);
        let weights = Weights::of(decompress.op, decompress.at.layer);
        let format = plan.map.weight_formats.of(config, weights);
        let shape = decompress.op.weights(config);
        let (Some(wide), WeightFormat::Grouped(narrow), Some(shape)) =
            (decompressed(format), format, shape)
        else {
            panic!("{:?} is not kept in a form that is widened", decompress.op)
        };
        let Some((n, k)) = shape.matrix else { panic!("{:?} has no matrix", decompress.op) };
        let before = shape.layout(dtype, format);
        let after = shape.layout(dtype, WeightFormat::Grouped(wide));
        let places = device.buffer_addresses();
        let launch = widen(
            narrow,
            n as u32,
            k as u32,
            places.address(from, 0, before.matrix_bytes),
            places.address(to, 0, after.matrix_bytes),
        );
        // SAFETY: needed to widen the records; both ranges were just checked.
        unsafe { device.launch(stream, launch) }?;
        let mut bytes = before.matrix_bytes;
        for (index, count) in shape.vectors.iter().enumerate() {
            let size_bytes = count.unwrap_or(0) * size_of::<f32>();
            if size_bytes == 0 {
                continue;
            }
            let source = places.address(from, before.vector_offsets[index], size_bytes);
            let target = places.address(to, after.vector_offsets[index], size_bytes);
            // SAFETY: needed to copy the bias as well; both ranges were just checked.
            unsafe { stream.copy_on_device(target, source, size_bytes) }?;
            bytes += size_bytes;
        }
        Ok(WorkAmount { bytes: bytes as u64, rows: 0 })
    }
}
