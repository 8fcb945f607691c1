//! What each buffer holds, followed through prefill and two decode steps.
//!
//! Runs after `race`: with all conflicting accesses ordered, every order that respects
//! happens-before shows each read the same content, so walking one of them is enough.

use std::collections::{BTreeMap, BTreeSet};

use model::ops::{Kv, Op, Value};

use crate::formats::decompressed;
use crate::ir::{
    Append, At, BufferId, Compute, Copy, Decompress, Instruction, Moved, Phase, Read, Region,
};
use crate::map::Chunk;
use crate::plan::Plan;
use crate::topology::Engine;
use crate::weights::Weights;

use super::error::{Site, ValidateError};
use super::order::{Event, Order};
use super::shape::normal;

mod held;

use held::{Content, Held, Parts, Stream};

#[derive(Debug, Default)]
struct Table {
    batch: u16,
    /// Micro-batches sampled in prefill.
    micros: BTreeSet<u16>,
    /// Decode steps sampled.
    steps: u32,
}

struct Walk<'a> {
    plan: &'a Plan,
    buffers: Vec<Parts>,
    tables: BTreeMap<BufferId, Table>,
    /// Micro-batches of prefill that each cache holds.
    filled: BTreeMap<BufferId, BTreeSet<u16>>,
}

/// # Errors
/// `Unwritten` or `Stale` for the first read that does not find what it is for; `Incomplete` when a
/// phase ends without having sampled all rows or filled all caches.
pub(super) fn check(
    plan: &Plan,
    prefill: &Order<'_>,
    decode: &Order<'_>,
) -> Result<(), ValidateError> {
    let mut walk = Walk {
        plan,
        buffers: vec![Parts::default(); plan.buffers.len()],
        tables: BTreeMap::new(),
        filled: BTreeMap::new(),
    };
    for placed in &plan.weights {
        walk.load(placed.buffer, placed.weights);
    }
    for resident in &plan.resident {
        let source = walk.buffers[resident.from.0 as usize].clone();
        walk.buffers[resident.to.0 as usize] = source;
    }
    // Prefill runs once, then a barrier: its later step is there only for races.
    for event in prefill.events.iter().filter(|event| event.step == 0) {
        walk.event(prefill, event)?;
    }
    walk.end_prefill()?;
    for event in &decode.events {
        walk.event(decode, event)?;
    }
    walk.end_decode(super::STEPS)
}

