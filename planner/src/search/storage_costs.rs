//! Costs of reads from storages, combined with other costs.

use program::ir::{Instruction, Program, Read, TimelineWait};
use program::plan::Plan;
use program::simulate::{ByPlace, Place, SimulationCosts};
use program::topology::{HardwareEngine, LaneId, LaneKind, LaneSet};

use super::{CostError, MeasuredFactors, Pricing};

/// Speed of a storage while the others read too.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StorageRate {
    pub read_bytes_per_s: f64,
    /// Time from the start of a read to its first bytes.
    pub latency_ns: f64,
}

/// Prices reads by the rates of their storages, and everything else as `inner` does for a machine
/// without storages: without contention between the two.
#[derive(Debug, Clone, Copy)]
pub struct StoragePricing<'a> {
    pub inner: &'a dyn Pricing,
    /// Rates by storage.
    pub rates: &'a [StorageRate],
}

impl Pricing for StoragePricing<'_> {
    /// # Errors
    /// A storage without a rate, or with one that is not positive; what `inner` cannot price.
    fn costs(
        &self,
        plan: &Plan,
        program: &Program,
        prompt_len: u32,
    ) -> Result<Box<dyn SimulationCosts>, CostError> {
        self.price_with_reads(plan, program, |without| self.inner.costs(plan, without, prompt_len))
    }

    fn costs_without_contention(
        &self,
        plan: &Plan,
        program: &Program,
        prompt_len: u32,
    ) -> Result<Box<dyn SimulationCosts>, CostError> {
        self.price_with_reads(plan, program, |without| {
            self.inner.costs_without_contention(plan, without, prompt_len)
        })
    }

    fn measured_factors(&self, plan: &Plan) -> Option<MeasuredFactors> {
        self.inner.measured_factors(plan)
    }
}

impl StoragePricing<'_> {
    /// Returns the costs of a program, whose instructions other than reads are priced by `inner`.
    fn price_with_reads(
        &self,
        plan: &Plan,
        program: &Program,
        inner: impl FnOnce(&Program) -> Result<Box<dyn SimulationCosts>, CostError>,
    ) -> Result<Box<dyn SimulationCosts>, CostError> {
        let read_lanes = plan.topology.lane_set(|lane| lane.kind == LaneKind::Read);
        let mut reads_ns = ByPlace::new();
        for list in program.lanes.iter().filter(|list| read_lanes.contains(list.lane)) {
            for (index, instruction) in list.instructions.iter().enumerate() {
                let Instruction::Read(read) = instruction else { continue };
                let instruction = index as u32;
                let place = Place { program: program.id, lane: list.lane, instruction };
                reads_ns.insert(place, self.read_ns(plan, list.lane, read)?);
            }
        }
        let inner = inner(&remove_lanes(program, read_lanes))?;
        Ok(Box::new(StorageCosts { inner, read_lanes, reads_ns }))
    }

    fn read_ns(&self, plan: &Plan, lane: LaneId, read: &Read) -> Result<f64, CostError> {
        let name = plan.lane_name(lane);
        let unknown = || CostError(format!("How fast {name} reads has not been measured."));
        let HardwareEngine::Storage { device } = plan.topology.lane(lane).engine else {
            return Err(unknown());
        };
        let rate = self.rates.get(usize::from(device)).ok_or_else(unknown)?;
        let StorageRate { read_bytes_per_s, latency_ns } = *rate;
        if !(read_bytes_per_s > 0.0 && latency_ns >= 0.0) {
            return Err(unknown());
        }
        Ok(match plan.read_bytes(read) {
            0 => 0.0,
            bytes => latency_ns + bytes as f64 / read_bytes_per_s * 1e9,
        })
    }
}

/// Returns a program without some lanes, and without waits for them.
fn remove_lanes(program: &Program, lanes: LaneSet) -> Program {
    let mut program = program.clone();
    program.lanes.retain(|list| !lanes.contains(list.lane));
    for list in &mut program.lanes {
        for instruction in &mut list.instructions {
            if let Instruction::Wait(wait) = instruction
                && lanes.contains(wait.lane)
            {
                // The lane's own work of the previous step is done.
                *wait = TimelineWait { lane: list.lane, offset: 0, previous_step: true };
            }
        }
    }
    program
}

struct StorageCosts {
    inner: Box<dyn SimulationCosts>,
    read_lanes: LaneSet,
    reads_ns: ByPlace<f64>,
}

impl SimulationCosts for StorageCosts {
    /// # Panics
    /// For an instruction of another program.
    fn work_ns(&self, place: Place, instruction: &Instruction, step: u32) -> f64 {
        match self.read_lanes.contains(place.lane) {
            true => self.reads_ns[place],
            false => self.inner.work_ns(place, instruction, step),
        }
    }

    fn rate(&self, place: Place, busy: LaneSet) -> f64 {
        if self.read_lanes.contains(place.lane) {
            return 1.0;
        }
        let others = self.read_lanes.iter().fold(busy, LaneSet::without);
        self.inner.rate(place, others)
    }

