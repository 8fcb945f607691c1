//! Linears of prefill through cuBLASLt, where it is installed.
//!
//! Prefill multiplies many rows and is bound by arithmetic, which the library does best; decode is
//! bound by reading weights, which our own kernels do as fast. The choice is by program and not by
//! rows, and one algorithm does all rows of a shape, so a row's bits still depend on that row
//! alone. f32 runs are for exact comparison and keep to our own kernels.

use std::collections::BTreeMap;
use std::sync::Arc;

use cuda::{Address, BLAS_WORKSPACE_BYTES, Blas, Context, CudaError, Library, Product, Stream};
use cuda_kernels::{Linear, Weight};
use model::compressed::WeightFormat;
use model::config::Dtype;
use model::ops::Op;
use program::formats::decompressed;
use program::ir::{Instruction, Rows};
use program::plan::DeviceWork;
use program::weights::Weights;

use super::expert_sizes::LINEARS;

/// `own`: our own kernels although the library is there.
const BLAS_ENV: &str = "TANDEM_BLAS";

/// Whether cuBLASLt is installed and wanted.
pub fn finds_blas() -> bool {
    std::env::var_os(BLAS_ENV).is_none_or(|choice| choice != "own")
        && Library::CublasLt.find().is_some()
}

/// Width and depth of the matrices that prefill multiplies plain on the device, but for the head,
/// which has a row a sequence, and for experts, whose rows are not one behind the other.
pub(super) fn shapes(work: &DeviceWork<'_>) -> Vec<(u32, u32)> {
    if work.shape.dtype != Dtype::Bf16 {
        return Vec::new();
    }
    let mut found: Vec<(u32, u32)> = work
        .programs
        .iter()
        .filter(|program| program.shape.rows != Rows::Single)
        .flat_map(|program| &program.instructions)
        .filter_map(|instruction| {
            let Instruction::Compute(compute) = instruction else { return None };
            let (n, k) = compute.op.weights(work.config)?.matrix?;
            let weights = Weights::of(compute.op, compute.at.layer);
            let stored = work.map.weight_formats.of(work.config, weights);
            let format = decompressed(stored).map_or(stored, WeightFormat::Grouped);
            let is_one = compute.op != Op::Head && !LINEARS.contains(&compute.op);
            (is_one && format == WeightFormat::Plain).then_some((n as u32, k as u32))
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Products by shape, with the memory that they share: one lane computes.
#[derive(Debug)]
pub(super) struct Products {
    blas: Arc<Blas>,
    by_shape: BTreeMap<(u32, u32), Product>,
    sums: Address,
    workspace: Address,
}

impl Products {
    /// A product for each of the plan's shapes, each tried once; `None` where the library is
    /// missing or refuses one.
    ///
    /// # Errors
    /// The driver's refusal.
    ///
    /// # Safety
    /// `arena` are `size_bytes` of device memory, in which `sums` and `workspace` lie; nobody uses
    /// it during the call.
    pub(super) unsafe fn open(
        context: &Context,
        work: &DeviceWork<'_>,
        (arena, size_bytes): (Address, u64),
        [sums, workspace]: [Address; 2],
    ) -> Result<Option<Products>, CudaError> {
        let Some(blas) = Blas::open(context) else { return Ok(None) };
        let stream = Stream::new(context)?;
        let mut by_shape = BTreeMap::new();
        for (n, k) in shapes(work) {
            let rows = work.shape.stream_rows() as u32;
            let Some(product) = Product::new(&blas, (rows, n, k)) else { return Ok(None) };
            // The first use loads device code, which a run must not wait for; any bytes will do.
            if u64::from(n) * u64::from(k) * 2 <= size_bytes {
                // SAFETY: needed to try. One row and the matrix lie in the arena (checked), the
                // sums where the run's will; the stream is done before anybody reads them.
                let tried = unsafe { product.enqueue(&stream, 1, (arena, arena, sums), workspace) };
                if tried.is_err() {
                    return Ok(None);
                }
            }
            by_shape.insert((n, k), product);
        }
        stream.synchronize()?;
        Ok(Some(Products { blas, by_shape, sums, workspace }))
    }

    /// Enqueues a linear's sums; `None` where the shape is none of these, else where the sums are.
    ///
    /// # Safety
    /// As the launch of [`cuda_kernels::linear`].
    pub(super) unsafe fn enqueue(
        &self,
        stream: &Stream,
        linear: &Linear,
    ) -> Result<Option<Address>, CudaError> {
        let Weight::Plain(weight) = linear.weight else { return Ok(None) };
        let Some(product) = self.by_shape.get(&(linear.n, linear.k)) else { return Ok(None) };
        // SAFETY: needed to multiply; the caller vouches for the operands, sums and workspace are
        // of the sizes that the scratch gives them and belong to this lane.
        unsafe {
            product.enqueue(stream, linear.rows, (linear.x, weight, self.sums), self.workspace)
        }?;
        Ok(Some(self.sums))
    }

    /// Name and version of the library.
    pub(super) fn describe(&self) -> String {
        self.blas.describe()
    }
}

/// Bytes of sums and workspace; none where there are no shapes.
pub(super) fn scratch_bytes(work: &DeviceWork<'_>) -> [u64; 2] {
    let shapes = shapes(work);
    match shapes.iter().map(|(n, _)| u64::from(*n)).max() {
        Some(widest) => [work.shape.stream_rows() as u64 * widest * 4, BLAS_WORKSPACE_BYTES],
        None => [0, 0],
    }
}
