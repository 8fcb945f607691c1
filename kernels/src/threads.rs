//! Number of threads of the pool that work on a call: limits per class of operation, and the
//! calling thread alone if waking others costs more than they save.

use crate::Kernels;

/// Maximum number of threads that one call of a class uses, including the caller; by default all.
/// The fastest number differs by class: memory bounds linears, and the hand-over bounds small
/// operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadLimits {
    pub linear: usize,
    pub attention: usize,
    /// Norms, rope, embedding, sampling.
    pub small: usize,
}

impl Default for ThreadLimits {
    fn default() -> Self {
        ThreadLimits { linear: usize::MAX, attention: usize::MAX, small: usize::MAX }
    }
}

/// Minimum number of bytes accessed by a call for a second thread to help.
#[derive(Debug, Clone, Copy)]
struct WorthSharing {
    /// While idle threads spin: a hand-over costs half a microsecond.
    spinning_bytes: usize,
    /// While they sleep: they join after some ten microseconds, so the call must take longer.
    sleeping_bytes: usize,
}

/// Measured by `examples/small_speed.rs`: shorter calls gain nothing from another thread, or lose.
const SMALL: WorthSharing = WorthSharing { spinning_bytes: 128 << 10, sleeping_bytes: 1 << 20 };
/// Attention computes more per byte of its cache than the small operations do.
const ATTENTION: WorthSharing =
    WorthSharing { spinning_bytes: 32 << 10, sleeping_bytes: 128 << 10 };

impl Kernels {
    /// Limits the threads of every later call.
    pub fn set_thread_limits(&mut self, limits: ThreadLimits) {
        self.thread_limits = limits;
    }

    /// Sets the time for which idle threads poll for the next call before they sleep; see
    /// [`crate::ThreadPool::set_spin`].
    pub fn set_spin(&self, spin: std::time::Duration) {
        self.pool.set_spin(spin);
    }

    /// Runs the tasks of a linear.
    pub(crate) fn run_linear(&self, tasks: usize, function: &(dyn Fn(usize, usize) + Sync)) {
        self.pool.run_on(self.thread_limits.linear, tasks, function);
    }

    /// Runs tasks of attention that access `bytes` bytes in total.
    pub(crate) fn run_attention(
        &self,
        tasks: usize,
        bytes: usize,
        function: &(dyn Fn(usize, usize) + Sync),
    ) {
        let limit = self.limit_for(bytes, ATTENTION, self.thread_limits.attention);
        self.pool.run_on(limit, tasks, function);
    }

    /// Runs tasks of a small operation that access `bytes` bytes in total.
    pub(crate) fn run_sized(
        &self,
        tasks: usize,
        bytes: usize,
        function: &(dyn Fn(usize, usize) + Sync),
    ) {
        let limit = self.limit_for(bytes, SMALL, self.thread_limits.small);
        self.pool.run_on(limit, tasks, function);
    }

    fn limit_for(&self, bytes: usize, worth: WorthSharing, limit: usize) -> usize {
        let least = if self.pool.spins() { worth.spinning_bytes } else { worth.sleeping_bytes };
        if bytes < least { 1 } else { limit }
    }
}
