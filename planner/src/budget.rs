//! Memory is a budget, settled before anything loads: a plan is compiled, its bytes are added up,
//! and what does not fit is refused with the numbers.

use std::collections::BTreeSet;

use model::compressed::WeightFormat;
use model::config::{Dtype, ModelConfig};
use program::compile::{CompileError, compile, footprint, runs_in_chunks};
use program::ir::{BufferId, Instruction};
use program::map::DeviceMap;
use program::plan::{DeviceScratch, Footprint, Plan, RunShape};
use program::topology::MemoryId;

use crate::policy::{Formats, Homes, Placement};

/// Code, stacks, thread scratch and control segments of all processes, bytes.
pub const PROCESS_OVERHEAD_BYTES: u64 = 192 << 20;
/// Prompt tokens that a stream of prefill aims at: enough to make linears compute-bound.
const MICRO_TOKENS: u32 = 1024;
/// Longer prompts are cut into chunks unless somebody says otherwise: whole, their activations take
/// more memory than the rest of prefill is worth.
const WHOLE_TOKENS_MAX: u32 = 4096;
/// Rows of such a chunk, and of one where memory is short.
const CHUNK_TOKENS: [u32; 2] = [2048, 256];

/// Part of a stream's prompts that is computed together where memory is short.
const FEWER: u16 = 8;

/// What the plan may use.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub dram_bytes: u64,
    /// `None`: a device without a bound of its own; its arena is DRAM.
    pub vram_bytes: Option<u64>,
    /// The device is emulated: its arena counts as DRAM too.
    pub vram_is_dram: bool,
    /// What the device needs beside a plan's buffers; `None`: nothing.
    pub device_scratch: Option<DeviceScratch>,
}

/// Bytes of a plan by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    pub weights_bytes: u64,
    pub kv_bytes: u64,
    pub activations_bytes: u64,
    /// With what the device needs beside the plan's buffers.
    pub device_bytes: u64,
    pub tables_bytes: u64,
}

impl Budget {
    /// Adds up a plan's buffers.
    pub fn of(plan: &Plan) -> Budget {
        Budget::from(plan.footprint(None))
    }

    /// Bytes of DRAM of all processes together.
    pub fn dram_bytes(&self, limits: &Limits) -> u64 {
        let device = if limits.vram_is_dram { self.device_bytes } else { 0 };
        self.weights_bytes
            + self.kv_bytes
            + self.activations_bytes
            + self.tables_bytes
            + device
            + PROCESS_OVERHEAD_BYTES
    }

    fn fits(&self, limits: &Limits) -> bool {
        self.dram_bytes(limits) <= limits.dram_bytes
            && limits.vram_bytes.is_none_or(|vram| self.device_bytes <= vram)
    }
}

/// Bytes of the host's buffers that are copied from or to a device, which are pinned.
pub fn pinned_bytes(plan: &Plan) -> u64 {
    let lists = plan.programs.iter().flat_map(|program| &program.lanes);
    let instructions = lists.flat_map(|list| &list.instructions);
    let copied = instructions.flat_map(|instruction| match instruction {
        Instruction::Copy(copy) => vec![copy.from.buffer, copy.to.buffer],
        _ => Vec::new(),
    });
    let buffers: BTreeSet<BufferId> = copied.collect();
    let of_host = |id: &&BufferId| plan.buffer(**id).segment.memory == plan.topology.host();
    buffers.iter().filter(of_host).map(|id| plan.buffer(*id).size_bytes).sum()
}

impl From<Footprint> for Budget {
    fn from(footprint: Footprint) -> Budget {
        Budget {
            weights_bytes: footprint.host_weights_bytes,
            kv_bytes: footprint.host_kv_bytes,
            activations_bytes: footprint.host_activations_bytes,
            device_bytes: footprint.device_bytes + footprint.device_scratch_bytes,
            tables_bytes: footprint.step_table_bytes,
        }
    }
}

