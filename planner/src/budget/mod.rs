//! Memory budget, settled before anything loads: a plan is compiled, its bytes are summed up, and
//! what does not fit is refused with the numbers, or read from storages if there are any.

mod bytes;
mod candidate;
mod error;
mod lower_bounds;
mod slow_tier;
mod storage;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use model::config::{Dtype, ModelConfig};
use model::ops::Op;
use program::compile::{CompileError, footprint, runs_in_chunks};
use program::cuda_gaps::{gap_name, leave_prefill_gaps_to_cpu, map_gap, model_gap};
use program::map::DeviceMap;
use program::plan::{Plan, RunShape};
use program::routing_counts::RoutingCounts;
use program::topology::MemoryId;

pub use bytes::{Budget, MemoryLimits, PROCESS_OVERHEAD_BYTES, pinned_bytes, step_read_bytes};
pub use error::PlanError;
pub use storage::{StagedOps, Storage};

use crate::policy::{
    DefaultTiers, Formats, Placement, SlowTierLayers, SlowTierWeights, StagedMatrices,
};
use candidate::FitCandidate;
use slow_tier::MovableWeights;
pub(crate) use slow_tier::SlowTierShares;
use storage::StageableWeights;

/// Target number of prompt tokens in a stream of prefill, sufficient to make linears compute-bound.
const MICRO_TOKENS: u32 = 1024;
/// Factor on that number for a device that expands quantised matrices for every stream, sufficient
/// to make the expansion a small part (`program::products`).
const QUANTISED_MICRO_FACTOR: u16 = 4;
/// Prompts longer than this are split into chunks by default: their activations would take more
/// memory than whole prompts are worth.
const WHOLE_TOKENS_MAX: u32 = 4096;
/// Rows of such a chunk, and of one if memory is scarce.
const CHUNK_TOKENS: [u32; 2] = [2048, 256];

/// Divisor of the number of prompts computed together if memory is scarce.
const SCARCE_MEMORY_DIVISOR: u16 = 8;

/// Number of times that the weights to read are recomputed, for what an estimate leaves out.
const STAGING_ROUNDS_MAX: usize = 4;

/// Everything that determines a plan, except the batch.
#[derive(Debug, Clone, Copy)]
pub struct PlacementRequest<'a> {
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
    /// Maximum number of rows in a stream of prefill; `None`: whole prompts, or chunks of long
    /// ones.
    pub prefill_chunk: Option<u32>,
    pub limits: &'a MemoryLimits,
    /// Storages from which weights that do not fit may be read; `None` if there are none.
    pub storage: Option<&'a Storage>,
    /// Measured routing of rows to experts; `None`: all experts are taken to be equally likely.
    pub routing: Option<&'a RoutingCounts>,
}

