//! A plan: everything that workers need, in one serialisable value.

use model::config::{Dtype, ModelConfig};
use model::ops::align_up;
use serde::{Deserialize, Serialize};

use crate::deferred_rows;
use crate::expert_portions::read_portions;
use crate::expert_reads::list_words;
use crate::expert_records::{ExpertOps, ExpertRecord};
use crate::ir::{BufferId, Program, ProgramId, ProgramShape, ProgramWork, Read, Rows};
use crate::kv_owner::AttentionSide;
use crate::map::{ComputeDevice, DeviceMap};
pub use crate::resident_weights::{ResidentSource, ResidentWeights};
use crate::shares::{blocks_of, bytes_of};
use crate::step_table::{ListSize, PLANNED_CHECKPOINTS, Routers, StepTableLayout};
use crate::topology::{Holds, LaneId, MemoryId, MemoryKind, SLOW_TIERS_MAX, SegmentId, Topology};
use crate::weights::Weights;

/// The maxima that bound every size in a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunShape {
    /// Number of batches, N of `--batches NxB`.
    pub batches: u16,
    /// Sequences per batch, B of `--batches NxB`.
    pub batch_size: u16,
    /// Length of the longest prompt of any group, in positions.
    pub max_prompt: u32,
    /// Length of the prefix that all prompts of all groups share, and which prefill computes once,
    /// in positions; 0: each prompt is computed whole.
    pub shared_prompt: u32,
    /// Maximum length of a sequence, prompt and output, in positions.
    pub max_context: u32,
    /// Maximum number of new tokens of a sequence.
    pub max_new: u32,
    /// Maximum number of log-probabilities kept for each new token: its own and those of the most
    /// likely tokens.
    pub logprobs: u16,
    /// Number of whole prompts in a stream of prefill, if prompts are not split into chunks.
    pub micro_sequences: u16,
    /// Maximum number of rows in a stream of prefill, which is then a chunk of prompts whose
    /// earlier positions are cached; 0: prompts are whole.
    pub prefill_chunk: u32,
    /// Serving run: sequences arrive while the run continues. There is one program, each step of
    /// which computes at most `prefill_chunk` rows, of prompts and of newest tokens.
    pub serves: bool,
    /// Positions of a page, if the caches of layers without a window are lists of pages, a multiple
    /// of 16; 0: each sequence has a contiguous extent.
    pub page_positions: u32,
    /// Number of pages of a batch in each of these caches.
    pub kv_pages: u32,
    /// Serving run with pages: number of checkpoints of a batch (`crate::checkpoints`); 0: none are
    /// taken.
    pub checkpoints: u32,
    /// Serving run: maximum number of rows of a step whose logits are computed, at least the number
    /// of sequences of the batch.
    pub logits_rows: u32,
    /// Serving run: number of sequences whose caches are in device memory, an extent each, and
    /// whose attention the device computes. The caches of all others are in host memory, and the
    /// host computes their attention (`crate::owners`). 0: caches are placed by the map.
    pub device_slots: u16,
    pub dtype: Dtype,
}

impl RunShape {
    /// Returns the longest prompt after which a sequence has capacity for `new_tokens`, in
    /// positions: the longest prompts of a run may have fewer new tokens than others.
    #[must_use]
    pub fn longest_prompt(&self, new_tokens: u32) -> u32 {
        self.max_prompt.min(self.max_context.saturating_sub(new_tokens)).max(1)
    }

    /// Returns true if sequences are owned by the device or by the host.
    pub fn has_owners(&self) -> bool {
        self.device_slots > 0
    }

    /// Returns true if prompts are split into chunks.
    pub fn is_chunked(&self) -> bool {
        self.prefill_chunk > 0
    }

    /// Returns the number of streams of a batch in prefill, if it fits its type.
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