/// Why no plan was made.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error(transparent)]
    Compile(#[from] CompileError),
    #[error("{}", refusal(.model, .shape, .budget, .limits, *.fitting))]
    DoesNotFit {
        model: String,
        shape: Box<RunShape>,
        budget: Budget,
        limits: Limits,
        fitting: Option<u16>,
    },
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

fn refusal(
    model: &str,
    shape: &RunShape,
    budget: &Budget,
    limits: &Limits,
    fitting: Option<u16>,
) -> String {
    let mut text = format!(
        "{model} with {}x{} sequences of up to {} positions needs {:.2} GiB of memory (weights \
         {:.2}, KV {:.2}, activations {:.2}, device {:.2}, the processes themselves {:.2}), ",
        shape.batches,
        shape.batch_size,
        shape.max_context,
        gib(budget.dram_bytes(limits)),
        gib(budget.weights_bytes),
        gib(budget.kv_bytes),
        gib(budget.activations_bytes),
        gib(budget.device_bytes),
        gib(budget.tables_bytes + PROCESS_OVERHEAD_BYTES),
    );
    match limits.vram_bytes {
        Some(vram) if budget.device_bytes > vram => {
            text += &format!("but the device has {:.2} GiB", gib(vram));
        }
        _ => text += &format!("but {:.2} GiB are available", gib(limits.dram_bytes)),
    }
    text += &match fitting {
        Some(batch) => format!("; --batches {}x{batch} fits", shape.batches),
        None if limits.vram_bytes.is_some_and(|vram| budget.device_bytes > vram) => {
            "; not even one sequence fits the device: use a --policy that keeps less on it, \
             --compress w4 or a smaller model"
                .to_owned()
        }
        None => {
            let narrower = if shape.dtype == Dtype::F32 { "--dtype bf16, " } else { "" };
            format!(
                "; not even one sequence fits: use {narrower}a smaller model, fewer --layers or a \
                 shorter context"
            )
        }
    };
    text
}

/// Everything that decides a plan but the batch.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    pub config: &'a ModelConfig,
    pub placement: &'a Placement,
    pub formats: &'a Formats,
    pub fuse_attention: bool,
    pub dtype: Dtype,
    pub max_prompt: u32,
    /// See [`RunShape::shared_prompt`].
    pub shared_prompt: u32,
    pub max_context: u32,
    pub max_new: u32,
    /// See [`RunShape::logprobs`].
    pub logprobs: u16,
    /// Most rows of a stream of prefill; `None`: whole prompts, or chunks of long ones.
    pub prefill_chunk: Option<u32>,
    pub limits: &'a Limits,
}

