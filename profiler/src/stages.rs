//! Stages of a hand-made program: consecutive, with the lanes of a stage running concurrently.
//!
//! Each lane of a stage waits for every lane of the previous stage, and the first stage for the
//! last one of the previous step. Work measured in one stage therefore runs concurrently only with
//! the other lanes of that stage, and any two instructions of different stages are ordered.

use program::ir::{Instruction, LaneProgram, TimelineWait};
use program::topology::LaneId;

/// Stages in order of execution.
#[derive(Debug, Default)]
pub(crate) struct Stages(Vec<Vec<(LaneId, Vec<Instruction>)>>);

impl Stages {
    /// Adds a stage of one lane, or none if there is no work.
    pub(crate) fn push(&mut self, lane: LaneId, work: Vec<Instruction>) {
        self.push_concurrent(vec![(lane, work)]);
    }

    /// Adds a stage whose lanes run concurrently.
    pub(crate) fn push_concurrent(&mut self, mut lanes: Vec<(LaneId, Vec<Instruction>)>) {
        lanes.retain(|(_, work)| !work.is_empty());
        if !lanes.is_empty() {
            self.0.push(lanes);
        }
    }

    /// Returns the lanes of a machine with `lanes` lanes, with their waits and signals.
    pub(crate) fn into_lanes(self, lanes: usize) -> Vec<LaneProgram> {
        let mut lists: Vec<(LaneId, Vec<Instruction>, u32)> =
            (0..lanes as u8).map(|lane| (LaneId(lane), Vec::new(), 0)).collect();
        let lanes_of = |stage: &Vec<(LaneId, Vec<Instruction>)>| -> Vec<LaneId> {
            stage.iter().map(|(lane, _)| *lane).collect()
        };
        let last: Vec<LaneId> = self.0.last().map(lanes_of).unwrap_or_default();
        let signals = |lane: LaneId| {
            self.0.iter().flatten().filter(|(other, _)| *other == lane).count() as u32
        };
        let mut before: Vec<TimelineWait> = last
            .into_iter()
            .map(|lane| TimelineWait { lane, offset: signals(lane), previous_step: true })
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
                reached.push(TimelineWait { lane, offset: *count, previous_step: false });
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
