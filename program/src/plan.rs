//! A plan: everything workers need to know, in one value that travels to them.

use model::config::{Dtype, ModelConfig};
use serde::{Deserialize, Serialize};

use crate::ir::{BufferId, Program, ProgramId, ProgramShape, ProgramWork, Read, Rows};
use crate::lagging;
use crate::map::{Device, DeviceMap};
use crate::owners::Attending;
use crate::shares::{blocks_of, bytes_of};
use crate::step_table::{ListSize, Routers, StepTableLayout};
use crate::topology::{FAR_MAX, Holds, LaneId, MemoryKind, SegmentId, Topology};
use crate::weights::Weights;

/// The maxima that bound every size in a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunShape {
    /// N of `--batches NxB`.
    pub batches: u16,
    /// B of `--batches NxB`, sequences.
    pub batch_size: u16,
    /// Longest prompt of any group, positions.
    pub max_prompt: u32,
    /// Positions with which all prompts of all groups begin alike, and which prefill computes once;
    /// 0: each prompt is computed whole.
    pub shared_prompt: u32,
    /// Longest prompt + output of any sequence, positions.
    pub max_context: u32,
    /// Largest number of new tokens of any sequence.
    pub max_new: u32,
    /// Log-probabilities that are kept of each new token, at most: its own, then those of the most
    /// likely tokens.
    pub logprobs: u16,
    /// Whole prompts of a stream of prefill, where prompts are not cut into chunks.
    pub micro_sequences: u16,
    /// Most rows of a stream of prefill, which then are chunks of prompts, each behind the
    /// positions that the cache holds of it; 0: prompts are whole.
    pub prefill_chunk: u32,
    /// Sequences come while the run goes on: there is one program, each step of which computes at
    /// most `prefill_chunk` rows, of prompts and of newest tokens alike.
    pub serves: bool,
    /// Positions of a page, of which the caches of layers without a window then are lists, a
    /// multiple of 16; 0: each sequence has an extent of them.
    pub page_positions: u32,
    /// Pages of a batch in each of these caches.
    pub kv_pages: u32,
    /// Of a run that serves: most rows of a step whose logits are computed; fewer than the batch's
    /// sequences are as many as these.
    pub logits_rows: u32,
    /// Of a run that serves: the caches of so many sequences lie in device memory, an extent each,
    /// and the device attends for them; those of others lie in host memory, and the host attends
    /// (`crate::owners`). 0: caches are where the map says.
    pub device_slots: u16,
    pub dtype: Dtype,
}

impl RunShape {
    /// The longest prompt behind which a sequence has room for `new_tokens`, positions: the longest
    /// prompts of a run may have fewer new tokens than others of it.
    #[must_use]
    pub fn longest_prompt(&self, new_tokens: u32) -> u32 {
        self.max_prompt.min(self.max_context.saturating_sub(new_tokens)).max(1)
    }

    /// Whether sequences belong to the device or to the host.
    pub fn has_owners(&self) -> bool {
        self.device_slots > 0
    }

    /// Whether prompts are cut into chunks.
    pub fn is_chunked(&self) -> bool {
        self.prefill_chunk > 0
    }

    /// Streams of a batch in prefill, if they can be numbered.
    pub fn checked_streams(&self) -> Option<u16> {
        if self.serves {
            return Some(1);
        }
        if !self.is_chunked() {
            return Some(self.batch_size.div_ceil(self.micro_sequences));
        }
        let rows = u64::from(self.batch_size) * u64::from(self.max_prompt);
        u16::try_from(rows.div_ceil(u64::from(self.prefill_chunk))).ok()
    }

    /// Streams of a batch in prefill.
    ///
    /// # Panics
    /// A shape that the compiler refuses, with too many of them.
    pub fn streams(&self) -> u16 {
        self.checked_streams().expect("a shape that was compiled has few enough streams")
    }

    /// Most rows of a stream in prefill.
    pub fn stream_rows(&self) -> usize {
        if self.serves {
            return self.prefill_chunk as usize;
        }
        if self.is_chunked() {
            let all = usize::from(self.batch_size) * self.max_prompt as usize;
            return all.min(self.prefill_chunk as usize);
        }
        let others = usize::from(self.micro_sequences).saturating_sub(1);
        self.max_prompt as usize + others * self.own_rows() as usize
    }

    /// Most sequences of a stream in prefill.
    pub fn stream_sequences(&self) -> u16 {
        match u16::try_from(self.prefill_chunk) {
            Ok(0) => self.micro_sequences,
            Ok(chunk) => chunk.min(self.batch_size),
            Err(_) => self.batch_size,
        }
    }

