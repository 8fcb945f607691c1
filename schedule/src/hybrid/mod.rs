//! Serving with the caches of some sequences in host memory, where the CPU computes attention
//! concurrently with the device.
//!
//! An iteration computes a token of each of its sequences. All linears run on the device; attention
//! of a sequence is computed by its owner. [`next`] selects the sequences of an iteration, the
//! caches that migrate, and the [`Shape`] in which it runs, by one of several policies over the
//! same queues, limits and costs. It is pure and allocates nothing. [`Times`] is the duration of
//! the iteration.

mod apex;
mod auto;
mod batches;
mod costs;
mod host_rows;
mod intake;
mod iteration;
mod lagging;
mod neo;
mod queues;
mod step_costs;
#[cfg(test)]
mod tests;
mod work;

pub use batches::Load;
pub use costs::{LayerCosts, LinkCosts, MemoryShares};
pub use iteration::{Iteration, Place, Shape};
pub use queues::{Lags, Limits, Queued, Queues};
pub use step_costs::StepCosts;
pub use work::{Times, Work};

/// Scheduling policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Policy {
    /// All attention on the device.
    GpuOnly,
    /// All attention of decode on the host.
    FastDecode,
    /// NEO's two batches if these compute more sequences per time than one.
    Neo,
    /// NEO's two batches if APEX's inequality holds, otherwise deferred rows.
    Apex,
    /// The best schedule by [`Times`].
    Auto,
}

impl Policy {
    /// All policies, in the order of their numbers.
    pub const ALL: [Policy; 5] =
        [Policy::GpuOnly, Policy::FastDecode, Policy::Neo, Policy::Apex, Policy::Auto];

    /// Returns the name on the command line, in tables and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Policy::GpuOnly => "gpu-only",
            Policy::FastDecode => "fastdecode",
            Policy::Neo => "neo",
            Policy::Apex => "apex",
            Policy::Auto => "auto",
        }
    }
}

/// Returns the next iteration. For each sequence that is then with the host, writes its place to
/// `places`, in the order of [`Iteration::with_host`].
///
/// # Panics
/// If there are fewer places than sequences of device and host.
pub fn next<C: LayerCosts>(
    policy: Policy,
    queues: &Queues<'_>,
    limits: &Limits,
    costs: &C,
    places: &mut [Place],
) -> Iteration {
    let places = &mut places[..queues.device.len() + queues.host.len()];
    match policy {
        Policy::GpuOnly => neo::gpu_only(queues, limits, costs, places),
        Policy::FastDecode => neo::fast_decode(queues, limits, costs, places),
        Policy::Neo => neo::neo(queues, limits, costs, places),
        Policy::Apex => apex::apex(queues, limits, costs, places),
        Policy::Auto => auto::auto(queues, limits, costs, places),
    }
}
