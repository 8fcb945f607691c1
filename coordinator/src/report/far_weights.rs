//! Weights in further memories of the host, in words.

use program::map::DeviceMap;
use program::topology::FAR_MAX;

/// Layers with weights in a further memory of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct InMemory {
    /// Of which all weights are there.
    whole: usize,
    /// Of which some are.
    partly: usize,
}

/// What further memories of the host hold, by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FarWeights([InMemory; FAR_MAX]);

impl FarWeights {
    /// Of a map; `None` where nothing is there.
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

    /// `all weights of 20 of 48 layers, what the GPU multiplies of 3; in the second all weights of
    /// 8 of 48 layers`.
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
