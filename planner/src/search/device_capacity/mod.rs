//! Number of layers that fit in device memory in addition to what else a placement takes there:
//! computed to the byte, so that a layer that fits is not left out.
//!
//! A plan takes its resident data (weights and caches, which are added up), and the maximum that
//! one of its programs takes for activations and slots. The latter depends on few parameters, and
//! hardly on the number of resident layers. It is therefore computed once, for some number of
//! layers, and reused for others.

mod footprint_key;
#[cfg(test)]
mod tests;

use std::cell::RefCell;

use model::ops::align_up;
use program::compile::{footprint, program_footprint, runs_in_chunks};
use program::ir::ProgramId;
use program::map::{DeviceMap, LayerKv, PhaseMap};
use program::plan::{ProgramFootprint, RunShape};
use program::sizes::Sizes;
use program::topology::MemoryId;
use program::weights::Weights;
use rustc_hash::FxHashMap;

use footprint_key::{FootprintKey, first_layer_map};

use super::estimate::truncate_layers;
use super::{CostError, Estimator};
use crate::budget::PlacementRequest;
use crate::policy::{DefaultTiers, Placement, Policy, Residency, ResidentAttention, spread_evenly};

/// Maximum difference in the alignment of what a device needs in addition to a plan.
const ALIGN_BYTES: u64 = 256;

/// Device memory of a request's placements.
pub(super) struct DeviceCapacity<'a> {
    estimator: &'a Estimator<'a>,
    vram_bytes: u64,
    /// Bytes of the weights of each layer.
    weights_bytes: Vec<u64>,
    /// Bytes of the caches of each layer if all of them are in device memory.
    own_caches_bytes: Vec<u64>,
    /// Bytes of the final norm and the head.
    head_bytes: u64,
    /// Maps of a layer that were met.
    maps: RefCell<Vec<DeviceMap>>,
    /// Known footprints of programs; `None`: the map cannot compute prompts in the chunks that a
    /// user specified.
    footprints: RefCell<FxHashMap<FootprintKey, Option<ProgramFootprint>>>,
}

/// Streams of prefill for which memory must suffice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PrefillStreams {
    Usual,
    /// Small ones if there is not enough memory for the usual ones.
    Any,
}

/// A placement without resident weights, and the properties that do not depend on these.
pub(super) struct StreamedPlacement {
    placement: Placement,
    /// Indices into [`DeviceCapacity::maps`] of a layer's prefill and decode.
    maps: [usize; 2],
    weight_slots: u16,
    kv_slots: u16,
    /// Shapes with the usual streams of prefill, then with small ones.
    shapes: Vec<RunShape>,
    /// Caches of each layer in device memory.
    caches_bytes: Vec<u64>,
}

