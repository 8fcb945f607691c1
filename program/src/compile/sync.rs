//! Lanes, waits and signals.
//!
//! The global order is walked for three consecutive steps. Each instruction must come after the
//! earlier ones that touch an overlapping region, one of the two writing; where such an instruction
//! is in another lane, and nothing that this lane already waited for implies it, a wait is needed.
//! What the third walk needs is the steady state and becomes the program. A wait on the step
//! before is trivially satisfied in the first step.

use crate::ir::{BufferId, Instruction, Lane, LaneProgram, Region, Wait};

use super::emit::Node;

const LANES: usize = Lane::ALL.len();
const STEPS: i64 = 3;

/// How far each lane is known to have come: `step * nodes + index + 1`, 0 for nothing.
type Clock = [i64; LANES];

#[derive(Debug, Clone, Copy)]
struct Access {
    region: Region,
    node: usize,
    /// Position in global time, over steps.
    time: i64,
    write: bool,
}

/// Of each buffer, by id.
type Accesses = Vec<Vec<Access>>;

/// A wait for an instruction, identified by its node and how many steps back it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Need {
    node: usize,
    previous_step: bool,
}

pub(super) fn synchronise(nodes: Vec<Node>) -> Vec<LaneProgram> {
    let needs = needs(&nodes);
    let mut signalled = vec![false; nodes.len()];
    for need in needs.iter().flatten() {
        signalled[need.node] = true;
    }
    let mut ordinals = vec![0u32; nodes.len()];
    let mut counts = [0u32; LANES];
    for (index, node) in nodes.iter().enumerate() {
        if signalled[index] {
            counts[node.lane.index()] += 1;
            ordinals[index] = counts[node.lane.index()];
        }
    }
    let lanes: Vec<Lane> = nodes.iter().map(|node| node.lane).collect();
    let mut lists: [Vec<Instruction>; LANES] = Default::default();
    for (index, node) in nodes.into_iter().enumerate() {
        let list = &mut lists[node.lane.index()];
        list.extend(needs[index].iter().map(|need| {
            Instruction::Wait(Wait {
                lane: lanes[need.node],
                offset: ordinals[need.node],
                previous_step: need.previous_step,
            })
        }));
        list.push(node.instruction);
        if signalled[index] {
            list.push(Instruction::Signal);
        }
    }
    Lane::ALL
        .into_iter()
        .zip(lists)
        .filter(|(_, list)| !list.is_empty())
        .map(|(lane, instructions)| LaneProgram {
            lane,
            instructions,
            signals_per_step: counts[lane.index()],
        })
        .collect()
}

/// The waits that each node needs in the steady state.
fn needs(nodes: &[Node]) -> Vec<Vec<Need>> {
    let count = nodes.len() as i64;
    let touched: Vec<Vec<(Region, bool)>> =
        nodes.iter().map(|node| node.instruction.accesses()).collect();
    let buffers = touched.iter().flatten().map(|(region, _)| region.buffer.0 as usize + 1).max();
    let mut accesses: Accesses = vec![Vec::new(); buffers.unwrap_or(0)];
    let mut candidates = Vec::new();
    let mut lane_clocks = [[0i64; LANES]; LANES];
    // What completion of a node implies, per node, for its latest walk.
    let mut completed: Vec<Clock> = vec![[0; LANES]; nodes.len()];
    let mut previous: Vec<Clock> = completed.clone();
    let mut needs = vec![Vec::new(); nodes.len()];
    // The last node of each lane, and what it was when the last barrier was passed.
    let mut last: [Option<Access>; LANES] = [None; LANES];
    let mut at_barrier = last;
    for step in 0..STEPS {
        for (index, node) in nodes.iter().enumerate() {
            let time = step * count + index as i64;
            let lane = node.lane.index();
            if node.barrier {
                at_barrier = last;
            }
            let implied = |access: &Access| {
                if access.time >= step * count {
                    &completed[access.node]
                } else {
                    &previous[access.node]
                }
            };
            candidates.clear();
            conflicts(nodes, &touched[index], index, time, &mut accesses, &mut candidates);
            // The latest dependency of each lane stands for the earlier ones of that lane.
            let mut latest: [Option<Access>; LANES] = [None; LANES];
            for access in candidates.iter().copied().chain(at_barrier.into_iter().flatten()) {
                let other = nodes[access.node].lane.index();
                let known = other == lane || access.time < lane_clocks[lane][other];
                if !known && latest[other].is_none_or(|best| best.time < access.time) {
                    latest[other] = Some(access);
                }
            }
            let wanted: Vec<Access> = latest
                .iter()
                .flatten()
                .filter(|access| {
                    let other = nodes[access.node].lane.index();
                    !latest.iter().flatten().any(|better| {
                        better.node != access.node && access.time < implied(better)[other]
                    })
                })
                .copied()
                .collect();
            for access in &wanted {
                let implied = *implied(access);
                for (known, other) in lane_clocks[lane].iter_mut().zip(implied) {
                    *known = (*known).max(other);
                }
            }
            if step == STEPS - 1 {
                needs[index] = wanted
                    .iter()
                    .map(|access| Need {
                        node: access.node,
                        previous_step: access.time < step * count,
                    })
                    .collect();
            }
            lane_clocks[lane][lane] = time + 1;
            completed[index] = lane_clocks[lane];
            let region = Region::whole(BufferId(0));
            last[lane] = Some(Access { region, node: index, time, write: false });
        }
        previous.clone_from(&completed);
    }
    needs
}

/// Adds the earlier conflicting accesses to `found`; records this node's own.
fn conflicts(
    nodes: &[Node],
    mine: &[(Region, bool)],
    index: usize,
    time: i64,
    accesses: &mut Accesses,
    found: &mut Vec<Access>,
) {
    for (region, write) in mine {
        found.extend(
            accesses[region.buffer.0 as usize]
                .iter()
                .filter(|other| (*write || other.write) && other.region.overlaps(region)),
        );
    }
    for &(region, write) in mine {
        let list = &mut accesses[region.buffer.0 as usize];
        list.retain(|other| {
            // A write stands for all that it covers, since it is ordered after it; a read for the
            // earlier reads of its lane.
            let covered = region.chunk.is_none() || region.chunk == other.region.chunk;
            let same_lane = nodes[other.node].lane == nodes[index].lane;
            !(covered && (write || (!other.write && same_lane)))
        });
        list.push(Access { region, node: index, time, write });
    }
}