    /// Returns the number of streams of a batch in prefill.
    ///
    /// # Panics
    /// For a shape with too many streams, which the compiler refuses.
    pub fn streams(&self) -> u16 {
        self.checked_streams().expect("a shape that was compiled has few enough streams")
    }

    /// Returns the maximum number of rows of a stream in prefill.
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

    /// Returns the maximum number of sequences of a stream in prefill.
    pub fn stream_sequences(&self) -> u16 {
        match u16::try_from(self.prefill_chunk) {
            Ok(0) => self.micro_sequences,
            Ok(chunk) => chunk.min(self.batch_size),
            Err(_) => self.batch_size,
        }
    }

    /// Returns the shapes of the programs to compile, in the order of their ids.
    ///
    /// # Panics
    /// Panics like [`RunShape::streams`].
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
            attention_side: AttentionSide::Mapped,
        };
        let decode = ProgramShape {
            rows: Rows::Single,
            streams: 1,
            sequences: self.batch_size,
            stream_rows: self.batch_size.into(),
            logits_rows: self.batch_size.into(),
            next: ProgramId::DECODE,
            attention_side: AttentionSide::Mapped,
        };
        vec![prefill, decode]
    }

    /// Returns one program; if sequences have owners, one for each kind of step that the model
    /// supports, and one for each direction in which caches migrate.
    fn serving_programs(&self, config: &ModelConfig) -> Vec<ProgramShape> {
        let step = ProgramShape {
            rows: Rows::Chunks,
            streams: 1,
            sequences: self.batch_size,
            stream_rows: self.prefill_chunk,
            logits_rows: self.logits_rows.max(self.batch_size.into()),
            next: ProgramId::STEP,
            attention_side: AttentionSide::Mapped,
        };
        if !self.has_owners() {
            return vec![step];
        }
        let moves = |to| ProgramShape { rows: Rows::Moves(to), stream_rows: 1, ..step };
        let mut all = vec![
            ProgramShape { attention_side: AttentionSide::Device, ..step },
            ProgramShape { attention_side: AttentionSide::Owners, streams: 2, ..step },
            moves(ComputeDevice::Cpu),
            moves(ComputeDevice::Gpu),
        ];
        if deferred_rows::can_defer_rows(config) {
            let streams = deferred_rows::streams(config.num_layers as u16);
            all.push(ProgramShape { attention_side: AttentionSide::Deferred, streams, ..step });
        }
        all
    }

    /// Returns the step table of a run whose decode attention is split into `chunks` parts.
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
                logged: 0,
            }),
            pages: match self.page_positions {
                0 => 0,
                positions => self.max_context.div_ceil(positions),
            },
            planned_checkpoints: if self.checkpoints > 0 { PLANNED_CHECKPOINTS } else { 0 },
            has_owners: self.has_owners(),
            pooled: if self.pools() { config.hidden_size as u32 } else { 0 },
        }
    }

    /// Returns true if `Sample` also reads the rows after the final norm and pools them for the
    /// sequences that request it.
    pub const fn pools(&self) -> bool {
        self.serves
    }

    /// Returns the maximum number of rows of a sequence in a stream of prefill that is not its
    /// first, if prompts are whole.
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

/// Assignment of weights to a buffer of the host or of a storage, filled at load time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightPlacement {
    pub buffer: BufferId,
    pub weights: Weights,
}

/// Cache of experts: as many slots as the map has, which every layer shares. The router of a layer
/// assigns slots, and reads fill them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertCacheBuffer {
    pub buffer: BufferId,
    /// Size of a slot, which has capacity for the linears of an expert that any layer reads.
    pub slot_bytes: u64,
}

/// A compiled, self-contained run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub config: ModelConfig,
    pub shape: RunShape,
    /// The machine for which the plan was compiled.
    pub topology: Topology,
    pub map: DeviceMap,
    pub buffers: Vec<Buffer>,
    pub weights: Vec<WeightPlacement>,
    pub resident: Vec<ResidentWeights>,
    /// Cache of experts in host memory.
    pub expert_cache: Option<ExpertCacheBuffer>,
    pub table: StepTableLayout,
    /// The programs, indexed by id.
    pub programs: Vec<Program>,
}

