//! Lanes, waits and signals.
//!
//! The global order is walked for three consecutive steps. Each instruction must follow the earlier
//! ones that access an overlapping region if either of the two writes; if such an instruction is in
//! another lane and no earlier wait of this lane implies it, a wait is inserted. The third walk is
//! the steady state and becomes the program. A wait for the previous step is trivially satisfied in
//! the first step. A program of single steps is walked once.

use crate::ir::{Instruction, LaneProgram, Region, TimelineWait};
use crate::map::Chunk;
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

/// Position of a node in global time, across steps.
#[derive(Debug, Clone, Copy)]
struct Moment {
    node: usize,
    lane: usize,
    time: i64,
}

/// Access of a part of a buffer, or of all of it.
#[derive(Debug, Clone, Copy)]
struct Access {
    region: Region,
    at: Moment,
    write: bool,
}

/// Accesses of each buffer that later ones may conflict with, by id.
type Accesses = Vec<Vec<Access>>;

/// Regions that nodes access, and whether each is written.
struct AccessedRegions {
    regions: Vec<(Region, bool)>,
    /// End of each node's regions.
    ends: Vec<usize>,
}

impl AccessedRegions {
    fn new(nodes: &[Node]) -> AccessedRegions {
        let (mut regions, mut ends) = (Vec::new(), Vec::with_capacity(nodes.len()));
        for node in nodes {
            node.instruction.for_each_read(|region| regions.push((region, false)));
            node.instruction.for_each_write(|region| regions.push((region, true)));
            ends.push(regions.len());
        }
        AccessedRegions { regions, ends }
    }

    /// Returns the regions that a node accesses, with true for those that it writes.
    fn node_regions(&self, node: usize) -> &[(Region, bool)] {
        let start = node.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.regions[start..self.ends[node]]
    }

    /// Returns the number of buffers, up to the last one that is accessed.
    fn buffers(&self) -> usize {
        self.regions.iter().map(|(region, _)| region.buffer.0 as usize + 1).max().unwrap_or(0)
    }
}

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
    let accessed = AccessedRegions::new(nodes);
    let mut accesses: Accesses = vec![Vec::new(); accessed.buffers()];
    let mut lane_clocks = Clocks::new(lane_count, lane_count);
    // Per node, the clock implied by its completion in the latest walk, and in the previous one.
    let mut completed = Clocks::new(nodes.len(), lane_count);
    let mut previous = completed.clone();
    let mut needs = vec![Vec::new(); nodes.len()];
    // The last node of each lane, and its value when the last barrier was passed.
    let mut last: Vec<Option<Moment>> = vec![None; lane_count];
    let mut at_barrier = last.clone();
    let mut latest = LatestByLane::new(lane_count);
    let mut wanted: Vec<Moment> = Vec::with_capacity(lane_count);
    for step in 0..steps {
        let step_start = step * count;
        for (node, entry) in nodes.iter().enumerate() {
            let (lane, time) = (entry.lane.index(), step_start + node as i64);
            if entry.barrier {
                at_barrier.clone_from(&last);
            }
            let implied = |at: &Moment| match at.time >= step_start {
                true => completed.of(at.node),
                false => previous.of(at.node),
            };
            let known = lane_clocks.of(lane);
            let is_known = |at: &Moment| at.lane == lane || at.time < known[at.lane];
            latest.clear();
            let mine = accessed.node_regions(node);
            for_each_conflict(mine, &accesses, |at| latest.add(at, is_known));
            at_barrier.iter().flatten().for_each(|at| latest.add(*at, is_known));
            let at = Moment { node, lane, time };
            record(mine, at, &mut accesses);
            wanted.clear();
            wanted.extend(latest.iter().filter(|at| {
                let is_implied_by =
                    |better: Moment| better.node != at.node && at.time < implied(&better)[at.lane];
                !latest.iter().any(is_implied_by)
            }));
            for at in &wanted {
                for (known, other) in lane_clocks.of_mut(lane).iter_mut().zip(implied(at)) {
                    *known = (*known).max(*other);
                }
            }
            if step == steps - 1 {
                let need =
                    |at: &Moment| Need { node: at.node, previous_step: at.time < step_start };
                needs[node] = wanted.iter().map(need).collect();
            }
            lane_clocks.of_mut(lane)[lane] = time + 1;
            completed.of_mut(node).copy_from_slice(lane_clocks.of(lane));
            last[lane] = Some(at);
        }
        std::mem::swap(&mut previous, &mut completed);
    }
    needs
}

/// The latest dependency in each lane, which subsumes the earlier ones of that lane.
struct LatestByLane {
    by_lane: Vec<Option<Moment>>,
    is_empty: bool,
}

impl LatestByLane {
    fn new(lane_count: usize) -> LatestByLane {
        LatestByLane { by_lane: vec![None; lane_count], is_empty: true }
    }

    fn clear(&mut self) {
        if !self.is_empty {
            self.by_lane.fill(None);
            self.is_empty = true;
        }
    }

    /// Adds a dependency unless it `is_known` to have completed.
    fn add(&mut self, at: Moment, is_known: impl Fn(&Moment) -> bool) {
        let best = &mut self.by_lane[at.lane];
        if best.is_none_or(|best| best.time < at.time) && !is_known(&at) {
            *best = Some(at);
            self.is_empty = false;
        }
    }

    fn iter(&self) -> impl Iterator<Item = Moment> {
        self.by_lane.iter().filter(|_| !self.is_empty).flatten().copied()
    }
}

/// Calls `see` with the earlier accesses that conflict with those of a node.
fn for_each_conflict(mine: &[(Region, bool)], accesses: &Accesses, mut see: impl FnMut(Moment)) {
    for (region, write) in mine {
        for other in &accesses[region.buffer.0 as usize] {
            if (*write || other.write) && other.region.overlaps(region) {
                see(other.at);
            }
        }
    }
}

/// Records the accesses of a node.
fn record(mine: &[(Region, bool)], at: Moment, accesses: &mut Accesses) {
    for &(region, write) in mine {
        let list = &mut accesses[region.buffer.0 as usize];
        list.retain(|other| {
            // A write subsumes all accesses that it covers, since it is ordered after them; a read
            // subsumes the earlier reads of its lane.
            let covers = |own: Option<Chunk>, other| own.is_none() || own == other;
            let covered = covers(region.chunk, other.region.chunk)
                && covers(region.portion, other.region.portion);
            !(covered && (write || (!other.write && other.at.lane == at.lane)))
        });
        list.push(Access { region, at, write });
    }
}