impl PlacementRequest<'_> {
    /// Returns the shape of a run with ample memory.
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
            serves: false,
            page_positions: 0,
            kv_pages: 0,
            checkpoints: 0,
            logits_rows: 0,
            device_slots: 0,
            dtype: self.dtype,
        };
        // A shared prefix is computed once per stream, which then has room for more sequences.
        let tokens = MICRO_TOKENS * u32::from(self.micro_token_factor());
        let extra_tokens = match self.shared_prompt {
            0 => tokens.saturating_sub(self.max_prompt),
            _ => tokens,
        };
        let micro = (1 + extra_tokens / one.own_rows()).min(u32::from(batch_size)) as u16;
        RunShape { micro_sequences: micro.max(1), ..one }
    }

    /// Returns the factor on the tokens of a stream of prefill relative to plain weights.
    fn micro_token_factor(&self) -> u16 {
        let has_device = self.limits.vram_bytes.is_some();
        let made_plain = self.dtype == Dtype::Bf16 && self.formats.weights.any_grouped();
        if has_device && made_plain { QUANTISED_MICRO_FACTOR } else { 1 }
    }

    /// Returns the memory in which a map stores the caches of the first attention layer.
    fn cache_tier(&self, map: &DeviceMap) -> MemoryId {
        let kinds = map.kv.iter().enumerate();
        let mut attending = kinds.filter(|(layer, _)| !self.config.layers.kind(*layer).has_state());
        let first = attending.next().and_then(|(_, kv)| kv.k.first());
        first.copied().unwrap_or(MemoryId::DRAM)
    }

    /// Returns the shape with the streams of prefill that take the least memory.
    pub(crate) fn smallest_streams(&self, shape: RunShape) -> RunShape {
        let prefill_chunk = self.chunk(CHUNK_TOKENS[1], CHUNK_TOKENS[1]);
        let micro =
            shape.micro_sequences.div_ceil(SCARCE_MEMORY_DIVISOR * self.micro_token_factor());
        let micro_sequences = if prefill_chunk == shape.prefill_chunk { micro } else { 1 };
        RunShape { micro_sequences, prefill_chunk, ..shape }
    }

    /// Returns the shapes with small streams of prefill that are tried if memory is scarce: whole
    /// prompts or chunks, whichever take less.
    pub(crate) fn small_streams(&self, shape: RunShape) -> Vec<RunShape> {
        let fewer = RunShape {
            micro_sequences: shape.micro_sequences.div_ceil(SCARCE_MEMORY_DIVISOR),
            ..shape
        };
        let smallest = self.smallest_streams(shape);
        if smallest == fewer { vec![fewer] } else { vec![fewer, smallest] }
    }

    /// Returns the requested chunk, or chunks of `rows` rows for prompts longer than `whole`; 0 for
    /// none.
    fn chunk(&self, rows: u32, whole: u32) -> u32 {
        match self.prefill_chunk {
            Some(requested) if requested < self.max_prompt => requested,
            None if self.max_prompt > whole => rows,
            _ => 0,
        }
    }

    /// Returns the roomiest tiers for KV and hidden states with which the policy fits; those on the
    /// host if it does not fit at all.
    ///
    /// # Errors
    /// A map that cannot be compiled.
    pub fn default_tiers(&self, batches: u16, batch_size: u16) -> Result<DefaultTiers, PlanError> {
        let found = self.best_fit(batches, batch_size)?;
        let tiers = found.map(|FitCandidate { map, .. }| DefaultTiers {
            kv: self.cache_tier(&map),
            prefill_hidden: map.prefill_hidden,
        });
        Ok(tiers.unwrap_or(DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::DRAM }))
    }

    pub(crate) fn map(&self, tiers: DefaultTiers) -> DeviceMap {
        self.map_placement(self.placement, tiers)
    }

    fn map_placement(&self, placement: &Placement, tiers: DefaultTiers) -> DeviceMap {
        let mut map = placement.map(self.config, self.fuse_attention, tiers);
        self.formats.apply(&mut map);
        if let (Some(routing), Some(experts)) = (self.routing, self.config.experts) {
            map.routing = routing.skew(experts.per_token);
        }
        if self.has_device_gaps() {
            leave_prefill_gaps_to_cpu(self.config, &mut map);
        }
        if let Some(storage) = self.storage {
            // Without reads, slots consist of whole pages too, so that capacity is counted
            // identically.
            map.direct_reads = storage.direct && map.uses_gpu();
            map.expert_reads = storage.expert_reads;
            if map.uses_storages() {
                map.shares = storage.shares.clone();
            }
        }
        map
    }

    /// Returns the plan of [`PlacementRequest::plan`], or `None` without searching for one that
    /// would fit.
    ///
    /// # Errors
    /// A map that cannot be compiled.
    pub fn plan_if_fits(&self, batches: u16, batch_size: u16) -> Result<Option<Plan>, PlanError> {
        let found = self.best_fit(batches, batch_size)?;
        Ok(found.map(|candidate| candidate.plan(self.config)).transpose()?)
    }

    /// Returns what memory allows; `None` if the placement does not fit.
    ///
    /// # Errors
    /// A map that cannot be compiled.
    pub(crate) fn memory_fit(
        &self,
        batches: u16,
        batch_size: u16,
    ) -> Result<Option<MemoryFit>, PlanError> {
        let usual = self.shape(batches, batch_size);
        let best_fit = self.best_fit(batches, batch_size)?;
        Ok(best_fit.map(|FitCandidate { map, shape, slow_tier, staged, .. }| MemoryFit {
            prefill: PrefillFit {
                prefill_hidden: map.prefill_hidden,
                has_small_streams: shape.micro_sequences != usual.micro_sequences
                    || (shape.is_chunked() && shape.prefill_chunk != usual.prefill_chunk),
            },
            slow_tier,
            staged,
        }))
    }

    /// Returns true if [`PlacementRequest::plan_if_fits`] finds a plan.
    ///
    /// # Errors
    /// A map that cannot be compiled.
    pub fn fits(&self, batches: u16, batch_size: u16) -> Result<bool, PlanError> {
        Ok(self.best_fit(batches, batch_size)?.is_some())
    }

    /// Returns the roomiest candidate that fits. Candidates without additional host memories come
    /// first, then those without storages: in the candidate that lacks least memory, as few weights
    /// as necessary are moved to additional memories and then read from storages.
    fn best_fit(
        &self,
        batches: u16,
        batch_size: u16,
    ) -> Result<Option<FitCandidate>, CompileError> {
        let mut placement = self.with_fixed_reads();
        let mut found = self.closest_fit(&placement, batches, batch_size)?;
        if let Some((missing_bytes, closest)) = found.as_ref().filter(|(missing, _)| *missing > 0)
            && let Some(slow_tier) = self.min_slow_tier(&placement, &closest.map, *missing_bytes)
        {
            placement.to_mut().slow_tier = slow_tier;
            found = self.closest_fit(&placement, batches, batch_size)?;
        }
        let Some((missing_bytes, closest)) = found else { return Ok(None) };
        if missing_bytes == 0 {
            return Ok(Some(closest));
        }
        if !self.may_read(&placement) {
            return Ok(None);
        }
        let Some(staged) = self.min_staged_weights(&placement, &closest, missing_bytes)? else {
            return Ok(None);
        };
        // Reads are added one operation at a time, which may make space for a roomier candidate
        // too.
        let placement = Placement { staged, ..placement.into_owned() };
        let found = self.closest_fit(&placement, batches, batch_size)?;
        Ok(found.filter(|(missing, _)| *missing == 0).map(|(_, candidate)| candidate))
    }

    /// Returns the roomiest candidate that fits, or the one for which the host lacks the least, and
    /// the bytes that it lacks; `None` if no candidate fits on devices or in additional memories.
    fn closest_fit(
        &self,
        placement: &Placement,
        batches: u16,
        batch_size: u16,
    ) -> Result<Option<(u64, FitCandidate)>, CompileError> {
        let mut closest: Option<(u64, FitCandidate)> = None;
        for candidate in self.candidates(placement, batches, batch_size) {
            let candidate = candidate?;
            let missing_bytes = candidate.budget.missing_bytes(self.limits);
            if !candidate.budget.fits_device_and_slow_tiers(self.limits) {
                continue;
            }
            if closest.as_ref().is_none_or(|(least, _)| missing_bytes < *least) {
                closest = Some((missing_bytes, candidate));
            }
            if missing_bytes == 0 {
                break;
            }
        }
        Ok(closest)
    }

    /// Returns the smallest number of layers in additional memories that frees the given number of
    /// bytes, or as many as fit; `None` if there are no such memories, or nothing is left to
    /// decide.
    fn min_slow_tier(
        &self,
        placement: &Placement,
        map: &DeviceMap,
        missing_bytes: u64,
    ) -> Option<SlowTierLayers> {
        let capacity_bytes = self.limits.slow_tier_bytes;
        if capacity_bytes == MemoryLimits::NO_SLOW_TIER || !placement.slow_tier.is_none() {
            return None;
        }
        let movable = |weights| MovableWeights::from_map(self.config, self.dtype, map, weights);
        let (streamed, is_enough) =
            movable(SlowTierWeights::Streamed).min_layers(missing_bytes, capacity_bytes);
        Some(match is_enough {
            true => streamed,
            false => movable(SlowTierWeights::All).min_layers(missing_bytes, capacity_bytes).0,
        })
    }

    /// Returns the placement with the reads that happen whether memory requires them or not.
    fn with_fixed_reads(&self) -> Cow<'_, Placement> {
        match self.storage.and_then(|storage| storage.ops.fixed(self.config)) {
            Some(staged) => Cow::Owned(Placement { staged, ..self.placement.clone() }),
            None => Cow::Borrowed(self.placement),
        }
    }

    /// Returns true if memory determines what is read of a placement, and it is not determined yet.
    fn may_read(&self, placement: &Placement) -> bool {
        let is_auto = |storage: &Storage| storage.ops == StagedOps::Auto;
        self.storage.is_some_and(is_auto) && placement.staged.is_none()
    }

    /// Returns the minimum to read of a candidate for which host memory lacks the given number of
    /// bytes; `None` if it does not fit whatever is read.
    fn min_staged_weights(
        &self,
        placement: &Placement,
        candidate: &FitCandidate,
        missing_bytes: u64,
    ) -> Result<Option<StagedMatrices>, CompileError> {
        let stageable = StageableWeights::from_map(self.config, &candidate.shape, &candidate.map);
        let mut bytes = missing_bytes;
        for _ in 0..STAGING_ROUNDS_MAX {
            let Some(staged) = stageable.min_staged_weights(bytes) else { return Ok(None) };
            let placement = Placement { staged: staged.clone(), ..placement.clone() };
            let reading = self.candidate(candidate.shape, &placement, candidate.tiers)?;
            match reading.budget.missing_bytes(self.limits) {
                0 => return Ok(Some(staged)),
                left => bytes += left,
            }
        }
        Ok(None)
    }

    /// Returns the first operation that a map runs on the device and that its kernels lack. The
    /// emulated device has all kernels.
    pub(crate) fn device_gap(&self, map: &DeviceMap) -> Option<Op> {
        if self.limits.vram_is_dram { None } else { map_gap(self.config, map) }
    }

    /// Returns true if the kernels of the device lack an operation of the model.
    pub(crate) fn has_device_gaps(&self) -> bool {
        !self.limits.vram_is_dram && model_gap(self.config, self.formats.kv).is_some()
    }

    /// Returns the roomiest plan of the policy that fits: KV and hidden states on the device, then
    /// hidden states on the host, then KV on the host, then an eighth of the whole prompts of a
    /// stream, and then as few weights read from storages as necessary.
    ///
    /// # Errors
    /// An operation on the device that its kernels lack; a map that cannot be compiled; a plan that
    /// does not fit, with the largest batch that does.
    pub fn plan(&self, batches: u16, batch_size: u16) -> Result<Plan, PlanError> {
        // Operations have the same devices with all tiers.
        let tiers = DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::DRAM };
        if let Some(op) = self.device_gap(&self.map_placement(self.placement, tiers)) {
            let op = gap_name(self.config, self.formats.kv, op);
            let model = self.config.name.clone();
            return Err(PlanError::NotOnDevice { model, op });
        }
        if let Some(candidate) = self.best_fit(batches, batch_size)? {
            return Ok(candidate.plan(self.config)?);
        }
        let mut placement = self.with_fixed_reads();
        let smallest = |placement: &Placement| {
            let last = self.candidates(placement, batches, batch_size).last();
            last.unwrap_or(Err(CompileError::EmptyShape))
        };
        if let Some(slow_tier) =
            self.min_slow_tier(&placement, &smallest(&placement)?.map, u64::MAX)
        {
            placement.to_mut().slow_tier = slow_tier;
        }
        if self.may_read(&placement) {
            placement.to_mut().staged = StagedMatrices::all_layers(self.config);
        }
        let FitCandidate { shape, map, budget, .. } = smallest(&placement)?;
        let fitting = self.largest_batch(batches, batch_size.saturating_sub(1))?;
        Err(PlanError::DoesNotFit {
            model: self.config.name.clone(),
            shape: Box::new(shape),
            budget: Box::new(budget),
            limits: Box::new(*self.limits),
            fitting,
            has_storages: map.uses_storages(),
        })
    }

    /// Returns the largest batch of at most `max_batch` sequences that fits; `None` if not even 1
    /// does.
    ///
    /// # Errors
    /// A map that cannot be compiled.
    pub fn largest_batch(&self, batches: u16, max_batch: u16) -> Result<Option<u16>, PlanError> {
        // The bytes of a plan grow with the batch, so bisection finds the limit.
        let (mut low, mut high) = (0u16, max_batch);
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

    /// Returns the ways to store what a placement needs, the roomiest first.
    fn candidates<'b>(
        &'b self,
        placement: &'b Placement,
        batches: u16,
        batch_size: u16,
    ) -> impl Iterator<Item = Result<FitCandidate, CompileError>> + 'b {
        let shape = self.shape(batches, batch_size);
        let (vram, dram) = (MemoryId::VRAM, MemoryId::DRAM);
        let (first, last) = placement.kv.map_or((vram, dram), |kv| (kv, kv));
        let mut choices = vec![(first, vram, shape), (first, dram, shape)];
        if first != last {
            choices.push((last, dram, shape));
        }
        choices.extend(self.small_streams(shape).into_iter().map(|small| (last, dram, small)));
        choices.into_iter().map(move |(kv, prefill_hidden, shape)| {
            self.candidate(shape, placement, DefaultTiers { kv, prefill_hidden })
        })
    }

    /// Returns a placement with the given tiers, and the memory that it takes.
    fn candidate(
        &self,
        shape: RunShape,
        placement: &Placement,
        tiers: DefaultTiers,
    ) -> Result<FitCandidate, CompileError> {
        let mut map = self.map_placement(placement, tiers);
        let shape = self.shape_of(shape, &map);
        if let Some(storage) = self.storage {
            map.expert_slots = storage.expert_slots(self.config, &shape, &map);
            map.pinned_experts = Storage::pinned_experts(self.config, self.routing, &map);
        }
        let budget = footprint(self.config, &shape, &map, self.limits.device_scratch)?.into();
        let (slow_tier, staged) = (placement.slow_tier, placement.staged.clone());
        Ok(FitCandidate { shape, tiers, map, slow_tier, staged, budget })
    }

    /// Returns the shape in which a map runs: if no chunk is specified, whole prompts if it cannot
    /// run in chunks.
    pub(crate) fn shape_of(&self, shape: RunShape, map: &DeviceMap) -> RunShape {
        let is_given = self.prefill_chunk.is_some();
        match is_given || !shape.is_chunked() || runs_in_chunks(self.config, map) {
            true => shape,
            false => RunShape { prefill_chunk: 0, ..shape },
        }
    }
}

/// Decisions that memory makes about a placement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemoryFit {
    pub(crate) prefill: PrefillFit,
    /// Weights in additional host memories.
    pub(crate) slow_tier: SlowTierLayers,
    /// Weights read from storages.
    pub(crate) staged: StagedMatrices,
}

/// Decisions that memory makes about prefill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PrefillFit {
    /// Memory of hidden states between layers.
    pub prefill_hidden: MemoryId,
    /// Streams are as small as possible.
    pub has_small_streams: bool,
}