/// Memory that a plan takes, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    pub host_weights_bytes: u64,
    /// Weights in additional host memories, by the numbers of these memories.
    pub slow_tier_weights_bytes: [u64; SLOW_TIERS_MAX],
    pub host_kv_bytes: u64,
    pub host_activations_bytes: u64,
    /// Size of the plan's buffers in the device arena.
    pub device_bytes: u64,
    /// Scratch of the device, located after these buffers.
    pub device_scratch_bytes: u64,
    pub step_table_bytes: u64,
}

/// Device memory that a plan with a single program would take, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramFootprint {
    /// Resident weights and caches, which are the same for every program.
    pub kept_bytes: u64,
    /// The program's activations and slots. Programs share these addresses.
    pub own_bytes: u64,
    /// Scratch of the device for the work of the program.
    pub scratch_bytes: u64,
}

/// The work of a device in a plan, which determines the size of its scratch.
#[derive(Debug, Clone)]
pub struct DeviceWork<'a> {
    pub config: &'a ModelConfig,
    pub shape: &'a RunShape,
    pub map: &'a DeviceMap,
    /// End of the plan's buffers in the arena.
    pub buffers_bytes: u64,
    /// Work of the lanes that compute on the device.
    pub programs: Vec<ProgramWork<'a>>,
}

/// Function that returns the bytes a device needs in addition to a plan's buffers.
pub type DeviceScratch = fn(&DeviceWork<'_>) -> u64;

impl Footprint {
    pub(crate) fn new(
        topology: &Topology,
        buffers: &[Buffer],
        table: &StepTableLayout,
    ) -> Footprint {
        Footprint::of_ends(topology, |segment| end_bytes(buffers, segment), table)
    }

    /// Returns the footprint of segments with these ends.
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
        let slow_tier_weights_bytes = std::array::from_fn(|number| {
            let memory = topology.slow_tier(number as u8);
            memory.map_or(0, |memory| end_bytes(SegmentId { memory, holds: Holds::Weights }))
        });
        Footprint {
            host_weights_bytes: of_kind(MemoryKind::Dram, Holds::Weights)
                - slow_tier_weights_bytes.iter().sum::<u64>(),
            slow_tier_weights_bytes,
            host_kv_bytes: of_kind(MemoryKind::Dram, Holds::Kv),
            host_activations_bytes: of_kind(MemoryKind::Dram, Holds::Activations),
            device_bytes: of_kind(MemoryKind::Vram, Holds::Arena),
            device_scratch_bytes: 0,
            step_table_bytes: table.words() as u64 * 4,
        }
    }
}

impl Footprint {
    /// Adds the scratch of a device that needs `scratch` for `work`; none if the plan has no work
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

/// Returns the end of the last buffer of a segment.
fn end_bytes(buffers: &[Buffer], segment: SegmentId) -> u64 {
    buffers
        .iter()
        .filter(|buffer| buffer.segment == segment)
        .map(|buffer| buffer.offset_bytes + buffer.size_bytes)
        .max()
        .unwrap_or(0)
}

impl Plan {
    /// Returns the size of a segment, which is the end of its last buffer.
    pub fn segment_bytes(&self, segment: SegmentId) -> u64 {
        end_bytes(&self.buffers, segment)
    }

    /// Returns the memory that the plan takes, with the scratch of the device.
    pub fn footprint(&self, scratch: Option<DeviceScratch>) -> Footprint {
        let footprint = Footprint::new(&self.topology, &self.buffers, &self.table);
        footprint.with_scratch(scratch, || self.device_work())
    }

    /// Returns the work of the device.
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

