//! Hand-made plans: buffers of the true shapes, and instructions that use them.
//!
//! A [`BenchPlanBuilder`] creates a buffer when an instruction first needs it. Its plans differ
//! from compiled ones in what they prove: they are free of deadlocks and races
//! (`validate_program`), but operations read uninitialised data, since only their duration matters.
//!
//! **KV lengths without prefill.** Prefill of such a plan only samples. Sampling sets each
//! sequence's cached positions to its prompt's length, so decode follows a prompt of any length
//! that was never computed; [`BenchPlanBuilder::skip_prompts`] makes that program.

use std::collections::HashMap;

use model::config::{Dtype, ModelConfig};
use model::ops::{Kv, Op, Value, align_up};
use model::quantized_format::WeightFormat;
use program::expert_reads::ExpertReads;
use program::formats::{KvFormat, WeightFormats, decompressed};
use program::ir::{
    Append, At, BufferId, Compute, Copy, Decompress, Instruction, Moved, Program, ProgramId, Region,
};
use program::map::Phase;
use program::map::{Chunk, ComputeDevice, DeviceMap, PhaseMap, Schedule};
use program::plan::{Buffer, Plan, ResidentSource, ResidentWeights, RunShape, WeightPlacement};
use program::shares::ReadShares;
use program::sizes::Sizes;
use program::topology::{LaneId, MemoryId, SegmentId, Topology};
use program::weights::Weights;

use crate::stages::Stages;

/// Identity of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum BufferKey {
    Host(Weights),
    /// Loaded once into device memory.
    Resident(Weights),
    /// Destination of a blob's copies.
    Streamed(Weights),
    Wide(Weights),
    Value(Value, ComputeDevice),
    /// Cache part of one layer.
    Cache(Kv, u16, Chunk, ComputeDevice),
    Table(u16),
}

/// The maxima of a bench.
#[derive(Debug, Clone)]
pub(crate) struct BenchShape {
    /// Configuration with as many layers as there are copies of the layer's weights.
    pub(crate) config: ModelConfig,
    pub(crate) dtype: Dtype,
    pub(crate) weights: WeightFormats,
    pub(crate) kv: KvFormat,
    pub(crate) batches: u16,
    pub(crate) batch_size: u16,
    /// Number of sequences in a stream of prefill.
    pub(crate) micro_sequences: u16,
    pub(crate) max_prompt: u32,
    pub(crate) max_new: u32,
    /// Number of parts of split attention.
    pub(crate) chunks: u16,
    /// True if there is a device.
    pub(crate) device: bool,
}

impl BenchShape {
    fn max_context(&self) -> u32 {
        self.max_prompt + self.max_new
    }

    fn rows_max(&self) -> usize {
        let stream = usize::from(self.micro_sequences) * self.max_prompt as usize;
        stream.max(usize::from(self.batch_size))
    }
}

/// Builds one plan; see the module documentation.
#[derive(Debug)]
pub(crate) struct BenchPlanBuilder {
    shape: BenchShape,
    buffers: Vec<Buffer>,
    segment_ends: HashMap<SegmentId, u64>,
    slots: HashMap<BufferKey, BufferId>,
    weight_placements: Vec<WeightPlacement>,
    resident: Vec<ResidentWeights>,
}

impl BenchPlanBuilder {
    pub(crate) fn new(shape: BenchShape) -> BenchPlanBuilder {
        let mut bench = BenchPlanBuilder {
            shape,
            buffers: Vec::new(),
            segment_ends: HashMap::new(),
            slots: HashMap::new(),
            weight_placements: Vec::new(),
            resident: Vec::new(),
        };
        // Buffers of no bytes, so that tables have ids like all other buffers.
        for batch in 0..bench.shape.batches {
            bench.slot(BufferKey::Table(batch));
        }
        bench
    }

    pub(crate) fn shape(&self) -> &BenchShape {
        &self.shape
    }

