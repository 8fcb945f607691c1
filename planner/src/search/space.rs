//! The space of placements of a policy's name: its maps, each with every choice of resident
//! weights, tiers of KV and the device of prompts.

use std::collections::BTreeSet;

use model::ops::Op;
use program::compile::runs_in_chunks;
use program::map::{Chunking, OpChunk, leading_list};
use program::topology::MemoryId;

use super::bound::{SlowTierBound, StepBound};
use super::device_capacity::{DeviceCapacity, PrefillStreams};
use super::table::{OuterTimes, host_table, outer_times, read_ns_per_byte, slow_tier_table};
use super::{CostError, Estimator, lia, operation_table};
use crate::budget::{MemoryLimits, PlacementRequest};
use crate::layer::table::OperationTable;
use crate::policy::name::PolicyName;
use crate::policy::{Flexgen, Placement, Policy, Residency, ResidentAttention};
use crate::split::Split;

/// Number of fractions of all layers that are tried as resident, in addition to the maximum that
/// fits: more memory always has the same choices and further ones.
const RESIDENT_STEPS: usize = 8;

/// A placement that may be chosen.
#[derive(Debug, Clone)]
pub(super) struct NamedPlacement {
    pub(super) name: PolicyName,
    pub(super) placement: Placement,
    /// Device memory suffices only for small streams of prefill.
    pub(super) has_small_streams: bool,
}

/// A policy's map, before resident weights are chosen.
struct BasePolicy {
    name: PolicyName,
    policy: Policy,
    /// Residency and tiers are searched for this map.
    is_searched: bool,
}

/// Costs of each operation.
struct OperationTables {
    /// Time of the operation itself.
    alone: OperationTable,
    /// Time of its traffic in host memory, if lanes share it.
    host: Option<OperationTable>,
}

impl OperationTables {
    fn build(
        estimator: &Estimator<'_>,
        table: impl Fn(&Estimator<'_>) -> Result<OperationTable, CostError>,
    ) -> Result<OperationTables, CostError> {
        Ok(OperationTables { alone: table(estimator)?, host: host_table(estimator, table) })
    }
}

/// Returns the index of a list's boundary in the list without chunks; `None` if it is between
/// chunks of attention.
fn whole_boundary(list: &[OpChunk], at: usize) -> Option<usize> {
    let is_chunk = |place: usize| list.get(place).is_some_and(|one| one.chunk.is_some());
    if at > 0 && is_chunk(at - 1) && is_chunk(at) {
        return None;
    }
    let ops: BTreeSet<Op> = list[..at].iter().map(|one| one.op).collect();
    Some(ops.len())
}

/// The placements of a name, and the tables that bound them.
pub(super) struct PlacementSpace<'a> {
    estimator: &'a Estimator<'a>,
    /// Tables for each split of attention.
    tables: Vec<(Option<Chunking>, OperationTables)>,
    /// Tables for all weights in an additional host memory; empty if there is none.
    slow_tier_tables: Vec<(Option<Chunking>, OperationTables)>,
    outer: OuterTimes,
    /// Read time per byte of all storages together.
    read_ns_per_byte: f64,
    /// `None` for a device without its own limit.
    device_capacity: Option<DeviceCapacity<'a>>,
}