    /// What the compiler makes programs for, in the order of their ids.
    ///
    /// # Panics
    /// As [`RunShape::streams`].
    pub fn programs(&self, config: &ModelConfig) -> Vec<ProgramShape> {
        if self.serves {
            return self.serving_programs(config);
        }
        let prefill = ProgramShape {
            rows: if self.is_chunked() { Rows::Chunks } else { Rows::WholePrompts },
            streams: self.streams(),
            sequences: self.stream_sequences(),
            stream_rows: self.stream_rows() as u32,
            logits_rows: self.stream_sequences().into(),
            next: ProgramId::DECODE,
            attending: Attending::Mapped,
        };
        let decode = ProgramShape {
            rows: Rows::Single,
            streams: 1,
            sequences: self.batch_size,
            stream_rows: self.batch_size.into(),
            logits_rows: self.batch_size.into(),
            next: ProgramId::DECODE,
            attending: Attending::Mapped,
        };
        vec![prefill, decode]
    }

    /// One program; where sequences have owners, one for each shape of a step that the model can
    /// have, and one for caches that move in either direction.
    fn serving_programs(&self, config: &ModelConfig) -> Vec<ProgramShape> {
        let step = ProgramShape {
            rows: Rows::Chunks,
            streams: 1,
            sequences: self.batch_size,
            stream_rows: self.prefill_chunk,
            logits_rows: self.logits_rows.max(self.batch_size.into()),
            next: ProgramId::STEP,
            attending: Attending::Mapped,
        };
        if !self.has_owners() {
            return vec![step];
        }
        let moves = |to| ProgramShape { rows: Rows::Moves(to), stream_rows: 1, ..step };
        let mut all = vec![
            ProgramShape { attending: Attending::Device, ..step },
            ProgramShape { attending: Attending::Owners, streams: 2, ..step },
            moves(Device::Cpu),
            moves(Device::Gpu),
        ];
        if lagging::can_lag(config) {
            let streams = lagging::streams(config.num_layers as u16);
            all.push(ProgramShape { attending: Attending::Lagging, streams, ..step });
        }
        all
    }

    /// The step table of a run whose decode attention is cut into so many parts.
    pub fn table(&self, config: &ModelConfig, chunks: u32) -> StepTableLayout {
        let list_size = |program: &ProgramShape| ListSize {
            streams: program.streams.into(),
            items: program.sequences.into(),
        };
        StepTableLayout {
            batches: u32::from(self.batches),
            batch_size: u32::from(self.batch_size),
            lists: self.programs(config).iter().map(list_size).collect(),
            max_prompt: self.max_prompt,
            max_new: self.max_new,
            logprobs: u32::from(self.logprobs),
            chunks,
            windows: config.layers.windows_below(self.max_context),
            routers: config.experts.map_or_else(Routers::default, |experts| Routers {
                layers: config.num_layers as u32,
                experts: experts.count as u32,
            }),
            pages: match self.page_positions {
                0 => 0,
                positions => self.max_context.div_ceil(positions),
            },
            has_owners: self.has_owners(),
        }
    }

    /// Most rows of a sequence of a stream in prefill that is not its first, where prompts are
    /// whole.
    pub fn own_rows(&self) -> u32 {
        self.max_prompt.saturating_sub(self.shared_prompt).max(1)
    }
}

/// A named range of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    pub name: String,
    pub segment: SegmentId,
    pub offset_bytes: u64,
    pub size_bytes: u64,
}

/// Which weights fill a buffer of the host or of a storage at load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightPlacement {
    pub buffer: BufferId,
    pub weights: Weights,
}

/// Host weights that the transfer worker puts into device memory once, at load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResidentWeights {
    pub from: BufferId,
    pub to: BufferId,
}

/// A compiled, self-contained run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub config: ModelConfig,
    pub shape: RunShape,
    /// The machine that the plan is for.
    pub topology: Topology,
    pub map: DeviceMap,
    pub buffers: Vec<Buffer>,
    pub weights: Vec<WeightPlacement>,
    pub resident: Vec<ResidentWeights>,
    pub table: StepTableLayout,
    /// Each at the place of its id.
    pub programs: Vec<Program>,
}

/// What memory a plan takes, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    pub host_weights_bytes: u64,
    /// In further memories of the host, by their numbers.
    pub far_weights_bytes: [u64; FAR_MAX],
    pub host_kv_bytes: u64,
    pub host_activations_bytes: u64,
    /// The plan's buffers in the device arena.
    pub device_bytes: u64,
    /// What the device needs behind them.
    pub device_scratch_bytes: u64,
    pub step_table_bytes: u64,
}

/// What device memory a plan of a single program would take, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramFootprint {
    /// Weights that stay and caches, which are there for every program.
    pub kept_bytes: u64,
    /// The program's activations and slots. Those of programs share addresses.
    pub own_bytes: u64,
    /// What the device needs behind them for what it computes in the program.
    pub scratch_bytes: u64,
}

/// What a device computes in a plan, by which its scratch is sized.
#[derive(Debug, Clone)]
pub struct DeviceWork<'a> {
    pub config: &'a ModelConfig,
    pub shape: &'a RunShape,
    pub map: &'a DeviceMap,
    /// End of the plan's buffers in the arena.
    pub buffers_bytes: u64,
    /// Work of the lanes that compute there.
    pub programs: Vec<ProgramWork<'a>>,
}

