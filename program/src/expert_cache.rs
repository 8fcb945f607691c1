//! Number of slots of a cache of experts.

use model::config::ModelConfig;

use crate::map::DeviceMap;
use crate::plan::RunShape;

/// Returns the number of slots of a map's cache of experts: those that keep experts
/// (`DeviceMap::expert_slots`), and as many more as the experts of a step in a layer, which are
/// needed together, take beyond those that are not pinned. 0 if there is no cache.
pub fn cache_slots(config: &ModelConfig, shape: &RunShape, map: &DeviceMap) -> u32 {
    let Some(experts) = config.experts.filter(|_| map.expert_slots > 0) else { return 0 };
    let rows = if shape.serves { shape.stream_rows() } else { usize::from(shape.batch_size) };
    let needed = experts.count.min(rows.saturating_mul(experts.per_token));
    let pinned = map.pinned_experts.len() as u32;
    map.expert_slots.max(pinned.saturating_add(needed as u32))
}
