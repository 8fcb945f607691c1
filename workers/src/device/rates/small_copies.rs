//! Durations of small copies while the device computes: in the process that computes, and in
//! another process.
//!
//! Activations of a few rows are such copies. A driver may send them along with its commands, for
//! which a process needs a turn of the device; in that case one process copies faster than two
//! (`TANDEM_COPIES`).

use std::sync::mpsc::{Sender, TryRecvError, channel};
use std::time::Instant;

use cuda::{Arena, Context, CudaError, Driver, Event, Kernel, PinnedBuffer, Stream};
use cuda_kernels::KernelLaunch;

use super::super::code;
use super::square_product;

/// Sizes of the copies, in bytes: one row of activations, several rows, many rows.
const SIZES_BYTES: [usize; 4] = [4 << 10, 32 << 10, 128 << 10, 1 << 20];
/// Number of copies of each size and direction, from which the median and the 90th percentile are
/// taken.
const SAMPLES: usize = 101;
/// Number of products in flight while the device is kept busy.
const IN_FLIGHT: usize = 8;

/// Durations of one size and direction, in seconds, from the call until the copy is observed to be
/// complete.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SmallCopy {
    pub bytes: usize,
    pub to_device: bool,
    pub median_s: f64,
    /// 90th percentile.
    pub p90_s: f64,
}

/// A device that a thread of this process keeps busy with products.
#[derive(Debug)]
pub struct BusyDevice {
    /// Sender whose drop ends the thread.
    running: Option<Sender<()>>,
    thread: Option<std::thread::JoinHandle<Result<(), CudaError>>>,
}

impl BusyDevice {
    /// Begins to multiply matrices of `size` rows; returns once the first products have run.
    ///
    /// # Errors
    /// Returns the driver's error, or an error if too little memory is available.
    ///
    /// # Panics
    /// Panics if no thread can be started.
    pub fn start(index: u32, size: u32) -> Result<BusyDevice, CudaError> {
        let context = Context::open(&Driver::open()?, index)?;
        let arena = Arena::allocate(&context, u64::from(size).pow(2) * 2 * 3)?;
        let stream = Stream::new(&context)?;
        // SAFETY: needed for defined operands; the arena holds them.
        unsafe { stream.fill(arena.base(), 0, arena.size_bytes() as usize) }?;
        let launch = square_product(arena.base(), size);
        let kernel = code::load(&context, &|| {})?.kernel(launch.name)?;
        enqueue(&stream, &kernel, launch)?;
        stream.synchronize()?;
        let (running, ends) = channel();
        let work = move || {
            context.make_current()?;
            while ends.try_recv() != Err(TryRecvError::Disconnected) {
                for _ in 0..IN_FLIGHT {
                    enqueue(&stream, &kernel, launch)?;
                }
                stream.synchronize()?;
            }
            drop(arena);
            Ok(())
        };
        let thread = std::thread::Builder::new().name("busy".to_owned()).spawn(work);
        Ok(BusyDevice {
            running: Some(running),
            thread: Some(thread.expect("a thread can be started")),
        })
    }

    /// Stops the products and lets the device be idle again.
    ///
    /// # Errors
    /// Returns an error of the thread.
    pub fn stop(mut self) -> Result<(), CudaError> {
        self.end().unwrap_or(Ok(()))
    }

    fn end(&mut self) -> Option<Result<(), CudaError>> {
        drop(self.running.take());
        self.thread.take().and_then(|thread| thread.join().ok())
    }
}

impl Drop for BusyDevice {
    fn drop(&mut self) {
        self.end();
    }
}

fn enqueue(stream: &Stream, kernel: &Kernel, mut launch: KernelLaunch) -> Result<(), CudaError> {
    let (grid, block, shared_bytes) = (launch.grid, launch.block, launch.shared_bytes);
    let mut parameters = launch.args.pointers();
    // SAFETY: needed to keep the device busy. The parameters are the builder's; the operands are
    // within an arena that outlives the stream's work and that nothing else touches.
    unsafe { kernel.launch(stream, cuda::Launch { grid, block, shared_bytes }, &mut parameters) }
}

/// Times small copies in both directions, regardless of other work on the device.
///
/// # Errors
/// Returns the driver's error.
pub fn measure_small_copies(index: u32) -> Result<Vec<SmallCopy>, CudaError> {
    let context = Context::open(&Driver::open()?, index)?;
    let max_bytes = SIZES_BYTES.into_iter().max().unwrap_or(0);
    let arena = Arena::allocate(&context, max_bytes as u64)?;
    let host = PinnedBuffer::allocate(&context, max_bytes)?;
    let (stream, event) = (Stream::new(&context)?, Event::new(&context)?);
    let mut found = Vec::new();
    for to_device in [true, false] {
        for bytes in SIZES_BYTES {
            let mut samples = Vec::with_capacity(SAMPLES);
            for _ in 0..SAMPLES {
                let begun = Instant::now();
                // SAFETY: needed to copy. Both ranges have the size, and the copy is done before
                // the next begins.
                unsafe {
                    match to_device {
                        true => stream.copy_to_device(arena.base(), host.base(), bytes),
                        false => stream.copy_to_host(host.base(), arena.base(), bytes),
                    }
                }?;
                event.record(&stream)?;
                while !event.is_done()? {
                    std::hint::spin_loop();
                }
                samples.push(begun.elapsed().as_secs_f64());
            }
            samples.sort_by(f64::total_cmp);
            let (median_s, p90_s) = (samples[SAMPLES / 2], samples[SAMPLES * 9 / 10]);
            found.push(SmallCopy { bytes, to_device, median_s, p90_s });
        }
    }
    Ok(found)
}
