//! Stages of a hand-made program: one after the other, the lanes of a stage side by side.
//!
//! Each lane of a stage waits for every lane of the stage before it, and the first stage for the
//! last one of the step before. So what is measured in one stage runs beside nothing but the other
//! lanes of that stage, and any two instructions of different stages are ordered.

use program::ir::{Instruction, Lane, LaneProgram, Wait};

/// Stages in the order in which they run.
#[derive(Debug, Default)]
pub(crate) struct Stages(Vec<Vec<(Lane, Vec<Instruction>)>>);

impl Stages {
    /// Adds a stage of one lane; none when there is no work.
    pub(crate) fn then(&mut self, lane: Lane, work: Vec<Instruction>) {
        self.beside(vec![(lane, work)]);
    }

    /// Adds a stage whose lanes run side by side.
    pub(crate) fn beside(&mut self, mut lanes: Vec<(Lane, Vec<Instruction>)>) {
        lanes.retain(|(_, work)| !work.is_empty());
        if !lanes.is_empty() {
            self.0.push(lanes);
        }
    }

    /// The lanes with their waits and signals.
    pub(crate) fn into_lanes(self) -> Vec<LaneProgram> {
        let mut lists: Vec<(Lane, Vec<Instruction>, u32)> =
            Lane::ALL.into_iter().map(|lane| (lane, Vec::new(), 0)).collect();
        let lanes_of = |stage: &Vec<(Lane, Vec<Instruction>)>| -> Vec<Lane> {
            stage.iter().map(|(lane, _)| *lane).collect()
        };
        let last: Vec<Lane> = self.0.last().map(lanes_of).unwrap_or_default();
        let signals =
            |lane: Lane| self.0.iter().flatten().filter(|(other, _)| *other == lane).count() as u32;
        let mut before: Vec<Wait> = last
            .into_iter()
            .map(|lane| Wait { lane, offset: signals(lane), previous_step: true })
            .collect();
        for stage in self.0 {
            let mut reached = Vec::new();
            for (lane, work) in stage {
                let (_, list, count) = &mut lists[lane.index()];
                let others = before.iter().filter(|wait| wait.lane != lane);
                list.extend(others.map(|wait| Instruction::Wait(*wait)));
                list.extend(work);
                list.push(Instruction::Signal);
                *count += 1;
                reached.push(Wait { lane, offset: *count, previous_step: false });
            }
            before = reached;
        }
        lists
            .into_iter()
            .filter(|(_, list, _)| !list.is_empty())
            .map(|(lane, instructions, signals_per_step)| LaneProgram {
                lane,
                instructions,
                signals_per_step,
            })
            .collect()
    }
}
