//! Linears of prefill through cuBLASLt, if it is installed.
//!
//! Prefill multiplies many rows and is bound by arithmetic, at which the library is best; decode is
//! bound by reading weights, at which our own kernels are as fast. The choice depends on the
//! program and not on the rows ([`multiplies_plain`]), and one algorithm computes all rows of a
//! shape, so a row's bits still depend on that row alone. The library supports plain matrices only:
//! a grouped matrix is expanded to scratch before each of its products.

use std::collections::BTreeMap;
use std::sync::Arc;

use cuda::{
    BLAS_WORKSPACE_BYTES, Blas, Context, CudaError, DeviceAddress, MatmulPlan, NvidiaLibrary,
    Stream,
};
use cuda_kernels::DeviceLinear;
use model::quantized_format::WeightFormat;
use program::formats::on_device;
use program::ir::Instruction;
use program::plan::DeviceWork;
use program::products::multiplies_plain;
use program::weights::Weights;

/// Environment variable that selects the library; `own` selects our own kernels even if the library
/// is installed.
const BLAS_ENV: &str = "TANDEM_BLAS";

/// Row counts with which each product is tried, in addition to the maximum and one fewer: those
/// around which libraries change their tiles. An algorithm is chosen for the maximum number of
/// rows, and may refuse fewer.
const PROBED_ROWS: [u32; 8] = [1, 7, 8, 9, 16, 17, 33, 64];

/// Returns true if cuBLASLt is installed and enabled.
pub fn has_blas() -> bool {
    std::env::var_os(BLAS_ENV).is_none_or(|choice| choice != "own")
        && NvidiaLibrary::CublasLt.find().is_some()
}

/// Shape of a matrix that is multiplied in plain format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ProductShape {
    n: u32,
    k: u32,
    is_grouped: bool,
}

impl ProductShape {
    const fn plain_bytes(self) -> u64 {
        self.n as u64 * self.k as u64 * 2
    }
}