    fn slot(&mut self, slot: BufferKey) -> BufferId {
        if let Some(id) = self.slots.get(&slot) {
            return *id;
        }
        let (segment, size_bytes) = self.place(slot);
        let end = self.segment_ends.entry(segment).or_insert(0);
        let size_bytes = align_up(size_bytes) as u64;
        let id = BufferId(self.buffers.len() as u32);
        let name = format!("bench.{slot:?}").to_lowercase();
        let offset_bytes = if segment == SegmentId::CONTROL { 0 } else { *end };
        self.buffers.push(Buffer { name, segment, offset_bytes, size_bytes });
        *end += size_bytes;
        self.slots.insert(slot, id);
        match slot {
            BufferKey::Host(weights) => {
                self.weight_placements.push(WeightPlacement { buffer: id, weights })
            }
            BufferKey::Resident(weights) => {
                let from = self.host(weights);
                self.resident.push(ResidentWeights { source: ResidentSource::Host(from), to: id });
            }
            _ => {}
        }
        id
    }

    /// Returns the host's copy; the head of a tied model is the embedding.
    fn host(&mut self, weights: Weights) -> BufferId {
        let tied = weights == Weights::Head && self.shape.config.tied_embeddings;
        self.slot(BufferKey::Host(if tied { Weights::Embedding } else { weights }))
    }

    fn place(&self, slot: BufferKey) -> (SegmentId, usize) {
        let sizes = self.sizes();
        let host =
            |device, memory| if device == ComputeDevice::Cpu { memory } else { SegmentId::DEVICE };
        match slot {
            BufferKey::Host(weights) => (SegmentId::HOST_WEIGHTS, sizes.weights_bytes(weights)),
            BufferKey::Resident(weights) | BufferKey::Streamed(weights) => {
                (SegmentId::DEVICE, sizes.weights_bytes(weights))
            }
            BufferKey::Wide(weights) => (SegmentId::DEVICE, sizes.wide_bytes(weights)),
            BufferKey::Value(value, device) => {
                let sequences = usize::from(self.shape.batch_size);
                let bytes = sizes.value_bytes(value, self.shape.rows_max(), sequences);
                (host(device, SegmentId::HOST_ACTIVATIONS), bytes)
            }
            BufferKey::Cache(kv, layer, chunk, device) => {
                let bytes = sizes.cache_bytes(usize::from(layer), kv, chunk.of);
                (host(device, SegmentId::HOST_KV), bytes)
            }
            BufferKey::Table(_) => (SegmentId::CONTROL, 0),
        }
    }

