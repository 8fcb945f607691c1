//! Placement of a server whose sequences are owned by the device or by the host. All linears run on
//! the device. The weights of as many layers as fit next to the caches of the device's sequences
//! are resident in device memory; the others are streamed.

use planner::budget::{Budget, MemoryLimits};
use planner::policy::{DefaultTiers, Formats, Policy, device_map};
use program::compile::{CompileError, compile, footprint};
use program::kv_owner::with_owners;
use program::plan::{Plan, RunShape};
use program::topology::MemoryId;

use super::argument_error::ArgumentError;
use super::model::ModelHandle;

/// Scheduling policy of a server, and the number of sequences with caches in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HybridConfig {
    pub policy: scheduler::hybrid::SchedulingPolicy,
    /// Number of sequences with caches in device memory; `None`: as many as fit.
    pub device_slots: Option<u16>,
}

/// Inputs of a placement with owners.
pub(super) struct HybridPlacement<'a> {
    pub(super) model: &'a ModelHandle,
    pub(super) formats: &'a Formats,
    pub(super) limits: &'a MemoryLimits,
    /// Shape of the serving run; its `device_slots` is ignored.
    pub(super) shape: RunShape,
}

/// Layers and sequences that are resident in device memory.
#[derive(Debug, Clone, Copy)]
struct DeviceResidents {
    layers: usize,
    sequences: u16,
}

impl HybridPlacement<'_> {
    /// Returns the plan with the given number of sequences on the device. The default is the number
    /// that fits next to all layers or, if not all layers fit, the number that fits in half of the
    /// device memory that remains without any layer.
    ///
    /// # Errors
    /// A model that cannot be placed like this, or insufficient memory.
    pub(super) fn plan(&self, device_slots: Option<u16>) -> anyhow::Result<Plan> {
        let all = self.model.config.num_layers;
        let max_sequences = self.shape.batch_size;
        let sequences = match device_slots {
            Some(requested) if requested > max_sequences => {
                let sentence =
                    format!("--device-slots {requested}: at most --slots ({max_sequences})");
                return Err(ArgumentError(sentence).into());
            }
            Some(requested) => requested,
            None => {
                let layers =
                    if self.fits(DeviceResidents { layers: all, sequences: 1 })? { all } else { 0 };
                self.max_device_sequences(layers)?
            }
        };
        let layers =
            max_satisfying(all, |layers| self.fits(DeviceResidents { layers, sequences }))?;
        let Some(layers) = layers else { return Err(self.insufficient_memory_error(sequences)?) };
        Ok(self.compile_plan(DeviceResidents { layers, sequences })?)
    }

    /// Returns the number of sequences that fit on the device next to the given number of layers;
    /// if that is 0, in half of the remaining memory.
    fn max_device_sequences(&self, layers: usize) -> Result<u16, CompileError> {
        let base_bytes = self.budget(DeviceResidents { layers, sequences: 1 })?.device_bytes;
        let capacity = self.limits.vram_bytes.unwrap_or(u64::MAX).saturating_sub(base_bytes);
        let capacity = if layers == 0 { capacity / 2 } else { capacity };
        let has_capacity = |more: usize| {
            let residents = DeviceResidents { layers, sequences: more as u16 + 1 };
            Ok(self.budget(residents)?.device_bytes - base_bytes <= capacity
                && self.fits(residents)?)
        };
        let more = max_satisfying(usize::from(self.shape.batch_size) - 1, has_capacity)?;
        Ok(more.map_or(1, |more| more as u16 + 1))
    }

    fn map(&self, residents: DeviceResidents) -> program::map::DeviceMap {
        let config = &self.model.config;
        let tiers = DefaultTiers { kv: MemoryId::VRAM, prefill_hidden: MemoryId::VRAM };
        let mut map = device_map(&Policy::GpuOnly, config, true, tiers);
        self.formats.apply(&mut map);
        let resident = map.weights.iter_mut().take(residents.layers);
        resident.flatten().for_each(|tier| *tier = MemoryId::VRAM);
        map.outer_weights = MemoryId::VRAM;
        with_owners(&map, config)
    }

    fn shape(&self, residents: DeviceResidents) -> RunShape {
        RunShape { device_slots: residents.sequences, ..self.shape }
    }

    fn budget(&self, residents: DeviceResidents) -> Result<Budget, CompileError> {
        let (config, scratch) = (&self.model.config, self.limits.device_scratch);
        Ok(Budget::from(footprint(config, &self.shape(residents), &self.map(residents), scratch)?))
    }

    fn fits(&self, residents: DeviceResidents) -> Result<bool, CompileError> {
        let budget = self.budget(residents)?;
        let on_device = self.limits.vram_bytes.is_none_or(|vram| budget.device_bytes <= vram);
        Ok(on_device && budget.dram_bytes(self.limits) <= self.limits.dram_bytes)
    }

    fn compile_plan(&self, residents: DeviceResidents) -> Result<Plan, CompileError> {
        compile(&self.model.config, &self.shape(residents), &self.map(residents))
    }

    fn insufficient_memory_error(&self, sequences: u16) -> Result<anyhow::Error, CompileError> {
        let budget = self.budget(DeviceResidents { layers: 0, sequences })?;
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let vram =
            self.limits.vram_bytes.map_or(String::new(), |vram| format!(" of {} MiB", mib(vram)));
        let sentence = format!(
            "Caches of {sequences} sequences on the device, without weights of layers, require {} \
             MiB{vram} of device memory and {} MiB of {} MiB of host memory. Use fewer --slots, \
             a smaller --context or a smaller --prefill-chunk",
            mib(budget.device_bytes),
            mib(budget.dram_bytes(self.limits)),
            mib(self.limits.dram_bytes),
        );
        Ok(ArgumentError(sentence).into())
    }
}

/// Returns the largest number up to `all` for which `predicate` holds; `None` if it does not hold
/// for
/// 0. If it holds for a number, it must hold for all smaller ones.
fn max_satisfying(
    all: usize,
    mut predicate: impl FnMut(usize) -> Result<bool, CompileError>,
) -> Result<Option<usize>, CompileError> {
    if !predicate(0)? {
        return Ok(None);
    }
    let (mut low, mut high) = (0, all);
    while low < high {
        let middle = (low + high).div_ceil(2);
        if predicate(middle)? {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    Ok(Some(low))
}
