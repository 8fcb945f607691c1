//! Lanes, waits and signals.
//!
//! The global order is walked for three consecutive steps. Each instruction must follow the earlier
//! ones that access an overlapping region if either of the two writes; if such an instruction is in
//! another lane and no earlier wait of this lane implies it, a wait is inserted. The third walk is
//! the steady state and becomes the program. A wait for the previous step is trivially satisfied in
//! the first step. A program of single steps is walked once.

use crate::ir::{BufferId, Instruction, LaneProgram, Region, TimelineWait};
use crate::topology::LaneId;

use super::emit::Node;

const STEPS: i64 = 3;

/// Vector clocks of several owners, stored consecutively. A clock gives the known progress of each
/// lane: `step * nodes + index + 1`, or 0 for none.
#[derive(Debug, Clone)]
struct Clocks {
    lanes: usize,
    times: Vec<i64>,
}

impl Clocks {
    fn new(owners: usize, lanes: usize) -> Clocks {
        Clocks { lanes, times: vec![0; owners * lanes] }
    }

    fn of(&self, owner: usize) -> &[i64] {
        &self.times[owner * self.lanes..(owner + 1) * self.lanes]
    }

    fn of_mut(&mut self, owner: usize) -> &mut [i64] {
        &mut self.times[owner * self.lanes..(owner + 1) * self.lanes]
    }
}

#[derive(Debug, Clone, Copy)]
struct Access {
    region: Region,
    node: usize,
    /// Position in global time, across steps.
    time: i64,
    write: bool,
}

/// Accesses of each buffer, by id.
type Accesses = Vec<Vec<Access>>;

/// A wait for an instruction, identified by its node and how many steps back it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Need {
    node: usize,
    previous_step: bool,
}

/// The lists of a machine's lanes, `lane_count` of them.
pub(super) fn synchronise(
    nodes: Vec<Node>,
    lane_count: usize,
    is_single_step: bool,
) -> Vec<LaneProgram> {
    let needs = needs(&nodes, lane_count, if is_single_step { 1 } else { STEPS });
    let mut signalled = vec![false; nodes.len()];
    for need in needs.iter().flatten() {
        signalled[need.node] = true;
    }
    let mut ordinals = vec![0u32; nodes.len()];
    let mut counts = vec![0u32; lane_count];
    for (index, node) in nodes.iter().enumerate() {
        if signalled[index] {
            counts[node.lane.index()] += 1;
            ordinals[index] = counts[node.lane.index()];
        }
    }
    let lanes: Vec<LaneId> = nodes.iter().map(|node| node.lane).collect();
    let mut lists: Vec<Vec<Instruction>> = vec![Vec::new(); lane_count];
    for (index, node) in nodes.into_iter().enumerate() {
        let list = &mut lists[node.lane.index()];
        list.extend(needs[index].iter().map(|need| {
            Instruction::Wait(TimelineWait {
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
    (0u8..)
        .map(LaneId)
        .zip(lists)
        .filter(|(_, list)| !list.is_empty())
        .map(|(lane, instructions)| LaneProgram {
            lane,
            instructions,
            signals_per_step: counts[lane.index()],
        })
        .collect()
}

/// Returns the waits that each node needs in the last of `steps` steps.
fn needs(nodes: &[Node], lane_count: usize, steps: i64) -> Vec<Vec<Need>> {
    let count = nodes.len() as i64;
    let touched: Vec<Vec<(Region, bool)>> =
        nodes.iter().map(|node| node.instruction.accesses()).collect();
    let buffers = touched.iter().flatten().map(|(region, _)| region.buffer.0 as usize + 1).max();
    let mut accesses: Accesses = vec![Vec::new(); buffers.unwrap_or(0)];
    let mut candidates = Vec::new();
    let mut lane_clocks = Clocks::new(lane_count, lane_count);
    // Per node, the clock implied by its completion in the latest walk.
    let mut completed = Clocks::new(nodes.len(), lane_count);
    let mut previous = completed.clone();
    let mut needs = vec![Vec::new(); nodes.len()];
    // The last node of each lane, and its value when the last barrier was passed.
    let mut last: Vec<Option<Access>> = vec![None; lane_count];
    let mut at_barrier = last.clone();
    let mut latest = last.clone();
    for step in 0..steps {
        for (index, node) in nodes.iter().enumerate() {
            let time = step * count + index as i64;
            let lane = node.lane.index();
            if node.barrier {
                at_barrier.clone_from(&last);
            }
            let implied = |access: &Access| {
                if access.time >= step * count {
                    completed.of(access.node)
                } else {
                    previous.of(access.node)
                }
            };
            candidates.clear();
            conflicts(nodes, &touched[index], index, time, &mut accesses, &mut candidates);
            // The latest dependency in each lane subsumes the earlier ones of that lane.
            latest.fill(None);
            for access in candidates.iter().chain(at_barrier.iter().flatten()).copied() {
                let other = nodes[access.node].lane.index();
                let known = other == lane || access.time < lane_clocks.of(lane)[other];
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
                for (known, other) in lane_clocks.of_mut(lane).iter_mut().zip(implied(access)) {
                    *known = (*known).max(*other);
                }
            }
            if step == steps - 1 {
                needs[index] = wanted
                    .iter()
                    .map(|access| Need {
                        node: access.node,
                        previous_step: access.time < step * count,
                    })
                    .collect();
            }
            lane_clocks.of_mut(lane)[lane] = time + 1;
            completed.of_mut(index).copy_from_slice(lane_clocks.of(lane));
            let region = Region::whole(BufferId(0));
            last[lane] = Some(Access { region, node: index, time, write: false });
        }
        previous.times.copy_from_slice(&completed.times);
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
            // A write subsumes all accesses that it covers, since it is ordered after them; a read
            // subsumes the earlier reads of its lane.
            let covered = region.chunk.is_none() || region.chunk == other.region.chunk;
            let same_lane = nodes[other.node].lane == nodes[index].lane;
            !(covered && (write || (!other.write && same_lane)))
        });
        list.push(Access { region, node: index, time, write });
    }
}