    fn sizes(&self) -> Sizes<'_> {
        Sizes {
            config: &self.shape.config,
            dtype: self.shape.dtype,
            batch_size: self.shape.batch_size,
            device_slots: 0,
            max_context: self.shape.max_context(),
            weight_formats: &self.shape.weights,
            kv_format: self.shape.kv,
            kv_select: None,
            paged_positions: 0,
        }
    }

    fn format(&self, weights: Weights) -> WeightFormat {
        self.shape.weights.of(&self.shape.config, weights)
    }

    fn table(&mut self, batch: u16) -> Region {
        Region::whole(self.slot(BufferKey::Table(batch)))
    }

    fn value(&mut self, value: Value, device: ComputeDevice, chunk: Option<Chunk>) -> Region {
        let split = matches!(value, Value::Scores | Value::Probabilities | Value::Attended);
        let buffer = self.slot(BufferKey::Value(value, device));
        Region::of_chunk(buffer, chunk.filter(|_| split))
    }

    /// Returns an operation on a device, for one batch (decode) or stream (prefill). On the device
    /// its weights are resident, or the output of `decompress`.
    pub(crate) fn compute(
        &mut self,
        phase: Phase,
        device: ComputeDevice,
        op: Op,
        layer: Option<u16>,
        chunk: Option<Chunk>,
        at: (u16, u16),
    ) -> Instruction {
        let inputs = op
            .reads(&self.shape.config)
            .iter()
            .map(|value| self.value(*value, device, chunk))
            .collect();
        let has_caches = phase == Phase::Decode || op.updates_state();
        let kinds = if has_caches { op.caches(&self.shape.config) } else { &[] };
        let part = chunk.unwrap_or(Chunk::WHOLE);
        let caches = kinds
            .iter()
            .map(|kv| {
                Region::whole(self.slot(BufferKey::Cache(*kv, layer.unwrap_or(0), part, device)))
            })
            .collect();
        let mut blobs = Vec::new();
        if op.weights(&self.shape.config).is_some() {
            blobs.push(Weights::of(op, layer));
        }
        if op == Op::Embed && self.shape.config.learned_positions.is_some() {
            blobs.push(Weights::Positions);
        }
        let weights = blobs.into_iter().map(|blob| self.device_weights(device, blob)).collect();
        let output = op.writes(&self.shape.config).map(|value| self.value(value, device, chunk));
        let (batch, stream) = at;
        let at = At { layer, batch, stream };
        let table = self.table(batch);
        Instruction::Compute(Compute { op, at, chunk, inputs, caches, weights, output, table })
    }

    fn device_weights(&mut self, device: ComputeDevice, blob: Weights) -> Region {
        Region::whole(match device {
            ComputeDevice::Cpu => self.host(blob),
            ComputeDevice::Gpu if decompressed(self.format(blob)).is_some() => {
                self.slot(BufferKey::Wide(blob))
            }
            ComputeDevice::Gpu => self.slot(BufferKey::Resident(blob)),
        })
    }

    /// Returns the copy of a blob from the host to its own slot.
    pub(crate) fn copy_weights(&mut self, op: Op, layer: Option<u16>) -> Instruction {
        let blob = Weights::of(op, layer);
        let from = Region::whole(self.host(blob));
        let to = Region::whole(self.slot(BufferKey::Streamed(blob)));
        let at = At { layer, batch: 0, stream: 0 };
        let moved = Moved::Weights(op);
        Instruction::Copy(Copy { moved, at, chunk: None, from, to, table: None })
    }

    /// Returns the decompression of a blob in its slot; `None` for a format that the device reads
    /// directly.
    pub(crate) fn decompress(&mut self, op: Op, layer: u16) -> Option<Instruction> {
        let blob = Weights::Layer { layer, op };
        decompressed(self.format(blob))?;
        let at = At { layer: Some(layer), batch: 0, stream: 0 };
        let from = Region::whole(self.slot(BufferKey::Streamed(blob)));
        let to = Region::whole(self.slot(BufferKey::Wide(blob)));
        Some(Instruction::Decompress(Decompress { op, at, from, to }))
    }

    /// Returns the copy of the active rows of a value, or of a chunk of it, to the other side.
    pub(crate) fn copy_value(
        &mut self,
        value: Value,
        chunk: Option<Chunk>,
        to: ComputeDevice,
    ) -> Instruction {
        let other = if to == ComputeDevice::Cpu { ComputeDevice::Gpu } else { ComputeDevice::Cpu };
        Instruction::Copy(Copy {
            moved: Moved::Value(value),
            at: At { layer: Some(0), batch: 0, stream: 0 },
            chunk,
            from: self.value(value, other, chunk),
            to: self.value(value, to, chunk),
            table: Some(self.table(0)),
        })
    }

    /// Returns the copy of the cached positions of a part of the cache, from the host to the
    /// device.
    pub(crate) fn copy_cache(&mut self, kv: Kv, layer: u16, chunk: Chunk) -> Instruction {
        Instruction::Copy(Copy {
            moved: Moved::Cache(kv),
            at: At { layer: Some(layer), batch: 0, stream: 0 },
            chunk: Some(chunk),
            from: Region::whole(self.slot(BufferKey::Cache(kv, layer, chunk, ComputeDevice::Cpu))),
            to: Region::whole(self.slot(BufferKey::Cache(kv, layer, chunk, ComputeDevice::Gpu))),
            table: Some(self.table(0)),
        })
    }

    /// Returns the append of a device's fresh rows to its part of the cache.
    pub(crate) fn append(
        &mut self,
        kv: Kv,
        layer: u16,
        chunk: Chunk,
        device: ComputeDevice,
    ) -> Instruction {
        let value = if kv == Kv::K { Value::Key } else { Value::Value };
        Instruction::Append(Append {
            kv,
            at: At { layer: Some(layer), batch: 0, stream: 0 },
            chunk,
            from: self.value(value, device, None),
            to: Region::whole(self.slot(BufferKey::Cache(kv, layer, chunk, device))),
            table: self.table(0),
        })
    }

    /// Returns the sampling of one stream, which ends a step.
    pub(crate) fn sample(
        &mut self,
        phase: Phase,
        device: ComputeDevice,
        at: (u16, u16),
    ) -> Instruction {
        self.compute(phase, device, Op::Sample, None, None, at)
    }

    /// Returns a prefill that computes nothing; see the module documentation.
    pub(crate) fn skip_prompts(&mut self, device: ComputeDevice) -> Stages {
        let streams = self.shape.batch_size.div_ceil(self.shape.micro_sequences);
        let mut stages = Stages::default();
        let samples =
            (0..streams).map(|stream| self.sample(Phase::Prefill, device, (0, stream))).collect();
        stages.push(compute_lane(device), samples);
        stages
    }

    /// Returns the number of bytes that a copy of weights moves; 0 for other instructions.
    pub(crate) fn copied_bytes(&self, instruction: &Instruction) -> u64 {
        match instruction {
            Instruction::Copy(Copy { moved: Moved::Weights(op), at, .. }) => {
                self.sizes().weights_bytes(Weights::of(*op, at.layer)) as u64
            }
            _ => 0,
        }
    }

    /// Returns a plan without programs, from which the keys of instructions are derived.
    pub(crate) fn peek(&self) -> Plan {
        BenchPlanBuilder::new(self.shape.clone()).plan(Stages::default(), Stages::default())
    }

    /// Returns the plan with two programs.
    pub(crate) fn plan(self, prefill: Stages, decode: Stages) -> Plan {
        let topology = match self.shape.device {
            true => Topology::with_device(),
            false => Topology::cpu_alone(),
        };
        let lanes = topology.lanes.len();
        let BenchShape { config, dtype, weights, kv, device, .. } = &self.shape;
        let max_context = self.shape.max_context();
        let shape = RunShape {
            batches: self.shape.batches,
            batch_size: self.shape.batch_size,
            max_prompt: self.shape.max_prompt,
            shared_prompt: 0,
            max_context,
            max_new: self.shape.max_new,
            logprobs: 0,
            micro_sequences: self.shape.micro_sequences,
            prefill_chunk: 0,
            serves: false,
            page_positions: 0,
            kv_pages: 0,
            checkpoints: 0,
            logits_rows: 0,
            device_slots: 0,
            dtype: *dtype,
        };
        let table = shape.table(&self.shape.config, u32::from(self.shape.chunks));
        let shapes = (0..).map(ProgramId).zip(shape.programs(config));
        let programs = shapes.zip([prefill, decode]).map(|((id, shape), stages)| Program {
            id,
            shape,
            lanes: stages.into_lanes(lanes),
        });
        let programs = programs.collect();
        Plan {
            map: map(config, weights.clone(), *kv, *device),
            topology,
            config: config.clone(),
            shape,
            table,
            buffers: self.buffers,
            weights: self.weight_placements,
            expert_cache: None,
            resident: self.resident,
            programs,
        }
    }
}

