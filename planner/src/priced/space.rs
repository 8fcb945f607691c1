//! All placements that a policy's name stands for: its maps, each with every choice of what stays
//! in device memory, where KV lives and where prompts are computed.

use std::cell::RefCell;

use model::ops::Op;
use program::compile::{footprint, runs_in_chunks};
use program::map::{Chunking, layer_list};
use program::topology::MemoryId;

use super::bound::Bound;
use super::table::{Outer, outer, read_ns_per_byte};
use super::{Estimator, Unpriced, lia, table};
use crate::budget::Request;
use crate::layer::table::Table;
use crate::policy::by_name::PolicyName;
use crate::policy::{
    Flexgen, Homes, Placement, Policy, Residency, ResidentAttention, spread_evenly,
};
use crate::split::Split;

/// Layers of the model whose device memory is looked at: all slots and no more.
const SLOT_LAYERS: usize = 2;
/// Models of so few layers are looked at to the last layer.
const FEW_LAYERS: usize = 8;
/// Shares of the layers that have room, in quarters, which are tried as resident.
const QUARTERS: [usize; 4] = [4, 3, 2, 1];

/// A placement that may be chosen.
#[derive(Debug, Clone)]
pub(super) struct Possible {
    pub(super) name: PolicyName,
    pub(super) placement: Placement,
}

/// A policy's map, before what stays is chosen.
struct Base {
    name: PolicyName,
    policy: Policy,
    /// Whether residency and homes are searched for it.
    is_open: bool,
}

/// The placements of a name, and the tables that bound them.
pub(super) struct Space<'a> {
    estimator: &'a Estimator<'a>,
    /// A table for each way to cut attention.
    tables: Vec<(Option<Chunking>, Table)>,
    outer: Outer,
    /// Of all storages together.
    read_ns_per_byte: f64,
    /// Device memory of prefill that is known already.
    prefill_bytes: RefCell<Vec<(Placement, u64)>>,
}

