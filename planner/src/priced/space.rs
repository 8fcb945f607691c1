//! The space of placements of a policy's name: its maps, each with every choice of resident
//! weights, tiers of KV and the device of prompts.

use std::collections::BTreeSet;

use model::ops::Op;
use program::compile::runs_in_chunks;
use program::map::{Chunking, OpChunk, leading_list};
use program::topology::MemoryId;

use super::bound::{Bound, FarBound};
use super::room::{Room, Streams};
use super::table::{Outer, host_table, outer, read_ns_per_byte, table_far};
use super::{Estimator, Unpriced, lia, table};
use crate::budget::{Limits, Request};
use crate::layer::table::Table;
use crate::policy::by_name::PolicyName;
use crate::policy::{Flexgen, Placement, Policy, Residency, ResidentAttention};
use crate::split::Split;

/// Number of fractions of all layers that are tried as resident, in addition to the maximum that
/// fits: more memory always has the same choices and further ones.
const PARTS: usize = 8;

/// A placement that may be chosen.
#[derive(Debug, Clone)]
pub(super) struct Possible {
    pub(super) name: PolicyName,
    pub(super) placement: Placement,
    /// Device memory suffices only for small streams of prefill.
    pub(super) has_small_streams: bool,
}

/// A policy's map, before resident weights are chosen.
struct Base {
    name: PolicyName,
    policy: Policy,
    /// Residency and tiers are searched for this map.
    is_open: bool,
}

/// Costs of each operation.
struct Tables {
    /// Time of the operation itself.
    alone: Table,
    /// Time of its traffic in host memory, if lanes share it.
    host: Option<Table>,
}

impl Tables {
    fn of(
        estimator: &Estimator<'_>,
        table: impl Fn(&Estimator<'_>) -> Result<Table, Unpriced>,
    ) -> Result<Tables, Unpriced> {
        Ok(Tables { alone: table(estimator)?, host: host_table(estimator, table) })
    }
}

/// Returns the index of a list's boundary in the list without chunks; `None` if it is between
/// chunks of attention.
fn whole_boundary(list: &[OpChunk], at: usize) -> Option<usize> {
    let is_part = |place: usize| list.get(place).is_some_and(|one| one.chunk.is_some());
    if at > 0 && is_part(at - 1) && is_part(at) {
        return None;
    }
    let ops: BTreeSet<Op> = list[..at].iter().map(|one| one.op).collect();
    Some(ops.len())
}

/// The placements of a name, and the tables that bound them.
pub(super) struct Space<'a> {
    estimator: &'a Estimator<'a>,
    /// Tables for each split of attention.
    tables: Vec<(Option<Chunking>, Tables)>,
    /// Tables for all weights in an additional host memory; empty if there is none.
    far_tables: Vec<(Option<Chunking>, Tables)>,
    outer: Outer,
    /// Read time per byte of all storages together.
    read_ns_per_byte: f64,
    /// `None` for a device without its own limit.
    room: Option<Room<'a>>,
}