/// Returns the matrices that the device's programs multiply in plain format.
pub(super) fn shapes(work: &DeviceWork<'_>) -> Vec<ProductShape> {
    let mut found = Vec::new();
    for program in &work.programs {
        for instruction in &program.instructions {
            let Instruction::Compute(compute) = instruction else { continue };
            let matrix = compute.op.weights(work.config).and_then(|weights| weights.matrix);
            let Some((n, k)) = matrix else { continue };
            let weights = Weights::of(compute.op, compute.at.layer);
            let format = on_device(work.map.weight_formats.of(work.config, weights));
            if multiplies_plain(work.shape, program.shape.rows, compute.op, format) {
                let is_grouped = format != WeightFormat::Plain;
                found.push(ProductShape { n: n as u32, k: k as u32, is_grouped });
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Products by shape, with the memory that they share, since only one lane computes.
#[derive(Debug)]
pub(super) struct Products {
    blas: Arc<Blas>,
    by_shape: BTreeMap<(u32, u32), MatmulPlan>,
    scratch: ProductScratch,
}

/// Scratch of the products, with the sizes given by [`scratch_bytes`].
#[derive(Debug, Clone, Copy)]
pub(super) struct ProductScratch {
    pub(super) sums: DeviceAddress,
    pub(super) workspace: DeviceAddress,
    /// A grouped matrix in plain format.
    pub(super) weight: DeviceAddress,
}

impl Products {
    /// Opens a product for each of the plan's shapes and tries each with several numbers of rows.
    /// Returns `None` if the library is missing or refuses one of them, in which case our own
    /// kernels compute all of them.
    ///
    /// # Errors
    /// Returns the driver's error.
    ///
    /// # Safety
    /// `arena` is `size_bytes` of device memory that contains `scratch` and has no other user
    /// during the call.
    pub(super) unsafe fn open(
        context: &Context,
        work: &DeviceWork<'_>,
        arena: DeviceAddress,
        size_bytes: u64,
        scratch: ProductScratch,
    ) -> Result<Option<Products>, CudaError> {
        let Some(blas) = Blas::open(context) else { return Ok(None) };
        let stream = Stream::new(context)?;
        let mut by_shape = BTreeMap::new();
        let rows = work.shape.stream_rows() as u32;
        for shape in shapes(work) {
            let ProductShape { n, k, .. } = shape;
            let Some(product) = MatmulPlan::new(&blas, rows, n, k) else { return Ok(None) };
            // The first use loads device code, which must not delay a run; the contents do not
            // matter.
            let fits = |rows: u32| {
                let x_bytes = u64::from(rows) * u64::from(k) * 2;
                x_bytes.max(shape.plain_bytes()) <= size_bytes
            };
            for tried in probed_rows(rows).filter(|rows| fits(*rows)) {
                let ProductScratch { sums, workspace, .. } = scratch;
                // SAFETY: needed to try. The rows and the matrix are within the arena (checked),
                // the sums where the run's will be; the stream is done before they are read.
                let outcome =
                    unsafe { product.enqueue(&stream, tried, arena, arena, sums, workspace) };
                if outcome.is_err() {
                    stream.synchronize()?;
                    return Ok(None);
                }
            }
            by_shape.insert((n, k), product);
        }
        stream.synchronize()?;
        Ok(Some(Products { blas, by_shape, scratch }))
    }

    /// Returns the address at which a grouped matrix is written in plain format before it is
    /// multiplied.
    pub(super) const fn weight(&self) -> DeviceAddress {
        self.scratch.weight
    }

    /// Enqueues the sums of a linear over the plain matrix `weight`, regardless of the format of
    /// the linear's own weight, and returns their address.
    ///
    /// # Safety
    /// The requirements of the launch of [`cuda_kernels::linear`] apply.
    ///
    /// # Panics
    /// Panics if the matrix has a shape that is not among the plan's.
    pub(super) unsafe fn enqueue(
        &self,
        stream: &Stream,
        linear: &DeviceLinear,
        weight: DeviceAddress,
    ) -> Result<DeviceAddress, CudaError> {
        let DeviceLinear { rows, n, k, x, .. } = *linear;
        let Some(product) = self.by_shape.get(&(n, k)) else { panic!("no product is {n} x {k}") };
        let ProductScratch { sums, workspace, .. } = self.scratch;
        // SAFETY: needed to multiply; the caller vouches for the operands, sums and workspace are
        // of the sizes that the scratch gives them and belong to this lane.
        unsafe { product.enqueue(stream, rows, x, weight, sums, workspace) }?;
        Ok(sums)
    }

    /// Returns the name and version of the library.
    pub(super) fn describe(&self) -> String {
        self.blas.describe()
    }
}

/// Returns the row counts with which products of up to `rows_max` rows are tried before a run.
pub fn probed_rows(rows_max: u32) -> impl Iterator<Item = u32> {
    let below = PROBED_ROWS.into_iter().filter(move |rows| *rows + 1 < rows_max);
    below.chain((rows_max > 1).then(|| rows_max - 1)).chain([rows_max])
}

/// Returns the bytes of sums, workspace and an expanded matrix; 0 for what no shape needs.
pub(super) fn scratch_bytes(work: &DeviceWork<'_>) -> [u64; 3] {
    let shapes = shapes(work);
    let Some(widest) = shapes.iter().map(|shape| u64::from(shape.n)).max() else { return [0; 3] };
    let grouped = shapes.iter().filter(|shape| shape.is_grouped);
    let weight_bytes = grouped.map(|shape| shape.plain_bytes()).max().unwrap_or(0);
    [work.shape.stream_rows() as u64 * widest * 4, BLAS_WORKSPACE_BYTES, weight_bytes]
}

#[cfg(test)]
mod tests {
    use model::quantized_format::{Bits, Grouped, ScaleLayout, WeightFormat};
    use program::formats::decompressed;

    use super::probed_rows;

    /// Programs expand exactly the formats that no kernel multiplies.
    #[test]
    fn kernels_multiply_what_programs_do_not_expand() {
        for format in Grouped::STORED {
            let is_kernels_own = format.bits == Bits::Eight
                || (format.bits, format.scales) == (Bits::Four, ScaleLayout::Halves);
            let is_multiplied = is_kernels_own || cuda_kernels::multiplies_stored(format);
            let expanded = decompressed(WeightFormat::Grouped(format));
            assert_eq!(is_multiplied, expanded.is_none(), "{format:?}");
        }
    }

    #[test]
    fn products_are_tried_with_few_rows_and_with_the_most() {
        let tried = |rows_max| probed_rows(rows_max).collect::<Vec<u32>>();
        assert_eq!(tried(1), [1]);
        assert_eq!(tried(2), [1, 2]);
        assert_eq!(tried(8), [1, 7, 8]);
        assert_eq!(tried(1000), [1, 7, 8, 9, 16, 17, 33, 64, 999, 1000]);
    }
}
