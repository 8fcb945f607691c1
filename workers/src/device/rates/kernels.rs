//! Rates of the program's own kernels, for comparison with the device's best rates.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use cuda::{Arena, Context, CudaError, Driver, Kernel, Module, PinnedBuffer, Stream};
use cuda_kernels::KernelLaunch;

use super::super::code;
use super::cases::{Case, CaseMemory, OPERAND_BYTES, RING_BYTES, cases};
use super::timer::Timer;

/// Measured rate of a kernel at one shape.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelRate {
    pub name: String,
    /// Rows of activations; sequences in attention.
    pub rows: u32,
    /// Median time of one run.
    pub seconds: f64,
    /// Minimum number of bytes read and written.
    pub bytes: u64,
    pub flops: f64,
}

/// Times every case whose name contains `only`, each over operands too large for the device's
/// caches, and passes each result on as it becomes available.
///
/// # Errors
/// Returns the driver's error, or an error if too little memory (about 5 GiB) is available.
pub fn measure_kernels(
    index: u32,
    only: &str,
    mut measured: impl FnMut(KernelRate),
) -> Result<(), CudaError> {
    let context = Context::open(&Driver::open()?, index)?;
    let arena = Arena::allocate(&context, RING_BYTES + 4 * OPERAND_BYTES)?;
    let stream = Stream::new(&context)?;
    fill(&context, &stream, &arena)?;
    let [x, out, scratch, units] =
        [0, 1, 2, 3].map(|i| arena.base() + RING_BYTES + i * OPERAND_BYTES);
    let memory = CaseMemory { x, out, scratch, units, ring: arena.base() };
    let module = code::load(&context, &|| {})?;
    let mut kernels = Kernels { module, by_name: HashMap::new() };
    let timer = Timer::new(&context, &stream)?;
    for case in cases(&memory).into_iter().filter(|case| case.name.contains(only)) {
        let Case { name, rows, bytes, flops, units, runs } = case;
        let units: &[u8] = bytemuck::cast_slice(&units);
        // SAFETY: needed to bring the units to the device. They fit their range, and live until the
        // stream is done, in the next line.
        unsafe { stream.copy_to_device(memory.units, units.as_ptr(), units.len()) }?;
        stream.synchronize()?;
        let count = runs.len() as f64;
        let seconds = timer.median_s(|| {
            for launch in runs.iter().flatten() {
                kernels.launch(&stream, *launch)?;
            }
            Ok(())
        })?;
        measured(KernelRate { name, rows, seconds: seconds / count, bytes, flops });
    }
    Ok(())
}

/// Fills the arena with small numbers of either sign and with varying bits, since the speed of a
/// device's arithmetic depends on them.
fn fill(context: &Context, stream: &Stream, arena: &Arena) -> Result<(), CudaError> {
    const PIECE_BYTES: usize = 64 << 20;
    let piece = PinnedBuffer::allocate(context, PIECE_BYTES)?;
    // SAFETY: needed to write the numbers. The buffer has the size, its base is that of a page, and
    // no copy of it has begun.
    let numbers =
        unsafe { std::slice::from_raw_parts_mut(piece.base().cast::<u32>(), PIECE_BYTES / 4) };
    for (number, index) in numbers.iter_mut().zip(0u32..) {
        let mixed = index.wrapping_mul(0x9e37_79b9);
        // Sign and mantissa are pseudorandom; exponents are near 1 both as bf16 and as f16.
        *number = (mixed ^ mixed >> 15) & 0x80ff_80ff | 0x3c00_3c00;
    }
    let mut at = 0;
    while at < arena.size_bytes() {
        let size_bytes = PIECE_BYTES.min((arena.size_bytes() - at) as usize);
        // SAFETY: needed to fill the arena; both ranges have the size, and the stream is done
        // before the buffer goes.
        unsafe { stream.copy_to_device(arena.base() + at, piece.base(), size_bytes) }?;
        at += size_bytes as u64;
    }
    stream.synchronize()
}

struct Kernels {
    module: Arc<Module>,
    by_name: HashMap<&'static str, Kernel>,
}

impl Kernels {
    fn launch(&mut self, stream: &Stream, mut launch: KernelLaunch) -> Result<(), CudaError> {
        let kernel = match self.by_name.entry(launch.name) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(self.module.kernel(launch.name)?),
        };
        let (grid, block, shared_bytes) = (launch.grid, launch.block, launch.shared_bytes);
        let mut parameters = launch.args.pointers();
        // SAFETY: needed to measure. The parameters are the builder's, all operands are within the
        // arena, which nothing else touches, and its owner waits for the stream.
        unsafe {
            kernel.launch(stream, cuda::Launch { grid, block, shared_bytes }, &mut parameters)
        }
    }
}
