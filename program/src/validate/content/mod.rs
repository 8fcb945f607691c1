//! Follows the content of each buffer through two steps of each program.
//!
//! Runs after `race`: since all conflicting accesses are ordered, every order that respects
//! happens-before shows each read the same content, so walking one of them is sufficient.
//!
//! A program begins at a barrier: weights are in their buffers, the caches hold the rows of all
//! previous steps, and nothing else is known. It must end in the same state. Therefore every
//! sequence of the programs is correct.

use std::collections::{BTreeMap, BTreeSet};

use model::config::ModelConfig;
use model::ops::{Op, Value};

use crate::expert_portions;
use crate::expert_records::ExpertOps;
use crate::formats::decompressed;
use crate::ir::{
    Append, At, BufferId, Compute, Copy, Decompress, Instruction, Moved, Program, Region, Rows,
};
use crate::map::Chunk;
use crate::plan::{Plan, ResidentSource};
use crate::pooling;
use crate::weights::Weights;

use super::checkpoints;
use super::error::{NamedProgram, ValidateError};
use super::order::{Event, Order};
use super::parts::normal;

mod cached;
mod deferred_rows;
mod ending;
mod held;
mod kept;
mod moves;
mod now;
mod reads;

use cached::{CachedExperts, cached_experts};
use held::{Content, Held, Parts};
use kept::{begin, kept_values, own_stream};
use now::{Cache, Now};

/// The step table of a batch.
#[derive(Debug, Clone, Copy)]
struct Table {
    batch: u16,
    /// Number of samples of the program so far, over all its streams and steps.
    samples: u32,
}

struct Walk<'a> {
    plan: &'a Plan,
    program: &'a Program,
    buffers: Vec<Parts>,
    tables: BTreeMap<BufferId, Table>,
    /// Streams of the present step that each cache holds.
    filled: BTreeMap<BufferId, BTreeSet<u16>>,
    /// Number of migrations of each cache to its other owner.
    moved: BTreeMap<BufferId, u32>,
    /// Experts that the program reads into the cache in portions, by layer.
    cached: BTreeMap<Option<u16>, CachedExperts>,
    /// Number of additions to the residual stream before each layer, and before the operations
    /// after all layers.
    additions_before: &'a [u32],
}

