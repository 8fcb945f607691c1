//! Decompression of a weight blob from its stored format to the wider one that the device
//! multiplies.
//!
//! The emulated device widens the integers to bytes, with their scales: the linear then yields the
//! same bits as one that reads the stored format directly, as the CPU does.

use kernels::Variant;
use kernels::quant::widen;
use model::quantized_format::WeightFormat;
use program::formats::decompressed;
use program::ir::Decompress;
use program::plan::Plan;
use program::weights::Weights;

use crate::lane_executor::WorkAmount;
use crate::memory::View;

pub(super) fn execute(
    plan: &Plan,
    view: &View,
    variant: Variant,
    decompress: &Decompress,
) -> WorkAmount {
    let (config, dtype) = (&plan.config, plan.shape.dtype);
    let (from, to) = (decompress.from.buffer, decompress.to.buffer);
    let weights = Weights::of(decompress.op, decompress.at.layer);
    let format = plan.map.weight_formats.of(config, weights);
    let shape = decompress.op.weights(config.at(decompress.at.layer));
    let (Some(wide), WeightFormat::Grouped(narrow), Some(shape)) =
        (decompressed(format), format, shape)
    else {
        panic!("{:?} is not kept in a form that is widened", decompress.op)
    };
    let Some((_, k)) = shape.matrix else { panic!("{:?} has no matrix", decompress.op) };
    let before = shape.layout(dtype, format);
    let after = shape.layout(dtype, WeightFormat::Grouped(wide));
    let records = view.read::<u8>(from, 0, before.matrix_bytes);
    widen(variant, narrow, k, records, view.write::<u8>(to, 0, after.matrix_bytes));
    let mut bytes = before.matrix_bytes;
    for (index, count) in shape.vectors.iter().enumerate() {
        let size_bytes = count.unwrap_or(0) * size_of::<f32>();
        let (source, target) = (before.vector_offsets[index], after.vector_offsets[index]);
        view.copy((from, source), (to, target), size_bytes);
        bytes += size_bytes;
    }
    WorkAmount { bytes: bytes as u64, rows: 0 }
}
