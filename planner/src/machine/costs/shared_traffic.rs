//! Resources that lanes share: host memory, and each direction of the link.

use program::ir::{Program, ProgramId};
use program::simulate::{Place, SimulationCosts, simulate_ends};
use program::topology::{HardwareEngine, LaneKind, LaneSpec, SLOW_TIERS_MAX};

use super::super::{Machine, SlowTierSpec};
use super::line::CappedLinear;
use super::work::InstructionWork;
use crate::search::CostError;

/// Number of simulated decode steps; the last two count.
const STEPS: u32 = 4;

/// Traffic of a step of one program, as a function of the cached positions of a sequence.
#[derive(Debug, Clone, Copy)]
pub(super) struct SharedTraffic {
    positions: u32,
    host_bytes: f64,
    /// Traffic in each additional host memory.
    slow_tiers: [f64; SLOW_TIERS_MAX],
    h2d_bytes: f64,
    d2h_bytes: f64,
}

impl SharedTraffic {
    pub(super) const fn new(positions: u32) -> SharedTraffic {
        SharedTraffic {
            positions,
            host_bytes: 0.0,
            slow_tiers: [0.0; SLOW_TIERS_MAX],
            h2d_bytes: 0.0,
            d2h_bytes: 0.0,
        }
    }

    /// Adds the traffic of a lane's work.
    pub(super) fn add(&mut self, lane: &LaneSpec, work: &InstructionWork) {
        let bytes = work.operands.at(self.positions) + work.activations.at(self.positions);
        match (lane.engine, lane.kind) {
            (HardwareEngine::Gpu { .. }, _) => return,
            (HardwareEngine::Link { .. }, LaneKind::Download) => self.d2h_bytes += bytes,
            (HardwareEngine::Link { .. }, _) => self.h2d_bytes += bytes,
            // Drives share the root port with the device, whose end of the link the data passes.
            (HardwareEngine::Storage { .. }, _) if work.is_direct => {
                self.h2d_bytes += bytes;
                return;
            }
            // Data that a drive reads is written to host memory, and read there by its user.
            (HardwareEngine::Cpu | HardwareEngine::Storage { .. }, _) => {}
        }
        if let Some(number) = work.slow_tier {
            self.slow_tiers[number] += work.operands.at(self.positions);
        }
        self.host_bytes += host_bytes(lane, work).at(self.positions);
    }

    /// Returns the factor by which a program's instructions are lengthened relative to each running
    /// alone.
    ///
    /// # Errors
    /// A program that cannot be simulated.
    pub(super) fn slowdown(
        &self,
        machine: &Machine,
        program: &Program,
        costs: &dyn SimulationCosts,
    ) -> Result<f64, CostError> {
        let tiers = machine.tier.iter().map(SlowTierSpec::gbps);
        let slow_tiers = self.slow_tiers.into_iter().zip(tiers);
        let min_ns = [
            (self.host_bytes, machine.memory.dram_gbps),
            (self.h2d_bytes, machine.link.h2d_gbps),
            (self.d2h_bytes, machine.link.d2h_gbps),
        ];
        let min_ns = min_ns.into_iter().chain(slow_tiers).map(|(bytes, gbps)| bytes / gbps);
        let min_ns = min_ns.fold(0.0, f64::max);
        // A step is no shorter than its busiest lane.
        if min_ns <= busiest_ns(program, costs) {
            return Ok(1.0);
        }
        let step_ns = step_ns(program, costs)?;
        Ok(if step_ns > 0.0 { (min_ns / step_ns).max(1.0) } else { 1.0 })
    }
}

/// Returns the bytes of near host memory that a lane's work reads or writes.
pub(super) fn host_bytes(lane: &LaneSpec, work: &InstructionWork) -> CappedLinear {
    match lane.engine {
        HardwareEngine::Gpu { .. } => CappedLinear::ZERO,
        HardwareEngine::Storage { .. } if work.is_direct => CappedLinear::ZERO,
        _ if work.slow_tier.is_some() => work.activations,
        _ => work.operands.plus(work.activations),
    }
}

fn busiest_ns(program: &Program, costs: &dyn SimulationCosts) -> f64 {
    let lane_ns = |list: &program::ir::LaneProgram| {
        let work = list.instructions.iter().enumerate().filter(|(_, one)| one.is_work());
        work.map(|(index, instruction)| {
            let instruction_index = index as u32;
            let place =
                Place { program: program.id, lane: list.lane, instruction: instruction_index };
            costs.work_ns(place, instruction, 0)
        })
        .sum::<f64>()
    };
    program.lanes.iter().map(lane_ns).fold(0.0, f64::max)
}

/// Returns the duration of a step in a long row of such steps; prefill is one step.
fn step_ns(program: &Program, costs: &dyn SimulationCosts) -> Result<f64, CostError> {
    let steps = if program.id == ProgramId::PREFILL { 1 } else { STEPS };
    let timeline = simulate_ends(program, costs, steps).map_err(|e| CostError(e.to_string()))?;
    let ends = &timeline.step_end_ns;
    Ok(match steps {
        1 => timeline.total_ns,
        _ => (ends[ends.len() - 1] - ends[ends.len() - 3]) / 2.0,
    })
}
