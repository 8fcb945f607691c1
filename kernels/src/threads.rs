//! How many threads of the pool work on a call: limits per class of operation, and the calling
//! thread alone where waking others costs more than they do.

use crate::Kernels;

/// Most threads that one call of a class uses, the caller included; by default all. The fastest
/// number differs by class: memory bounds linears, and the hand-over bounds small operations.
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

/// Bytes that a call has to touch before a second thread helps.
#[derive(Debug, Clone, Copy)]
struct WorthSharing {
    /// While idle threads spin: a hand-over costs half a microsecond.
    spinning_bytes: usize,
    /// While they sleep: they join after some ten microseconds, which the call must outlast.
    sleeping_bytes: usize,
}

/// `examples/small_speed.rs` measures it: shorter calls gain nothing from another thread, or lose.
const SMALL: WorthSharing = WorthSharing { spinning_bytes: 128 << 10, sleeping_bytes: 1 << 20 };
/// Attention computes more per byte of its cache than the small operations do.
const ATTENTION: WorthSharing =
    WorthSharing { spinning_bytes: 32 << 10, sleeping_bytes: 128 << 10 };

impl Kernels {
    /// Limits the threads of every later call.
    pub fn set_thread_limits(&mut self, limits: ThreadLimits) {
        self.thread_limits = limits;
    }

    /// For how long idle threads look out for the next call before they sleep; see
    /// [`crate::Pool::set_spin`].
    pub fn set_spin(&self, spin: std::time::Duration) {
        self.pool.set_spin(spin);
    }

    /// Tasks of a linear.
    pub(crate) fn run_linear(&self, tasks: usize, function: &(dyn Fn(usize, usize) + Sync)) {
        self.pool.run_on(self.thread_limits.linear, tasks, function);
    }

    /// Tasks of attention that touch `bytes` bytes together.
    pub(crate) fn run_attention(
        &self,
        tasks: usize,
        bytes: usize,
        function: &(dyn Fn(usize, usize) + Sync),
    ) {
        let limit = self.limit_for(bytes, ATTENTION, self.thread_limits.attention);
        self.pool.run_on(limit, tasks, function);
    }

    /// Tasks of a small operation that touch `bytes` bytes together.
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
