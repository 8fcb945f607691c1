//! The instruction set that compiler, validator, simulator and workers share.
//!
//! A program has one in-order list per lane. Nothing in it is conditional; sizes that change from
//! step to step (active rows, lengths) come from the step table, bounded by the buffers' sizes.

use model::ops::{Kv, Op, Value};
use serde::{Deserialize, Serialize};

use crate::kv_owner::AttentionSide;
use crate::map::{Chunk, ComputeDevice, Phase};
use crate::topology::{LaneId, LaneSet};

/// Index into `Plan::programs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProgramId(pub u8);

impl ProgramId {
    /// The program that computes prompts, in every plan of a batch job.
    pub const PREFILL: ProgramId = ProgramId(0);
    /// The program that computes the newest token of each sequence, in every plan of a batch job.
    pub const DECODE: ProgramId = ProgramId(1);
    /// The only program of a serving run: rows of any sequences, whether prompt or newest token. If
    /// sequences have owners, the program in which the device computes attention for all rows.
    pub const STEP: ProgramId = ProgramId(0);
    /// If sequences have owners: two alternating streams, with attention computed by each row's
    /// owner.
    pub const PIPELINED: ProgramId = ProgramId(1);
    /// If sequences have owners: caches migrate from the device to the host.
    pub const MOVE_OUT: ProgramId = ProgramId(2);
    /// If sequences have owners: caches migrate from the host to the device.
    pub const MOVE_IN: ProgramId = ProgramId(3);
    /// If sequences have owners and the model supports deferred rows: the host's rows advance by
    /// one layer.
    pub const ASYNC: ProgramId = ProgramId(4);
    /// All possible programs if sequences have owners.
    pub const OF_OWNERS: [ProgramId; 5] = [
        ProgramId::STEP,
        ProgramId::PIPELINED,
        ProgramId::MOVE_OUT,
        ProgramId::MOVE_IN,
        ProgramId::ASYNC,
    ];

    /// Returns the index into `Plan::programs`.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Kind of the rows in a program's work lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Rows {
    /// Prompts from their first position; nothing of them is cached.
    WholePrompts,
    /// Any number of rows of a sequence, following its cached positions.
    Chunks,
    /// One row of a sequence, following its cached positions.
    Single,
    /// No rows: the caches of the listed sequences migrate to this side.
    Moves(ComputeDevice),
}

impl Rows {
    /// Returns true if positions before the rows are in the caches.
    pub const fn are_behind_caches(self) -> bool {
        !matches!(self, Rows::WholePrompts)
    }

    /// Returns the phase whose placement and costs apply.
    pub const fn phase(self) -> Phase {
        match self {
            Rows::WholePrompts | Rows::Chunks | Rows::Moves(_) => Phase::Prefill,
            Rows::Single => Phase::Decode,
        }
    }
}

/// Shape for which a program is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProgramShape {
    pub rows: Rows,
    /// Number of streams of a batch, each with its own work list.
    pub streams: u16,
    /// Maximum number of sequences in a work list.
    pub sequences: u16,
    /// Maximum number of rows in a work list.
    pub stream_rows: u32,
    /// Maximum number of rows whose logits are computed.
    pub logits_rows: u32,
    /// Program whose rows are the sampled tokens: `Sample` lists them in the first work list of a
    /// batch.
    pub next: ProgramId,
    pub attention_side: AttentionSide,
}

impl ProgramShape {
    /// Returns the name used in reports and errors.
    pub const fn name(&self) -> &'static str {
        match (self.rows, self.attention_side) {
            (Rows::Moves(ComputeDevice::Cpu), _) => "moves to the host",
            (Rows::Moves(ComputeDevice::Gpu), _) => "moves to the device",
            (rows, AttentionSide::Mapped) => rows.phase().name(),
            (_, AttentionSide::Device) => "gpu",
            (_, AttentionSide::Owners) => "pipelined",
            (_, AttentionSide::Deferred) => "async",
        }
    }

    /// Returns how many times tokens are sampled in a step of a batch.
    pub const fn samples(&self) -> u32 {
        match self.rows {
            Rows::Moves(_) => 0,
            _ => self.joint_streams() as u32,
        }
    }

    /// Returns the number of streams whose rows are computed separately from those of all others.
    /// Deferred rows join those of the first stream.
    pub const fn joint_streams(&self) -> u16 {
        match self.attention_side {
            AttentionSide::Deferred => 1,
            _ => self.streams,
        }
    }

    /// Returns true if each step is a stage of its own, separated by a barrier: deferred rows read
    /// what the previous step left for other rows.
    pub const fn is_single_step(&self) -> bool {
        matches!(self.attention_side, AttentionSide::Deferred)
    }
}