impl<'a> Space<'a> {
    /// # Errors
    /// A plan that cannot be priced.
    pub(super) fn new(
        estimator: &'a Estimator<'a>,
        chunkings: &[Option<Chunking>],
    ) -> Result<Space<'a>, Unpriced> {
        let tables = chunkings.iter().map(|chunking| {
            Ok((*chunking, Tables::of(estimator, |estimator| table(estimator, *chunking))?))
        });
        let tables = tables.collect::<Result<_, Unpriced>>()?;
        let has_far = estimator.request.limits.far_bytes != Limits::NO_FAR;
        let far = chunkings.iter().filter(|_| has_far);
        let far_tables = far.map(|chunking| {
            Ok((*chunking, Tables::of(estimator, |estimator| table_far(estimator, *chunking))?))
        });
        let far_tables = far_tables.collect::<Result<_, Unpriced>>()?;
        let outer = outer(estimator)?;
        let vram_bytes = estimator.request.limits.vram_bytes;
        let room = vram_bytes.map(|vram_bytes| Room::new(estimator, vram_bytes));
        let read_ns_per_byte = read_ns_per_byte(estimator)?;
        Ok(Space { estimator, tables, far_tables, outer, read_ns_per_byte, room })
    }

    /// Returns the table for a split of attention.
    pub(super) fn table(&self, chunking: Option<Chunking>) -> Option<&Table> {
        self.tables(chunking).map(|tables| &tables.alone)
    }

    fn tables(&self, chunking: Option<Chunking>) -> Option<&Tables> {
        self.tables.iter().find(|(other, _)| *other == chunking).map(|(_, tables)| tables)
    }

    /// Returns all placements of `name`.
    ///
    /// # Errors
    /// A plan that cannot be priced or compiled.
    pub(super) fn placements(&self, name: PolicyName) -> Result<Vec<Possible>, Unpriced> {
        let mut all = Vec::new();
        for base in self.bases(name)? {
            all.extend(self.open(&base)?);
        }
        Ok(all)
    }

    /// Returns the bound of a placement by the table.
    pub(super) fn bound<'b>(&'b self, placement: &'b Placement) -> Option<Bound<'b>> {
        let config = self.estimator.request.config;
        let Tables { alone: table, host } = self.tables(placement.policy.chunking())?;
        let host = host.as_ref();
        let Estimator { request, batches, batch_size, .. } = *self.estimator;
        let read_bytes = Request { placement, ..*request }.least_read_bytes(batches, batch_size);
        let read_ns = read_bytes as f64 * self.read_ns_per_byte;
        let reads_directly = request.storage.is_some_and(|storage| storage.direct);
        let far = self.far(placement);
        Some(Bound {
            table,
            host,
            far,
            config,
            placement,
            open_kv: self.estimator.homes.kv,
            outer: self.outer,
            read_ns,
            reads_directly,
        })
    }

    /// Estimates the weights of a placement in additional memories, and their costs.
    fn far<'b>(&'b self, placement: &'b Placement) -> Option<FarBound<'b>> {
        let chunking = placement.policy.chunking();
        let (_, tables) = self.far_tables.iter().find(|(other, _)| *other == chunking)?;
        let Tables { alone: table, host } = tables;
        let Estimator { request, batches, batch_size, .. } = *self.estimator;
        let shares = Request { placement, ..*request }.far_shares(batches, batch_size);
        Some(FarBound { table, host: host.as_ref(), shares })
    }

    fn bases(&self, name: PolicyName) -> Result<Vec<Base>, Unpriced> {
        let one = |policy, is_open| vec![Base { name, policy, is_open }];
        Ok(match name {
            PolicyName::CpuOnly => one(Policy::CpuOnly, false),
            PolicyName::GpuOnly => one(Policy::GpuOnly, false),
            PolicyName::Resident => one(Policy::Resident, false),
            PolicyName::Lia | PolicyName::LiaSpread => self.vectors(&[name])?,
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
                    all.extend(match name {
                        // Both names use the same vectors, which take long to find.
                        PolicyName::Lia => self.vectors(&[name, PolicyName::LiaSpread])?,
                        PolicyName::LiaSpread => Vec::new(),
                        _ => self.bases(name)?,
                    });
                }
                all
            }
        })
    }

    /// Returns LIA's maps under each of its names.
    fn vectors(&self, names: &[PolicyName]) -> Result<Vec<Base>, Unpriced> {
        let pairs = lia::pairs(self.estimator)?;
        let of_name = |name: PolicyName| {
            let spread = name == PolicyName::LiaSpread;
            pairs.iter().map(move |&[prefill, decode]| {
                let policy = Policy::Lia { prefill, decode, spread };
                Base { name, policy, is_open: true }
            })
        };
        Ok(names.iter().copied().flat_map(of_name).collect())
    }

    fn splits(&self, name: PolicyName) -> Vec<Base> {
        let config = self.estimator.request.config;
        let mut all: Vec<Base> = Vec::new();
        // Linears are split once a split between whole operations has been found (`pieces`).
        let cuts_attention =
            |chunking: &Option<Chunking>| chunking.is_none_or(|one| one.of_attention().is_some());
        let tables = self.tables.iter().filter(|(chunking, _)| cuts_attention(chunking));
        for (chunking, Tables { alone: table, .. }) in tables {
            let list = leading_list(config, *chunking);
            for (start, end) in name.intervals(table).unwrap_or_default() {
                // Attention that one device runs is whole, however it would have been split.
                let whole = whole_boundary(&list, start).zip(whole_boundary(&list, end));
                let ((start, end), chunking) = match whole {
                    Some(whole) => (whole, None),
                    None => ((start, end), *chunking),
                };
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

    /// Returns a map with every choice of what it leaves open.
    fn open(&self, base: &Base) -> Result<Vec<Possible>, Unpriced> {
        let (name, closed) = (base.name, Placement::of(base.policy));
        if !base.is_open {
            return Ok(vec![Possible { name, placement: closed, has_small_streams: false }]);
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
                let with = |(residency, has_small_streams)| {
                    let placement = Placement { residency, ..one.clone() };
                    Possible { name, placement, has_small_streams }
                };
                let possible = self.residencies(&one)?.into_iter().map(with);
                all.extend(possible.filter(|one| self.is_sound(&one.placement)));
            }
        }
        let with_far: Vec<Possible> =
            all.iter().filter_map(|one| self.with_most_far(one)).collect();
        all.extend(with_far);
        Ok(all)
    }

    /// Returns the placement with the weights that the GPU multiplies in additional host memories,
    /// whether the near one has capacity or not: its bandwidth is then available to others.
    fn with_most_far(&self, one: &Possible) -> Option<Possible> {
        let Estimator { request, homes, batches, batch_size, .. } = *self.estimator;
        let request = Request { placement: &one.placement, ..*request };
        let placement = request.with_most_far(homes, batches, batch_size)?;
        Some(Possible { placement, ..one.clone() })
    }

    /// Returns true if a placement uses the device (LIA's placements need not), and can compute
    /// prompts in chunks if that was requested.
    fn is_sound(&self, placement: &Placement) -> bool {
        let Estimator { request, batches, batch_size, .. } = *self.estimator;
        let map = self.estimator.map(placement);
        let is_used = matches!(placement.policy, Policy::Lia { .. }) || map.uses_gpu();
        let requires_chunks =
            request.prefill_chunk.is_some() && request.shape(batches, batch_size).is_chunked();
        is_used && (!requires_chunks || runs_in_chunks(request.config, &map))
    }

    /// Returns the tiers of the KV of streamed layers: on the host, on the device, or some batches'
    /// on the device if all of attention runs there.
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

    /// Returns the possible residencies of a placement, and whether streams of prefill are then
    /// small; empty if device memory does not suffice even so.
    fn residencies(&self, placement: &Placement) -> Result<Vec<(Residency, bool)>, Unpriced> {
        let Some(room) = &self.room else { return Ok(vec![(Residency::NONE, false)]) };
        let streamed = room.streamed(placement);
        let layers = self.estimator.request.config.num_layers;
        let mut all = Vec::new();
        for head in [false, true] {
            // With usual streams if these fit, and else with small ones.
            let has_room = |residency: Residency| -> Result<Option<(Residency, bool)>, Unpriced> {
                for (streams, has_small_streams) in [(Streams::Usual, false), (Streams::Any, true)]
                {
                    if room.has_room(&streamed, &residency, streams)? {
                        return Ok(Some((residency, has_small_streams)));
                    }
                }
                Ok(None)
            };
            all.extend(has_room(Residency { head, ..Residency::NONE })?);
            for attention in ResidentAttention::ALL {
                let with_kv = attention == ResidentAttention::WithKv;
                if placement.kv == Some(MemoryId::VRAM) && !with_kv {
                    continue;
                }
                let residency = |count| streamed.residency(count, layers, attention, head);
                let most = |streams| room.most(&streamed, attention, head, streams);
                // The last layers may leave space only for small streams of prefill.
                let (most, usual) = (most(Streams::Any)?, most(Streams::Usual)?);
                let mut counts: Vec<usize> =
                    (1..=most).filter(|count| count % layers.div_ceil(PARTS) == 0).collect();
                counts.extend([most, usual]);
                counts.retain(|count| *count > 0);
                counts.sort_unstable();
                counts.dedup();
                all.extend(counts.into_iter().map(|count| (residency(count), count > usual)));
                if compares_all_resident(&placement.policy) {
                    all.extend(has_room(residency(layers))?);
                }
            }
        }
        Ok(all)
    }
}

/// Returns true if the maps of a policy represent those of all policies if all layers stay, in
/// which case the policy is irrelevant.
fn compares_all_resident(policy: &Policy) -> bool {
    match policy {
        Policy::TwoSplit { split, chunking } => split.start == split.end && chunking.is_none(),
        Policy::Lia { .. } | Policy::Flexgen(_) => true,
        _ => false,
    }
}
