//! A machine's description as the costs of compiled programs: every instruction takes its bytes
//! over a bandwidth plus its operations over a throughput (LIA eq. 8).
//!
//! Lanes share some resources: no step is shorter than the bytes that it moves through host memory,
//! or over the link, take at that bandwidth. If a program would be, all of its instructions are
//! lengthened by the same factor ([`shared_traffic`]).

mod line;
mod shared_traffic;
mod stream;
#[cfg(test)]
mod tests;
mod work;

use program::ir::{Instruction, Program, ProgramId};
use program::plan::Plan;
use program::simulate::{ByPlace, Place, SimulationCosts};
use program::topology::{LaneSet, LaneSpec};

use super::{Machine, MachineError};
use crate::search::{CostError, Pricing};
use line::CappedLinear;
use shared_traffic::SharedTraffic;
use stream::StreamLength;
use work::{InstructionWork, WorkCalculator};

/// A machine on which each decode step verifies drafted tokens of every sequence.
#[derive(Debug, Clone, Copy)]
pub struct DraftedDecode<'a> {
    pub machine: &'a Machine,
    /// Number of drafted tokens of a sequence in a step.
    pub drafts: u32,
}

impl Pricing for Machine {
    fn costs(
        &self,
        plan: &Plan,
        program: &Program,
        prompt_len: u32,
    ) -> Result<Box<dyn SimulationCosts>, CostError> {
        DraftedDecode { machine: self, drafts: 0 }.costs(plan, program, prompt_len)
    }

    fn costs_without_contention(
        &self,
        plan: &Plan,
        program: &Program,
        prompt_len: u32,
    ) -> Result<Box<dyn SimulationCosts>, CostError> {
        let machine = DraftedDecode { machine: self, drafts: 0 };
        machine.costs_without_contention(plan, program, prompt_len)
    }

    fn host_memory_costs(
        &self,
        plan: &Plan,
        program: &Program,
        prompt_len: u32,
    ) -> Result<Option<Box<dyn SimulationCosts>>, CostError> {
        DraftedDecode { machine: self, drafts: 0 }.host_memory_costs(plan, program, prompt_len)
    }
}

impl Pricing for DraftedDecode<'_> {
    fn costs(
        &self,
        plan: &Plan,
        program: &Program,
        prompt_len: u32,
    ) -> Result<Box<dyn SimulationCosts>, CostError> {
        let (mut costs, moved) = self.unshared_costs(plan, program, prompt_len)?;
        costs.slowdown = moved.slowdown(self.machine, program, &costs)?;
        Ok(Box::new(costs))
    }

    fn costs_without_contention(
        &self,
        plan: &Plan,
        program: &Program,
        prompt_len: u32,
    ) -> Result<Box<dyn SimulationCosts>, CostError> {
        Ok(Box::new(self.unshared_costs(plan, program, prompt_len)?.0))
    }

    fn host_memory_costs(
        &self,
        plan: &Plan,
        program: &Program,
        prompt_len: u32,
    ) -> Result<Option<Box<dyn SimulationCosts>>, CostError> {
        let mut times_ns = ByPlace::new();
        self.for_each_work(plan, program, prompt_len, |place, lane, work| {
            let bytes = shared_traffic::host_bytes(lane, work);
            times_ns.insert(place, bytes.times(1.0 / self.machine.memory.dram_gbps));
            Ok(())
        })?;
        Ok(Some(Box::new(DescribedCosts { times_ns, prompt_len, slowdown: 1.0 })))
    }
}

impl DraftedDecode<'_> {
    /// Returns the costs without contention, and the shared traffic.
    fn unshared_costs(
        &self,
        plan: &Plan,
        program: &Program,
        prompt_len: u32,
    ) -> Result<(DescribedCosts, SharedTraffic), CostError> {
        let mut times_ns = ByPlace::new();
        let mut moved = SharedTraffic::new(prompt_len);
        self.for_each_work(plan, program, prompt_len, |place, lane, work| {
            let ns = work::work_ns(self.machine, lane, plan.shape.dtype, work)?;
            times_ns.insert(place, ns);
            moved.add(lane, work);
            Ok(())
        })?;
        Ok((DescribedCosts { times_ns, prompt_len, slowdown: 1.0 }, moved))
    }

    /// Calls `then` with the work of every instruction of a program.
    fn for_each_work(
        &self,
        plan: &Plan,
        program: &Program,
        prompt_len: u32,
        mut then: impl FnMut(Place, &LaneSpec, &InstructionWork) -> Result<(), MachineError>,
    ) -> Result<(), CostError> {
        let length = StreamLength { prompt: prompt_len, drafts: self.drafts };
        let works = WorkCalculator::new(plan, length);
        for list in &program.lanes {
            let lane = plan.topology.lane(list.lane);
            let all = list.instructions.iter().enumerate();
            for (index, instruction) in all.filter(|(_, one)| one.is_work()) {
                let work = works.work(program, lane, instruction);
                let instruction = index as u32;
                let place = Place { program: program.id, lane: list.lane, instruction };
                then(place, lane, &work)?;
            }
        }
        Ok(())
    }
}

impl From<MachineError> for CostError {
    fn from(error: MachineError) -> CostError {
        CostError(error.to_string())
    }
}

/// Costs of one program: decode step `s` (from 0) reads `prompt_len + s` cached positions of each
/// sequence.
#[derive(Debug)]
struct DescribedCosts {
    times_ns: ByPlace<CappedLinear>,
    prompt_len: u32,
    /// Factor by which its instructions are lengthened because lanes share resources; 1 without
    /// contention.
    slowdown: f64,
}

impl SimulationCosts for DescribedCosts {
    /// # Panics
    /// For an instruction of another program.
    fn work_ns(&self, place: Place, _: &Instruction, step: u32) -> f64 {
        let positions = match place.program {
            ProgramId::PREFILL => self.prompt_len,
            _ => self.prompt_len + step,
        };
        self.times_ns[place].at(positions) * self.slowdown
    }

    fn rate(&self, _: Place, _: LaneSet) -> f64 {
        1.0
    }

    fn wake_ns(&self) -> f64 {
        0.0
    }
}
