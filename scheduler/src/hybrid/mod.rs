//! Serving with the caches of some sequences in host memory, where the CPU computes attention
//! concurrently with the device.
//!
//! An iteration computes a token of each of its sequences. All linears run on the device; attention
//! of a sequence is computed by its owner. [`next_iteration`] selects the sequences of an
//! iteration, the caches that migrate, and the [`IterationShape`] in which it runs, by one of
//! several policies over the same queues, limits and costs. It is pure and allocates nothing.
//! [`IterationTimes`] is the duration of the iteration.

mod apex;
mod auto;
mod batches;
mod costs;
mod deferred_rows;
mod host_rows;
mod iteration;
mod iteration_builder;
mod neo;
mod queues;
mod step_costs;
#[cfg(test)]
mod tests;
mod work;

pub use batches::AttentionLoad;
pub use costs::{LayerCosts, LinkCosts, MemoryShares};
pub use iteration::{HostDecision, Iteration, IterationShape};
pub use queues::{DeferredRows, IterationLimits, QueuedSequence, Queues};
pub use step_costs::StepCosts;
pub use work::{IterationTimes, IterationWork};

/// Scheduling policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SchedulingPolicy {
    /// All attention on the device.
    GpuOnly,
    /// All attention of decode on the host.
    FastDecode,
    /// NEO's two batches if these compute more sequences per time than one.
    Neo,
    /// NEO's two batches if APEX's inequality holds, otherwise deferred rows.
    Apex,
    /// The best schedule by [`IterationTimes`].
    Auto,
}

impl SchedulingPolicy {
    /// All policies, in the order of their numbers.
    pub const ALL: [SchedulingPolicy; 5] = [
        SchedulingPolicy::GpuOnly,
        SchedulingPolicy::FastDecode,
        SchedulingPolicy::Neo,
        SchedulingPolicy::Apex,
        SchedulingPolicy::Auto,
    ];

    /// Returns the name on the command line, in tables and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            SchedulingPolicy::GpuOnly => "gpu-only",
            SchedulingPolicy::FastDecode => "fastdecode",
            SchedulingPolicy::Neo => "neo",
            SchedulingPolicy::Apex => "apex",
            SchedulingPolicy::Auto => "auto",
        }
    }
}

/// Returns the next iteration. For each sequence that is then with the host, writes its place to
/// `decisions`, in the order of [`Iteration::with_host`].
///
/// # Panics
/// If there are fewer places than sequences of device and host.
pub fn next_iteration<C: LayerCosts>(
    policy: SchedulingPolicy,
    queues: &Queues<'_>,
    limits: &IterationLimits,
    costs: &C,
    decisions: &mut [HostDecision],
) -> Iteration {
    let places = &mut decisions[..queues.device.len() + queues.host.len()];
    match policy {
        SchedulingPolicy::GpuOnly => neo::gpu_only(queues, limits, costs, places),
        SchedulingPolicy::FastDecode => neo::fast_decode(queues, limits, costs, places),
        SchedulingPolicy::Neo => neo::neo(queues, limits, costs, places),
        SchedulingPolicy::Apex => apex::apex(queues, limits, costs, places),
        SchedulingPolicy::Auto => auto::auto(queues, limits, costs, places),
    }
}