/// Returns the lane of a device's operations.
pub(crate) const fn compute_lane(device: ComputeDevice) -> LaneId {
    match device {
        ComputeDevice::Cpu => LaneId::CPU_COMPUTE,
        ComputeDevice::Gpu => LaneId::GPU_COMPUTE,
    }
}

/// Returns a map that specifies only the presence of a device, and the formats; hand-made programs
/// place everything else themselves.
fn map(
    config: &ModelConfig,
    weight_formats: WeightFormats,
    kv_format: KvFormat,
    device: bool,
) -> DeviceMap {
    let head = if device { ComputeDevice::Gpu } else { ComputeDevice::Cpu };
    let phase = PhaseMap {
        embed: ComputeDevice::Cpu,
        layers: each_layer(config, ComputeDevice::Cpu),
        final_norm: head,
        head,
    };
    DeviceMap {
        policy: "profile".to_owned(),
        chunking: None,
        prefill: phase.clone(),
        decode: phase,
        weights: each_layer(config, MemoryId::DRAM),
        outer_weights: MemoryId::DRAM,
        kv: Vec::new(),
        fuse_attention: true,
        weight_slots: 1,
        direct_reads: false,
        shares: ReadShares::default(),
        expert_reads: ExpertReads::default(),
        expert_slots: 0,
        pinned_experts: Vec::new(),
        routing: program::routing_counts::RoutingSkew::default(),
        kv_slots: 1,
        prefill_hidden: MemoryId::DRAM,
        weight_formats,
        kv_format,
        kv_select: None,
        schedule: Schedule::default(),
    }
}

/// Returns the same value for every operation of every layer.
fn each_layer<T: Clone>(config: &ModelConfig, of_op: T) -> Vec<Vec<T>> {
    let layer = |layer| vec![of_op.clone(); config.layer_ops(layer).len()];
    (0..config.num_layers).map(layer).collect()
}
