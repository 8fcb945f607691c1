//! Summary of the weights in additional host memories.

use program::map::DeviceMap;
use program::topology::SLOW_TIERS_MAX;

/// Number of layers with weights in one additional host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct LayerCounts {
    /// Layers all of whose weights are there.
    complete: usize,
    /// Layers of which only some weights are there.
    partial: usize,
}

/// Contents of the additional host memories, by memory number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlowTierSummary([LayerCounts; SLOW_TIERS_MAX]);

impl SlowTierSummary {
    /// Counts the layers of a map; returns `None` if it uses no additional memory.
    pub fn for_map(map: &DeviceMap) -> Option<SlowTierSummary> {
        let mut memories = [LayerCounts::default(); SLOW_TIERS_MAX];
        for tiers in &map.weights {
            let numbers = tiers.iter().filter_map(|tier| tier.slow_tier_index());
            let Some(number) = numbers.clone().next() else { continue };
            let found = &mut memories[usize::from(number)];
            match numbers.count() == tiers.len() {
                true => found.complete += 1,
                false => found.partial += 1,
            }
        }
        (map.slow_tier_count() > 0).then_some(SlowTierSummary(memories))
    }

    /// Formats the contents: `all weights of 20 of 48 layers, what the GPU multiplies of 3; in the
    /// second all weights of 8 of 48 layers`.
    pub fn summary(&self, map: &DeviceMap) -> String {
        let used = self.0.iter().enumerate().filter(|(_, tier)| tier.complete + tier.partial > 0);
        let parts = used.map(|(number, tier)| {
            let mut parts = Vec::new();
            if tier.complete > 0 {
                parts.push(format!(
                    "all weights of {} of {} layers",
                    tier.complete,
                    map.weights.len()
                ));
            }
            if tier.partial > 0 {
                parts.push(format!("what the GPU multiplies of {}", tier.partial));
            }
            let place = if number == 0 { "" } else { "in the second " };
            format!("{place}{}", parts.join(", "))
        });
        parts.collect::<Vec<_>>().join("; ")
    }
}
