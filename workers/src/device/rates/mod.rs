//! Best rates of a device, measured by the simplest means, to which a run's own rates are compared.
//!
//! Used by `coordinator device-rates`, which the GPU benchmark runs; no run depends on it.

use cuda::{Arena, BLAS_WORKSPACE_BYTES, Blas, Context, CudaError, DeviceAddress, Driver};
use cuda::{MatmulPlan, PinnedBuffer, Stream};
use cuda_kernels::{DeviceLinear, DeviceLinearOut, DeviceWeight, KernelLaunch, linear};
use model::config::Dtype;

mod cases;
mod kernels;
mod small_copies;
mod timer;

pub use kernels::{KernelRate, measure_kernels};
pub use small_copies::{BusyDevice, SmallCopy, measure_small_copies};

use self::timer::Timer;
use super::code;
use super::products::has_blas;

/// Sizes of the measured operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateSizes {
    /// Bytes of a copy.
    pub copy_bytes: usize,
    /// Rows, width and depth of a matrix product.
    pub matrix: u32,
}

impl Default for RateSizes {
    fn default() -> RateSizes {
        RateSizes { copy_bytes: 256 << 20, matrix: 8192 }
    }
}

/// Measured rates of a device; all are medians.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PeakDeviceRates {
    /// Free device memory before any allocation.
    pub free_bytes: u64,
    pub total_bytes: u64,
    /// Rate of a loop of `cuMemcpyHtoDAsync` from pinned memory allocated by the driver.
    pub h2d_bytes_per_s: f64,
    pub d2h_bytes_per_s: f64,
    /// Rate of copies within the device, counting both the bytes read and the bytes written.
    pub device_bytes_per_s: f64,
    /// Rate of bf16 matrix products with f32 sums by this program's own kernel.
    pub own_bf16_flops: f64,
    /// Rate of the same products by cuBLASLt; `None` if it is missing or disabled.
    pub blas_bf16_flops: Option<f64>,
}

/// Returns the free and the total device memory.
///
/// # Errors
/// Returns the driver's error.
pub fn memory_bytes(index: u32) -> Result<(u64, u64), CudaError> {
    Context::open(&Driver::open()?, index)?.memory_bytes()
}

/// Measures device `index`.
///
/// # Errors
/// Returns the driver's error, or an error if too little memory is available for the sizes.
pub fn measure_rates(index: u32, sizes: RateSizes) -> Result<PeakDeviceRates, CudaError> {
    let context = Context::open(&Driver::open()?, index)?;
    let (free_bytes, total_bytes) = context.memory_bytes()?;
    let stream = Stream::new(&context)?;
    let matrix_bytes = u64::from(sizes.matrix).pow(2) * 2;
    // Two operands, sums of four bytes per element, and the library's workspace.
    let product_bytes = 4 * matrix_bytes + BLAS_WORKSPACE_BYTES;
    let arena = Arena::allocate(&context, product_bytes.max(sizes.copy_bytes as u64))?;
    let host = PinnedBuffer::allocate(&context, sizes.copy_bytes)?;
    let timer = Timer::new(&context, &stream)?;
    let (device, bytes) = (arena.base(), sizes.copy_bytes);
    let h2d_s = timer.median_s(|| {
        // SAFETY: needed to copy. Both ranges have the size and outlive the stream's work, which
        // the timer waits for.
        unsafe { stream.copy_to_device(device, host.base(), bytes) }
    })?;
    let d2h_s = timer.median_s(|| {
        // SAFETY: as above.
        unsafe { stream.copy_to_host(host.base(), device, bytes) }
    })?;
    let half = (product_bytes.max(sizes.copy_bytes as u64) / 2) as usize;
    let device_s = timer.median_s(|| {
        // SAFETY: as above; the halves of the arena do not overlap.
        unsafe { stream.copy_on_device(device, device + half as u64, half) }
    })?;
    let product_s = product(&timer, &context, device, sizes.matrix)?;
    let blas_s = blas_product(&timer, &context, device, sizes.matrix)?;
    let flops = 2.0 * f64::from(sizes.matrix).powi(3);
    Ok(PeakDeviceRates {
        free_bytes,
        total_bytes,
        h2d_bytes_per_s: bytes as f64 / h2d_s,
        d2h_bytes_per_s: bytes as f64 / d2h_s,
        device_bytes_per_s: 2.0 * half as f64 / device_s,
        own_bf16_flops: flops / product_s,
        blas_bf16_flops: blas_s.map(|seconds| flops / seconds),
    })
}

/// Returns the seconds of a square product over zeros: rates of tensor cores depend on the
/// operands' values, and zeros yield the highest.
fn product(
    timer: &Timer<'_>,
    context: &Context,
    device: DeviceAddress,
    size: u32,
) -> Result<f64, CudaError> {
    let matrix_bytes = u64::from(size).pow(2) * 2;
    // SAFETY: needed for defined operands; the arena holds them.
    unsafe { timer.stream.fill(device, 0, 3 * matrix_bytes as usize) }?;
    let launch = square_product(device, size);
    let kernel = code::load(context, &|| {})?.kernel(launch.name)?;
    timer.median_s(|| {
        let mut launch = launch;
        let (grid, block, shared_bytes) = (launch.grid, launch.block, launch.shared_bytes);
        let mut parameters = launch.args.pointers();
        // SAFETY: needed to multiply. The parameters are the builder's, the operands are within the
        // arena and nothing else touches them.
        unsafe {
            kernel.launch(timer.stream, cuda::Launch { grid, block, shared_bytes }, &mut parameters)
        }
    })
}

/// Returns the product of two matrices of `size` rows and columns, which are stored consecutively
/// at `device`, followed by the result.
fn square_product(device: DeviceAddress, size: u32) -> KernelLaunch {
    let matrix_bytes = u64::from(size).pow(2) * 2;
    linear(
        Dtype::Bf16,
        &DeviceLinear {
            rows: size,
            n: size,
            k: size,
            x: device,
            weight: DeviceWeight::Plain(device + matrix_bytes),
            bias: 0,
            out: DeviceLinearOut::Store(device + 2 * matrix_bytes),
        },
    )
}

/// Returns the seconds of the same product by cuBLASLt; `None` if it is missing or disabled.
fn blas_product(
    timer: &Timer<'_>,
    context: &Context,
    device: DeviceAddress,
    size: u32,
) -> Result<Option<f64>, CudaError> {
    if !has_blas() {
        return Ok(None);
    }
    let product = Blas::open(context).and_then(|blas| MatmulPlan::new(&blas, size, size, size));
    let Some(product) = product else { return Ok(None) };
    let matrix_bytes = u64::from(size).pow(2) * 2;
    let (weight, sums) = (device + matrix_bytes, device + 2 * matrix_bytes);
    let workspace = device + 4 * matrix_bytes;
    timer
        .median_s(|| {
            // SAFETY: needed to multiply. Operands, sums and workspace are consecutive in the arena
            // and nothing else touches them.
            unsafe { product.enqueue(timer.stream, size, device, weight, sums, workspace) }
        })
        .map(Some)
}
