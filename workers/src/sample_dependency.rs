//! Places at which the tokens of a step are drawn, as far as a lane depends on them.

use program::ir::{Instruction, LaneProgram, Program, TimelineWait};
use program::topology::LaneId;

/// Place of a batch's last `Sample` of a program.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SampleDependency {
    /// In this lane's own list.
    OwnList,
    /// Before this signal of another lane.
    LaneSignal(TimelineWait),
    /// Followed by no signal, so that only the end of the step implies it.
    EndOfStep,
}

impl SampleDependency {
    pub(crate) fn find(program: &Program, own_lane: LaneId, batch: u16) -> SampleDependency {
        let samples = |instruction: &Instruction| {
            instruction.is_sample() && instruction.at().is_some_and(|at| at.batch == batch)
        };
        for list in &program.lanes {
            let Some(place) = list.instructions.iter().rposition(samples) else { continue };
            if list.lane == own_lane {
                return SampleDependency::OwnList;
            }
            let signals = |instructions: &[Instruction]| {
                let signals = |instruction: &&Instruction| **instruction == Instruction::Signal;
                instructions.iter().filter(signals).count() as u32
            };
            let (before, after) = list.instructions.split_at(place);
            if signals(after) > 0 {
                let offset = signals(before) + 1;
                return SampleDependency::LaneSignal(TimelineWait {
                    lane: list.lane,
                    offset,
                    previous_step: true,
                });
            }
        }
        SampleDependency::EndOfStep
    }
}

/// Returns the batch whose part of the step table an instruction reads.
pub(crate) fn table_batch(instruction: &Instruction) -> Option<u16> {
    match instruction {
        Instruction::Compute(compute) => Some(compute.at.batch),
        Instruction::Copy(copy) => copy.table.map(|_| copy.at.batch),
        Instruction::Append(append) => Some(append.at.batch),
        Instruction::Decompress(_)
        | Instruction::Read(_)
        | Instruction::Wait(_)
        | Instruction::Signal => None,
    }
}

pub(crate) fn last_sample(list: &LaneProgram) -> Option<usize> {
    list.instructions.iter().rposition(Instruction::is_sample)
}