    /// Returns the number of bytes that a read transfers while no storage is lost, in a step of all
    /// sequences: of experts that rows are routed to, the number to expect of rows that are
    /// routed as the map counts on, without a cache.
    pub fn read_bytes(&self, read: &Read) -> u64 {
        let size_bytes = match self.expert_record(read.at.layer, read.expert_ops()) {
            Some(record) => record.count * record.slot_bytes(read.expert_ops()),
            None => self.buffer(read.from.buffer).size_bytes,
        };
        let storage = read.from.chunk.map_or(0, |chunk| chunk.index);
        let blocks = self.map.shares.blocks(read.op, storage, blocks_of(size_bytes), |_| false);
        let bytes = bytes_of(&blocks, size_bytes);
        let all_bytes = bytes.end - bytes.start;
        match self.config.experts.filter(|_| read.routing.is_some()) {
            Some(experts) => {
                let rows = self.shape.batch_size.into();
                let share = self.map.routing.expected_share(&experts, rows);
                let has_cache = self.expert_cache_of(read.to.buffer).is_some();
                let portions = read.to.portion.map_or(1, |one| read_portions(has_cache, one.of));
                (all_bytes as f64 * share / f64::from(portions)).ceil() as u64
            }
            None => all_bytes,
        }
    }

    /// Returns the layout of the records on storages from which `ops` of a layer are read; `None`
    /// without linears of experts.
    pub fn expert_record(&self, layer: Option<u16>, ops: ExpertOps) -> Option<ExpertRecord> {
        let layer = layer.filter(|_| !ops.is_empty())?;
        ExpertRecord::new(&self.config, layer, self.shape.dtype, &self.map.weight_formats)
    }

    /// Returns true if weights of a layer are read from storages in every step.
    pub fn reads_from_storages(&self, weights: Weights) -> bool {
        let Weights::Layer { layer, op } = weights else { return false };
        self.map.weights_of(&self.config, Some(layer), op) == MemoryId::STORAGES
    }

    /// Returns the cache that a buffer of weights is, if it is one.
    pub fn expert_cache_of(&self, buffer: BufferId) -> Option<ExpertCacheBuffer> {
        self.expert_cache.filter(|cache| cache.buffer == buffer)
    }

    /// Returns the size of an expert's slot in the buffer that a read of experts fills.
    pub fn expert_slot_bytes(&self, read: &Read) -> Option<u64> {
        let record = self.expert_record(read.at.layer, read.expert_ops())?;
        let cache = self.expert_cache_of(read.to.buffer);
        Some(cache.map_or_else(|| record.slot_bytes(read.expert_ops()), |cache| cache.slot_bytes))
    }

    /// Returns the offset of the list of cached experts in the buffer of a routing, whose last
    /// bytes it takes.
    pub fn expert_list_offset(&self, routing: BufferId) -> usize {
        self.buffer(routing).size_bytes as usize - align_up(4 * list_words(&self.config))
    }

    /// Returns a program by id.
    pub fn program(&self, id: ProgramId) -> &Program {
        &self.programs[id.index()]
    }

    /// Returns a program by id, mutably.
    pub fn program_mut(&mut self, id: ProgramId) -> &mut Program {
        &mut self.programs[id.index()]
    }

    /// Returns the program that computes prompts.
    pub fn prefill(&self) -> &Program {
        self.program(ProgramId::PREFILL)
    }

    /// Returns the program that computes the newest token of each sequence.
    pub fn decode(&self) -> &Program {
        self.program(ProgramId::DECODE)
    }

    /// Returns a buffer by id.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0 as usize]
    }

    /// Returns the lanes with work in any program, in timeline order.
    pub fn lanes(&self) -> Vec<LaneId> {
        let works = |lane| self.programs.iter().any(|program| program.lane(lane).is_some());
        self.topology.lane_ids().filter(|lane| works(*lane)).collect()
    }

    /// Returns a lane's name.
    pub fn lane_name(&self, lane: LaneId) -> &str {
        self.topology.lane_name(lane)
    }
}