impl<'a> PlacementSpace<'a> {
    /// # Errors
    /// A plan that cannot be priced.
    pub(super) fn new(
        estimator: &'a Estimator<'a>,
        chunkings: &[Option<Chunking>],
    ) -> Result<PlacementSpace<'a>, CostError> {
        let tables = chunkings.iter().map(|chunking| {
            Ok((
                *chunking,
                OperationTables::build(estimator, |estimator| {
                    operation_table(estimator, *chunking)
                })?,
            ))
        });
        let tables = tables.collect::<Result<_, CostError>>()?;
        let has_slow_tier = estimator.request.limits.slow_tier_bytes != MemoryLimits::NO_SLOW_TIER;
        let slow_tier = chunkings.iter().filter(|_| has_slow_tier);
        let slow_tier_tables = slow_tier.map(|chunking| {
            Ok((
                *chunking,
                OperationTables::build(estimator, |estimator| {
                    slow_tier_table(estimator, *chunking)
                })?,
            ))
        });
        let slow_tier_tables = slow_tier_tables.collect::<Result<_, CostError>>()?;
        let outer = outer_times(estimator)?;
        let vram_bytes = estimator.request.limits.vram_bytes;
        let device_capacity =
            vram_bytes.map(|vram_bytes| DeviceCapacity::new(estimator, vram_bytes));
        let read_ns_per_byte = read_ns_per_byte(estimator)?;
        Ok(PlacementSpace {
            estimator,
            tables,
            slow_tier_tables,
            outer,
            read_ns_per_byte,
            device_capacity,
        })
    }

    /// Returns the table for a split of attention.
    pub(super) fn table(&self, chunking: Option<Chunking>) -> Option<&OperationTable> {
        self.tables(chunking).map(|tables| &tables.alone)
    }

    fn tables(&self, chunking: Option<Chunking>) -> Option<&OperationTables> {
        self.tables.iter().find(|(other, _)| *other == chunking).map(|(_, tables)| tables)
    }

    /// Returns all placements of `name` that run on the device only operations that its kernels
    /// have.
    ///
    /// # Errors
    /// A plan that cannot be priced or compiled.
    pub(super) fn placements(&self, name: PolicyName) -> Result<Vec<NamedPlacement>, CostError> {
        let mut all = Vec::new();
        for base in self.base_policies(name)? {
            all.extend(self.expand(&base)?);
        }
        let Estimator { request, .. } = *self.estimator;
        if request.has_device_gaps() {
            let map = |one: &NamedPlacement| self.estimator.map(&one.placement);
            all.retain(|one| request.device_gap(&map(one)).is_none());
        }
        Ok(all)
    }

    /// Returns the bound of a placement by the table.
    pub(super) fn bound<'b>(&'b self, placement: &'b Placement) -> Option<StepBound<'b>> {
        let config = self.estimator.request.config;
        let OperationTables { alone: table, host } = self.tables(placement.policy.chunking())?;
        let host = host.as_ref();
        let Estimator { request, batches, batch_size, .. } = *self.estimator;
        let read_bytes =
            PlacementRequest { placement, ..*request }.min_read_bytes(batches, batch_size);
        let read_ns = read_bytes as f64 * self.read_ns_per_byte;
        let reads_directly = request.storage.is_some_and(|storage| storage.direct);
        let slow_tier = self.slow_tier_bound(placement);
        Some(StepBound {
            table,
            host,
            slow_tier,
            config,
            placement,
            default_kv_tier: self.estimator.tiers.kv,
            outer: self.outer,
            read_ns,
            reads_directly,
        })
    }

    /// Estimates the weights of a placement in additional memories, and their costs.
    fn slow_tier_bound<'b>(&'b self, placement: &'b Placement) -> Option<SlowTierBound<'b>> {
        let chunking = placement.policy.chunking();
        let (_, tables) = self.slow_tier_tables.iter().find(|(other, _)| *other == chunking)?;
        let OperationTables { alone: table, host } = tables;
        let Estimator { request, batches, batch_size, .. } = *self.estimator;
        let shares =
            PlacementRequest { placement, ..*request }.slow_tier_shares(batches, batch_size);
        Some(SlowTierBound { table, host: host.as_ref(), shares })
    }

    fn base_policies(&self, name: PolicyName) -> Result<Vec<BasePolicy>, CostError> {
        let one = |policy, is_searched| vec![BasePolicy { name, policy, is_searched }];
        Ok(match name {
            PolicyName::CpuOnly => one(Policy::CpuOnly, false),
            PolicyName::Ellm => one(Policy::Ellm, false),
            PolicyName::GpuOnly => one(Policy::GpuOnly, false),
            PolicyName::Resident => one(Policy::Resident, false),
            PolicyName::Lia | PolicyName::LiaSpread => self.vectors(&[name])?,
            PolicyName::Flexgen | PolicyName::FlexgenSpread => {
                let spread = name == PolicyName::FlexgenSpread;
                let policy = |cpu_attention| Policy::Flexgen(Flexgen { spread, cpu_attention });
                [false, true]
                    .map(|on_cpu| BasePolicy { name, policy: policy(on_cpu), is_searched: true })
                    .into()
            }
            PolicyName::TwoSplit | PolicyName::OneSplit => self.splits(name),
            PolicyName::Auto => {
                let mut all = Vec::new();
                for name in PolicyName::AUTO_CANDIDATES {
                    all.extend(match name {
                        // Both names use the same vectors, which take long to find.
                        PolicyName::Lia => self.vectors(&[name, PolicyName::LiaSpread])?,
                        PolicyName::LiaSpread => Vec::new(),
                        _ => self.base_policies(name)?,
                    });
                }
                all
            }
        })
    }

    /// Returns LIA's maps under each of its names.
    fn vectors(&self, names: &[PolicyName]) -> Result<Vec<BasePolicy>, CostError> {
        let pairs = lia::vector_pairs(self.estimator)?;
        let of_name = |name: PolicyName| {
            let spread = name == PolicyName::LiaSpread;
            pairs.iter().map(move |&[prefill, decode]| {
                let policy = Policy::Lia { prefill, decode, spread };
                BasePolicy { name, policy, is_searched: true }
            })
        };
        Ok(names.iter().copied().flat_map(of_name).collect())
    }

    fn splits(&self, name: PolicyName) -> Vec<BasePolicy> {
        let config = self.estimator.request.config;
        let mut all: Vec<BasePolicy> = Vec::new();
        // Linears are split once a split between whole operations has been found (`pieces`).
        let cuts_attention =
            |chunking: &Option<Chunking>| chunking.is_none_or(|one| one.of_attention().is_some());
        let tables = self.tables.iter().filter(|(chunking, _)| cuts_attention(chunking));
        for (chunking, OperationTables { alone: table, .. }) in tables {
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
                    all.push(BasePolicy { name, policy, is_searched: true });
                }
            }
        }
        all
    }

    /// Returns a map with every choice of what it leaves open.
    fn expand(&self, base: &BasePolicy) -> Result<Vec<NamedPlacement>, CostError> {
        let (name, closed) = (base.name, Placement::from_policy(base.policy));
        if !base.is_searched {
            return Ok(vec![NamedPlacement { name, placement: closed, has_small_streams: false }]);
        }
        let mut all = Vec::new();
        // LIA has a vector for prefill too, and FlexGen computes prompts on the device.
        let prefills: &[bool] = match base.policy {
            Policy::Lia { .. } | Policy::Flexgen(_) => &[false],
            _ => &[false, true],
        };
        for (kv, device_batches) in self.kv_tiers(&base.policy) {
            for prefill_on_cpu in prefills.iter().copied() {
                let kv = Some(kv);
                let one = Placement { kv, device_batches, prefill_on_cpu, ..closed.clone() };
                let with = |(residency, has_small_streams)| {
                    let placement = Placement { residency, ..one.clone() };
                    NamedPlacement { name, placement, has_small_streams }
                };
                let placements = self.residencies(&one)?.into_iter().map(with);
                all.extend(placements.filter(|one| self.is_sound(&one.placement)));
            }
        }
        let with_slow_tier: Vec<NamedPlacement> =
            all.iter().filter_map(|one| self.with_max_slow_tier(one)).collect();
        all.extend(with_slow_tier);
        Ok(all)
    }

    /// Returns the placement with the weights that the GPU multiplies in additional host memories,
    /// whether the near one has capacity or not: its bandwidth is then available to others.
    fn with_max_slow_tier(&self, one: &NamedPlacement) -> Option<NamedPlacement> {
        let Estimator { request, tiers, batches, batch_size, .. } = *self.estimator;
        let request = PlacementRequest { placement: &one.placement, ..*request };
        let placement = request.with_max_slow_tier(tiers, batches, batch_size)?;
        Some(NamedPlacement { placement, ..one.clone() })
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
    fn kv_tiers(&self, policy: &Policy) -> Vec<(MemoryId, u16)> {
        let on_device = Placement { kv: Some(MemoryId::VRAM), ..Placement::from_policy(*policy) };
        let map = self.estimator.map(&on_device);
        let Some(kv) = map.kv.first() else { return Vec::new() };
        let mut tiers = vec![(MemoryId::DRAM, 0)];
        if kv.any_on(MemoryId::VRAM) {
            tiers.push((MemoryId::VRAM, 0));
        }
        if !kv.any_on(MemoryId::DRAM) {
            let batches = self.estimator.batches;
            let mut some = vec![1, batches / 2, batches.saturating_sub(1)];
            some.retain(|count| (1..batches).contains(count));
            some.dedup();
            tiers.extend(some.into_iter().map(|count| (MemoryId::DRAM, count)));
        }
        tiers
    }

    /// Returns the possible residencies of a placement, and whether streams of prefill are then
    /// small; empty if device memory does not suffice even so.
    fn residencies(&self, placement: &Placement) -> Result<Vec<(Residency, bool)>, CostError> {
        let Some(device_capacity) = &self.device_capacity else {
            return Ok(vec![(Residency::NONE, false)]);
        };
        let streamed = device_capacity.streamed(placement);
        let layers = self.estimator.request.config.num_layers;
        let mut all = Vec::new();
        for head in [false, true] {
            // With usual streams if these fit, and else with small ones.
            let fit_residency =
                |residency: Residency| -> Result<Option<(Residency, bool)>, CostError> {
                    for (streams, has_small_streams) in
                        [(PrefillStreams::Usual, false), (PrefillStreams::Any, true)]
                    {
                        if device_capacity.has_capacity(&streamed, &residency, streams)? {
                            return Ok(Some((residency, has_small_streams)));
                        }
                    }
                    Ok(None)
                };
            all.extend(fit_residency(Residency { head, ..Residency::NONE })?);
            for attention in ResidentAttention::ALL {
                let with_kv = attention == ResidentAttention::WithKv;
                if placement.kv == Some(MemoryId::VRAM) && !with_kv {
                    continue;
                }
                let residency = |count| streamed.residency(count, layers, attention, head);
                let max_layers = |streams| {
                    device_capacity.max_resident_layers(&streamed, attention, head, streams)
                };
                // The last layers may leave space only for small streams of prefill.
                let (max_count, usual) =
                    (max_layers(PrefillStreams::Any)?, max_layers(PrefillStreams::Usual)?);
                let mut counts: Vec<usize> = (1..=max_count)
                    .filter(|count| count % layers.div_ceil(RESIDENT_STEPS) == 0)
                    .collect();
                counts.extend([max_count, usual]);
                counts.retain(|count| *count > 0);
                counts.sort_unstable();
                counts.dedup();
                all.extend(counts.into_iter().map(|count| (residency(count), count > usual)));
                if compares_all_resident(&placement.policy) {
                    all.extend(fit_residency(residency(layers))?);
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