impl<'a> Walk<'a> {
    fn load(&mut self, buffer: BufferId, weights: Weights) {
        let held = Held { content: Content::Weights(weights), writer: None };
        self.buffers[buffer.0 as usize].write(None, held);
    }

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
        for (value, region) in compute.op.reads().iter().zip(&compute.inputs) {
            let content = now.value(*value, at, self.hidden_updates_before(compute.op, at));
            self.need(now, *region, content)?;
        }
        for (kv, region) in compute.op.caches().iter().zip(&compute.caches) {
            let chunk = normal(compute.chunk).unwrap_or(Chunk::WHOLE);
            if self.has_cached(now, at) {
                self.need(now, *region, now.cache(*kv, at, chunk))?;
            }
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
            let content = match widened {
                true => Content::Decompressed(weights),
                false => Content::Weights(weights),
            };
            self.need(now, *region, content)?;
        }
        if let (Some(value), Some(output)) = (compute.op.writes(), compute.output) {
            let updates = self.hidden_updates_before(compute.op, at);
            let added = u32::from(compute.op != Op::Embed);
            self.write(now, output, now.value(value, at, updates + added));
        }
        Ok(())
    }

    fn copy(&mut self, now: &Now<'_>, copy: &Copy) -> Result<(), ValidateError> {
        if let Some(table) = copy.table {
            self.table(now, table, copy.at, false)?;
        }
        let content = match copy.moved {
            Moved::Weights(op) => {
                let blobs = self.weights_of(op, copy.at.layer);
                let found = self.first_of(copy.from);
                let wanted =
                    blobs.iter().copied().map(Content::Weights).find(|w| Some(*w) == found);
                wanted.or_else(|| blobs.first().copied().map(Content::Weights))
            }
            // How often the residual stream was added to is checked where it is used.
            Moved::Value(Value::Hidden) => {
                let updates = match self.first_of(copy.from) {
                    Some(Content::Hidden { updates, .. }) => updates,
                    _ => 0,
                };
                Some(now.value(Value::Hidden, copy.at, updates))
            }
            Moved::Value(value) => Some(now.value(value, copy.at, 0)),
            // Positions up to the current one are moved, whether or not more are there already.
            Moved::Cache(kv) => {
                Some(now.cache(kv, copy.at, normal(copy.chunk).unwrap_or(Chunk::WHOLE)))
            }
        };
        let Some(content) = content else {
            let problem = "it moves weights of an operation that has none".into();
            return Err(ValidateError::Malformed { site: now.site(), problem });
        };
        if !matches!(copy.moved, Moved::Cache(_)) || self.has_cached(now, copy.at) {
            self.need(now, copy.from, content)?;
        }
        self.write(now, copy.to, content);
        Ok(())
    }

    /// Whether a cache must hold anything of this group when an instruction reads it.
    fn has_cached(&self, now: &Now<'_>, at: At) -> bool {
        now.order.phase == Phase::Decode || at.micro > 0
    }

    /// Whether the GPU multiplies another form of these weights than the stored one.
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

    fn read(&mut self, now: &Now<'_>, read: &Read) -> Result<(), ValidateError> {
        let blobs = self.weights_of(read.op, read.at.layer);
        let Some(weights) = blobs.first().copied() else {
            let problem = "it reads weights of an operation that has none".into();
            return Err(ValidateError::Malformed { site: now.site(), problem });
        };
        self.need(now, read.from, Content::Weights(weights))?;
        self.write(now, read.to, Content::Weights(weights));
        Ok(())
    }

    fn append(&mut self, now: &Now<'_>, append: &Append) -> Result<(), ValidateError> {
        let (at, step) = (append.at, now.event.step);
        self.table(now, append.table, at, false)?;
        let value = match append.kv {
            Kv::K => Value::Key,
            Kv::V => Value::Value,
        };
        self.need(now, append.from, now.value(value, at, 0))?;
        let chunk = normal(Some(append.chunk)).unwrap_or(Chunk::WHOLE);
        let content = now.cache(append.kv, at, chunk);
        let cache = append.to.buffer;
        if now.order.phase == Phase::Prefill {
            let filled = self.filled.entry(cache).or_default();
            let first = filled.is_empty();
            if !filled.insert(at.micro) {
                let problem = "its rows were appended before".into();
                return Err(ValidateError::Malformed { site: now.site(), problem });
            }
            let in_order = (0..).zip(filled.iter()).take_while(|(n, micro)| n == *micro).count();
            let streams = if self.plan.shape.is_chunked() { in_order } else { filled.len() };
            let (before, after) = (content.with_streams(0), content.with_streams(streams as u16));
            if !first {
                self.need(now, append.to, before)?;
            }
            self.write(now, append.to, after);
            return Ok(());
        }
        self.need(now, append.to, content)?;
        let found = self.first_of(append.to);
        if let Some(Content::Cache { appended, .. }) = found
            && appended != step
        {
            let problem = format!("the cache has rows of {appended} steps already");
            return Err(ValidateError::Malformed { site: now.site(), problem: problem.into() });
        }
        if let Content::Cache { kv, layer, batch, chunk, streams, appended } = content {
            let appended = appended + 1;
            let content = Content::Cache { kv, layer, batch, chunk, streams, appended };
            self.write(now, append.to, content);
        }
        Ok(())
    }

    /// Each batch has one table; in decode it must be the state that the sampling of the step before
    /// left.
    fn table(
        &mut self,
        now: &Now<'_>,
        region: Region,
        at: At,
        sample: bool,
    ) -> Result<(), ValidateError> {
        let batches = self.plan.shape.batches;
        if at.batch >= batches || at.micro >= self.micros(now.order.phase) {
            let problem = "it is for a batch or micro-batch that the run does not have".into();
            return Err(ValidateError::Malformed { site: now.site(), problem });
        }
        let taken = self.tables.iter().any(|(id, t)| t.batch == at.batch && *id != region.buffer);
        let table = self
            .tables
            .entry(region.buffer)
            .or_insert_with(|| Table { batch: at.batch, ..Table::default() });
        if taken || table.batch != at.batch {
            let problem = "its step table belongs to another batch".into();
            return Err(ValidateError::Malformed { site: now.site(), problem });
        }
        if now.order.phase == Phase::Prefill {
            if sample && !table.micros.insert(at.micro) {
                let problem = "its rows were sampled before".into();
                return Err(ValidateError::Malformed { site: now.site(), problem });
            }
            return Ok(());
        }
        if table.steps != now.event.step {
            let problem = format!(
                "it needs the step table after {} sampled steps, but finds {}",
                now.event.step, table.steps
            );
            return Err(ValidateError::Malformed { site: now.site(), problem: problem.into() });
        }
        table.steps += u32::from(sample);
        Ok(())
    }

    fn need(&self, now: &Now<'_>, region: Region, needed: Content) -> Result<(), ValidateError> {
        let buffer = region.buffer.0 as usize;
        let name = || self.plan.buffers[buffer].name.as_str().into();
        let parts = self.buffers[buffer].read(region.chunk);
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
        self.buffers[region.buffer.0 as usize].write(region.chunk, held);
    }

    fn first_of(&self, region: Region) -> Option<Content> {
        let parts = self.buffers[region.buffer.0 as usize].read(region.chunk);
        parts.first()?.as_ref().map(|held| held.content)
    }

    /// Additions into the residual stream that precede an operation.
    fn hidden_updates_before(&self, op: Op, at: At) -> u32 {
        let before = match at.layer {
            Some(layer) => 2 * u32::from(layer),
            None if op == Op::Embed => 0,
            None => 2 * self.plan.config.num_layers as u32,
        };
        before + u32::from(matches!(op, Op::Norm1 | Op::Down | Op::Fc1))
    }

    /// The blobs that an operation reads, in the order of its instruction.
    fn weights_of(&self, op: Op, layer: Option<u16>) -> Vec<Weights> {
        let config = &self.plan.config;
        if op.weights(config).is_none() {
            return Vec::new();
        }
        let blob = match Weights::of(op, layer) {
            Weights::Head if config.tied_embeddings => Weights::Embedding,
            blob => blob,
        };
        let positions = (op == Op::Embed && config.rope.is_none()).then_some(Weights::Positions);
        std::iter::once(blob).chain(positions).collect()
    }

    fn micros(&self, phase: Phase) -> u16 {
        match phase {
            Phase::Prefill => self.plan.shape.streams(),
            Phase::Decode => 1,
        }
    }

    fn end_prefill(&self) -> Result<(), ValidateError> {
        let micros = usize::from(self.micros(Phase::Prefill));
        let incomplete = |problem: String| ValidateError::Incomplete {
            phase: Phase::Prefill,
            problem: problem.into_boxed_str(),
        };
        for batch in 0..self.plan.shape.batches {
            let sampled = self.tables.values().find(|table| table.batch == batch);
            let count = sampled.map_or(0, |table| table.micros.len());
            if count != micros {
                return Err(incomplete(format!(
                    "{count} of {micros} micro-batches of batch {batch} are sampled"
                )));
            }
        }
        for (buffer, filled) in &self.filled {
            if filled.len() != micros {
                let name = &self.plan.buffer(*buffer).name;
                let count = filled.len();
                return Err(incomplete(format!("{name} gets {count} of {micros} micro-batches")));
            }
        }
        Ok(())
    }

    fn end_decode(&self, steps: u32) -> Result<(), ValidateError> {
        match self.tables.values().find(|table| table.steps != steps) {
            None => Ok(()),
            Some(table) => Err(ValidateError::Incomplete {
                phase: Phase::Decode,
                problem: format!("batch {} is not sampled in every step", table.batch).into(),
            }),
        }
    }
}

/// The instruction that is looked at.
struct Now<'a> {
    order: &'a Order<'a>,
    event: &'a Event<'a>,
    plan: &'a Plan,
}

impl Now<'_> {
    fn site(&self) -> Site {
        self.order.site(self.event)
    }

    fn on_device(&self) -> bool {
        matches!(self.plan.topology.lane(self.event.lane).engine, Engine::Gpu { .. })
    }

    fn value(&self, value: Value, at: At, updates: u32) -> Content {
        let (stream, step) = (Stream { batch: at.batch, micro: at.micro }, self.event.step);
        match value {
            Value::Hidden => Content::Hidden { at: stream, updates, step },
            _ => Content::Value { value, layer: at.layer, at: stream, step },
        }
    }

    fn cache(&self, kv: Kv, at: At, chunk: Chunk) -> Content {
        let appended = self.event.step;
        let streams = match self.order.phase {
            Phase::Prefill => at.micro,
            Phase::Decode => self.plan.shape.streams(),
        };
        Content::Cache { kv, layer: at.layer, batch: at.batch, chunk, streams, appended }
    }
}
