//! Weights that stay in device memory from the load to the end of a run.

use serde::{Deserialize, Serialize};

use crate::ir::BufferId;
use crate::weights::Weights;

/// Origin of weights that stay in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ResidentSource {
    /// Host buffer with the same blob, which the host reads too.
    Host(BufferId),
    /// The model, from which the blob is read through a bounded staging buffer: the host keeps no
    /// copy.
    Model(Weights),
}

/// Weights that the transfer worker writes to device memory once, at load time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResidentWeights {
    pub source: ResidentSource,
    pub to: BufferId,
}