    fn wake_ns(&self) -> f64 {
        self.inner.wake_ns()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use model::config::Dtype;
    use model::known::find_known;
    use program::simulate::simulate;

    use program::shares::BLOCK_BYTES;

    use super::*;
    use crate::budget::{MemoryLimits, PlacementRequest, StagedOps, Storage, step_read_bytes};
    use crate::policy::{Formats, Placement, Policy};
    use program::shares::ReadShares;

    const RATES: [StorageRate; 2] = [
        StorageRate { read_bytes_per_s: 1e9, latency_ns: 1e5 },
        StorageRate { read_bytes_per_s: 3e9, latency_ns: 1e5 },
    ];

    /// Costs of one microsecond for everything, doubled concurrently with other lanes, that do not
    /// know reads.
    #[derive(Debug)]
    struct NoReadPricing;

    impl Pricing for NoReadPricing {
        fn costs(
            &self,
            plan: &Plan,
            program: &Program,
            _: u32,
        ) -> Result<Box<dyn SimulationCosts>, CostError> {
            let read_lanes = plan.topology.lane_set(|lane| lane.kind == LaneKind::Read);
            let all = program.lanes.iter().flat_map(|list| &list.instructions);
            let is_read = |work: &Instruction| matches!(work, Instruction::Read(_));
            if all.into_iter().any(is_read) {
                return Err(CostError("A read was not measured.".to_owned()));
            }
            // The remainder is a program of its own.
            simulate(program, &NoReadCosts(read_lanes), 3)
                .map_err(|error| CostError(error.to_string()))?;
            Ok(Box::new(NoReadCosts(read_lanes)))
        }
    }

    struct NoReadCosts(LaneSet);

    impl SimulationCosts for NoReadCosts {
        fn work_ns(&self, place: Place, _: &Instruction, _: u32) -> f64 {
            assert!(!self.0.contains(place.lane), "{place:?}");
            1000.0
        }

        fn rate(&self, place: Place, busy: LaneSet) -> f64 {
            assert!(!self.0.intersects(busy), "{place:?}");
            if busy.without(place.lane) == LaneSet::EMPTY { 1.0 } else { 0.5 }
        }

        fn wake_ns(&self) -> f64 {
            7.0
        }
    }

    /// All matrices on two storages, the second of which is three times as fast.
    fn plan(policy: Policy, direct: bool) -> Plan {
        let mut config = find_known("opt-125m").expect("known").config;
        config.num_layers = 3;
        let limits = MemoryLimits {
            dram_bytes: u64::MAX,
            vram_bytes: None,
            vram_is_dram: false,
            slow_tier_bytes: MemoryLimits::NO_SLOW_TIER,
            device_scratch: None,
        };
        let storage =
            Storage { ops: StagedOps::All, direct, ..Storage::auto(ReadShares::new(vec![1, 3])) };
        let request = PlacementRequest {
            config: &config,
            placement: &Placement::from_policy(policy),
            formats: &Formats::plain(&config),
            fuse_attention: true,
            dtype: Dtype::Bf16,
            max_prompt: 8,
            shared_prompt: 0,
            max_context: 16,
            max_new: 8,
            logprobs: 0,
            prefill_chunk: None,
            limits: &limits,
            storage: Some(&storage),
            routing: None,
        };
        request.plan(2, 2).expect("it fits")
    }

    #[test]
    fn reads_take_their_bytes_and_all_else_what_it_takes_without() {
        for (policy, direct) in
            [(Policy::CpuOnly, false), (Policy::GpuOnly, false), (Policy::GpuOnly, true)]
        {
            let plan = plan(policy, direct);
            assert_eq!(plan.map.direct_reads, direct);
            let pricing = StoragePricing { inner: &NoReadPricing, rates: &RATES };
            for program in &plan.programs {
                let costs = pricing.costs(&plan, program, 8).expect("priced");
                let spans = simulate(program, costs.as_ref(), 2).expect("simulated").spans;
                let of_step = spans.iter().filter(|span| span.step == 1);
                let mut busy_ns: HashMap<LaneId, (u64, f64)> = HashMap::new();
                for span in
                    of_step.filter(|span| plan.topology.lane(span.lane).kind == LaneKind::Read)
                {
                    let (ns, reads) = busy_ns.entry(span.lane).or_default();
                    *ns += span.duration_ns();
                    *reads += 1.0;
                }
                assert_eq!(busy_ns.len(), 2);
                // At 4 GB/s together, except for the block granularity of shares.
                let together_ns = step_read_bytes(&plan) as f64 / 4.0;
                for (ns, reads) in busy_ns.into_values() {
                    let said_ns = ns as f64 - reads * 1e5;
                    let block_ns = reads * BLOCK_BYTES as f64 / 2.0;
                    assert!((said_ns - together_ns).abs() < block_ns, "{said_ns} {together_ns}");
                }
                assert_eq!(costs.wake_ns(), 7.0);
            }
        }
    }

    #[test]
    fn a_storage_without_a_rate_is_not_priced() {
        let plan = plan(Policy::CpuOnly, false);
        let stuck = [RATES[0], StorageRate { read_bytes_per_s: 0.0, latency_ns: 0.0 }];
        for rates in [&RATES[..1], &stuck[..]] {
            let pricing = StoragePricing { inner: &NoReadPricing, rates };
            let error = pricing.costs(&plan, plan.decode(), 8).map(|_| ()).expect_err("no rate");
            assert!(error.0.contains("has not been measured"), "{error}");
        }
    }
}