/// Index into `Plan::buffers`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BufferId(pub u32);

/// A buffer, or a part of it. Regions conflict when they share the buffer and are neither two
/// different chunks of the same split nor two different portions of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Region {
    pub buffer: BufferId,
    pub chunk: Option<Chunk>,
    /// Portion of the experts that rows are routed to, whose part of the buffer this is
    /// ([`crate::expert_portions`]); `None` for all of them.
    pub portion: Option<Chunk>,
}

impl Region {
    /// The whole buffer.
    pub const fn whole(buffer: BufferId) -> Region {
        Region { buffer, chunk: None, portion: None }
    }

    /// Returns a chunk of a buffer, or all of it.
    pub const fn of_chunk(buffer: BufferId, chunk: Option<Chunk>) -> Region {
        Region { buffer, chunk, portion: None }
    }

    /// Returns true if both may access the same bytes.
    pub fn overlaps(&self, other: &Region) -> bool {
        let meet = |a: Option<Chunk>, b: Option<Chunk>| match (a, b) {
            (Some(a), Some(b)) => a.of != b.of || a.index == b.index,
            _ => true,
        };
        self.buffer == other.buffer
            && meet(self.chunk, other.chunk)
            && meet(self.portion, other.portion)
    }
}

/// Identifies the part of the work to which an instruction belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct At {
    /// `None` for operations outside the layers.
    pub layer: Option<u16>,
    pub batch: u16,
    /// Stream of the batch, whose rows are in a work list of the step table.
    pub stream: u16,
}

/// One operation, or a chunk of one, for one stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compute {
    pub op: Op,
    pub at: At,
    /// `None` for all units or rows. Of linears of experts, their portion
    /// ([`crate::expert_portions`]); `None` for all experts.
    pub chunk: Option<Chunk>,
    /// In the order of [`crate::expert_portions::reads`].
    pub inputs: Vec<Region>,
    /// Caches in the order of `Op::caches`; empty if nothing is cached yet. Also written by
    /// operations that update a state, which have it in every program. For `Sample`, those of which
    /// it takes checkpoints.
    pub caches: Vec<Region>,
    /// The weight blob; for `Embed` in a model with learned positions, also the position table.
    pub weights: Vec<Region>,
    /// For `Sample` the checkpoints of its batch, if there are any. In-place for the residual
    /// stream.
    pub output: Option<Region>,
    /// Step table of the batch, read by all operations and written by `Sample`.
    pub table: Region,
}

/// Kind of data that a `Copy` moves, which determines how many bytes of the regions are copied at a
/// given step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Moved {
    /// A whole weight blob.
    Weights(Op),
    /// The active rows (or units) of a value.
    Value(Value),
    /// Cached positions `0..past` of the chunk's units.
    Cache(Kv),
    /// Cached positions of the listed sequences, from their locations with one owner to those with
    /// the owner of the chunk.
    Sequences(Kv),
    /// The deferred rows of a value, to or from the buffer that keeps them between two steps
    /// (`crate::deferred_rows`).
    Deferred(Value),
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

/// Appends fresh K or V rows to the units of one chunk of the cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Append {
    pub kv: Kv,
    pub at: At,
    pub chunk: Chunk,
    pub from: Region,
    pub to: Region,
    pub table: Region,
}

/// Expands a weight blob from its stored format to the wider one that the GPU multiplies, both in
/// device memory (Park-Egger §4.3).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decompress {
    pub op: Op,
    pub at: At,
    pub from: Region,
    pub to: Region,
}

/// Reads one storage's share of a weight blob, or of the records of experts, into its part of a
/// slot in host or device memory. All of these regions are the same chunk of as many as there are
/// storages; `crate::shares` defines its bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Read {
    pub op: Op,
    pub at: At,
    pub from: Region,
    pub to: Region,
    /// Further linears of the same experts that the read fetches, in the order of their records
    /// (`crate::expert_records`); empty unless experts are read by routing.
    pub joined: Vec<JoinedWeights>,
    /// Operands that determine the experts to read (`crate::expert_reads`); `None` for the whole
    /// blob.
    pub routing: Option<RoutingRegions>,
}

/// Weights of a linear that are read together with those of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinedWeights {
    pub op: Op,
    /// The storage's weights, with the chunk of the read.
    pub from: Region,
}

