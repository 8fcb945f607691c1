//! Placement of a server whose sequences are owned by the device or by the host. All linears run on
//! the device. The weights of as many layers as fit next to the caches of the device's sequences
//! are resident in device memory; the others are streamed.

use planner::budget::{Budget, Limits};
use planner::policy::{Formats, Homes, Policy, device_map};
use program::compile::{CompileError, compile, footprint};
use program::owners::with_owners;
use program::plan::{Plan, RunShape};
use program::topology::MemoryId;

use super::model::Opened;
use super::usage::Usage;

/// Scheduling policy of a server, and the number of sequences with caches in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owners {
    pub(crate) policy: schedule::hybrid::Policy,
    /// Number of sequences with caches in device memory; `None`: as many as fit.
    pub(crate) device_slots: Option<u16>,
}

/// Inputs of a placement with owners.
pub(super) struct Placing<'a> {
    pub(super) opened: &'a Opened,
    pub(super) formats: &'a Formats,
    pub(super) limits: &'a Limits,
    /// Shape of the serving run; its `device_slots` is ignored.
    pub(super) shape: RunShape,
}

/// Layers and sequences that are resident in device memory.
#[derive(Debug, Clone, Copy)]
struct Kept {
    layers: usize,
    sequences: u16,
}

impl Placing<'_> {
    /// Returns the plan with the given number of sequences on the device. The default is the number
    /// that fits next to all layers or, if not all layers fit, the number that fits in half of the
    /// device memory that remains without any layer.
    ///
    /// # Errors
    /// A model that cannot be placed like this, or insufficient memory.
    pub(super) fn plan(&self, device_slots: Option<u16>) -> anyhow::Result<Plan> {
        let all = self.opened.config.num_layers;
        let most = self.shape.batch_size;
        let sequences = match device_slots {
            Some(given) if given > most => {
                let sentence = format!("--device-slots {given}: at most --slots ({most})");
                return Err(Usage(sentence).into());
            }
            Some(given) => given,
            None => {
                let layers = if self.fits(Kept { layers: all, sequences: 1 })? { all } else { 0 };
                self.sequences(layers)?
            }
        };
        let layers = most_that(all, |layers| self.fits(Kept { layers, sequences }))?;
        let Some(layers) = layers else { return Err(self.no_room(sequences)?) };
        Ok(self.compiled(Kept { layers, sequences })?)
    }

    /// Returns the number of sequences that fit on the device next to the given number of layers;
    /// if that is 0, in half of the remaining memory.
    fn sequences(&self, layers: usize) -> Result<u16, CompileError> {
        let one = self.budget(Kept { layers, sequences: 1 })?.device_bytes;
        let room = self.limits.vram_bytes.unwrap_or(u64::MAX).saturating_sub(one);
        let room = if layers == 0 { room / 2 } else { room };
        let has_room = |more: usize| {
            let kept = Kept { layers, sequences: more as u16 + 1 };
            Ok(self.budget(kept)?.device_bytes - one <= room && self.fits(kept)?)
        };
        let more = most_that(usize::from(self.shape.batch_size) - 1, has_room)?;
        Ok(more.map_or(1, |more| more as u16 + 1))
    }

    fn map(&self, kept: Kept) -> program::map::DeviceMap {
        let config = &self.opened.config;
        let homes = Homes { kv: MemoryId::VRAM, prefill_hidden: MemoryId::VRAM };
        let mut map = device_map(&Policy::GpuOnly, config, true, homes);
        self.formats.apply(&mut map);
        let stay = map.weights.iter_mut().take(kept.layers);
        stay.flatten().for_each(|home| *home = MemoryId::VRAM);
        map.outer_weights = MemoryId::VRAM;
        with_owners(&map, config)
    }

    fn shape(&self, kept: Kept) -> RunShape {
        RunShape { device_slots: kept.sequences, ..self.shape }
    }

    fn budget(&self, kept: Kept) -> Result<Budget, CompileError> {
        let (config, scratch) = (&self.opened.config, self.limits.device_scratch);
        Ok(Budget::from(footprint(config, &self.shape(kept), &self.map(kept), scratch)?))
    }

    fn fits(&self, kept: Kept) -> Result<bool, CompileError> {
        let budget = self.budget(kept)?;
        let on_device = self.limits.vram_bytes.is_none_or(|vram| budget.device_bytes <= vram);
        Ok(on_device && budget.dram_bytes(self.limits) <= self.limits.dram_bytes)
    }

    fn compiled(&self, kept: Kept) -> Result<Plan, CompileError> {
        compile(&self.opened.config, &self.shape(kept), &self.map(kept))
    }

    fn no_room(&self, sequences: u16) -> Result<anyhow::Error, CompileError> {
        let budget = self.budget(Kept { layers: 0, sequences })?;
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
        Ok(Usage(sentence).into())
    }
}

/// Returns the largest number up to `all` for which `is_so` holds; `None` if it does not hold for
/// 0. If it holds for a number, it must hold for all smaller ones.
fn most_that(
    all: usize,
    mut is_so: impl FnMut(usize) -> Result<bool, CompileError>,
) -> Result<Option<usize>, CompileError> {
    if !is_so(0)? {
        return Ok(None);
    }
    let (mut least, mut most) = (0, all);
    while least < most {
        let middle = (least + most).div_ceil(2);
        if is_so(middle)? {
            least = middle;
        } else {
            most = middle - 1;
        }
    }
    Ok(Some(least))
}
