//! The instruction set that compiler, validator, simulator and workers share.
//!
//! A program has one in-order list per lane. Nothing in it is conditional; sizes that change from
//! step to step (active rows, lengths) come from the step table, bounded by the buffers' sizes.

use model::ops::{Kv, Op, Value};
use serde::{Deserialize, Serialize};

use crate::map::{Chunk, Device, Phase};
use crate::owners::Attending;
use crate::topology::{LaneId, LaneSet};

/// Index into `Plan::programs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProgramId(pub u8);

impl ProgramId {
    /// The program that computes prompts, of every plan of a batch job.
    pub const PREFILL: ProgramId = ProgramId(0);
    /// The program that computes the newest token of each sequence, likewise.
    pub const DECODE: ProgramId = ProgramId(1);
    /// The only program of a run that serves: rows of any sequences, whatever of them is known.
    /// Where sequences have owners, that in which the device attends for all rows.
    pub const STEP: ProgramId = ProgramId(0);
    /// Where sequences have owners: two streams in turn, each owner attends for its own.
    pub const PIPELINED: ProgramId = ProgramId(1);
    /// Likewise: caches go from the device to the host.
    pub const MOVE_OUT: ProgramId = ProgramId(2);
    /// Likewise: caches go from the host to the device.
    pub const MOVE_IN: ProgramId = ProgramId(3);
    /// Likewise, for models whose rows may lag: the host's rows get a layer further.
    pub const ASYNC: ProgramId = ProgramId(4);
    /// All that there may be where sequences have owners.
    pub const OF_OWNERS: [ProgramId; 5] = [
        ProgramId::STEP,
        ProgramId::PIPELINED,
        ProgramId::MOVE_OUT,
        ProgramId::MOVE_IN,
        ProgramId::ASYNC,
    ];

    /// Place in `Plan::programs`.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What the rows of a program's work lists are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Rows {
    /// Prompts from their first position on: nothing of them is cached.
    WholePrompts,
    /// Any number of rows of a sequence, behind the positions that the caches hold of it.
    Chunks,
    /// One row of a sequence, behind the positions that the caches hold of it.
    Single,
    /// None: the caches of the sequences that are listed go to this side.
    Moves(Device),
}

impl Rows {
    /// Whether positions before the rows are in the caches.
    pub const fn are_behind_caches(self) -> bool {
        !matches!(self, Rows::WholePrompts)
    }

    /// The placement and the prices that they follow.
    pub const fn phase(self) -> Phase {
        match self {
            Rows::WholePrompts | Rows::Chunks | Rows::Moves(_) => Phase::Prefill,
            Rows::Single => Phase::Decode,
        }
    }
}

/// What a program is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProgramShape {
    pub rows: Rows,
    /// Streams of a batch, each with a work list of its own.
    pub streams: u16,
    /// Most sequences of a work list.
    pub sequences: u16,
    /// Most rows of a work list.
    pub stream_rows: u32,
    /// Most of them whose logits are computed.
    pub logits_rows: u32,
    /// The program with the sampled tokens as rows: in the first work list of a batch each
    /// `Sample` lists them.
    pub next: ProgramId,
    pub attending: Attending,
}

impl ProgramShape {
    /// What reports and errors call such a program.
    pub const fn name(&self) -> &'static str {
        match (self.rows, self.attending) {
            (Rows::Moves(Device::Cpu), _) => "moves to the host",
            (Rows::Moves(Device::Gpu), _) => "moves to the device",
            (rows, Attending::Mapped) => rows.phase().name(),
            (_, Attending::Device) => "gpu",
            (_, Attending::Owners) => "pipelined",
            (_, Attending::Lagging) => "async",
        }
    }

    /// Tokens are drawn so many times in a step of a batch.
    pub const fn samples(&self) -> u32 {
        match self.rows {
            Rows::Moves(_) => 0,
            _ => self.joint_streams() as u32,
        }
    }

    /// Streams whose rows are computed apart from those of all others. Rows that lag join those of
    /// the first.
    pub const fn joint_streams(&self) -> u16 {
        match self.attending {
            Attending::Lagging => 1,
            _ => self.streams,
        }
    }

    /// Whether each step is a stage of its own, behind a barrier: what rows that lag find is what
    /// the step before left of others.
    pub const fn is_single_step(&self) -> bool {
        matches!(self.attending, Attending::Lagging)
    }
}