/// Operands that determine the experts to which the rows of a stream are routed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoutingRegions {
    /// `Value::Routing` of the rows, on the host.
    pub routing: Region,
    /// Step table of the batch, with the number of rows.
    pub table: Region,
}

/// Blocks until `lane`'s timeline reaches `base + step * signals_per_step + offset`, where `step`
/// is the current step or the previous one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TimelineWait {
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
    Wait(TimelineWait),
    /// Adds one to the lane's timeline; all earlier work of the lane is complete.
    Signal,
}

impl Instruction {
    /// Returns true if the instruction samples tokens.
    pub fn is_sample(&self) -> bool {
        matches!(self, Instruction::Compute(compute) if compute.op == Op::Sample)
    }

    /// Regions read.
    pub fn reads(&self) -> Vec<Region> {
        let mut reads = Vec::new();
        self.for_each_read(|region| reads.push(region));
        reads
    }

    /// Regions written.
    pub fn writes(&self) -> Vec<Region> {
        let mut writes = Vec::new();
        self.for_each_write(|region| writes.push(region));
        writes
    }

    /// Returns the accessed regions, and whether each is written. A region that is read and written
    /// is listed twice.
    pub fn accesses(&self) -> Vec<(Region, bool)> {
        let mut accesses = Vec::new();
        self.for_each_read(|region| accesses.push((region, false)));
        self.for_each_write(|region| accesses.push((region, true)));
        accesses
    }

    /// Calls `see` with each region read.
    pub(crate) fn for_each_read(&self, see: impl FnMut(Region)) {
        match self {
            Instruction::Compute(Compute { inputs, caches, weights, table, .. }) => {
                let regions = inputs.iter().chain(caches).chain(weights).chain([table]);
                regions.copied().for_each(see);
            }
            Instruction::Copy(copy) => std::iter::once(copy.from).chain(copy.table).for_each(see),
            Instruction::Append(append) => [append.from, append.table].into_iter().for_each(see),
            Instruction::Decompress(Decompress { from, .. }) => {
                std::iter::once(*from).for_each(see)
            }
            Instruction::Read(Read { from, joined, routing, .. }) => {
                let routing = routing.iter().flat_map(|regions| [regions.routing, regions.table]);
                let joined = joined.iter().map(|joined| joined.from);
                std::iter::once(*from).chain(joined).chain(routing).for_each(see);
            }
            Instruction::Wait(_) | Instruction::Signal => {}
        }
    }

    /// Calls `see` with each region written.
    pub(crate) fn for_each_write(&self, mut see: impl FnMut(Region)) {
        match self {
            Instruction::Compute(compute) if self.is_sample() => {
                compute.output.into_iter().chain([compute.table]).for_each(see);
            }
            Instruction::Compute(compute) => {
                let states = if compute.op.updates_state() { &compute.caches[..] } else { &[] };
                compute.output.iter().chain(states).copied().for_each(see);
            }
            Instruction::Copy(Copy { to, .. })
            | Instruction::Append(Append { to, .. })
            | Instruction::Decompress(Decompress { to, .. })
            | Instruction::Read(Read { to, .. }) => see(*to),
            Instruction::Wait(_) | Instruction::Signal => {}
        }
    }

    /// Returns the instruction's place in the model; `None` for `TimelineWait` and `Signal`.
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

    /// Returns true if this is work (a span in the trace) rather than synchronisation.
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

/// The instruction list of a lane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneProgram {
    pub lane: LaneId,
    pub instructions: Vec<Instruction>,
    /// Number of `Signal`s in the list.
    pub signals_per_step: u32,
}

/// The work of all lanes in a step. Lanes without work have no entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Identity of the program within the plan.
    pub id: ProgramId,
    pub shape: ProgramShape,
    pub lanes: Vec<LaneProgram>,
}

impl Program {
    /// Returns the name used in reports and errors.
    pub const fn name(&self) -> &'static str {
        self.shape.name()
    }

    /// Returns the list of `lane`, if it has any work.
    pub fn lane(&self, lane: LaneId) -> Option<&LaneProgram> {
        self.lanes.iter().find(|program| program.lane == lane)
    }

    /// Returns the work of some lanes, lane by lane.
    pub fn work_of(&self, lanes: LaneSet) -> ProgramWork<'_> {
        let lists = self.lanes.iter().filter(|list| lanes.contains(list.lane));
        let all = lists.flat_map(|list| &list.instructions);
        let instructions = all.filter(|instruction| instruction.is_work()).collect();
        ProgramWork { id: self.id, shape: self.shape, instructions }
    }
}
