//! Simulates a server on a described machine, iteration by iteration, under a policy of
//! [`scheduler::hybrid`].
//!
//! [`CacheCapacity`] computes what fits in each memory, [`ServingCosts`] the duration of a layer,
//! [`simulate`] requests one iteration after the other from the scheduler and advances time by its
//! duration, and [`ServingResults`] contains the results. Nothing here depends on a policy except
//! by its name. [`timed_plan`] returns the programs of such a server, for workers in which only
//! time passes.

mod capacity;
mod costs;
mod results;
mod simulate;
mod step_costs;
#[cfg(test)]
mod tests;
mod timed;

pub use capacity::CacheCapacity;
pub use costs::ServingCosts;
pub use results::{ExecutedIteration, LatencyDistribution, ServingResults, ShapeStats};
pub use simulate::{RequestArrival, replay_decisions, simulate};
pub use timed::{TimedServerSize, timed_plan};

/// Reason for which a machine cannot serve a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServingError {
    #[error(
        "{model} has layers with a recurrent state instead of a cache, for which serving cannot \
         be planned; plan it as a batch job, without --serve"
    )]
    States { model: String },
    #[error(
        "{model} has an operation ({op}) that the kernels for CUDA devices do not support, and a \
         server that runs whole layers on the device cannot be planned without it; plan it as a \
         batch job, without --serve"
    )]
    NotOnDevice {
        model: String,
        /// Name of the operation.
        op: &'static str,
    },
    #[error(
        "{machine} has {has} bytes of host memory for the model's weights, which are {needed}; \
         take a smaller model"
    )]
    HostMemory { machine: String, needed: u64, has: u64 },
    #[error(
        "{machine} has {has} bytes of device memory, too few for the head, two layers and the \
         activations of {rows} rows, {needed} bytes beside the layers; take fewer rows"
    )]
    DeviceMemory { machine: String, rows: u32, needed: u64, has: u64 },
}