/// Index into `Plan::buffers`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BufferId(pub u32);

/// A buffer, or one chunk of it. Regions conflict when they share the buffer and are not two
/// different chunks of the same split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Region {
    pub buffer: BufferId,
    pub chunk: Option<Chunk>,
}

impl Region {
    /// The whole buffer.
    pub const fn whole(buffer: BufferId) -> Region {
        Region { buffer, chunk: None }
    }

    /// Whether both may touch the same bytes.
    pub fn overlaps(&self, other: &Region) -> bool {
        self.buffer == other.buffer
            && match (self.chunk, other.chunk) {
                (Some(a), Some(b)) => a.of != b.of || a.index == b.index,
                _ => true,
            }
    }
}

/// Which part of the work an instruction belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct At {
    /// `None` for what stands around the layers.
    pub layer: Option<u16>,
    pub batch: u16,
    /// Of the streams of the batch, whose rows are in a work list of the step table.
    pub stream: u16,
}

/// One operation, or a chunk of one, for one stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compute {
    pub op: Op,
    pub at: At,
    /// `None`: all units or rows.
    pub chunk: Option<Chunk>,
    /// In the order of `Op::reads`.
    pub inputs: Vec<Region>,
    /// In the order of `Op::caches`; empty where nothing is cached yet. Written too by what
    /// updates a state, which has it in every program.
    pub caches: Vec<Region>,
    /// The weight blob; for `Embed` of a model with learned positions also that table.
    pub weights: Vec<Region>,
    /// `None` for `Sample`. In-place for the residual stream.
    pub output: Option<Region>,
    /// Step table of the batch: read by all, written by `Sample`.
    pub table: Region,
}

/// What a `Copy` moves, which decides how many bytes of the regions at a given step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Moved {
    /// A whole weight blob.
    Weights(Op),
    /// The active rows (or units) of a value.
    Value(Value),
    /// Cached positions `0..past` of the chunk's units.
    Cache(Kv),
    /// Cached positions of the listed sequences from their places with the other owner to those
    /// with the owner whose chunk it is.
    Sequences(Kv),
    /// The rows of a value that lag, to where they are kept between two steps, or from there
    /// (`crate::lagging`).
    Lagging(Value),
}

/// Moves bytes between host and device memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copy {
    pub moved: Moved,
    pub at: At,
    /// The units moved, for `Scores`, `Probabilities`, `Attended` and caches.
    pub chunk: Option<Chunk>,
    pub from: Region,
    pub to: Region,
    /// `None` for weights, whose size never changes.
    pub table: Option<Region>,
}

/// Fresh K or V rows into the units of one chunk of the cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Append {
    pub kv: Kv,
    pub at: At,
    pub chunk: Chunk,
    pub from: Region,
    pub to: Region,
    pub table: Region,
}

/// A weight blob from its stored form to the wider one that the GPU multiplies, both in device
/// memory (Park-Egger §4.3).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decompress {
    pub op: Op,
    pub at: At,
    pub from: Region,
    pub to: Region,
}

/// One storage's share of a weight blob into its place in a slot of host or device memory. Both
/// regions are the same chunk of as many as there are storages; `crate::shares` says which bytes
/// that is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Read {
    pub op: Op,
    pub at: At,
    pub from: Region,
    pub to: Region,
}

/// Blocks until `lane`'s timeline has reached `base + step * signals_per_step + offset`, where
/// `step` is the current one, or the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Wait {
    pub lane: LaneId,
    /// 1 for the lane's first signal of a step.
    pub offset: u32,
    pub previous_step: bool,
}

/// One entry of a lane's list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Instruction {
    Compute(Compute),
    Copy(Copy),
    Append(Append),
    Decompress(Decompress),
    Read(Read),
    Wait(Wait),
    /// Adds one to the lane's timeline; all earlier work of the lane is complete.
    Signal,
}

