//! Capacity for a model and its caches in each memory.

use model::config::{Dtype, ModelConfig};
use model::ops::{Op, align_up};
use program::cuda_gaps::model_gap;
use program::formats::KvFormat;

use super::ServingError;
use crate::machine::Machine;

/// Fraction of device memory taken by drivers, kernels and partially filled pages.
const DEVICE_RESERVE: f64 = 0.05;
/// Fraction of the remaining device memory used for caches if not all of a model's layers fit.
const CACHE_SHARE_WHEN_STREAMING: f64 = 0.5;
/// Number of slots: a layer's weights arrive while those of another are used.
const WEIGHT_SLOTS: u64 = 2;

/// Capacity for caches, and the weights that are streamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheCapacity {
    pub device_positions: u64,
    pub host_positions: u64,
    /// Bytes of weights that are streamed to the device in each iteration.
    pub streamed_bytes: u64,
}

impl CacheCapacity {
    /// Computes the capacity for a model on a machine, with `rows` rows per iteration. A weight is
    /// in one memory: the embedding and what is streamed on the host, all others on the device.
    ///
    /// # Errors
    /// A model with recurrent states or with an operation that the device's kernels lack, a model
    /// that does not fit in host memory, or a device that cannot hold the rows.
    pub fn compute(
        machine: &Machine,
        config: &ModelConfig,
        dtype: Dtype,
        rows: u32,
    ) -> Result<CacheCapacity, ServingError> {
        if config.layers.has_states() {
            return Err(ServingError::States { model: config.name.clone() });
        }
        if let Some(op) = model_gap(config, KvFormat::Plain) {
            let (model, op) = (config.name.clone(), op.name(config.family));
            return Err(ServingError::NotOnDevice { model, op });
        }
        let layer_bytes = |layer| config.layer_weight_bytes(layer, dtype) as u64;
        let layers: u64 = (0..config.num_layers).map(layer_bytes).sum();
        let head = Op::Head.weight_bytes(config, dtype) as u64;
        let embedding =
            if config.tied_embeddings { 0 } else { Op::Embed.weight_bytes(config, dtype) as u64 };
        let position = config.cache_bytes_per_position(dtype) as u64;
        // The head of a tied model is the embedding, which the host reads.
        let embedding = if config.tied_embeddings { head } else { embedding };
        let host_bytes = |streamed_bytes: u64| {
            let needed = embedding + streamed_bytes;
            let (machine, has) = (machine.name.clone(), machine.dram_bytes());
            has.checked_sub(needed).ok_or(ServingError::HostMemory { machine, needed, has })
        };
        let usable = (machine.vram_bytes() as f64 * (1.0 - DEVICE_RESERVE)) as u64;
        let fixed = head + activations(config, dtype, rows);
        let too_small = || ServingError::DeviceMemory {
            machine: machine.name.clone(),
            rows,
            needed: fixed,
            has: usable,
        };
        let left = usable.checked_sub(fixed).ok_or_else(too_small)?;
        let caches = match left.checked_sub(layers) {
            Some(caches) if caches >= position * u64::from(rows) => {
                return Ok(CacheCapacity {
                    device_positions: caches / position,
                    host_positions: host_bytes(0)? / position,
                    streamed_bytes: 0,
                });
            }
            _ => (left as f64 * CACHE_SHARE_WHEN_STREAMING) as u64,
        };
        let slots = WEIGHT_SLOTS * (0..config.num_layers).map(layer_bytes).max().unwrap_or(0);
        let resident = (left - caches).checked_sub(slots).ok_or_else(too_small)?;
        let streamed_bytes = layers.saturating_sub(resident);
        Ok(CacheCapacity {
            device_positions: caches / position,
            host_positions: host_bytes(streamed_bytes)? / position,
            streamed_bytes,
        })
    }
}

/// Returns the bytes of the residual stream, and of an operation's inputs and outputs, for `rows`
/// rows; the logits of the sampled rows are not larger.
fn activations(config: &ModelConfig, dtype: Dtype, rows: u32) -> u64 {
    let of_op =
        |op: Op| config.kind_models().map(move |model| op.activation_bytes(model, dtype, 1)).max();
    let widest = config.every_layer_op().into_iter().filter_map(of_op).max();
    let row = 4 * config.residual_size() as u64 + widest.unwrap_or(0);
    align_up((row * u64::from(rows)) as usize) as u64
}
