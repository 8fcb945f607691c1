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
use program::topology::LaneSet;

use super::{Machine, MachineError};
use crate::search::{CostError, Pricing};
use line::CappedLinear;
use shared_traffic::SharedTraffic;
use work::WorkCalculator;

impl Pricing for Machine {
    fn costs(
        &self,
        plan: &Plan,
        program: &Program,
        prompt_len: u32,
    ) -> Result<Box<dyn SimulationCosts>, CostError> {
        let costs = DescribedCosts::new(self, plan, program, prompt_len)?;
        Ok(Box::new(costs))
    }

    fn costs_without_contention(
        &self,
        plan: &Plan,
        program: &Program,
        prompt_len: u32,
    ) -> Result<Box<dyn SimulationCosts>, CostError> {
        let (costs, _) = DescribedCosts::without_contention(self, plan, program, prompt_len)?;
        Ok(Box::new(costs))
    }

    fn host_memory_costs(
        &self,
        plan: &Plan,
        program: &Program,
        prompt_len: u32,
    ) -> Result<Option<Box<dyn SimulationCosts>>, CostError> {
        let mut times_ns = ByPlace::new();
        let works = WorkCalculator::new(plan, prompt_len);
        for list in &program.lanes {
            let lane = plan.topology.lane(list.lane);
            let all = list.instructions.iter().enumerate();
            for (index, instruction) in all.filter(|(_, one)| one.is_work()) {
                let work = works.work(program, lane, instruction);
                let instruction = index as u32;
                let place = Place { program: program.id, lane: list.lane, instruction };
                let bytes = shared_traffic::host_bytes(lane, &work);
                times_ns.insert(place, bytes.times(1.0 / self.memory.dram_gbps));
            }
        }
        Ok(Some(Box::new(DescribedCosts { times_ns, prompt_len, slowdown: 1.0 })))
    }
}

impl From<MachineError> for CostError {
    fn from(error: MachineError) -> CostError {
        CostError(error.to_string())
    }
}

/// Costs of one program; see the module documentation.
#[derive(Debug)]
pub struct DescribedCosts {
    times_ns: ByPlace<CappedLinear>,
    prompt_len: u32,
    /// Factor by which its instructions are lengthened because lanes share resources; 1 without
    /// contention.
    slowdown: f64,
}

impl DescribedCosts {
    /// Returns the costs of every instruction of a program of `plan`: decode step `s` (from 0)
    /// reads `prompt_len + s` cached positions of each sequence.
    ///
    /// # Errors
    /// A number format, a decompression or a drive that the description does not have; a program
    /// that cannot be simulated.
    pub fn new(
        machine: &Machine,
        plan: &Plan,
        program: &Program,
        prompt_len: u32,
    ) -> Result<DescribedCosts, CostError> {
        let (mut costs, moved) =
            DescribedCosts::without_contention(machine, plan, program, prompt_len)?;
        costs.slowdown = moved.slowdown(machine, program, &costs)?;
        Ok(costs)
    }

    /// Returns the costs without contention, and the shared traffic.
    fn without_contention(
        machine: &Machine,
        plan: &Plan,
        program: &Program,
        prompt_len: u32,
    ) -> Result<(DescribedCosts, SharedTraffic), CostError> {
        let mut times_ns = ByPlace::new();
        let works = WorkCalculator::new(plan, prompt_len);
        let mut moved = SharedTraffic::new(prompt_len);
        for list in &program.lanes {
            let lane = plan.topology.lane(list.lane);
            for (index, instruction) in list.instructions.iter().enumerate() {
                if !instruction.is_work() {
                    continue;
                }
                let work = works.work(program, lane, instruction);
                let instruction = index as u32;
                let place = Place { program: program.id, lane: list.lane, instruction };
                times_ns.insert(place, work::work_ns(machine, lane, plan.shape.dtype, &work)?);
                moved.add(lane, &work);
            }
        }
        Ok((DescribedCosts { times_ns, prompt_len, slowdown: 1.0 }, moved))
    }
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