impl Instruction {
    /// Whether it draws tokens.
    pub fn is_sample(&self) -> bool {
        matches!(self, Instruction::Compute(compute) if compute.op == Op::Sample)
    }

    /// Regions read.
    pub fn reads(&self) -> Vec<Region> {
        match self {
            Instruction::Compute(compute) => compute
                .inputs
                .iter()
                .chain(&compute.caches)
                .chain(&compute.weights)
                .chain(std::iter::once(&compute.table))
                .copied()
                .collect(),
            Instruction::Copy(copy) => std::iter::once(copy.from).chain(copy.table).collect(),
            Instruction::Append(append) => vec![append.from, append.table],
            Instruction::Decompress(decompress) => vec![decompress.from],
            Instruction::Read(read) => vec![read.from],
            Instruction::Wait(_) | Instruction::Signal => Vec::new(),
        }
    }

    /// Regions written.
    pub fn writes(&self) -> Vec<Region> {
        match self {
            Instruction::Compute(compute) if self.is_sample() => vec![compute.table],
            Instruction::Compute(compute) => {
                let states = if compute.op.updates_state() { &compute.caches[..] } else { &[] };
                compute.output.iter().chain(states).copied().collect()
            }
            Instruction::Copy(copy) => vec![copy.to],
            Instruction::Append(append) => vec![append.to],
            Instruction::Decompress(decompress) => vec![decompress.to],
            Instruction::Read(read) => vec![read.to],
            Instruction::Wait(_) | Instruction::Signal => Vec::new(),
        }
    }

    /// Regions touched, and whether they are written. One that is read and written is listed as
    /// both.
    pub fn accesses(&self) -> Vec<(Region, bool)> {
        let reads = self.reads().into_iter().map(|region| (region, false));
        let writes = self.writes().into_iter().map(|region| (region, true));
        reads.chain(writes).collect()
    }

    /// Where in the model this instruction belongs; `None` for `Wait` and `Signal`.
    pub fn at(&self) -> Option<At> {
        match self {
            Instruction::Compute(compute) => Some(compute.at),
            Instruction::Copy(copy) => Some(copy.at),
            Instruction::Append(append) => Some(append.at),
            Instruction::Decompress(decompress) => Some(decompress.at),
            Instruction::Read(read) => Some(read.at),
            Instruction::Wait(_) | Instruction::Signal => None,
        }
    }

    /// Whether this is work (a span in the trace) rather than order.
    pub fn is_work(&self) -> bool {
        !matches!(self, Instruction::Wait(_) | Instruction::Signal)
    }
}

/// Work of some lanes in a program.
#[derive(Debug, Clone)]
pub struct ProgramWork<'a> {
    pub id: ProgramId,
    pub shape: ProgramShape,
    pub instructions: Vec<&'a Instruction>,
}

/// A lane's list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneProgram {
    pub lane: LaneId,
    pub instructions: Vec<Instruction>,
    /// Number of `Signal`s in the list.
    pub signals_per_step: u32,
}

/// What all lanes do in a step. Lanes without work have no entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Its place in the plan.
    pub id: ProgramId,
    pub shape: ProgramShape,
    pub lanes: Vec<LaneProgram>,
}

impl Program {
    /// What reports and errors call it.
    pub const fn name(&self) -> &'static str {
        self.shape.name()
    }

    /// The list of `lane`, if it has any work.
    pub fn lane(&self, lane: LaneId) -> Option<&LaneProgram> {
        self.lanes.iter().find(|program| program.lane == lane)
    }

    /// The work of some lanes, lane by lane.
    pub fn work_of(&self, lanes: LaneSet) -> ProgramWork<'_> {
        let lists = self.lanes.iter().filter(|list| lanes.contains(list.lane));
        let all = lists.flat_map(|list| &list.instructions);
        let instructions = all.filter(|instruction| instruction.is_work()).collect();
        ProgramWork { id: self.id, shape: self.shape, instructions }
    }
}
