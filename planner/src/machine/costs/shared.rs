//! Resources that lanes share: host memory, and each direction of the link.

use program::ir::{Program, ProgramId};
use program::simulate::{Costs, Place, simulate};
use program::topology::{Engine, FAR_MAX, Lane, LaneKind};

use super::super::{Machine, Tier};
use super::line::Line;
use super::work::Work;
use crate::priced::Unpriced;

/// Number of simulated decode steps; the last two count.
const STEPS: u32 = 4;

/// Traffic of a step of one program, as a function of the cached positions of a sequence.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shared {
    positions: u32,
    host: f64,
    /// Traffic in each additional host memory.
    far: [f64; FAR_MAX],
    up: f64,
    down: f64,
}

impl Shared {
    pub(super) const fn at(positions: u32) -> Shared {
        Shared { positions, host: 0.0, far: [0.0; FAR_MAX], up: 0.0, down: 0.0 }
    }

    /// Adds the traffic of a lane's work.
    pub(super) fn add(&mut self, lane: &Lane, work: &Work) {
        let bytes = work.operands.at(self.positions) + work.activations.at(self.positions);
        match (lane.engine, lane.kind) {
            (Engine::Gpu { .. }, _) => return,
            (Engine::Link { .. }, LaneKind::Download) => self.down += bytes,
            (Engine::Link { .. }, _) => self.up += bytes,
            // Drives share the root port with the device, whose end of the link the data passes.
            (Engine::Storage { .. }, _) if work.is_direct => {
                self.up += bytes;
                return;
            }
            // Data that a drive reads is written to host memory, and read there by its user.
            (Engine::Cpu | Engine::Storage { .. }, _) => {}
        }
        if let Some(number) = work.far {
            self.far[number] += work.operands.at(self.positions);
        }
        self.host += host_bytes(lane, work).at(self.positions);
    }

    /// Returns the factor by which a program's instructions are lengthened relative to each running
    /// alone.
    ///
    /// # Errors
    /// A program that cannot be simulated.
    pub(super) fn slows(
        &self,
        machine: &Machine,
        program: &Program,
        costs: &dyn Costs,
    ) -> Result<f64, Unpriced> {
        let tiers = machine.tier.iter().map(Tier::gbps);
        let far = self.far.into_iter().zip(tiers);
        let least_ns = [
            (self.host, machine.memory.dram_gbps),
            (self.up, machine.link.h2d_gbps),
            (self.down, machine.link.d2h_gbps),
        ];
        let least_ns = least_ns.into_iter().chain(far).map(|(bytes, gbps)| bytes / gbps);
        let least_ns = least_ns.fold(0.0, f64::max);
        // A step is no shorter than its busiest lane.
        if least_ns <= busiest_ns(program, costs) {
            return Ok(1.0);
        }
        let step_ns = step_ns(program, costs)?;
        Ok(if step_ns > 0.0 { (least_ns / step_ns).max(1.0) } else { 1.0 })
    }
}

/// Returns the bytes of near host memory that a lane's work reads or writes.
pub(super) fn host_bytes(lane: &Lane, work: &Work) -> Line {
    match lane.engine {
        Engine::Gpu { .. } => Line::ZERO,
        Engine::Storage { .. } if work.is_direct => Line::ZERO,
        _ if work.far.is_some() => work.activations,
        _ => work.operands.plus(work.activations),
    }
}

fn busiest_ns(program: &Program, costs: &dyn Costs) -> f64 {
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
fn step_ns(program: &Program, costs: &dyn Costs) -> Result<f64, Unpriced> {
    let steps = if program.id == ProgramId::PREFILL { 1 } else { STEPS };
    let timeline = simulate(program, costs, steps).map_err(|e| Unpriced(e.to_string()))?;
    let ends = &timeline.step_end_ns;
    Ok(match steps {
        1 => timeline.total_ns,
        _ => (ends[ends.len() - 1] - ends[ends.len() - 3]) / 2.0,
    })
}
