//! Serving with the caches of some sequences in host memory, where the CPU attends for them beside
//! the device.
//!
//! An iteration computes a token of each sequence that it has. Its linears are the device's, all
//! of them; attention of a sequence is its owner's. [`next`] says which sequences an iteration has,
//! whose caches move, and in which [`Shape`] it runs, by one of several policies over the same
//! queues, limits and costs. It is pure and allocates nothing. [`Times`] is how long it then takes.

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

/// Who decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Policy {
    /// All attention on the device.
    GpuOnly,
    /// All attention of decode on the host.
    FastDecode,
    /// NEO's two batches where these compute more sequences in a time than one.
    Neo,
    /// NEO's two batches where APEX's inequality holds, else rows that lag.
    Apex,
    /// What is best by [`Times`].
    Auto,
}

impl Policy {
    /// In the order of their numbers.
    pub const ALL: [Policy; 5] =
        [Policy::GpuOnly, Policy::FastDecode, Policy::Neo, Policy::Apex, Policy::Auto];

    /// On the command line, in tables and in JSON.
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

/// The next iteration. Of each sequence that is then with the host its place is written to
/// `places`, in the order of [`Iteration::with_host`].
///
/// # Panics
/// With fewer places than sequences of device and host.
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