/// # Errors
/// `Unwritten` or `Stale` for the first read that does not find its content; `Incomplete` if a
/// program ends without having sampled all rows, filled all caches, or preserved the weights.
pub(super) fn check(plan: &Plan, orders: &[Order<'_>]) -> Result<(), ValidateError> {
    let mut lasting = lasting(plan)?;
    let additions_before = additions_before(&plan.config);
    let kept = kept_values(plan)?;
    begin(&mut lasting, &kept, &plan.config, &additions_before);
    for order in orders {
        let mut walk = Walk {
            plan,
            program: order.program,
            buffers: lasting.clone(),
            tables: BTreeMap::new(),
            filled: BTreeMap::new(),
            moved: BTreeMap::new(),
            cached: cached_experts(plan, order.program),
            additions_before: &additions_before,
        };
        order.events.iter().try_for_each(|event| walk.event(order, event))?;
        walk.end(&lasting, &kept)?;
    }
    Ok(())
}

/// Returns how many of the operations add to the residual stream.
fn additions(config: &ModelConfig, ops: &[Op]) -> u32 {
    ops.iter().filter(|op| op.adds_to_residual(config)).count() as u32
}

/// See [`Walk::additions_before`].
fn additions_before(config: &ModelConfig) -> Vec<u32> {
    // The operation that joins an embedding with a hidden state counts as one.
    let mut before = vec![u32::from(config.features.hidden_states.are_joined())];
    for layer in 0..config.num_layers {
        before.push(before[layer] + additions(config.of_layer(layer), config.layer_ops(layer)));
    }
    before
}

/// Returns the state with which every program begins.
fn lasting(plan: &Plan) -> Result<Vec<Parts>, ValidateError> {
    let mut buffers = vec![Parts::default(); plan.buffers.len()];
    let mut hold = |buffer: BufferId, content| {
        buffers[buffer.0 as usize].write(Region::whole(buffer), Held { content, writer: None });
    };
    for placed in &plan.weights {
        hold(placed.buffer, Content::Weights(placed.weights));
    }
    let mut caches = BTreeMap::new();
    for program in &plan.programs {
        let all = program.lanes.iter().flat_map(|list| &list.instructions);
        for instruction in all {
            let filled = match instruction {
                Instruction::Append(append) => vec![(Cache::of(append), append.to)],
                Instruction::Compute(compute) => Cache::updated(&plan.config, compute).collect(),
                _ => Vec::new(),
            };
            for (cache, region) in filled {
                if *caches.entry(region.buffer).or_insert(cache) == cache {
                    continue;
                }
                let name = &plan.buffer(region.buffer).name;
                let problem = format!("{name} is appended to as two different caches").into();
                let program = NamedProgram::new(program);
                return Err(ValidateError::Incomplete { program, problem });
            }
        }
    }
    for (buffer, cache) in caches {
        hold(buffer, cache.with(0, 0));
    }
    for resident in &plan.resident {
        buffers[resident.to.0 as usize] = match resident.source {
            ResidentSource::Host(from) => buffers[from.0 as usize].clone(),
            ResidentSource::Model(weights) => {
                let mut parts = Parts::default();
                let held = Held { content: Content::Weights(weights), writer: None };
                parts.write(Region::whole(resident.to), held);
                parts
            }
        };
    }
    Ok(buffers)
}

impl<'a> Walk<'a> {
    fn event(&mut self, order: &Order<'_>, event: &Event<'_>) -> Result<(), ValidateError> {
        let now = Now { order, event, plan: self.plan };
        match event.instruction {
            Instruction::Compute(compute) => self.compute(&now, compute),
            Instruction::Copy(copy) => self.copy(&now, copy),
            Instruction::Append(append) => self.append(&now, append),
            Instruction::Decompress(decompress) => self.decompress(&now, decompress),
            Instruction::Read(read) => self.read(&now, read),
            Instruction::Wait(_) | Instruction::Signal => Ok(()),
        }
    }

    fn compute(&mut self, now: &Now<'_>, compute: &Compute) -> Result<(), ValidateError> {
        let at = compute.at;
        self.table(now, compute.table, at, compute.op == Op::Sample)?;
        let updates = self.hidden_updates_before(compute.op, at);
        let model = self.plan.config.at(at.layer);
        let values = pooling::inputs(compute.op, compute.chunk, model, self.plan.shape.pools());
        for (value, region) in values.zip(&compute.inputs) {
            let content = now.value(value, at, updates);
            self.need_value(now, *region, content)?;
        }
        for (cache, region) in Cache::updated(&self.plan.config, compute) {
            self.fill(now, cache, region)?;
        }
        if compute.output.is_some() && compute.op == Op::Sample {
            self.checkpoints(now, compute)?;
        }
        let read = match compute.op.updates_state() {
            true => &[],
            false => compute.op.caches(model),
        };
        for (kv, region) in read.iter().zip(&compute.caches) {
            let whole = self.plan.map.chunking.is_none_or(|chunking| chunking.parts(*kv) == 1);
            let chunk = normal(compute.chunk).filter(|_| !whole).unwrap_or(Chunk::WHOLE);
            self.need(now, *region, now.cache(*kv, at, chunk))?;
        }
        let weights = self.weights_of(compute.op, at.layer);
        if weights.len() != compute.weights.len() {
            let problem = format!(
                "it names {} weight blobs, the operation has {}",
                compute.weights.len(),
                weights.len()
            );
            return Err(ValidateError::Malformed { site: now.site(), problem: problem.into() });
        }
        for (weights, region) in weights.into_iter().zip(&compute.weights) {
            let widened = now.on_device() && self.is_widened(weights);
            let routed = now.routed(ExpertOps::from_ops([compute.op]), at);
            let is_routed = || self.first_of(*region).is_some_and(|held| held.satisfies(routed));
            let content = match widened {
                true => Content::Decompressed(weights),
                // A row is multiplied by its own experts alone.
                false if compute.op.is_expert() && is_routed() => routed,
                false => Content::Weights(weights),
            };
            self.need(now, *region, content)?;
        }
        if compute.op == Op::Router && !now.on_device() {
            self.find_cached(now, compute);
        }
        let written = expert_portions::writes(compute.op, model, compute.chunk);
        if let (Some(value), Some(output)) = (written, compute.output) {
            let added = u32::from(compute.op == Op::JoinHidden || !compute.op.precedes_layers());
            self.write_value(now, output, now.value(value, at, updates + added));
        }
        Ok(())
    }

    /// Checks that a sample takes checkpoints of caches that have all rows of its step.
    fn checkpoints(&self, now: &Now<'_>, sample: &Compute) -> Result<(), ValidateError> {
        let (batch, step) = (sample.at.batch, now.event.step + 1);
        for ((layer, kv), region) in checkpoints::included(self.plan).zip(&sample.caches) {
            let cache = Cache { kv, layer: Some(layer), batch, chunk: Chunk::WHOLE };
            self.need(now, *region, cache.with(step, 0))?;
        }
        Ok(())
    }

    fn copy(&mut self, now: &Now<'_>, copy: &Copy) -> Result<(), ValidateError> {
        if let Some(table) = copy.table {
            self.table(now, table, copy.at, false)?;
        }
        let content = match copy.moved {
            Moved::Sequences(kv) => return self.move_cache(now, kv, copy),
            Moved::Deferred(value) => return self.move_deferred(now, value, copy),
            Moved::Weights(op) => {
                let blobs = self.weights_of(op, copy.at.layer);
                let found = self.first_of(copy.from);
                let wanted =
                    blobs.iter().copied().map(Content::Weights).find(|w| Some(*w) == found);
                wanted.or_else(|| blobs.first().copied().map(Content::Weights))
            }
            // The number of additions to the residual stream is checked at its use.
            Moved::Value(Value::Hidden) => {
                let updates = match self.first_of(copy.from) {
                    Some(Content::Hidden { updates, .. }) => updates,
                    _ => 0,
                };
                Some(now.value(Value::Hidden, copy.at, updates))
            }
            Moved::Value(value) => Some(now.value(value, copy.at, 0)),
            // Positions up to the current one are moved, whether or not further ones are present.
            Moved::Cache(kv) => {
                Some(now.cache(kv, copy.at, normal(copy.chunk).unwrap_or(Chunk::WHOLE)))
            }
        };
        let Some(content) = content else {
            let problem = "it moves weights of an operation that has none".into();
            return Err(ValidateError::Malformed { site: now.site(), problem });
        };
        self.need_value(now, copy.from, content)?;
        self.write_value(now, copy.to, content);
        Ok(())
    }

    /// Returns true if the GPU multiplies these weights in another format than the stored one.
    fn is_widened(&self, weights: Weights) -> bool {
        let map = &self.plan.map;
        decompressed(map.weight_formats.of(&self.plan.config, weights)).is_some()
    }

    fn decompress(&mut self, now: &Now<'_>, decompress: &Decompress) -> Result<(), ValidateError> {
        let blobs = self.weights_of(decompress.op, decompress.at.layer);
        let Some(weights) = blobs.first().copied().filter(|blob| self.is_widened(*blob)) else {
            let problem = "it decompresses weights that are not compressed".into();
            return Err(ValidateError::Malformed { site: now.site(), problem });
        };
        self.need(now, decompress.from, Content::Weights(weights))?;
        self.write(now, decompress.to, Content::Decompressed(weights));
        Ok(())
    }

    fn append(&mut self, now: &Now<'_>, append: &Append) -> Result<(), ValidateError> {
        let at = append.at;
        self.table(now, append.table, at, false)?;
        let value = append.kv.fresh(self.plan.config.at(at.layer));
        self.need_value(now, append.from, now.value(value, at, 0))?;
        self.fill(now, Cache::of(append), append.to)
    }

    /// Appends the rows of a stream to a cache or a state, after those of the preceding streams.
    fn fill(&mut self, now: &Now<'_>, cache: Cache, to: Region) -> Result<(), ValidateError> {
        let step = now.event.step;
        let shape = &self.program.shape;
        let stream = now.event.instruction.at().map_or(0, |at| own_stream(shape, at));
        let streams = self.streams_of(cache.chunk);
        // Rows may be appended in any order if they are only read after the program has ended.
        let before = match self.program.shape.rows {
            Rows::WholePrompts => 0,
            Rows::Chunks | Rows::Single | Rows::Moves(_) => stream,
        };
        self.need(now, to, cache.with(step, before))?;
        let filled = self.filled.entry(to.buffer).or_default();
        if filled.len() == usize::from(streams) {
            filled.clear();
        }
        let held = self.buffers[to.buffer.0 as usize].read(Region::whole(to.buffer)).first();
        let held = held.and_then(|part| part.as_ref()).map(|held| held.content);
        let is_of_step = matches!(held, Some(Content::Cache { step: of, .. }) if of == step);
        if !is_of_step || !filled.insert(stream) {
            let problem = "its rows were appended before".into();
            return Err(ValidateError::Malformed { site: now.site(), problem });
        }
        let in_order = (0..).zip(filled.iter()).take_while(|(n, stream)| n == *stream).count();
        let content = match (filled.len() == usize::from(streams), in_order as u16) {
            (true, _) => cache.with(step + 1, 0),
            (false, in_order) => cache.with(step, in_order),
        };
        self.write(now, to, content);
        Ok(())
    }

    /// Checks a batch's table, which must be in the state that the samples of the previous step
    /// left.
    fn table(
        &mut self,
        now: &Now<'_>,
        region: Region,
        at: At,
        sample: bool,
    ) -> Result<(), ValidateError> {
        let batches = self.plan.shape.batches;
        if at.batch >= batches || at.stream >= self.program.shape.streams {
            let problem = "it is for a batch or a stream that the run does not have".into();
            return Err(ValidateError::Malformed { site: now.site(), problem });
        }
        let taken = self.tables.iter().any(|(id, t)| t.batch == at.batch && *id != region.buffer);
        let new = Table { batch: at.batch, samples: 0 };
        let table = self.tables.entry(region.buffer).or_insert(new);
        if taken || table.batch != at.batch {
            let problem = "its step table belongs to another batch".into();
            return Err(ValidateError::Malformed { site: now.site(), problem });
        }
        let (step, streams) = (now.event.step, self.program.shape.samples());
        // Samples of a step are consecutive, so a stream's own sample is among the first.
        let of_step = i64::from(table.samples) - i64::from(step * streams);
        let stream = i64::from(own_stream(&self.program.shape, at));
        if !(0..=stream).contains(&of_step) {
            let problem = format!(
                "it needs the step table after {step} sampled steps, but finds {} samples of \
                 {streams} streams",
                table.samples
            );
            return Err(ValidateError::Malformed { site: now.site(), problem: problem.into() });
        }
        if sample && of_step < stream {
            let problem = "an earlier stream is not sampled yet".into();
            return Err(ValidateError::Malformed { site: now.site(), problem });
        }
        table.samples += u32::from(sample);
        Ok(())
    }

    /// Checks a needed value ([`Walk::need`]) whose rows may be of two kinds.
    fn need_value(
        &self,
        now: &Now<'_>,
        region: Region,
        needed: Content,
    ) -> Result<(), ValidateError> {
        let mut parts = self.by_rows(region, needed).into_iter();
        parts.try_for_each(|(region, needed)| self.need(now, region, needed))
    }

    /// Writes a value ([`Walk::write`]) whose rows may be of two kinds.
    fn write_value(&mut self, now: &Now<'_>, region: Region, content: Content) {
        for (region, content) in self.by_rows(region, content) {
            self.write(now, region, content);
        }
    }

    fn need(&self, now: &Now<'_>, region: Region, needed: Content) -> Result<(), ValidateError> {
        let buffer = region.buffer.0 as usize;
        let name = || self.plan.buffers[buffer].name.as_str().into();
        let parts = self.buffers[buffer].read(region);
        if parts.is_empty() {
            let needed = needed.text(&self.plan.config).into();
            return Err(ValidateError::Unwritten { site: now.site(), buffer: name(), needed });
        }
        for held in parts {
            let Some(held) = held else {
                let needed = needed.text(&self.plan.config).into();
                return Err(ValidateError::Unwritten { site: now.site(), buffer: name(), needed });
            };
            if !held.content.satisfies(needed) {
                return Err(ValidateError::Stale {
                    site: Box::new(now.site()),
                    buffer: name(),
                    needed: needed.text(&self.plan.config).into(),
                    found: held.content.text(&self.plan.config).into(),
                    writer: held.writer.clone().map(Box::new),
                });
            }
        }
        Ok(())
    }

    fn write(&mut self, now: &Now<'_>, region: Region, content: Content) {
        let held = Held { content, writer: Some(now.site()) };
        self.buffers[region.buffer.0 as usize].write(region, held);
    }

    fn first_of(&self, region: Region) -> Option<Content> {
        let parts = self.buffers[region.buffer.0 as usize].read(region);
        parts.first()?.as_ref().map(|held| held.content)
    }

    /// Returns the number of additions to the residual stream that precede an operation.
    fn hidden_updates_before(&self, op: Op, at: At) -> u32 {
        let config = &self.plan.config;
        match at.layer.map(usize::from) {
            Some(layer) => {
                let place = config.index_in_layer(layer, op).unwrap_or(0);
                let before = &config.layer_ops(layer)[..place];
                self.additions_before[layer] + additions(config.of_layer(layer), before)
            }
            None if op.precedes_layers() => 0,
            None => self.additions_before[config.num_layers],
        }
    }

    /// Returns the blobs that an operation reads, in the order of its instruction.
    fn weights_of(&self, op: Op, layer: Option<u16>) -> Vec<Weights> {
        let config = &self.plan.config;
        if op.weights(config.at(layer)).is_none() {
            return Vec::new();
        }
        let blob = match Weights::of(op, layer) {
            Weights::Head if config.tied_embeddings => Weights::Embedding,
            blob => blob,
        };
        let positions =
            (op == Op::Embed && config.learned_positions.is_some()).then_some(Weights::Positions);
        let inputs = (op == Op::PerLayerEmbed).then_some(Weights::PerLayerTable);
        std::iter::once(blob).chain(positions).chain(inputs).collect()
    }
}