impl<'a> Space<'a> {
    /// # Errors
    /// A plan that cannot be priced.
    pub(super) fn new(
        estimator: &'a Estimator<'a>,
        chunkings: &[Option<Chunking>],
    ) -> Result<Space<'a>, Unpriced> {
        let tables = chunkings.iter().map(|chunking| Ok((*chunking, table(estimator, *chunking)?)));
        let tables = tables.collect::<Result<_, Unpriced>>()?;
        let outer = outer(estimator)?;
        let read_ns_per_byte = read_ns_per_byte(estimator)?;
        let prefill_bytes = RefCell::default();
        Ok(Space { estimator, tables, outer, read_ns_per_byte, prefill_bytes })
    }

    /// The table of a way to cut attention.
    pub(super) fn table(&self, chunking: Option<Chunking>) -> Option<&Table> {
        self.tables.iter().find(|(other, _)| *other == chunking).map(|(_, table)| table)
    }

    /// Everything that `name` stands for.
    ///
    /// # Errors
    /// A plan that cannot be priced or compiled.
    pub(super) fn placements(&self, name: PolicyName) -> Result<Vec<Possible>, Unpriced> {
        let mut all = Vec::new();
        for base in self.bases(name)? {
            let name = base.name;
            all.extend(self.open(&base)?.into_iter().map(|placement| Possible { name, placement }));
        }
        Ok(all)
    }

    /// What the table tells of a placement.
    pub(super) fn bound<'b>(&'b self, placement: &'b Placement) -> Option<Bound<'b>> {
        let config = self.estimator.request.config;
        let table = self.table(placement.policy.chunking())?;
        let Estimator { request, batches, batch_size, .. } = *self.estimator;
        let read_bytes = Request { placement, ..*request }.least_read_bytes(batches, batch_size);
        let read_ns = read_bytes as f64 * self.read_ns_per_byte;
        Some(Bound { table, config, placement, outer: self.outer, read_ns })
    }

    fn bases(&self, name: PolicyName) -> Result<Vec<Base>, Unpriced> {
        let one = |policy, is_open| vec![Base { name, policy, is_open }];
        Ok(match name {
            PolicyName::CpuOnly => one(Policy::CpuOnly, false),
            PolicyName::GpuOnly => one(Policy::GpuOnly, false),
            PolicyName::Resident => one(Policy::Resident, false),
            PolicyName::Lia => {
                let policies = lia::policies(self.estimator)?.into_iter();
                policies.map(|policy| Base { name, policy, is_open: true }).collect()
            }
            PolicyName::Flexgen | PolicyName::FlexgenSpread => {
                let spread = name == PolicyName::FlexgenSpread;
                let policy = |cpu_attention| Policy::Flexgen(Flexgen { spread, cpu_attention });
                [false, true]
                    .map(|on_cpu| Base { name, policy: policy(on_cpu), is_open: true })
                    .into()
            }
            PolicyName::TwoSplit | PolicyName::OneSplit => self.splits(name),
            PolicyName::Auto => {
                let mut all = Vec::new();
                for name in PolicyName::COMPARED {
                    all.extend(self.bases(name)?);
                }
                all
            }
        })
    }

    fn splits(&self, name: PolicyName) -> Vec<Base> {
        let config = self.estimator.request.config;
        let whole = layer_list(config, None).len();
        let mut all: Vec<Base> = Vec::new();
        for (chunking, table) in &self.tables {
            for (start, end) in name.intervals(table).unwrap_or_default() {
                // Attention that is not cut is whole, however it would have been cut.
                let is_all = (start, end) == (0, table.ops.len());
                let (end, chunking) = if is_all { (whole, None) } else { (end, *chunking) };
                let policy = match name {
                    PolicyName::OneSplit if start < end => Policy::OneSplit { start, chunking },
                    _ => Policy::TwoSplit { split: Split { start, end }, chunking },
                };
                if !all.iter().any(|other| other.policy == policy) {
                    all.push(Base { name, policy, is_open: true });
                }
            }
        }
        all
    }

    /// A map with every choice of what it leaves open.
    fn open(&self, base: &Base) -> Result<Vec<Placement>, Unpriced> {
        let closed = Placement::of(base.policy);
        if !base.is_open {
            return Ok(vec![closed]);
        }
        let mut all = Vec::new();
        // LIA has a vector for prefill too, and FlexGen computes prompts on the device.
        let prefills: &[bool] = match base.policy {
            Policy::Lia { .. } | Policy::Flexgen(_) => &[false],
            _ => &[false, true],
        };
        for (kv, device_batches) in self.kv_homes(&base.policy) {
            for prefill_on_cpu in prefills.iter().copied() {
                let kv = Some(kv);
                let one = Placement { kv, device_batches, prefill_on_cpu, ..closed.clone() };
                let with = |residency| Placement { residency, ..one.clone() };
                let placements = self.residencies(&one)?.into_iter().map(with);
                all.extend(placements.filter(|one| self.is_sound(one)));
            }
        }
        Ok(all)
    }

    /// Whether a placement uses the device, as LIA's need not, and can compute prompts in chunks
    /// where that was asked for.
    fn is_sound(&self, placement: &Placement) -> bool {
        let Estimator { request, batches, batch_size, .. } = *self.estimator;
        let map = self.estimator.map(placement);
        let is_used = matches!(placement.policy, Policy::Lia { .. }) || map.uses_gpu();
        let requires_chunks =
            request.prefill_chunk.is_some() && request.shape(batches, batch_size).is_chunked();
        is_used && (!requires_chunks || runs_in_chunks(request.config, &map))
    }

    /// Where the KV of streamed layers may live: on the host, on the device, or some batches' on
    /// the device where all of attention runs there.
    fn kv_homes(&self, policy: &Policy) -> Vec<(MemoryId, u16)> {
        let on_device = Placement { kv: Some(MemoryId::VRAM), ..Placement::of(*policy) };
        let map = self.estimator.map(&on_device);
        let Some(kv) = map.kv.first() else { return Vec::new() };
        let mut homes = vec![(MemoryId::DRAM, 0)];
        if kv.any_on(MemoryId::VRAM) {
            homes.push((MemoryId::VRAM, 0));
        }
        if !kv.any_on(MemoryId::DRAM) {
            let batches = self.estimator.batches;
            let mut some = vec![1, batches / 2, batches.saturating_sub(1)];
            some.retain(|count| (1..batches).contains(count));
            some.dedup();
            homes.extend(some.into_iter().map(|count| (MemoryId::DRAM, count)));
        }
        homes
    }

    /// What may stay of a placement; nothing where device memory has no room even so.
    fn residencies(&self, placement: &Placement) -> Result<Vec<Residency>, Unpriced> {
        let Some(vram_bytes) = self.estimator.request.limits.vram_bytes else {
            return Ok(vec![Residency::NONE]);
        };
        let room = self.room(placement, vram_bytes)?;
        let contiguous = matches!(placement.policy, Policy::Lia { .. });
        let layers = self.estimator.request.config.num_layers;
        let mut all = if room.free_bytes.is_some() { vec![Residency::NONE] } else { Vec::new() };
        for head in [false, true] {
            if head && room.free_bytes.is_some_and(|free| free >= room.head_bytes) {
                all.push(Residency { head, ..Residency::NONE });
            }
            for attention in ResidentAttention::ALL {
                let counts = self.counts(placement, &room, attention, head);
                all.extend(counts.into_iter().map(|count| Residency {
                    layers: match contiguous {
                        // LIA §5.2, optimisation 1.
                        true => (0..count).collect(),
                        false => spread_evenly(count, layers),
                    },
                    attention,
                    head,
                }));
            }
        }
        Ok(all)
    }

    fn room(&self, placement: &Placement, vram_bytes: u64) -> Result<DeviceRoom, Unpriced> {
        let request = self.estimator.request;
        let (config, dtype) = (request.config, request.dtype);
        let kv_bytes = request.layer_kv_bytes(self.estimator.batches, self.estimator.batch_size);
        let others = config.num_layers.saturating_sub(SLOT_LAYERS) as u64;
        let streamed_kv = others * self.device_kv_bytes(placement);
        let taken_bytes = self.device_bytes(placement, 0)? + streamed_kv;
        let formats = request.formats.weights.layers.first();
        let weights_bytes = formats.map_or(0, |formats| request.layer_weight_bytes(formats));
        Ok(DeviceRoom {
            vram_bytes,
            free_bytes: vram_bytes.checked_sub(taken_bytes),
            head_bytes: Op::Head.weight_bytes(config, dtype) as u64,
            weights_bytes,
            kv_bytes,
            resident_slots: self.resident_slots(placement)?,
        })
    }

    /// Device memory of as many layers as there are slots, some of which stay; nothing where that
    /// is of no account.
    fn resident_slots(&self, placement: &Placement) -> Result<Vec<ResidentSlots>, Unpriced> {
        let layers = self.estimator.request.config.num_layers;
        let mut all = Vec::new();
        for count in 1..=SLOT_LAYERS.min(layers) {
            // A single layer that is streamed has use for one slot. Where all stay there are no
            // slots, and the policy's own map is of no account.
            let is_of_account = match SLOT_LAYERS.min(layers) - count {
                0 => compares_all_resident(&placement.policy),
                _ => layers <= FEW_LAYERS,
            };
            if is_of_account {
                let residency =
                    Residency { attention: ResidentAttention::OnCpu, ..Residency::NONE };
                let placement = Placement { residency, ..placement.clone() };
                let bytes = self.device_bytes(&placement, count)?;
                all.push(ResidentSlots { count, bytes });
            }
        }
        Ok(all)
    }

    /// Numbers of layers that may stay.
    fn counts(
        &self,
        placement: &Placement,
        room: &DeviceRoom,
        attention: ResidentAttention,
        head: bool,
    ) -> Vec<usize> {
        let layers = self.estimator.request.config.num_layers;
        let (kv_in_vram, with_kv) =
            (placement.kv == Some(MemoryId::VRAM), attention == ResidentAttention::WithKv);
        if kv_in_vram && !with_kv {
            return Vec::new();
        }
        let head_bytes = if head { room.head_bytes } else { 0 };
        let mut counts = Vec::new();
        if let Some(free_bytes) = room.free_bytes {
            let own_kv = if with_kv { room.kv_bytes - self.device_kv_bytes(placement) } else { 0 };
            let one = (room.weights_bytes + own_kv).max(1);
            let most = free_bytes.saturating_sub(head_bytes) / one;
            let most = usize::try_from(most).unwrap_or(layers).min(layers.saturating_sub(1));
            counts.extend(QUARTERS.map(|part| (most * part).div_ceil(4)));
        }
        let one = room.weights_bytes + if with_kv { room.kv_bytes } else { 0 };
        let others_bytes = layers.saturating_sub(SLOT_LAYERS) as u64 * one + head_bytes;
        let fits = room.resident_slots.iter().filter(|resident| {
            let own_kv = if with_kv { resident.count as u64 * room.kv_bytes } else { 0 };
            resident.bytes + own_kv + others_bytes <= room.vram_bytes
        });
        counts.extend(fits.map(|resident| layers - (SLOT_LAYERS.min(layers) - resident.count)));
        counts.retain(|count| *count > 0);
        counts.sort_unstable();
        counts.dedup();
        counts
    }

    /// KV of a streamed layer that is kept in device memory.
    fn device_kv_bytes(&self, placement: &Placement) -> u64 {
        let Estimator { request, batches, batch_size, .. } = *self.estimator;
        match placement.kv {
            Some(MemoryId::VRAM) => request.layer_kv_bytes(batches, batch_size),
            _ => request.layer_kv_bytes(placement.device_batches.min(batches), batch_size),
        }
    }

    /// Device memory of the placement of as many layers as there are slots, of which some stay:
    /// decode's, and that of prefill, which goes by few things.
    fn device_bytes(&self, placement: &Placement, resident: usize) -> Result<u64, Unpriced> {
        let layers = spread_evenly(resident, SLOT_LAYERS);
        let residency = Residency { layers, ..placement.residency.clone() };
        let placement = &Placement { residency, ..placement.clone() };
        let request = self.estimator.request;
        let short = &Request { max_prompt: 1, shared_prompt: 0, ..*request };
        let decode_bytes = self.device_bytes_of(short, placement)?;
        if matches!(placement.policy, Policy::Lia { .. }) {
            return Ok(decode_bytes.max(self.device_bytes_of(request, placement)?));
        }
        let Placement { prefill_on_cpu, residency, .. } = placement.clone();
        let policy = Policy::TwoSplit { split: Split { start: 0, end: 0 }, chunking: None };
        let alike = Placement { prefill_on_cpu, residency, ..Placement::of(policy) };
        let known =
            self.prefill_bytes.borrow().iter().find(|(one, _)| *one == alike).map(|one| one.1);
        let prefill_bytes = match known {
            Some(bytes) => bytes,
            None => {
                let bytes = self.device_bytes_of(request, &alike)?;
                self.prefill_bytes.borrow_mut().push((alike, bytes));
                bytes
            }
        };
        let caches_bytes = self.device_kv_bytes(placement) * SLOT_LAYERS as u64;
        Ok(decode_bytes.max(prefill_bytes + caches_bytes))
    }

    fn device_bytes_of(
        &self,
        request: &Request<'_>,
        placement: &Placement,
    ) -> Result<u64, Unpriced> {
        let Estimator { batches, batch_size, homes, .. } = *self.estimator;
        let mut config = request.config.clone();
        config.num_layers = config.num_layers.min(SLOT_LAYERS);
        let mut formats = request.formats.clone();
        formats.weights.layers.truncate(config.num_layers);
        let request = Request { config: &config, placement, formats: &formats, ..*request };
        let map = request.map(Homes { prefill_hidden: MemoryId::DRAM, ..homes });
        let shape = request.smallest_streams(request.shape(batches, batch_size));
        let shape = request.shape_of(shape, &map);
        let taken = footprint(&config, &shape, &map, request.limits.device_scratch)
            .map_err(|error| Unpriced(error.to_string()))?;
        Ok(taken.device_bytes + taken.device_scratch_bytes)
    }
}

/// Device memory, bytes.
struct DeviceRoom {
    vram_bytes: u64,
    /// Beside slots, activations and the KV of streamed layers; `None`: not even these fit.
    free_bytes: Option<u64>,
    head_bytes: u64,
    weights_bytes: u64,
    /// Of a layer, all batches.
    kv_bytes: u64,
    resident_slots: Vec<ResidentSlots>,
}

/// Device memory of as many layers as there are slots, `count` of which stay without their KV.
struct ResidentSlots {
    count: usize,
    bytes: u64,
}

fn compares_all_resident(policy: &Policy) -> bool {
    match policy {
        Policy::TwoSplit { split, chunking } => split.start == split.end && chunking.is_none(),
        Policy::Lia { .. } | Policy::Flexgen(_) => true,
        _ => false,
    }
}
