//! Summary of the weights in additional host memories.

use program::map::DeviceMap;
use program::topology::FAR_MAX;

/// Number of layers with weights in one additional host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct InMemory {
    /// Layers all of whose weights are there.
    whole: usize,
    /// Layers of which only some weights are there.
    partly: usize,
}

/// Contents of the additional host memories, by memory number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FarWeights([InMemory; FAR_MAX]);

impl FarWeights {
    /// Counts the layers of a map; returns `None` if it uses no additional memory.
    pub(crate) fn of(map: &DeviceMap) -> Option<FarWeights> {
        let mut memories = [InMemory::default(); FAR_MAX];
        for homes in &map.weights {
            let numbers = homes.iter().filter_map(|home| home.far_number());
            let Some(number) = numbers.clone().next() else { continue };
            let found = &mut memories[usize::from(number)];
            match numbers.count() == homes.len() {
                true => found.whole += 1,
                false => found.partly += 1,
            }
        }
        (map.far_memories() > 0).then_some(FarWeights(memories))
    }

    /// Formats the contents: `all weights of 20 of 48 layers, what the GPU multiplies of 3; in the
    /// second all weights of 8 of 48 layers`.
    pub(crate) fn summary(&self, map: &DeviceMap) -> String {
        let used = self.0.iter().enumerate().filter(|(_, one)| one.whole + one.partly > 0);
        let parts = used.map(|(number, one)| {
            let mut parts = Vec::new();
            if one.whole > 0 {
                parts.push(format!("all weights of {} of {} layers", one.whole, map.weights.len()));
            }
            if one.partly > 0 {
                parts.push(format!("what the GPU multiplies of {}", one.partly));
            }
            let place = if number == 0 { "" } else { "in the second " };
            format!("{place}{}", parts.join(", "))
        });
        parts.collect::<Vec<_>>().join("; ")
    }
}