impl<'a> DeviceCapacity<'a> {
    pub(super) fn new(estimator: &'a Estimator<'a>, vram_bytes: u64) -> DeviceCapacity<'a> {
        let PlacementRequest { config, formats, .. } = *estimator.request;
        let sizes = sizes(estimator);
        let bytes = |weights| align_up(sizes.weights_bytes(weights)) as u64;
        let of_layer = |layer| {
            let model = config.of_layer(layer);
            let ops = config.layer_ops(layer).iter().filter(|op| op.weights(model).is_some());
            ops.map(|op| bytes(Weights::of(*op, Some(layer as u16)))).sum()
        };
        let layers = formats.weights.layers.len();
        let vram = vec![MemoryId::VRAM];
        let own_kv = LayerKv { k: vram.clone(), v: vram, device_batches: 0 };
        let own_caches = |layer| caches_bytes(estimator, layer, &own_kv);
        DeviceCapacity {
            estimator,
            vram_bytes,
            weights_bytes: (0..layers).map(of_layer).collect(),
            own_caches_bytes: (0..layers).map(own_caches).collect(),
            head_bytes: bytes(Weights::FinalNorm) + bytes(Weights::Head),
            maps: RefCell::default(),
            footprints: RefCell::default(),
        }
    }

    pub(super) fn streamed(&self, placement: &Placement) -> StreamedPlacement {
        let Estimator { request, batches, batch_size, .. } = *self.estimator;
        let placement = Placement { residency: Residency::NONE, ..placement.clone() };
        let map = self.map(&placement);
        let of_layer = |(layer, kv): (usize, &LayerKv)| caches_bytes(self.estimator, layer, kv);
        let caches_bytes = map.kv.iter().enumerate().map(of_layer).collect();
        let usual = request.shape(batches, batch_size);
        let mut shapes = vec![usual];
        shapes.extend(request.small_streams(usual).into_iter().filter(|small| *small != usual));
        let (weight_slots, kv_slots) = (map.weight_slots, map.kv_slots);
        let phases = [&map.prefill, &map.decode].map(PhaseMap::clone);
        let maps = phases.map(|phase| self.intern_map(first_layer_map(&map, phase)));
        StreamedPlacement { placement, maps, weight_slots, kv_slots, shapes, caches_bytes }
    }

    fn intern_map(&self, map: DeviceMap) -> usize {
        let mut maps = self.maps.borrow_mut();
        maps.iter().position(|other| *other == map).unwrap_or_else(|| {
            maps.push(map);
            maps.len() - 1
        })
    }

    /// Returns the maximum number of layers that can stay, fewer than all; 0 if none can.
    ///
    /// # Errors
    /// A map that does not compile.
    pub(super) fn max_resident_layers(
        &self,
        streamed: &StreamedPlacement,
        attention: ResidentAttention,
        head: bool,
        streams: PrefillStreams,
    ) -> Result<usize, CostError> {
        // One slot fewer may make space for one layer more, so bisection does not apply.
        for count in (1..self.weights_bytes.len()).rev() {
            let residency = streamed.residency(count, self.weights_bytes.len(), attention, head);
            if self.has_capacity(streamed, &residency, streams)? {
                return Ok(count);
            }
        }
        Ok(0)
    }

    /// Returns true if a placement fits in device memory, with its hidden states of prefill on the
    /// host.
    ///
    /// # Errors
    /// A map that does not compile.
    pub(super) fn has_capacity(
        &self,
        streamed: &StreamedPlacement,
        residency: &Residency,
        streams: PrefillStreams,
    ) -> Result<bool, CostError> {
        let resident_bytes = self.resident_bytes(streamed, residency);
        if resident_bytes > self.vram_bytes {
            return Ok(false);
        }
        let shapes = match streams {
            PrefillStreams::Usual => 0..1,
            PrefillStreams::Any => 0..streamed.shapes.len(),
        };
        for shape in shapes {
            if self.has_capacity_with(streamed, residency, shape, resident_bytes)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns true if a placement fits with the given streams in addition to resident data.
    fn has_capacity_with(
        &self,
        streamed: &StreamedPlacement,
        residency: &Residency,
        shape: usize,
        resident_bytes: u64,
    ) -> Result<bool, CostError> {
        let remaining_bytes = self.vram_bytes - resident_bytes;
        let program = |program| self.program(streamed, residency, shape, program);
        let prefill = program(ProgramId::PREFILL)?.filter(|one| one.own_bytes <= remaining_bytes);
        let Some(prefill) = prefill else { return Ok(false) };
        let Some(decode) = program(ProgramId::DECODE)? else { return Ok(false) };
        let own_bytes = prefill.own_bytes.max(decode.own_bytes);
        if self.estimator.request.limits.device_scratch.is_none() {
            return Ok(own_bytes <= remaining_bytes);
        }
        // Programs share a part of what the device needs in addition to them.
        let scratch = [prefill.scratch_bytes, decode.scratch_bytes];
        if own_bytes + scratch[0] + scratch[1] + ALIGN_BYTES <= remaining_bytes {
            return Ok(true);
        }
        Ok(own_bytes + scratch[0].max(scratch[1]) <= remaining_bytes
            && self.total_device_bytes(streamed, residency, shape)? <= self.vram_bytes)
    }

    /// Returns the bytes of resident weights, and of caches.
    fn resident_bytes(&self, streamed: &StreamedPlacement, residency: &Residency) -> u64 {
        let layers = &residency.layers;
        let weights: u64 = layers.iter().map(|layer| self.weights_bytes[*layer]).sum();
        let is_resident = |layer: &usize| layers.binary_search(layer).is_ok();
        let caches = |layer: usize| match (is_resident(&layer), residency.attention) {
            // States are stored where they are computed, and resident layers are computed on the
            // device.
            (true, ResidentAttention::WithKv) => self.own_caches_bytes[layer],
            (true, _) if self.has_state(layer) => self.own_caches_bytes[layer],
            (true, ResidentAttention::Streamed | ResidentAttention::OnCpu) => 0,
            (false, _) => streamed.caches_bytes[layer],
        };
        weights
            + if residency.head { self.head_bytes } else { 0 }
            + (0..self.weights_bytes.len()).map(caches).sum::<u64>()
    }

    fn has_state(&self, layer: usize) -> bool {
        self.estimator.request.config.layers.kind(layer).has_state()
    }

    /// Returns the bytes of a program in addition to resident data; `None` as in
    /// [`DeviceCapacity::footprints`].
    fn program(
        &self,
        streamed: &StreamedPlacement,
        residency: &Residency,
        shape: usize,
        program: ProgramId,
    ) -> Result<Option<ProgramFootprint>, CostError> {
        let key = self.footprint_key(streamed, residency, shape, program);
        if let Some(known) = self.footprints.borrow().get(&key) {
            return Ok(*known);
        }
        let request = self.estimator.request;
        let usual = streamed.shapes[shape];
        let footprint = match key.resident {
            Some(_) => {
                let placement = streamed.with_residency(residency.clone());
                self.footprint_of(
                    &PlacementRequest { placement: &placement, ..*request },
                    usual,
                    program,
                )?
            }
            None => {
                let layers = key.reduce_layers(self.weights_bytes.len(), &residency.layers);
                let (config, formats) = truncate_layers(request, layers.len());
                let resident = (0..layers.len()).filter(|index| layers[*index]).collect();
                let placement =
                    streamed.with_residency(Residency { layers: resident, ..residency.clone() });
                let (config, formats, placement) = (&config, &formats, &placement);
                let request = PlacementRequest { config, formats, placement, ..*request };
                self.footprint_of(&request, usual, program)?
            }
        };
        self.footprints.borrow_mut().insert(key, footprint);
        Ok(footprint)
    }

    fn footprint_of(
        &self,
        request: &PlacementRequest<'_>,
        shape: RunShape,
        program: ProgramId,
    ) -> Result<Option<ProgramFootprint>, CostError> {
        let map = request.map(self.tiers());
        let shape = request.shape_of(shape, &map);
        if shape.is_chunked() && !runs_in_chunks(request.config, &map) {
            return Ok(None);
        }
        let scratch = request.limits.device_scratch;
        let footprint = program_footprint(request.config, &shape, &map, scratch, program);
        footprint.map(Some).map_err(|error| CostError(error.to_string()))
    }

    fn total_device_bytes(
        &self,
        streamed: &StreamedPlacement,
        residency: &Residency,
        shape: usize,
    ) -> Result<u64, CostError> {
        let PlacementRequest { config, limits, .. } = *self.estimator.request;
        let (map, shape) = self.map_and_shape(streamed, residency, shape);
        let footprint = footprint(config, &shape, &map, limits.device_scratch)
            .map_err(|error| CostError(error.to_string()))?;
        Ok(footprint.device_bytes + footprint.device_scratch_bytes)
    }

    fn map_and_shape(
        &self,
        streamed: &StreamedPlacement,
        residency: &Residency,
        shape: usize,
    ) -> (DeviceMap, RunShape) {
        let map = self.map(&streamed.with_residency(residency.clone()));
        let shape = self.estimator.request.shape_of(streamed.shapes[shape], &map);
        (map, shape)
    }

    fn map(&self, placement: &Placement) -> DeviceMap {
        PlacementRequest { placement, ..*self.estimator.request }.map(self.tiers())
    }

    fn tiers(&self) -> DefaultTiers {
        DefaultTiers { prefill_hidden: MemoryId::DRAM, ..self.estimator.tiers }
    }

    fn footprint_key(
        &self,
        streamed: &StreamedPlacement,
        residency: &Residency,
        shape: usize,
        program: ProgramId,
    ) -> FootprintKey {
        let is_prefill = program == ProgramId::PREFILL;
        let request = self.estimator.request;
        // Streams of prefill do not affect decode's own buffers.
        let is_shaped = is_prefill || request.limits.device_scratch.is_some();
        let shape = if is_shaped { shape } else { 0 };
        let Placement { device_batches, .. } = streamed.placement;
        let batches = self.estimator.batches.saturating_sub(device_batches).max(1);
        let kv_slot_layers = usize::from(streamed.kv_slots.div_ceil(batches));
        let weight_slots = usize::from(streamed.weight_slots);
        let (resident, others): (Vec<usize>, Vec<usize>) = (0..self.weights_bytes.len())
            .partition(|layer| residency.layers.binary_search(layer).is_ok());
        let slots = |layers: &[usize]| {
            let used = |slot: &usize| layers.iter().any(|layer| layer % weight_slots == *slot);
            (0..weight_slots).filter(used).collect()
        };
        let formats = &request.formats.weights.layers;
        let is_mixed = formats.iter().any(|format| *format != formats[0]);
        FootprintKey {
            program,
            shape,
            map: streamed.maps[usize::from(!is_prefill)],
            // Irrelevant if no layer stays.
            attention: match resident.is_empty() {
                true => Residency::NONE.attention,
                false => residency.attention,
            },
            head: residency.head,
            kv_slot_layers,
            weight_slots,
            capped_layers: [resident.len().min(kv_slot_layers), others.len().min(kv_slot_layers)],
            slots: [slots(&resident), slots(&others)],
            resident: is_mixed.then_some(resident),
        }
    }
}

impl StreamedPlacement {
    fn with_residency(&self, residency: Residency) -> Placement {
        Placement { residency, ..self.placement.clone() }
    }

    /// Returns a placement's residency with `count` resident layers.
    pub(super) fn residency(
        &self,
        count: usize,
        of_layers: usize,
        attention: ResidentAttention,
        head: bool,
    ) -> Residency {
        let layers = match self.placement.policy {
            // LIA §5.2, optimisation 1.
            Policy::Lia { spread: false, .. } => (0..count).collect(),
            _ => spread_evenly(count, of_layers),
        };
        Residency { layers, attention, head }
    }
}

/// Returns the bytes of a layer's caches in device memory.
fn caches_bytes(estimator: &Estimator<'_>, layer: usize, kv_tiers: &LayerKv) -> u64 {
    let sizes = sizes(estimator);
    let mut bytes = 0;
    for kv in estimator.request.config.layer_caches(layer).iter().copied() {
        let parts = kv_tiers.tiers(kv).len() as u16;
        let all = (0..estimator.batches)
            .flat_map(|batch| (0..parts).map(move |part| kv_tiers.tier(kv, part, batch)));
        let in_vram = all.filter(|tier| *tier == MemoryId::VRAM).count();
        bytes += in_vram as u64 * align_up(sizes.cache_bytes(layer, kv, parts)) as u64;
    }
    bytes
}

fn sizes<'a>(estimator: &Estimator<'a>) -> Sizes<'a> {
    let PlacementRequest { config, dtype, max_context, formats, .. } = *estimator.request;
    Sizes {
        config,
        dtype,
        batch_size: estimator.batch_size,
        device_slots: 0,
        max_context,
        weight_formats: &formats.weights,
        kv_format: formats.kv,
        kv_select: formats.kv_select,
        paged_positions: 0,
    }
}