/// Bytes that a device needs beside a plan's buffers.
pub type DeviceScratch = fn(&DeviceWork<'_>) -> u64;

impl Footprint {
    pub(crate) fn new(
        topology: &Topology,
        buffers: &[Buffer],
        table: &StepTableLayout,
    ) -> Footprint {
        Footprint::of_ends(topology, |segment| end_bytes(buffers, segment), table)
    }

    /// Of segments that end there.
    pub(crate) fn of_ends(
        topology: &Topology,
        end_bytes: impl Fn(SegmentId) -> u64,
        table: &StepTableLayout,
    ) -> Footprint {
        let of_kind = |kind: MemoryKind, holds: Holds| -> u64 {
            let segments = topology.segments().into_iter();
            let wanted = segments.filter(|segment| {
                segment.holds == holds && topology.memory_kind(segment.memory) == Some(kind)
            });
            wanted.map(&end_bytes).sum()
        };
        let far_weights_bytes = std::array::from_fn(|number| {
            let memory = topology.far(number as u8);
            memory.map_or(0, |memory| end_bytes(SegmentId { memory, holds: Holds::Weights }))
        });
        Footprint {
            host_weights_bytes: of_kind(MemoryKind::Dram, Holds::Weights)
                - far_weights_bytes.iter().sum::<u64>(),
            far_weights_bytes,
            host_kv_bytes: of_kind(MemoryKind::Dram, Holds::Kv),
            host_activations_bytes: of_kind(MemoryKind::Dram, Holds::Activations),
            device_bytes: of_kind(MemoryKind::Vram, Holds::Arena),
            device_scratch_bytes: 0,
            step_table_bytes: table.words() as u64 * 4,
        }
    }
}

impl Footprint {
    /// The same on a device that needs `scratch` for `work`; none where the plan has nothing to do
    /// there.
    pub(crate) fn with_scratch<'a>(
        self,
        scratch: Option<DeviceScratch>,
        work: impl FnOnce() -> DeviceWork<'a>,
    ) -> Footprint {
        let Some(scratch) = scratch else { return self };
        let work = work();
        let idle = work.programs.iter().all(|program| program.instructions.is_empty());
        let device_scratch_bytes = if idle { 0 } else { scratch(&work) };
        Footprint { device_scratch_bytes, ..self }
    }
}

/// The end of the last buffer of a segment.
fn end_bytes(buffers: &[Buffer], segment: SegmentId) -> u64 {
    buffers
        .iter()
        .filter(|buffer| buffer.segment == segment)
        .map(|buffer| buffer.offset_bytes + buffer.size_bytes)
        .max()
        .unwrap_or(0)
}

impl Plan {
    /// Size of a segment: the end of its last buffer.
    pub fn segment_bytes(&self, segment: SegmentId) -> u64 {
        end_bytes(&self.buffers, segment)
    }

    /// What memory the plan takes, on a device that needs `scratch` beside it.
    pub fn footprint(&self, scratch: Option<DeviceScratch>) -> Footprint {
        let footprint = Footprint::new(&self.topology, &self.buffers, &self.table);
        footprint.with_scratch(scratch, || self.device_work())
    }

    /// What a device computes.
    pub fn device_work(&self) -> DeviceWork<'_> {
        let computes = self.topology.device_computes();
        let device = self.topology.device();
        let segments = device.map_or_else(Vec::new, |memory| self.topology.segments_of(memory));
        DeviceWork {
            config: &self.config,
            shape: &self.shape,
            map: &self.map,
            buffers_bytes: segments.iter().map(|segment| self.segment_bytes(*segment)).sum(),
            programs: self.programs.iter().map(|program| program.work_of(computes)).collect(),
        }
    }

    /// Bytes that a read moves, while no storage is lost.
    pub fn read_bytes(&self, read: &Read) -> u64 {
        let size_bytes = self.buffer(read.from.buffer).size_bytes;
        let storage = read.from.chunk.map_or(0, |chunk| chunk.index);
        let blocks = self.map.shares.blocks(read.op, storage, blocks_of(size_bytes), |_| false);
        let bytes = bytes_of(&blocks, size_bytes);
        bytes.end - bytes.start
    }

    /// A program by id.
    pub fn program(&self, id: ProgramId) -> &Program {
        &self.programs[id.index()]
    }

    /// The same, to change it.
    pub fn program_mut(&mut self, id: ProgramId) -> &mut Program {
        &mut self.programs[id.index()]
    }

    /// The program that computes prompts.
    pub fn prefill(&self) -> &Program {
        self.program(ProgramId::PREFILL)
    }

    /// The program that computes the newest token of each sequence.
    pub fn decode(&self) -> &Program {
        self.program(ProgramId::DECODE)
    }

    /// A buffer by id.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0 as usize]
    }

    /// Lanes with work in any program, in timeline order.
    pub fn lanes(&self) -> Vec<LaneId> {
        let works = |lane| self.programs.iter().any(|program| program.lane(lane).is_some());
        self.topology.lane_ids().filter(|lane| works(*lane)).collect()
    }

    /// A lane's name.
    pub fn lane_name(&self, lane: LaneId) -> &str {
        self.topology.lane_name(lane)
    }
}
