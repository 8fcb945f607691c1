//! Execution of queued work as time passes.

use std::ffi::c_void;
use std::time::Duration;

use crate::code;
use crate::state::{DriverState, log};
use crate::streams::{QueuedLaunch, QueuedProduct, QueuedWork};

/// Time between two checks of a call that blocks.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_micros(50);

impl DriverState {
    /// Adds work to a stream. While its channel is full the call blocks like the driver's: no other
    /// thread of the process can enter the driver meanwhile, but the device makes progress.
    pub(crate) fn enqueue(&mut self, stream: usize, work: QueuedWork) -> Result<(), u32> {
        if self.streams.is_full(stream) {
            log("note: full");
            self.block_all(|state| !state.streams.is_full(stream))?;
        }
        if self.streams.push(stream, work) { Ok(()) } else { Err(code::INVALID_HANDLE) }
    }

    /// Waits until no stream has work, like the driver before it loads code; no other thread can
    /// enter the driver meanwhile.
    pub(crate) fn wait_until_idle(&mut self) -> Result<(), u32> {
        self.block_all(|state| state.streams.is_idle())
    }

    /// Runs work until `done` returns true, with the driver's lock held all the while.
    fn block_all(&mut self, done: impl Fn(&DriverState) -> bool) -> Result<(), u32> {
        while !done(self) {
            if let Some(code) = self.sticky() {
                return Err(code);
            }
            if !self.step() {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
        Ok(())
    }

    /// Runs the work that has become due since the last call: often none, sometimes several pieces.
    pub(crate) fn pass_time(&mut self) {
        let steps = match self.streams.random_index(4) {
            0 => self.streams.random_index(6),
            _ => 0,
        };
        for _ in 0..steps {
            self.step();
        }
    }

    /// Runs one piece of work from a channel that the seed chooses; returns false if none can run.
    pub(crate) fn step(&mut self) -> bool {
        let ready = self.streams.ready();
        if ready.is_empty() {
            return false;
        }
        let chosen = ready[self.streams.random_index(ready.len())];
        if let Some(work) = self.streams.take(chosen) {
            self.run(work);
        }
        true
    }

    fn run(&mut self, work: QueuedWork) {
        match work {
            QueuedWork::Copy { to, from, size_bytes } => {
                if self.ranges.kind(to, size_bytes).is_none()
                    || self.ranges.kind(from, size_bytes).is_none()
                {
                    self.fail(code::ILLEGAL_ADDRESS);
                    return;
                }
                // SAFETY: needed to copy. Both ranges are known and of this size (just checked);
                // callers promise the driver that nothing else accesses them.
                unsafe { std::ptr::copy(from as *const u8, to as *mut u8, size_bytes) };
            }
            QueuedWork::CopyBytes { to, bytes } => {
                if !self.ranges.is_device(to, bytes.len()) {
                    self.fail(code::ILLEGAL_ADDRESS);
                    return;
                }
                // SAFETY: as above; the source is owned by this call.
                unsafe { std::ptr::copy(bytes.as_ptr(), to as *mut u8, bytes.len()) };
            }
            QueuedWork::Fill { to, byte, size_bytes } => {
                if !self.ranges.is_device(to, size_bytes) {
                    self.fail(code::ILLEGAL_ADDRESS);
                    return;
                }
                // SAFETY: as above.
                unsafe { std::ptr::write_bytes(to as *mut u8, byte, size_bytes) };
            }
            QueuedWork::Launch(launch) => self.launch(launch),
            QueuedWork::Product(product) => product.run(),
            QueuedWork::Record { event, mark } => {
                if let Some(event) = self.streams.events.get_mut(&event) {
                    event.passed = event.passed.max(mark);
                    event.passed_ns = shm::now_ns();
                }
            }
            QueuedWork::Wait { .. } | QueuedWork::Hang => {}
        }
    }

    fn launch(&mut self, mut launch: QueuedLaunch) {
        if self.sticky().is_some() {
            return;
        }
        let mut parameters: Vec<*mut c_void> =
            launch.parameters.iter_mut().map(|value| value.as_mut_ptr().cast()).collect();
        let QueuedLaunch { name, grid, block, shared_bytes, .. } = &launch;
        // SAFETY: needed to run the kernel. The parameters have the sizes given in its PTX; the
        // program vouches for device addresses among them, as on a device.
        let ran = unsafe { cuda_shim::launch(name, *grid, *block, *shared_bytes, &mut parameters) };
        if let Err(fault) = ran {
            eprintln!("stand-in: kernel {name} failed: {fault:?}");
            self.fail(code::LAUNCH_FAILED);
        }
    }
}

impl QueuedProduct {
    fn run(&self) {
        let QueuedProduct { a, b, d, rows, n, k } = *self;
        let wide = |from: usize, at: usize| {
            // SAFETY: needed to read an operand; the ranges were checked when the product was
            // queued, and callers promise that nothing else accesses them.
            f32::from_bits(u32::from(unsafe { (from as *const u16).add(at).read() }) << 16)
        };
        for row in 0..rows {
            for column in 0..n {
                let terms = (0..k).map(|i| wide(b, row * k + i) * wide(a, column * k + i));
                let sum: f32 = terms.sum();
                // SAFETY: needed to write a sum; as above.
                unsafe { (d as *mut f32).add(row * n + column).write(sum) };
            }
        }
    }
}