impl Request<'_> {
    /// The shape of a run with room to spare.
    pub fn shape(&self, batches: u16, batch_size: u16) -> RunShape {
        let one = RunShape {
            batches,
            batch_size,
            max_prompt: self.max_prompt,
            shared_prompt: self.shared_prompt,
            max_context: self.max_context,
            max_new: self.max_new,
            logprobs: self.logprobs,
            micro_sequences: 1,
            prefill_chunk: self.chunk(CHUNK_TOKENS[0], WHOLE_TOKENS_MAX),
            dtype: self.dtype,
        };
        // What all share is computed once a stream, which is then worth more sequences.
        let room = match self.shared_prompt {
            0 => MICRO_TOKENS.saturating_sub(self.max_prompt),
            _ => MICRO_TOKENS,
        };
        let micro = (1 + room / one.own_rows()).min(u32::from(batch_size)) as u16;
        RunShape { micro_sequences: micro.max(1), ..one }
    }

    /// What host memory holds at least: all layers' weights, and the KV that device memory has no
    /// room for.
    pub(crate) fn least_host_bytes(&self, batches: u16, batch_size: u16) -> u64 {
        let layers = self.config.num_layers as u64;
        let kv_bytes = layers * self.layer_kv_bytes(batches, batch_size);
        let on_device =
            if self.limits.vram_is_dram { 0 } else { self.limits.vram_bytes.unwrap_or(0) };
        self.weights_bytes() + kv_bytes.saturating_sub(on_device)
    }

    /// KV of a layer for so many batches.
    pub(crate) fn layer_kv_bytes(&self, batches: u16, batch_size: u16) -> u64 {
        let position = self.formats.kv.position_bytes(self.config.head_dim, self.dtype);
        let sequences = u64::from(batches) * u64::from(batch_size);
        2 * (self.config.num_kv_heads * position) as u64 * u64::from(self.max_context) * sequences
    }

    /// Weights of a layer in these formats.
    pub(crate) fn layer_weight_bytes(&self, formats: &[WeightFormat]) -> u64 {
        let blobs = self.config.layer_ops().iter().zip(formats);
        blobs.map(|(op, form)| op.weight_bytes_in(self.config, self.dtype, *form) as u64).sum()
    }

    fn weights_bytes(&self) -> u64 {
        self.formats.weights.layers.iter().map(|formats| self.layer_weight_bytes(formats)).sum()
    }

    /// The same shape with the streams of prefill that take least memory.
    pub(crate) fn smallest_streams(&self, shape: RunShape) -> RunShape {
        let prefill_chunk = self.chunk(CHUNK_TOKENS[1], CHUNK_TOKENS[1]);
        let micro = shape.micro_sequences.div_ceil(FEWER);
        let micro_sequences = if prefill_chunk == shape.prefill_chunk { micro } else { 1 };
        RunShape { micro_sequences, prefill_chunk, ..shape }
    }

    /// The shapes with small streams of prefill that are tried where memory is short: whole prompts
    /// or chunks, whichever take less.
    pub(crate) fn small_streams(&self, shape: RunShape) -> Vec<RunShape> {
        let fewer = RunShape { micro_sequences: shape.micro_sequences.div_ceil(FEWER), ..shape };
        let least = self.smallest_streams(shape);
        if least.prefill_chunk == shape.prefill_chunk { vec![fewer] } else { vec![fewer, least] }
    }

    /// What was asked for, or chunks of so many rows of prompts longer than `whole`; 0: none.
    fn chunk(&self, rows: u32, whole: u32) -> u32 {
        match self.prefill_chunk {
            Some(asked) if asked < self.max_prompt => asked,
            None if self.max_prompt > whole => rows,
            _ => 0,
        }
    }

    /// The roomiest homes for KV and hidden states with which the policy fits; those on the host
    /// when it does not fit at all.
    ///
    /// # Errors
    /// A map that cannot be compiled.
    pub fn homes(&self, batches: u16, batch_size: u16) -> Result<Homes, PlanError> {
        let found = self.roomiest(batches, batch_size)?;
        let homes = found.map(|Candidate { map, .. }| Homes {
            kv: map.kv.first().and_then(|kv| kv.k.first()).copied().unwrap_or(MemoryId::DRAM),
            prefill_hidden: map.prefill_hidden,
        });
        Ok(homes.unwrap_or(Homes { kv: MemoryId::DRAM, prefill_hidden: MemoryId::DRAM }))
    }

    pub(crate) fn map(&self, homes: Homes) -> DeviceMap {
        let mut map = self.placement.map(self.config, self.fuse_attention, homes);
        self.formats.apply(&mut map);
        map
    }

    /// The plan of [`Request::plan`], without looking for what would fit where it does not.
    ///
    /// # Errors
    /// A map that cannot be compiled.
    pub fn fitting(&self, batches: u16, batch_size: u16) -> Result<Option<Plan>, PlanError> {
        let found = self.roomiest(batches, batch_size)?;
        Ok(found.map(|candidate| candidate.plan(self.config)).transpose()?)
    }

    /// What memory leaves room for; `None` where the placement does not fit.
    ///
    /// # Errors
    /// A map that cannot be compiled.
    pub(crate) fn prefill_room(
        &self,
        batches: u16,
        batch_size: u16,
    ) -> Result<Option<PrefillRoom>, PlanError> {
        let usual = self.shape(batches, batch_size);
        let room =
            self.roomiest(batches, batch_size)?.map(|Candidate { map, shape, .. }| PrefillRoom {
                prefill_hidden: map.prefill_hidden,
                has_small_streams: shape.micro_sequences != usual.micro_sequences
                    || (shape.is_chunked() && shape.prefill_chunk != usual.prefill_chunk),
            });
        Ok(room)
    }

    /// Whether [`Request::fitting`] finds a plan.
    ///
    /// # Errors
    /// A map that cannot be compiled.
    pub fn fits(&self, batches: u16, batch_size: u16) -> Result<bool, PlanError> {
        Ok(self.roomiest(batches, batch_size)?.is_some())
    }

    fn roomiest(&self, batches: u16, batch_size: u16) -> Result<Option<Candidate>, CompileError> {
        for candidate in self.candidates(batches, batch_size) {
            let candidate = candidate?;
            if candidate.budget.fits(self.limits) {
                return Ok(Some(candidate));
            }
        }
        Ok(None)
    }

    /// The roomiest plan of the policy that fits: KV and hidden states on the device, then hidden
    /// states on the host, then KV on the host, then an eighth of the
    /// whole prompts of a stream.
    ///
    /// # Errors
    /// A map that cannot be compiled; a plan that does not fit, with the largest batch that does.
    pub fn plan(&self, batches: u16, batch_size: u16) -> Result<Plan, PlanError> {
        let mut smallest = None;
        for candidate in self.candidates(batches, batch_size) {
            let candidate = candidate?;
            if candidate.budget.fits(self.limits) {
                return Ok(candidate.plan(self.config)?);
            }
            smallest = Some(candidate);
        }
        let Candidate { shape, budget, .. } = smallest.ok_or(CompileError::EmptyShape)?;
        let fitting = self.largest_batch(batches, batch_size.saturating_sub(1))?;
        let (model, limits) = (self.config.name.clone(), *self.limits);
        Err(PlanError::DoesNotFit { model, shape: Box::new(shape), budget, limits, fitting })
    }

    /// The largest batch of at most `most` sequences that fits; `None` when not even 1 does.
    ///
    /// # Errors
    /// A map that cannot be compiled.
    pub fn largest_batch(&self, batches: u16, most: u16) -> Result<Option<u16>, PlanError> {
        // The bytes of a plan grow with the batch, so bisection finds the edge.
        let (mut low, mut high) = (0u16, most);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if self.fits(batches, middle)? {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        Ok((low > 0).then_some(low))
    }

    fn candidates(
        &self,
        batches: u16,
        batch_size: u16,
    ) -> impl Iterator<Item = Result<Candidate, CompileError>> + '_ {
        let shape = self.shape(batches, batch_size);
        let (vram, dram) = (MemoryId::VRAM, MemoryId::DRAM);
        let (first, last) = self.placement.kv.map_or((vram, dram), |kv| (kv, kv));
        let mut choices = vec![(first, vram, shape), (first, dram, shape)];
        if first != last {
            choices.push((last, dram, shape));
        }
        choices.extend(self.small_streams(shape).into_iter().map(|small| (last, dram, small)));
        choices.into_iter().map(move |(kv, prefill_hidden, shape)| {
            let map = self.map(Homes { kv, prefill_hidden });
            self.candidate(shape, map)
        })
    }

    /// A map and the memory that it takes.
    fn candidate(&self, shape: RunShape, map: DeviceMap) -> Result<Candidate, CompileError> {
        let shape = self.shape_of(shape, &map);
        let budget = footprint(self.config, &shape, &map, self.limits.device_scratch)?.into();
        Ok(Candidate { shape, map, budget })
    }

    /// The shape in which a map runs: where no chunk is given, whole prompts if it cannot run in
    /// chunks.
    pub(crate) fn shape_of(&self, shape: RunShape, map: &DeviceMap) -> RunShape {
        let is_given = self.prefill_chunk.is_some();
        match is_given || !shape.is_chunked() || runs_in_chunks(self.config, map) {
            true => shape,
            false => RunShape { prefill_chunk: 0, ..shape },
        }
    }
}

/// What memory decides of prefill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PrefillRoom {
    /// Home of hidden states between layers.
    pub prefill_hidden: MemoryId,
    /// Streams are as small as they can be.
    pub has_small_streams: bool,
}

/// A way to keep what a policy needs, and the memory that takes.
struct Candidate {
    shape: RunShape,
    map: DeviceMap,
    budget: Budget,
}

impl Candidate {
    fn plan(&self, config: &ModelConfig) -> Result<Plan, CompileError> {
        compile(config, &self.shape, &self.map)
    }
}
